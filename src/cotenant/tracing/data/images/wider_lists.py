"""Lists of faces with landmarks: `# 0--Parade/7.jpg`, then a line of 20 numbers for each face in it.

A line has left, top, width and height of a face, five points, each with whether it is hidden, and how blurred it is.
Images are in the folder `images` beside the list, as the annotations of RetinaFace for WIDER FACE have it. A text is
such a list where the module that opens it tests lines for `#`.
Source: deepinsight/insightface, detection/retinaface/README.md, "Data".
A module of its own, as the other kinds of lists: `synthetic_files` asks each whether a path is of its kind.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from cotenant.tracing import script_location
from cotenant.tracing.data.data_options import SyntheticSample, image_size
from cotenant.tracing.sandbox.overlay import Overlay

_HEADING = re.compile(r"""\.startswith\(\s*["']#["']\s*\)""")
_IMAGES, _FACES, _POINTS = 2000, 3, 5
_FOLDER = "0--Parade"


def is_face_list(path: str) -> bool:
    """Whether a path is the list of a set of faces, and its reader tests lines for `#`."""
    return Path(path).name == "label.txt" and _has_headings(script_location.calling_file())


@functools.cache
def _has_headings(file: str) -> bool:
    try:
        return _HEADING.search(Path(file).read_text(errors="replace")) is not None
    except OSError:
        return False


def make(
    full: str, overlay: Overlay, image: SyntheticSample, make_images: Callable[[str, str, Sequence[str]], bool]
) -> bool:
    """Make the list `full` in the overlay, and its images."""
    names = [f"{index:06d}" for index in range(_IMAGES)]
    if not make_images(str(Path(full).parent / "images" / _FOLDER), ".jpg", names):
        return False
    _, height, width = image_size(image)
    lines = []
    for name in names:
        lines.append(f"# {_FOLDER}/{name}.jpg")
        for face in range(_FACES):
            left, top = face * width // 8, face * height // 8
            point = f"{left + width // 4} {top + height // 4} 0.0"
            lines.append(" ".join([f"{left} {top} {width // 2} {height // 2}", *[point] * _POINTS, "0.5"]))
    overlay.new_file(full).write_text("\n".join(lines) + "\n")
    return True
