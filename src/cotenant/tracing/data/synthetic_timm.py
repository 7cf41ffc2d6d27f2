"""Readers of timm without their folder: blank images, and as many classes as the stand-in has.

Source: timm/data/readers/reader.py and reader_image_folder.py, as timm's own training script uses them.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cotenant.tracing.data.data_options import SyntheticSample
from cotenant.tracing.data.synthetic_torchvision import SYNTHETIC_SAMPLES, blank_image


class _SyntheticReader:
    """Gives a file of a blank image, and its class, as a reader of timm does."""

    def __init__(self, stand_in: SyntheticSample) -> None:
        file = io.BytesIO()
        blank_image(stand_in).save(file, "PNG")
        self._image = file.getvalue()
        self._classes = stand_in.classes
        self.class_to_idx = {str(each): each for each in range(stand_in.classes)}

    def __getitem__(self, index: int) -> tuple[io.BytesIO, int]:
        return io.BytesIO(self._image), int(index) % self._classes

    def __len__(self) -> int:
        return SYNTHETIC_SAMPLES

    def filename(self, index: int, basename: bool = False, absolute: bool = False) -> str:
        name = f"{int(index)}.png"
        return name if basename else f"{int(index) % self._classes}/{name}"

    def filenames(self, basename: bool = False, absolute: bool = False) -> list[str]:
        return [self.filename(index, basename, absolute) for index in range(len(self))]


def patch_create_reader(module: Any, stand_in: SyntheticSample, told: Callable[[str], None]) -> None:
    """Let data sets of timm read made-up images where their folder or archive is not here.

    Names of libraries (`hfds/...`) are answered where the library is.
    """
    create = module.create_reader

    def create_(name: str, root: Any = None, *args: Any, **kwargs: Any) -> Any:
        if "/" in name or root is None or Path(root).exists():
            return create(name, root, *args, **kwargs)
        told(f"`{root}`")
        return _SyntheticReader(stand_in)

    module.create_reader = create_
