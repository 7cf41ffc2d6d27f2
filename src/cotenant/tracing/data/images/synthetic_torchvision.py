"""Synthetic data sets of torchvision: their samples, and the attributes that scripts read and index.

A synthetic data set keeps its class, or the script's own subclass: methods that a script overrides stay its own. `data`
is a view of one blank sample, so it takes no memory until it is copied.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import io
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cotenant.tracing.data.data_options import CLASSES, SyntheticSample, image_size
from cotenant.tracing.data.images.synthetic_clips import clip_attributes, has_clips, reading_clips
from cotenant.tracing.data.images.synthetic_targets import has_masks, synthetic_target
from cotenant.tracing.data.sample_paths import MISSING_FILE
from cotenant.tracing.patches.registry import Patch, Phase

SYNTHETIC_SAMPLES = 50_000
_KNOWN_SIZES = {"MNIST": (60_000, 10_000), "CIFAR10": (50_000, 10_000)}
"""Samples for training and for testing, of a class and its subclasses: scripts split data sets by these numbers."""
_KNOWN_IMAGES = {
    "CIFAR100": ((3, 32, 32), 100), "CIFAR10": ((3, 32, 32), 10), "MNIST": ((1, 28, 28), 10),
    "SVHN": ((3, 32, 32), 10), "STL10": ((3, 96, 96), 10), "USPS": ((1, 16, 16), 10),
}  # fmt: skip
"""Images and classes of data sets that have one size, and of their subclasses; EMNIST has other numbers of classes.

Source: torchvision/datasets, the text of each class.
"""
_IMAGES, _OBJECTS = 1000, 8
_COCO_CLASSES, _COCO_LAST = 80, 90
_COCO_UNUSED = frozenset((12, 26, 29, 30, 45, 66, 68, 69, 71, 83))
"""Numbers up to 91 that no object of its images has. Source: cocodataset.org, instances_val2017.json."""
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_OPAQUE = frozenset({"JPEG", "PPM"})
"""Modes of Pillow by the number of channels, and formats that have no transparency."""
_DOT_DISTANCE = 16
_SYNTHETIC = "_cotenant_synthetic"
_IN_INIT = "_cotenant_in_init"


def blank_image(sample: SyntheticSample) -> Any:
    """A blank image of the sample's size, in color if it has three channels, with transparency if it has four.

    Every 16th pixel of every 16th row differs, by 1, so that crops have some, too: scripts divide by the standard
    deviation of their images and by the largest number of their masks, and 1 is a class of masks.
    """
    return _made_image(*image_size(sample)).copy()


@functools.lru_cache(maxsize=8)
def _made_image(channels: int, height: int, width: int) -> Any:
    bands = channels if channels in _MODES else 1
    dots = ((b"\x01" * bands + bytes((_DOT_DISTANCE - 1) * bands)) * (width // _DOT_DISTANCE + 1))[: width * bands]
    rows = dots + bytes((_DOT_DISTANCE - 1) * len(dots))
    content = (rows * (height // _DOT_DISTANCE + 1))[: height * len(dots)]
    module = importlib.import_module("PIL.Image")
    return module.frombytes(_MODES[bands], (width, height), content)


def encoded_once(image: Any) -> Any:
    """`image`, which a table has in a thousand rows, and `datasets` encodes for each (`image_to_bytes`, image.py)."""
    encode = image.save

    @functools.cache
    def content(format_: str) -> bytes:
        encode(file := io.BytesIO(), format=format_)
        return file.getvalue()

    def save(file: Any, *args: Any, **options: Any) -> None:
        if args or list(options) != ["format"] or not hasattr(file, "write"):
            encode(file, *args, **options)
        else:
            file.write(content(options["format"]))

    image.save = save
    return image


def image_bytes(sample: SyntheticSample, format_: str) -> bytes:
    """A file with a blank image, in a format of Pillow."""
    image, content = blank_image(sample), io.BytesIO()
    (image.convert("RGB") if image.mode == "RGBA" and format_ in _OPAQUE else image).save(content, format_)
    return content.getvalue()


def synthetic_tensor(sample: SyntheticSample) -> torch.Tensor:
    """Zeros, since values do not matter; whole numbers count up, so that labels differ."""
    dtype = getattr(torch, sample.dtype)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.zeros(sample.shape, dtype=dtype)
    count = torch.Size(sample.shape).numel()
    return (torch.arange(count) % min(sample.classes, 127)).reshape(sample.shape).to(dtype)


def known_sample(kind: type) -> SyntheticSample | None:
    """A sample of a data set of torchvision, or of a script's own subclass; None for one of many sizes."""
    for base in kind.__mro__:
        if base.__module__.startswith("torchvision.") and base.__name__ in _KNOWN_IMAGES:
            shape, classes = _KNOWN_IMAGES[base.__name__]
            return SyntheticSample(shape=shape, dtype="uint8", classes=classes)
    return None


