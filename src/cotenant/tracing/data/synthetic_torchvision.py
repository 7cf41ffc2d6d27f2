"""Data sets of torchvision without their files: their samples, and the attributes that scripts read and index.

A made-up one stays of its class, or of the script's own below it: what a script overrides is its own, what it leaves to
torchvision is answered here. `data` are views of one blank sample, so that they take no memory until they are copied.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import torch

from cotenant.tracing.data.data_options import SyntheticSample

SYNTHETIC_SAMPLES = 50_000
_KNOWN_SIZES = {"MNIST": (60_000, 10_000), "CIFAR10": (50_000, 10_000)}
"""Samples to train on and to test with, of a kind and those made of it: scripts split them by their number."""
_IMAGES, _OBJECTS = 1000, 8
_SYNTHETIC = "_made_up_by_cotenant"


def blank_image(stand_in: SyntheticSample) -> Any:
    """A blank image of the stand-in's size, in color if it has three channels."""
    channels, height, width = image_size(stand_in)
    module = importlib.import_module("PIL.Image")
    return module.new("RGB" if channels == 3 else "L", (width, height))


def image_size(stand_in: SyntheticSample) -> tuple[int, int, int]:
    """Channels, height and width."""
    shape = stand_in.shape
    return (shape[0], shape[1], shape[2]) if len(shape) == 3 else (3, shape[-2] if len(shape) > 1 else 1, shape[-1])


def patch_dataset_class(kind: Any, stand_in: SyntheticSample, told: Callable[[str], None]) -> None:
    """Let the data set `kind` be made up where making it says that its data are not here."""
    begin = kind.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if "_beginning" in self.__dict__:  # called by the one of a subclass, which answers
            begin(self, *args, **kwargs)
            return
        self.__dict__["_beginning"] = True
        try:
            begin(self, *args, **kwargs)
        except (RuntimeError, OSError):  # each data set has its own words for it
            told(f"the data of `{type(self).__name__}`")
            asked = inspect.signature(begin).bind_partial(self, *args, **kwargs).arguments
            _synthesize(self, stand_in, {**asked, **asked.pop("kwargs", {})})
        finally:
            del self.__dict__["_beginning"]

    kind.__init__ = init
    for base, name in itertools.product(kind.__mro__, ("__getitem__", "__len__")):
        own = vars(base).get(name)
        if base.__module__.startswith("torchvision.") and own is not None and not hasattr(own, "answers"):
            setattr(base, name, _answering(name, own))


def _answering(name: str, own: Any) -> Any:
    @functools.wraps(own)
    def call(self: Any, *args: Any) -> Any:
        made = self.__dict__.get(_SYNTHETIC)
        return own(self, *args) if made is None else made[name](*args)

    vars(call)["answers"] = True
    return call


def _synthesize(dataset: Any, stand_in: SyntheticSample, asked: dict[str, Any]) -> None:
    sets = importlib.import_module("torchvision.datasets")
    if not hasattr(dataset, "transforms"):
        names = ("transforms", "transform", "target_transform")
        sets.VisionDataset.__init__(dataset, asked.get("root"), **{each: asked.get(each) for each in names})
    classes = [str(each) for each in range(stand_in.classes)]
    count = _size(dataset, sets, asked.get("train", True))
    labels = importlib.import_module("numpy").arange(count) % stand_in.classes
    known = {
        "classes": classes,
        "class_to_idx": {each: index for index, each in enumerate(classes)},
        "targets": labels.tolist(),
        **_stored(dataset, sets, stand_in, labels),
    }
    for name, value in known.items():
        with contextlib.suppress(AttributeError):  # a property that is made of the others
            setattr(dataset, name, value)

    def get(index: int) -> Any:
        return _transformed(dataset, sets, stand_in, int(labels[int(index)]), joint="transforms" in asked)

    dataset.__dict__[_SYNTHETIC] = {"__getitem__": get, "__len__": lambda: count}


