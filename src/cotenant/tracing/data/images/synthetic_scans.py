"""Medical scans that a script reads by nibabel or SimpleITK and that are not on this machine.

A scan has the sample's shape, without a dimension for its one channel, as the script sees it in an array: SimpleITK
gives the axes of its own images the other way round. Some of its voxels are 1: scripts crop around those of a mask.

A module of its own: SimpleITK's reader is compiled, and neither a placeholder nor the overlay's `open` reaches it.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Sequence
from typing import Any

from cotenant.tracing.data import placeholders
from cotenant.tracing.data.data_options import SyntheticSample
from cotenant.tracing.data.sample_paths import MISSING_FILE, sample_at
from cotenant.tracing.data.tables import synthetic_records
from cotenant.tracing.patches.registry import Patch, Phase

_REASON = "It raises where the file is missing."
_VOXEL_DISTANCE = 7


def patches(samples: Sequence[SyntheticSample], default: SyntheticSample, warn: Callable[[str], None]) -> list[Patch]:
    """Functions that read a scan, and the class that does so in steps."""
    common: dict[str, Any] = {"phase": Phase.DATA, "wraps": True, "reason": _REASON}
    found = _MissingScans(samples, default, warn)
    of_itk = "Code/IO/src/sitkImageFileReader.cxx, `ReadImage`"
    return [
        Patch(target="nibabel:load", replacement=found.loading, source="nibabel/loadsave.py, `load`", **common),
        Patch(target="SimpleITK:ReadImage", replacement=found.reading, source=of_itk, **common),
        Patch(target="SimpleITK:ImageFileReader.Execute", replacement=found.executing, source=of_itk, **common),
    ]


class _MissingScans:
    """What readers give for a file that is missing."""

    def __init__(
        self, samples: Sequence[SyntheticSample], default: SyntheticSample, warn: Callable[[str], None]
    ) -> None:
        self._samples, self._default, self._warn = samples, default, warn

    def loading(self, original: Any) -> Any:
        """`nibabel.load`."""

        @functools.wraps(original)
        def load(file: Any, *args: Any, **kwargs: Any) -> Any:
            if not placeholders.is_placeholder(file):
                try:
                    return original(file, *args, **kwargs)
                except MISSING_FILE:
                    pass
            numpy, nibabel = importlib.import_module("numpy"), importlib.import_module("nibabel")
            return nibabel.Nifti1Image(self._voxels(file, "float32"), numpy.eye(4))

        return load

    def reading(self, original: Any) -> Any:
        """`SimpleITK.ReadImage`, whose second argument is the type of the voxels; a list of files is a series."""

        @functools.wraps(original)
        def read(fileName: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N803 - SimpleITK's name
            if not _is_missing(fileName):
                return original(fileName, *args, **kwargs)
            return self._image(fileName, args[0] if args else kwargs.get("outputPixelType"))

        return read

    def executing(self, original: Any) -> Any:
        """`SimpleITK.ImageFileReader.Execute`."""

        @functools.wraps(original)
        def execute(reader: Any, *args: Any, **kwargs: Any) -> Any:
            name = reader.GetFileName()
            if not _is_missing(name):
                return original(reader, *args, **kwargs)
            return self._image(name, reader.GetOutputPixelType())

        return execute

    def _image(self, file: Any, pixel_type: Any) -> Any:
        itk = importlib.import_module("SimpleITK")
        dtype = sample_at(file, self._samples, self._default).dtype
        made = itk.GetImageFromArray(self._voxels(file, dtype if dtype != "bool" else "uint8"))
        is_wanted = pixel_type is not None and pixel_type not in (itk.sitkUnknown, made.GetPixelID())
        return itk.Cast(made, pixel_type) if is_wanted else made

    def _voxels(self, file: Any, dtype: str) -> Any:
        self._warn("a scan that the script opens")
        synthetic_records.made_up.append(str(file))
        shape = sample_at(file, self._samples, self._default).shape
        voxels = importlib.import_module("numpy").zeros(shape[1:] if len(shape) > 3 and shape[0] == 1 else shape, dtype)
        voxels.reshape(-1)[::_VOXEL_DISTANCE] = 1
        return voxels


def _is_missing(file: Any) -> bool:
    """Whether SimpleITK, which raises one error for all that goes wrong, finds no file there."""
    if not isinstance(file, (str, os.PathLike)):  # a series of files, which a listing has found
        return False
    is_there = os.path.exists(file)  # noqa: PTH110 - of both kinds
    return not is_there or placeholders.is_placeholder(file)  # the question may have made it
