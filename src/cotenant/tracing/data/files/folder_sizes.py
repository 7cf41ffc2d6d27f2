"""How many made-up files a folder has. A module of its own: what makes images, scans and arrays goes by it.

Small published test sets have their own number, by the name of a folder: `Set5/GTmod12` has five images. Scripts for
super-resolution and denoising read them all into memory, and resize each in Python.
Source of the numbers: XPixelGroup/BasicSR, docs/DatasetPreparation.md; cszn/DnCNN, README.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import PurePath

from cotenant.tracing.data import placeholders

FILES = 2000
_MIN_FILES, _NUMBERS = 128, 2**30  # scripts that keep all images of a set in memory decode each
_LARGE = 2**22  # numbers of an image: 128 in memory as floats have more than 2 GiB
_MIN_SCANS, _VOXELS = 32, 2**27  # of scans and large images: scripts compute statistics of each

_PUBLISHED = (
    ("set5", 5), ("set12", 12), ("set14", 14), ("kodak(?:24)?", 24), ("c?bsd68", 68), ("b100|bsds?100", 100),
    ("bsds?200", 200), ("urban100", 100), ("manga109", 109), (r"div2k_valid\w*", 100),
)  # fmt: skip
_OF_SET = r"(?:(?:lr|lq|hr|gt|test|val)[a-z0-9]*[-_])?(?:{})(?:[-_]\w+)?"
"""A folder's name with that of a set, as `Set5_LR`: images of low resolution are as many."""


def files_of(shape: Sequence[int], suffix: str, folder: str = "") -> int:
    """For images, scans or arrays of this shape, by the suffix of their names and the folder that they are in.

    Where the folder names no published set, even, since optical flow has pairs.
    """
    numbers = math.prod(shape)
    is_large = suffix.lower() in placeholders.SUFFIXES or numbers > _LARGE
    least, most = (_MIN_SCANS, _VOXELS) if is_large else (_MIN_FILES, _NUMBERS)
    count = max(least, min(FILES, most // numbers)) // 2 * 2
    return min(count, _published(folder) or count)


def _published(folder: str) -> int:
    """How many images the published set has that a part of the path names; 0 where none does."""
    parts = [part.lower() for part in PurePath(folder).parts]
    found = (count for name, count in _PUBLISHED if any(re.fullmatch(_OF_SET.format(name), part) for part in parts))
    return next(found, 0)
