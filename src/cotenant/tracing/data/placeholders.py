"""Files in place of those that a library reads by itself: HDF5, scans, archives of NumPy, recordings, videos.

A script lists their folder, or asks whether one is there, before it opens it. The library's reader then makes what is
in it, one sample to each file, as for a file that is missing.

A module of its own: the readers and what finds files know of them, and else nothing of each other.
"""

from __future__ import annotations

import os
from pathlib import Path

SUFFIXES = frozenset({".h5", ".hdf5", ".nii", ".nii.gz", ".mha", ".mhd", ".npz"})
RECORDINGS = frozenset({".wav", ".flac", ".mp3", ".ogg", ".m4a", ".opus"})
VIDEOS = frozenset({".mp4", ".avi", ".mkv", ".webm", ".mov", ".m4v"})
_made: set[str] = set()


def make(overlay_path: Path, path: str) -> None:
    """Make an empty file at `overlay_path` for `path`, which is absolute."""
    overlay_path.touch()
    _made.add(path)


def is_placeholder(file: object) -> bool:
    """Whether it is the path of a file that was made here."""
    if not _made or not isinstance(file, (str, os.PathLike)):
        return False
    return os.path.abspath(os.fsdecode(file)) in _made  # noqa: PTH100 - not resolved, as the overlay's paths


def suffix_of(path: str) -> str:
    """The suffix of a file's name in lower case; `.nii.gz` is one."""
    name = Path(path).name.lower()
    return ".nii.gz" if name.endswith(".nii.gz") else Path(name).suffix
