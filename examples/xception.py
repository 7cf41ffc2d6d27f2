"""Xception on random images of ImageNet's shape: Adam, fp32."""

import timm
from imagenet import CLASSES, main


def build_model():
    return timm.create_model("legacy_xception", num_classes=CLASSES)


if __name__ == "__main__":
    main(__doc__, build_model)
