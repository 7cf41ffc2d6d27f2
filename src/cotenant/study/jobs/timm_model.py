"""A model of timm on synthetic images, for the collocation study: EfficientNetV2-S, CaiT-XXS24 and others.

A program of its own, as all jobs here: the study runs it by its path, in the jobs' Python.
"""

from __future__ import annotations

import timm
import torch
from image_classifier import image_options, train_on_images


def main() -> None:
    """Train for some epochs."""
    parser = image_options(__doc__ or "")
    parser.add_argument("--model", required=True)
    options = parser.parse_args()
    sized = {"img_size": options.image_size} if options.model.startswith(("cait", "vit", "deit")) else {}
    train_on_images(
        timm.create_model(options.model, num_classes=options.classes, **sized),
        lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3),
        options,
    )


if __name__ == "__main__":
    main()
