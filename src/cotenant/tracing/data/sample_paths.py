"""Which synthetic sample a missing file gets, by its path.

`trainL=3x48x48` is for files whose path contains `trainL`; samples without such a part are for all others. Images of
low resolution are smaller by the factor that their folder names, as data sets for super-resolution write it:
`DIV2K_train_LR_bicubic/X4`, `LRbicx4`, `LQ_x2`, and scenes of NeRF: `images_8`. Masks have one channel, and so have
maps of disparity and depth: `train_masks/7.png`, `SegmentationClass`, `7_segmentation.png`, `annotations/7.png`,
`PedMasks`, `trainannot/7.png`, `disp_occ_0/7.png`. Source of the names: the DIV2K, PASCAL VOC, Cityscapes, ISIC,
ADE20K, Penn-Fudan, CamVid and KITTI data sets; XPixelGroup/BasicSR, docs/DatasetPreparation.md.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import overload

from cotenant.tracing.data.data_options import SyntheticSample

MISSING_FILE = (FileNotFoundError, NotADirectoryError)
"""What it raises to open a file that is missing."""
_MASK = re.compile(
    r"(?<![a-z])masks?(?=/|\.|$)|(?-i:(?<=[a-z])Masks?)(?=/|\.|$)|SegmentationClass|SegmentationObject|gtFine|labelIds"
    r"|_segmentation\.\w+$|(?<![a-z])(?:annotations?|labels?)/.*\.png$|[a-z]annot/[^/]*\.\w+$"
    r"|(?<![a-z])(?:disp|disparity|disparities|depths?)(?:_[a-z0-9]+)*/[^/]*\.png$",
    re.IGNORECASE,
)
_REDUCED = re.compile(
    r"(?<![a-z])(?:lr|lq|low_?res)[^/]*(?:/[^/]*)?x([2-9])(?!\d)|(?<![a-z])images_([248])/", re.IGNORECASE
)


def samples_for_all(samples: Sequence[SyntheticSample]) -> list[SyntheticSample]:
    """The samples that are for no path in particular; all, where every sample names a path."""
    return [sample for sample in samples if not sample.path_part] or list(samples)


def is_of_masks(path: str) -> bool:
    """Whether a path names masks, or maps of one value for each pixel."""
    return _MASK.search(path) is not None


@overload
def sample_at(path: object, samples: Sequence[SyntheticSample], default: SyntheticSample) -> SyntheticSample: ...
@overload
def sample_at(
    path: object, samples: Sequence[SyntheticSample], default: SyntheticSample | None
) -> SyntheticSample | None: ...
def sample_at(
    path: object, samples: Sequence[SyntheticSample], default: SyntheticSample | None
) -> SyntheticSample | None:
    """The sample for a file or folder; `default` where no sample names a part of its path.

    An image is reduced where the path names a factor, and has one channel where it names masks. What is no path, such
    as an open file, gets `default`.
    """
    if not isinstance(path, (str, os.PathLike)):
        return default
    text = os.fspath(path).removeprefix(os.path.join(os.getcwd(), ""))  # noqa: PTH109, PTH118 - texts
    return _sample_at(text, tuple(samples), default)


@functools.cache  # scripts open thousands of files of a few folders
def _sample_at(
    path: str, samples: tuple[SyntheticSample, ...], default: SyntheticSample | None
) -> SyntheticSample | None:
    named = next((sample for sample in samples if sample.path_part and sample.path_part in path), None)
    if named is not None or default is None or not default.is_image:
        return named or default
    channels, height, width = default.shape
    reduced = _REDUCED.search(path)
    factor = int(reduced[1] or reduced[2]) if reduced is not None else 1
    channels = 1 if is_of_masks(path) else channels
    return replace(default, shape=(channels, max(1, height // factor), max(1, width // factor)))