def dataset_patches(module: Any, sample: SyntheticSample, warn: Callable[..., None]) -> Iterator[Patch]:
    """The data sets of `torchvision.datasets`: construction, items and length."""
    reason, source = "Its construction raises where the files are missing.", "torchvision/datasets/vision.py"
    yield Patch(
        target="torchvision.datasets.video_utils:VideoClips.get_clip", phase=Phase.DATA, wraps=True,
        replacement=reading_clips, reason="It decodes a video.", source="torchvision/datasets/video_utils.py",
    )  # fmt: skip
    wrapped: set[str] = set()
    for class_name in module.__all__:
        kind = getattr(module, class_name)
        if not isinstance(kind, type) or class_name in ("FakeData", "VisionDataset"):
            continue
        yield Patch(
            target=f"torchvision.datasets:{class_name}.__init__", phase=Phase.DATA, wraps=True,
            replacement=functools.partial(_synthesizing_init, sample, warn), reason=reason, source=source,
        )  # fmt: skip
        for base, name in itertools.product(kind.__mro__, ("__getitem__", "__len__")):
            target = f"{base.__module__}:{base.__qualname__}.{name}"
            if base.__module__.startswith("torchvision.") and name in vars(base) and target not in wrapped:
                wrapped.add(target)
                yield Patch(
                    target=target, phase=Phase.DATA, wraps=True,
                    replacement=functools.partial(_synthetic_or_original, name), reason=reason, source=source,
                )  # fmt: skip


def _synthesizing_init(sample: SyntheticSample, warn: Callable[..., None], original: Any) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if _IN_INIT in self.__dict__:  # called by a subclass, whose own wrapper handles errors
            original(self, *args, **kwargs)
            return
        self.__dict__[_IN_INIT] = True
        try:
            original(self, *args, **kwargs)
        except (RuntimeError, OSError):  # every data set has its own message
            own = known_sample(type(self))
            # A number of classes that the option has, and is not the default, counts: EMNIST and CIFAR100 have several.
            is_own = own is not None and (own.shape != sample.shape or sample.classes == CLASSES != own.classes)
            made = own if own is not None and is_own else sample
            warn(f"the data of `{type(self).__name__}`", "" if made is sample else f"{sample_text(made)}, its own size")
            _synthesize(self, made, signature.bind_partial(self, *args, **kwargs))
        finally:
            del self.__dict__[_IN_INIT]

    # Libraries ask for the parameters by `inspect.getfullargspec`, which does not follow `__wrapped__`.
    init.__signature__ = signature  # type: ignore[attr-defined]
    return init


def sample_text(sample: SyntheticSample) -> str:
    """As `--synthetic-data` has it."""
    return f"{'x'.join(map(str, sample.shape))}:{sample.dtype}:{sample.classes}"


