"""ResNet-50 on random images of ImageNet's shape: Adam, fp32."""

from imagenet import CLASSES, main
from torchvision import models


def build_model():
    return models.resnet50(num_classes=CLASSES)


if __name__ == "__main__":
    main(__doc__, build_model)
