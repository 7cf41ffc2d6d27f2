"""Data sets of YOLO that are not on this machine: a list of images, or a folder of them, and a text of boxes for each.

`data/coco.yaml` names lists such as `datasets/coco/train2017.txt`. The text of `images/train2017/7.jpg` is
`labels/train2017/7.txt`; each line is a class, a center, a width and a height, as ratios. Only readers that have
the function `img2label_paths` are meant: those of YOLOv3, v5, v7, v9 and of the package ultralytics.
Source: ultralytics/yolov5, utils/dataloaders.py, `LoadImagesAndLabels` and `verify_image_label`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

IMAGES = 1000
BOXES_OF_IMAGE = 7  # as COCO has in the mean: arXiv 1405.0312, section 6
_READER = "img2label_paths"
_LIST_SUFFIX = ".txt"
_IMAGES, _LABELS = "images", "labels"


def is_yolo_data(path: str) -> bool:
    """Whether a path is a list or a folder of images, and a reader of such data is loaded."""
    name = Path(path)
    is_list = name.suffix == _LIST_SUFFIX and any(word in name.stem for word in ("train", "val", "test"))
    is_folder = not name.suffix and _IMAGES in name.parts
    # Not `hasattr`: `torch.ops` has a namespace of any name.
    return (is_list or is_folder) and any(_READER in vars(module) for module in list(sys.modules.values()))


def images_of(path: str) -> tuple[str, Sequence[str]]:
    """The folder of the images of a list or folder, and their names without suffixes."""
    name = Path(path)
    folder = name.parent / _IMAGES / name.stem if name.suffix == _LIST_SUFFIX else name
    return str(folder), [f"{index:012d}" for index in range(IMAGES)]


def write_boxes(folder: str, above: Path, stems: Sequence[str], classes: int) -> str:
    """Write the texts of images in `folder`, whose files are in `above`; the lines of a list of these images."""
    parts = [_LABELS if part == _IMAGES else part for part in above.parts]
    labels = Path(*parts)
    labels.mkdir(parents=True, exist_ok=True)
    for index, stem in enumerate(stems):
        first = index * BOXES_OF_IMAGE
        boxes = (_box(first + box, classes) for box in range(BOXES_OF_IMAGE))
        Path(labels, f"{stem}.txt").write_text("".join(boxes))
    return "".join(f"{folder}/{stem}.jpg\n" for stem in stems)


def _box(index: int, classes: int) -> str:
    """A box; those of an image differ, since equal ones count once."""
    center = 0.2 + 0.6 * (index % BOXES_OF_IMAGE) / BOXES_OF_IMAGE
    return f"{index % classes} {center:.3f} {center:.3f} 0.200 0.200\n"
