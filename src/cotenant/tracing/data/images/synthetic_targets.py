"""What an item of a data set of torchvision has beside its image, where that is more than the number of a class.

A module of its own: classes of torchvision have targets of their own kinds.
Source: torchvision/datasets/celeba.py, oxford_iiit_pet.py, voc.py, sbd.py, cityscapes.py.
"""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import torch

from cotenant.tracing.data.images.voc_lists import annotation

_CELEBA_NUMBERS = {"attr": 40, "bbox": 4, "landmarks": 10}


def has_masks(dataset: Any, sets: Any) -> bool:
    """Whether the target of an item is an image of classes; `sets`: the module `torchvision.datasets`."""
    if isinstance(dataset, (sets.VOCSegmentation, sets.SBDataset, sets.Cityscapes)):
        return True
    return "segmentation" in getattr(dataset, "_target_types", ())


def synthetic_target(dataset: Any, sets: Any, image: Any, label: int) -> Any:
    """The target of an item: a label, a mask of the size of `image`, boxes, attributes, or several of them."""
    if isinstance(dataset, sets.CelebA):
        return _alone([_of_face(kind, label) for kind in dataset.target_type])
    if isinstance(dataset, sets.VOCDetection):
        text = annotation(image.height, image.width)
        return dataset.parse_voc_xml(ElementTree.fromstring(text))  # noqa: S314 - a text of ours
    kinds = getattr(dataset, "_target_types", None)
    if kinds is not None:  # Oxford-IIIT Pet: cats and dogs are the two classes of `binary-category`
        own = {"segmentation": image.convert("L"), "binary-category": label % 2}
        return _alone([own.get(kind, label) for kind in kinds])
    return image.convert("L") if has_masks(dataset, sets) else label


def _of_face(kind: str, label: int) -> torch.Tensor:
    if kind == "identity":
        return torch.tensor(label)
    return torch.arange(_CELEBA_NUMBERS[kind]) % 2  # both values of an attribute


def _alone(targets: list[Any]) -> Any:
    """Several targets are a tuple; one is no tuple, and there may be none."""
    if len(targets) > 1:
        return tuple(targets)
    return targets[0] if targets else None
