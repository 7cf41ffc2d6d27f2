"""Lists of images with boxes in one text file: `images/000007.jpg 10,20,30,40,3 15,9,80,99,7`.

A line has the file of an image and, for each object, its edges and class. A text is such a list where one of the
script's modules takes the parts of a line from the second on and splits them at commas.
Source: qqwweee/keras-yolo3, README.md, "Training"; bubbliiiing/yolov8-pytorch, utils/dataloader.py.

A module of its own, as the other kinds of lists: `synthetic_files` asks each whether a path is of its kind.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from cotenant.tracing import script_location
from cotenant.tracing.data.data_options import SyntheticSample, image_size
from cotenant.tracing.sandbox.overlay import Overlay

_PARTS = re.compile(r"for (\w+) in \w+\[1:\]")
_IMAGES, _OBJECTS = 2000, 3


def is_box_list(path: str) -> bool:
    """Whether a path is a text and the script reads boxes from lines."""
    if Path(path).suffix != ".txt":
        return False
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return any(isinstance(file, str) and script_location.is_user_file(file) and _reads_boxes(file) for file in files)


@functools.cache
def _reads_boxes(file: str) -> bool:
    try:
        source = Path(file).read_text(errors="replace") if file.endswith(".py") else ""
    except OSError:
        return False
    return any(re.search(rf"\b{part}\.split\([\"'],[\"']\)", source) for part in _PARTS.findall(source))


def make(
    full: str, overlay: Overlay, image: SyntheticSample, make_images: Callable[[str, str, Sequence[str]], bool]
) -> bool:
    """Make the list `full` in the overlay, and its images in a folder of its name."""
    folder = Path(full).with_suffix("") / "images"
    names = [f"{index:06d}" for index in range(max(_IMAGES, image.classes))]
    if not make_images(str(folder), ".jpg", names):
        return False
    _, height, width = image_size(image)
    lines = []
    for index, name in enumerate(names):
        boxes = [
            f"{at * width // 8},{at * height // 8},{(at + 4) * width // 8},{(at + 4) * height // 8},"
            f"{(index + at) % image.classes}"
            for at in range(_OBJECTS)
        ]
        lines.append(" ".join([f"{folder}/{name}.jpg", *boxes]))
    overlay.new_file(full).write_text("\n".join(lines) + "\n")
    return True
