"""Inception v3, without its auxiliary head, on random images of ImageNet's shape: Adam, fp32."""

from imagenet import CLASSES, main
from torchvision import models


def build_model():
    return models.inception_v3(num_classes=CLASSES, aux_logits=False, init_weights=True)


if __name__ == "__main__":
    main(__doc__, build_model, image_size=299)
