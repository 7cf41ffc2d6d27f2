"""How many made-up files a folder has. A module of its own: what makes images, scans and arrays goes by it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cotenant.tracing.data import placeholders

FILES = 2000
_MIN_FILES, _NUMBERS = 128, 2**30  # scripts that keep all images of a set in memory decode each
_LARGE = 2**22  # numbers of an image: 128 in memory as floats have more than 2 GiB
_MIN_SCANS, _VOXELS = 32, 2**27  # of scans and large images: scripts compute statistics of each


def files_of(shape: Sequence[int], suffix: str) -> int:
    """For images, scans or arrays of this shape, by the suffix of their names; even, since optical flow has pairs."""
    numbers = math.prod(shape)
    is_large = suffix.lower() in placeholders.SUFFIXES or numbers > _LARGE
    least, most = (_MIN_SCANS, _VOXELS) if is_large else (_MIN_FILES, _NUMBERS)
    return max(least, min(FILES, most // numbers)) // 2 * 2
