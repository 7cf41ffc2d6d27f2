"""Archives of images that a script reads and that are not on this machine: ZIP files, WebDataset's shards, LMDB.

A ZIP file has images in folders and a `dataset.json` with their labels, as StyleGAN's tools write. A shard has an
image, a caption, a class and a JSON object for each key. Every key of an LMDB has an image, but those that ask for a
number, and `__keys__`, by the names that are common. All need a sample of three dimensions.
Source: NVlabs/stylegan2-ada-pytorch, dataset_tool.py; webdataset/tariterators.py, `group_by_keys`.
"""

from __future__ import annotations

import functools
import io
import json
import os
import pickle
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cotenant.tracing import script_location
from cotenant.tracing.data.data_options import SyntheticSample, first_image
from cotenant.tracing.data.images.synthetic_torchvision import image_bytes
from cotenant.tracing.data.sample_paths import MISSING_FILE
from cotenant.tracing.patches.registry import Patch, Phase

IMAGES_OF_ZIP = IMAGES_OF_LMDB = 2000
IMAGES_OF_SHARD = 256
_CAPTION = "word " * 16
_COUNT_KEY = re.compile(rb"len|num|count|size|total", re.IGNORECASE)
_SIZE_KEY = re.compile(rb"(\d{1,4})-\d+$")
"""The resolution and the number of an image. Source: rosinality/stylegan2-pytorch, prepare_data.py."""
_REASON = "It raises where the file is missing."


def patches(samples: Sequence[SyntheticSample], warn: Callable[[str], None]) -> list[Patch]:
    """What opens archives; none without images."""
    image = first_image(samples)
    if image is None:
        return []
    common: dict[str, Any] = {"phase": Phase.DATA, "wraps": True, "reason": _REASON}
    return [
        Patch(
            target="zipfile:ZipFile.__init__", replacement=functools.partial(_opening_zip, image, warn),
            source="Lib/zipfile.py, `ZipFile.__init__`", **common,
        ),
        Patch(
            target="webdataset.gopen:gopen", replacement=functools.partial(_opening_shard, image, warn),
            source="webdataset/gopen.py, `gopen`", **common,
        ),
        *(
            Patch(
                target=f"lmdb:{name}", replacement=functools.partial(_opening_lmdb, image, warn),
                source="lmdb/cffi.py, `Environment`", **common,
            )
            for name in ("open", "Environment")
        ),
    ]  # fmt: skip


_encoded = functools.cache(image_bytes)


def _opening_zip(sample: SyntheticSample, warn: Callable[[str], None], original: Any) -> Any:
    @functools.wraps(original)
    def init(self: Any, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> None:
        try:
            original(self, file, mode, *args, **kwargs)
            return
        except MISSING_FILE:
            is_data = isinstance(file, (str, os.PathLike)) and os.fspath(file).lower().endswith(".zip")
            if mode != "r" or not is_data or not script_location.is_called_by_user():
                raise
        warn(f"`{file}`")
        original(self, io.BytesIO(_zip_bytes(sample)), mode, *args, **kwargs)
        self.filename = os.fspath(file)

    return init


@functools.cache
def _zip_bytes(sample: SyntheticSample) -> bytes:
    names = [f"{index // 1000:05d}/img{index:08d}.png" for index in range(IMAGES_OF_ZIP)]
    labels = [[name, index % sample.classes] for index, name in enumerate(names)]
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in names:
            archive.writestr(name, _encoded(sample, "PNG"))
        archive.writestr("dataset.json", json.dumps({"labels": labels}))
    return content.getvalue()


def _opening_shard(sample: SyntheticSample, warn: Callable[[str], None], original: Any) -> Any:
    @functools.wraps(original)
    def gopen(url: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(url, *args, **kwargs)
        except MISSING_FILE:
            warn("a shard that the script reads")
        return io.BytesIO(_shard_bytes(sample))

    return gopen


@functools.cache
def _shard_bytes(sample: SyntheticSample) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for index in range(IMAGES_OF_SHARD):
            label = index % sample.classes
            parts = {
                "jpg": _encoded(sample, "JPEG"),
                "txt": _CAPTION.encode(),
                "cls": str(label).encode(),
                "json": json.dumps({"caption": _CAPTION, "label": label}).encode(),
            }
            for suffix, part in parts.items():
                member = tarfile.TarInfo(f"{index:08d}.{suffix}")
                member.size = len(part)
                archive.addfile(member, io.BytesIO(part))
    return content.getvalue()


def _opening_lmdb(sample: SyntheticSample, warn: Callable[[str], None], original: Any) -> Any:
    @functools.wraps(original)
    def open_(path: Any, *args: Any, **kwargs: Any) -> Any:
        # A repository may have the folder, with placeholders alone: lmdb.cffi, `Environment`, opens `data.mdb` in it.
        if Path(path).is_file() or Path(path, "data.mdb").exists():
            return original(path, *args, **kwargs)
        if not kwargs.get("readonly", False):
            return original(path, *args, **kwargs)  # one that is written
        warn(f"`{path}`")
        return _SyntheticLmdb(sample)

    return open_


class _SyntheticLmdb:
    """An environment, its transaction, and a cursor of it."""

    def __init__(self, sample: SyntheticSample) -> None:
        self._sample = sample

    def begin(self, *args: Any, **kwargs: Any) -> _SyntheticLmdb:
        return self

    cursor = begin

    def __enter__(self) -> _SyntheticLmdb:
        return self

    def __exit__(self, *args: object) -> None:
        return

    def close(self) -> None:
        """Nothing is open."""

    def stat(self, *args: Any) -> dict[str, int]:
        return {"entries": IMAGES_OF_LMDB}

    def get(self, key: bytes, default: Any = None, *args: Any) -> bytes:
        """An image, the number of images, or their keys, by the name of the key."""
        if key == b"__len__":
            return pickle.dumps(IMAGES_OF_LMDB)
        if key == b"__keys__":
            return pickle.dumps([name for name, _ in self])
        if _COUNT_KEY.search(key):
            return str(IMAGES_OF_LMDB).encode()
        size = _SIZE_KEY.match(key)
        side = int(size.group(1)) if size is not None else 0
        is_side = side > 1 and not side & (side - 1)
        return _encoded(replace(self._sample, shape=(3, side, side)) if is_side else self._sample, "PNG")

    def iternext(self, keys: bool = True, values: bool = True) -> Iterator[Any]:
        """Keys, values, or both. Source: lmdb/cffi.py, `Cursor.iternext`."""
        for key, value in self:
            yield (key, value) if keys and values else key if keys else value

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        for index in range(IMAGES_OF_LMDB):
            yield str(index).encode(), _encoded(self._sample, "PNG")