def _synthetic_or_original(name: str, original: Any) -> Any:
    @functools.wraps(original)
    def call(self: Any, *args: Any) -> Any:
        synthetic: _Items | None = self.__dict__.get(_SYNTHETIC)
        if synthetic is None:
            return original(self, *args)
        return len(synthetic.labels) if name == "__len__" else synthetic.item(self, *args)

    return call


@dataclass(frozen=True, slots=True)
class _Items:
    """Without the data set: a copy of it, also a saved one, has items by its own transforms."""

    sample: SyntheticSample
    labels: Any
    joint: bool

    def item(self, dataset: Any, index: int) -> tuple[Any, ...]:
        return _transformed(dataset, self.sample, int(self.labels[int(index)]), joint=self.joint)


def _synthesize(dataset: Any, sample: SyntheticSample, bound: inspect.BoundArguments) -> None:
    sets = importlib.import_module("torchvision.datasets")
    if is_of_clips := has_clips(dataset, sets):
        bound.apply_defaults()
    arguments: dict[str, Any] = {**bound.arguments, **bound.arguments.get("kwargs", {})}
    if not hasattr(dataset, "transforms"):
        names = ("transforms", "transform", "target_transform")
        sets.VisionDataset.__init__(dataset, arguments.get("root"), **{name: arguments.get(name) for name in names})
    classes = [str(label) for label in range(sample.classes)]
    count = _size(dataset, sets, arguments.get("train", True))
    labels = importlib.import_module("numpy").arange(count) % sample.classes
    if is_of_clips:
        stored = clip_attributes(dataset, sets, sample.classes, image_size(sample), arguments)
    else:
        stored = _stored(dataset, sets, sample, labels)
    attributes = {
        "classes": classes,
        "class_to_idx": {name: index for index, name in enumerate(classes)},
        "targets": labels.tolist(),
        **stored,
    }
    for name, value in attributes.items():
        with contextlib.suppress(AttributeError):  # a property that is computed from the others
            setattr(dataset, name, value)
    if not is_of_clips:
        dataset.__dict__[_SYNTHETIC] = _Items(sample, labels, "transforms" in arguments)


def _size(dataset: Any, sets: Any, train: bool) -> int:
    for name, sizes in _KNOWN_SIZES.items():
        if isinstance(dataset, getattr(sets, name)):
            return sizes[0 if train else 1]
    return SYNTHETIC_SAMPLES


def _transformed(dataset: Any, sample: SyntheticSample, label: int, *, joint: bool) -> tuple[Any, ...]:
    """An item of the data set: an image and its target, or two images and the flow between them."""
    sets = importlib.import_module("torchvision.datasets")
    image = blank_image(sample)
    if any(base.__name__ == "FlowDataset" for base in type(dataset).__mro__):  # a private class of torchvision
        flow = torch.zeros(2, image.height, image.width)
        valid = (flow[0] == 0).numpy() if dataset._has_builtin_flow_mask else None
        item = (image, image, flow.numpy(), valid)
        item = item if dataset.transforms is None else dataset.transforms(*item)
        return tuple(item if item[3] is not None else item[:3])
    target = synthetic_target(dataset, sets, image, label)
    if joint or has_masks(dataset, sets):
        return (image, target) if dataset.transforms is None else tuple(dataset.transforms(image, target))
    image = image if dataset.transform is None else dataset.transform(image)  # scripts may set it later
    return image, target if dataset.target_transform is None else dataset.target_transform(target)


