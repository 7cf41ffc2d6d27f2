"""EfficientNet-B0 on random images of ImageNet's shape: Adam, fp32."""

from imagenet import CLASSES, main
from torchvision import models


def build_model():
    return models.efficientnet_b0(num_classes=CLASSES)


if __name__ == "__main__":
    main(__doc__, build_model)
