"""Readers of timm without their folder: blank images, and as many classes as the stand-in has.

Source: timm/data/readers/reader.py and reader_image_folder.py, as timm's own training script uses them.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cotenant.tracing.loading.madeup import SAMPLES, picture
from cotenant.tracing.loading.wishes import StandIn


class _Reader:
    """Gives a file of a blank image, and its class, as a reader of timm does."""

    def __init__(self, stand_in: StandIn) -> None:
        file = io.BytesIO()
        picture(stand_in).save(file, "PNG")
        self._image = file.getvalue()
        self._classes = stand_in.classes
        self.class_to_idx = {str(each): each for each in range(stand_in.classes)}

    def __getitem__(self, index: int) -> tuple[io.BytesIO, int]:
        return io.BytesIO(self._image), int(index) % self._classes

    def __len__(self) -> int:
        return SAMPLES

    def filename(self, index: int, basename: bool = False, absolute: bool = False) -> str:
        name = f"{int(index)}.png"
        return name if basename else f"{int(index) % self._classes}/{name}"

    def filenames(self, basename: bool = False, absolute: bool = False) -> list[str]:
        return [self.filename(index, basename, absolute) for index in range(len(self))]


def answer_for_readers(module: Any, stand_in: StandIn, told: Callable[[str], None]) -> None:
    """Let data sets of timm read made-up images where their folder or archive is not here.

    Names of libraries (`hfds/...`) are answered where the library is.
    """
    create = module.create_reader

    def create_(name: str, root: Any = None, *args: Any, **kwargs: Any) -> Any:
        if "/" in name or root is None or Path(root).exists():
            return create(name, root, *args, **kwargs)
        told(f"`{root}`")
        return _Reader(stand_in)

    module.create_reader = create_