def _size(dataset: Any, sets: Any, train: bool) -> int:
    for name, sizes in _KNOWN_SIZES.items():
        if isinstance(dataset, getattr(sets, name)):
            return sizes[0 if train else 1]
    return SYNTHETIC_SAMPLES


def _transformed(dataset: Any, sets: Any, stand_in: SyntheticSample, label: int, *, joint: bool) -> tuple[Any, ...]:
    """An image and its label or mask, or two images and the flow between them, as the data set hands them out."""
    image = blank_image(stand_in)
    if any(each.__name__ == "FlowDataset" for each in type(dataset).__mro__):  # which torchvision keeps to itself
        flow = torch.zeros(2, image.height, image.width)
        valid = (flow[0] == 0).numpy() if dataset._has_builtin_flow_mask else None
        found = (image, image, flow.numpy(), valid)
        found = found if dataset.transforms is None else dataset.transforms(*found)
        return tuple(found if found[3] is not None else found[:3])
    of_masks = isinstance(dataset, (sets.VOCSegmentation, sets.SBDataset, sets.Cityscapes))
    target: Any = image.convert("L") if of_masks else label
    if joint or of_masks:
        return (image, target) if dataset.transforms is None else tuple(dataset.transforms(image, target))
    image = image if dataset.transform is None else dataset.transform(image)  # which a script may set later
    return image, target if dataset.target_transform is None else dataset.target_transform(target)


def _stored(dataset: Any, sets: Any, stand_in: SyntheticSample, labels: Any) -> dict[str, Any]:
    """What this kind of data set holds of all its samples, as torchvision documents or names it."""
    channels, height, width = image_size(stand_in)

    def blank(*shape: int) -> Any:
        return torch.zeros((), dtype=torch.uint8).expand(len(labels), *shape)

    if isinstance(dataset, sets.MNIST):
        return {"data": blank(height, width), "targets": torch.from_numpy(labels)}
    if isinstance(dataset, sets.CIFAR10):
        return {"data": blank(height, width, channels).numpy()}
    if isinstance(dataset, (sets.SVHN, sets.STL10)):
        return {"data": blank(channels, height, width).numpy(), "labels": labels}
    if isinstance(dataset, sets.DatasetFolder):
        samples = [(f"{label}/{index}.jpg", label) for index, label in enumerate(labels.tolist())]
        return {"samples": samples, "imgs": samples}
    return {}


def patch_coco(module: Any, stand_in: SyntheticSample, told: Callable[[str], None]) -> None:
    """Let pycocotools have annotations where their file is not here: as many in an image as COCO has on average."""
    begin = module.COCO.__init__

    @functools.wraps(begin)
    def init(self: Any, annotation_file: Any = None) -> None:
        try:
            begin(self, annotation_file)
        except (FileNotFoundError, NotADirectoryError):
            told(f"`{annotation_file}`")
            begin(self)
            self.dataset = _annotations(stand_in)
            self.createIndex()

    module.COCO.__init__ = init


def _annotations(stand_in: SyntheticSample) -> dict[str, Any]:
    """Source of the average, 7.7 instances of objects in an image: Lin et al., Microsoft COCO, section 5."""
    _, height, width = image_size(stand_in)
    right, low = width // 2, height // 2
    object_ = {
        "bbox": [0.0, 0.0, float(right), float(low)],
        "area": float(right * low),
        "segmentation": [[0.0, 0.0, right, 0.0, right, low, 0.0, low]],
        "keypoints": [1, 1, 2] * 17,
        "num_keypoints": 17,
        "iscrowd": 0,
    }
    return {
        "info": {},
        "images": [
            {"id": image, "file_name": f"{image}.jpg", "height": height, "width": width} for image in range(_IMAGES)
        ],
        "categories": [{"id": 1 + each, "name": str(each)} for each in range(stand_in.classes)],
        "annotations": [
            {**object_, "id": 1 + index, "image_id": index // _OBJECTS, "category_id": 1 + index % stand_in.classes}
            for index in range(_IMAGES * _OBJECTS)
        ],
    }
