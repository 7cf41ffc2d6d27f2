"""Data sets of YOLO that are not on this machine: a list of images, or a folder of them, and a text of boxes for each.

`data/coco.yaml` names lists such as `datasets/coco/train2017.txt`. The text of `images/train2017/7.jpg` is
`labels/train2017/7.txt`; each line is a class and the corners of an outline, as ratios, as in COCO's, for readers that
have the function `img2label_paths`: those of YOLOv3, v5, v7, v9 and of the package ultralytics. Other readers replace
`images` by `labels` in the paths of a list, or ask for the text of an image that was made up: its lines have a class, a
center and a size, which is what they check.
A module of its own: the layout of one kind of data set, as `voc_lists` is of another.
Source: ultralytics/yolov5, utils/dataloaders.py, `LoadImagesAndLabels` and `verify_image_label`.
"""

from __future__ import annotations

import functools
import linecache
import re
import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from cotenant.tracing import script_location
from cotenant.tracing.data.data_options import SyntheticSample
from cotenant.tracing.data.images import image_files
from cotenant.tracing.sandbox.overlay import Overlay

IMAGES = 1000
BOXES_OF_IMAGE = 7  # as COCO has in the mean: arXiv 1405.0312, section 6
_HALF = 0.1  # of the side of an object
_READER = "img2label_paths"
_LIST_SUFFIX = ".txt"
_IMAGES, _LABELS = "images", "labels"
_REPLACES = re.compile(r"""\.replace\(\s*["']/?images/?["'],\s*["']/?labels/?["']""")


def is_yolo_data(path: str) -> bool:
    """Whether a path is a list or a folder of images, and a reader of such data is loaded."""
    name = Path(path)
    is_list = name.suffix == _LIST_SUFFIX and any(word in name.stem for word in ("train", "val", "test"))
    is_folder = not name.suffix and _IMAGES in name.parts
    return (is_list and _replaces_images(script_location.calling_file())) or ((is_list or is_folder) and _has_reader())


def _has_reader() -> bool:
    # Not `hasattr`: `torch.ops` has a namespace of any name.
    return any(_READER in vars(module) for module in list(sys.modules.values()))


@functools.cache
def _replaces_images(path: str) -> bool:
    """Whether a source file makes the paths of labels from those of images."""
    return _REPLACES.search("".join(linecache.getlines(path))) is not None


def make(
    full: str, overlay: Overlay, image: SyntheticSample, make_images: Callable[[str, str, Sequence[str]], bool]
) -> bool:
    """Make the list or folder `full` in the overlay, its images, and their boxes."""
    name = Path(full)
    is_list = name.suffix == _LIST_SUFFIX
    folder = name.parent / _IMAGES / name.stem if is_list else name
    stems = [f"{index:012d}" for index in range(IMAGES)]
    if not make_images(str(folder), ".jpg", stems):
        return False
    above = Path(overlay.above(str(folder)))
    labels = Path(*(_LABELS if part == _IMAGES else part for part in above.parts))
    labels.mkdir(parents=True, exist_ok=True)
    form = _box if _has_reader() else _line
    for index, stem in enumerate(stems):
        boxes = (form(index * BOXES_OF_IMAGE + box, image.classes) for box in range(BOXES_OF_IMAGE))
        Path(labels, f"{stem}.txt").write_text("".join(boxes))
    if is_list:
        Path(overlay.above(full)).write_text("".join(f"{folder}/{stem}.jpg\n" for stem in stems))
    return True


def make_text_of_image(overlay: Overlay, image: SyntheticSample | None, path: str) -> bool:
    """Make the text of boxes that a script asks for, if the image that it is of was made up."""
    full, name = overlay.path_of(path), Path(path)
    if full is None or image is None or name.suffix != _LIST_SUFFIX or _LABELS not in name.parts:
        return False
    above = Path(overlay.above(full))
    at = len(above.parts) - 1 - above.parts[::-1].index(_LABELS)
    shown = Path(*above.parts[:at], _IMAGES, *above.parts[at + 1 :])
    if not any(shown.with_suffix(suffix).exists() for suffix in image_files.IMAGES):
        return False
    first = zlib.crc32(name.stem.encode()) * BOXES_OF_IMAGE  # an image has the same ones each time
    overlay.new_file(full).write_text(
        "".join(_line(index, image.classes) for index in range(first, first + BOXES_OF_IMAGE))
    )
    return True


def _line(index: int, classes: int) -> str:
    """An object by its class, and the center and the size of its box, as ratios."""
    return f"{index % classes} {_center(index):.3f} {_center(index):.3f} {2 * _HALF:.3f} {2 * _HALF:.3f}\n"


def _center(index: int) -> float:
    return 0.2 + 0.6 * (index % BOXES_OF_IMAGE) / BOXES_OF_IMAGE


def _box(index: int, classes: int) -> str:
    """An object by the corners of its outline, which detection takes its box from; those of an image differ."""
    low, high = f"{_center(index) - _HALF:.3f}", f"{_center(index) + _HALF:.3f}"
    return f"{index % classes} {low} {low} {high} {low} {high} {high} {low} {high}\n"
