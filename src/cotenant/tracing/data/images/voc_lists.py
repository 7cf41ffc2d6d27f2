"""PASCAL VOC that is not on this machine, for scripts that read its lists themselves.

`ImageSets/Main/trainval.txt` names images; of each, `JPEGImages` has the image, `Annotations` the boxes and their
classes, and `SegmentationClass` a mask. Lists of one class, such as `cat_train.txt`, have a 1 behind each name.
Source: the development kit of VOC 2012, sections 4 and 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from cotenant.tracing.data.data_options import SyntheticSample, image_size
from cotenant.tracing.sandbox.overlay import Overlay

IMAGES = 1000
CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
_OBJECTS = 3  # of an image; 27,450 of 11,530 in VOC 2012 are 2.4
_LISTS, ANNOTATIONS = "ImageSets", "Annotations"
LIST = f"{_LISTS}/Main/trainval.txt"
_IMAGES = "JPEGImages"
_FOLDERS = ((_IMAGES, ".jpg"), ("SegmentationClass", ".png"), ("SegmentationObject", ".png"))


def is_voc_list(path: str) -> bool:
    """Whether a path is a list of images of PASCAL VOC."""
    name = Path(path)
    return name.suffix == ".txt" and _LISTS in name.parts[:-1]


def make(
    full: str, overlay: Overlay, image: SyntheticSample, make_images: Callable[[str, str, Sequence[str]], bool]
) -> bool:
    """Make the list `full` in the overlay, and what it names unless another list has it."""
    parts = Path(full).parts
    root = Path(*parts[: parts.index(_LISTS)])
    names = [f"{index:06d}" for index in range(1, IMAGES + 1)]
    is_made = overlay.exists(str(root / _IMAGES / f"{names[0]}.jpg"))
    if not is_made and not all(make_images(str(root / folder), suffix, names) for folder, suffix in _FOLDERS):
        return False
    if not is_made:
        annotations = Path(overlay.above(str(root / ANNOTATIONS)))
        annotations.mkdir(parents=True, exist_ok=True)
        text = annotation(*image_size(image)[1:])
        for name in names:
            Path(annotations, f"{name}.xml").write_text(text)
    overlay.new_file(full).write_text(_lines(full, names))
    return True


def _lines(path: str, names: Sequence[str]) -> str:
    """The text of a list."""
    first, separator, _ = Path(path).stem.partition("_")
    ending = "  1\n" if separator and first in CLASSES else "\n"
    return "".join(name + ending for name in names)


def annotation(height: int, width: int) -> str:
    """Boxes of an image, of different classes, none of them difficult or truncated."""
    objects = "".join(
        f"<object><name>{CLASSES[index]}</name><pose>Unspecified</pose><truncated>0</truncated>"
        "<difficult>0</difficult><bndbox>"
        f"<xmin>{1 + width // 8}</xmin><ymin>{1 + height // 8}</ymin>"
        f"<xmax>{width // (2 + index) + width // 4}</xmax><ymax>{height // (2 + index) + height // 4}</ymax>"
        "</bndbox></object>"
        for index in range(_OBJECTS)
    )
    size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
    return f"<annotation><folder>VOC</folder>{size}<segmented>1</segmented>{objects}</annotation>"
