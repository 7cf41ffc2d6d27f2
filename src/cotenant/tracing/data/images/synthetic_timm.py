"""Readers of timm whose folder is missing: blank images, with the classes of the synthetic sample.

Source: timm/data/readers/reader.py and reader_image_folder.py, as timm's own training script uses them.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from cotenant.tracing.data import missing_folders
from cotenant.tracing.data.data_options import SyntheticSample
from cotenant.tracing.data.images.synthetic_torchvision import SYNTHETIC_SAMPLES, blank_image
from cotenant.tracing.patches.registry import Patch, Phase


class _SyntheticReader:
    """Gives (file of a blank image, class), as a reader of timm does."""

    def __init__(self, sample: SyntheticSample) -> None:
        file = io.BytesIO()
        blank_image(sample).save(file, "PNG")
        self._image = file.getvalue()
        self._classes = sample.classes
        self.class_to_idx = {str(label): label for label in range(sample.classes)}

    def __getitem__(self, index: int) -> tuple[io.BytesIO, int]:
        return io.BytesIO(self._image), int(index) % self._classes

    def __len__(self) -> int:
        return SYNTHETIC_SAMPLES

    def filename(self, index: int, basename: bool = False, absolute: bool = False) -> str:
        name = f"{int(index)}.png"
        return name if basename else f"{int(index) % self._classes}/{name}"

    def filenames(self, basename: bool = False, absolute: bool = False) -> list[str]:
        return [self.filename(index, basename, absolute) for index in range(len(self))]


def patches(sample: SyntheticSample, warn: Callable[[str], None]) -> list[Patch]:
    """The function that makes readers, parsers until timm 0.6. Names of libraries (`hfds/...`) are left to those."""

    def with_missing_folders(original: Any) -> Any:
        def create_reader(name: str, root: Any = None, *args: Any, **kwargs: Any) -> Any:
            if "/" in name or root is None or not missing_folders.is_missing_or_empty(root):
                return original(name, root, *args, **kwargs)
            warn(f"`{root}`")
            return _SyntheticReader(sample)

        return create_reader

    return [
        Patch(
            target=f"timm.data.dataset:{name}", phase=Phase.DATA, replacement=with_missing_folders, wraps=True,
            reason="It raises where the folder or archive is missing.", source=source,
            missing="other versions of timm",
        )
        for name, source in (
            ("create_reader", "timm/data/readers/reader_factory.py, `create_reader`"),
            ("create_parser", "timm/data/parsers/parser_factory.py, `create_parser`"),
        )
    ]  # fmt: skip