def _stored(dataset: Any, sets: Any, sample: SyntheticSample, labels: Any) -> dict[str, Any]:
    """Attributes with all samples of this class of data set, as torchvision names them."""
    channels, height, width = image_size(sample)

    def repeated(channels: int) -> torch.Tensor:
        # One image in memory. Its pixels differ: scripts divide by the standard deviation of the data set.
        gray = blank_image(SyntheticSample(shape=(1, height, width), dtype="uint8")).tobytes()
        pixels = torch.frombuffer(bytearray(gray), dtype=torch.uint8).reshape(height, width, 1)
        return pixels.expand(len(labels), height, width, channels)

    if isinstance(dataset, sets.MNIST):
        return {"data": repeated(1).squeeze(-1), "targets": torch.from_numpy(labels)}
    if isinstance(dataset, sets.PhotoTour):  # labels are points of the scene; subclasses make triplets of their patches
        numbers = torch.from_numpy(labels)
        matches = torch.stack([numbers, numbers, torch.ones_like(numbers)], dim=1)
        return {"data": repeated(1).squeeze(-1), "labels": numbers, "matches": matches}
    if isinstance(dataset, sets.CIFAR10):
        return {"data": repeated(channels).numpy()}
    if isinstance(dataset, (sets.SVHN, sets.STL10)):
        return {"data": repeated(channels).permute(0, 3, 1, 2).numpy(), "labels": labels}
    if isinstance(dataset, sets.DatasetFolder):
        folder = str(Path(dataset.root or ".") / "_").removesuffix("_")  # once: paths of 50,000 items take 0.4 s
        samples = [(f"{folder}{label}/{index}.jpg", label) for index, label in enumerate(labels.tolist())]
        # A subclass with its own items reads them by `loader`.
        return {
            "samples": samples,
            "imgs": samples,
            "loader": functools.partial(_load_blank, sample),
            "extensions": None,
        }
    return {}


def _load_blank(sample: SyntheticSample, _path: str) -> Any:
    return blank_image(sample)


def coco_patches(sample: SyntheticSample, warn: Callable[[str], None]) -> list[Patch]:
    """Annotations of pycocotools, with as many objects per image as COCO has on average."""

    def with_missing_annotations(original: Any) -> Any:
        @functools.wraps(original)
        def init(self: Any, annotation_file: Any = None) -> None:
            try:
                original(self, annotation_file)
            except MISSING_FILE:
                warn(f"`{annotation_file}`")
                original(self)
                self.dataset = _annotations(sample)
                self.createIndex()

        return init

    return [
        Patch(
            target="pycocotools.coco:COCO.__init__", phase=Phase.DATA, replacement=with_missing_annotations, wraps=True,
            reason="It raises where the file of annotations is missing.", source="pycocotools/coco.py, `COCO.__init__`",
        )
    ]  # fmt: skip


def _annotations(sample: SyntheticSample) -> dict[str, Any]:
    """Annotations in the format of COCO, as frames of one video, too, whose objects are tracked.

    Sources: Lin et al., Microsoft COCO, section 5 (7.7 objects per image); CenterTrack, convert_mot_to_coco.py.
    """
    _, height, width = image_size(sample)
    right, low = width // 2, height // 2
    labels = _category_ids(sample.classes)
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
            {"id": image, "file_name": f"{image}.jpg", "height": height, "width": width}
            | {"video_id": 1, "frame_id": 1 + image, "prev_image_id": image - 1, "next_image_id": image + 1}
            for image in range(_IMAGES)
        ],
        "videos": [{"id": 1, "file_name": "1"}],
        "categories": [{"id": label, "name": str(label)} for label in labels],
        "annotations": [
            {**object_, "id": 1 + index, "image_id": index // _OBJECTS, "category_id": labels[index % len(labels)]}
            | {"track_id": 1 + index % _OBJECTS, "conf": 1.0}
            for index in range(_IMAGES * _OBJECTS)
        ],
    }


def _category_ids(classes: int) -> list[int]:
    """From 1 on. COCO has 80 classes (81 with the background), whose numbers go to 90: tables of models name those."""
    if classes not in (_COCO_CLASSES, _COCO_CLASSES + 1, _COCO_LAST, _COCO_LAST + 1):
        return list(range(1, 1 + classes))
    return [number for number in range(1, 1 + _COCO_LAST) if number not in _COCO_UNUSED]
