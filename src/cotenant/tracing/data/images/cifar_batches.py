"""Files of CIFAR that a script reads itself and that are not on this machine, such as `cifar-10-batches-py/test_batch`.

Copies of torchvision's classes are in many repositories, often with labels of their own. They compare the MD5 digests
of the files first, then reshape their content for 10,000 images a file. The files have the form of the published ones:
pickles of Python 2, whose texts `pickle.load` gives as the script's `encoding` says. For digests, see `digest_patch`.
Source: https://www.cs.toronto.edu/~kriz/cifar.html; torchvision/datasets/cifar.py, `CIFAR10`, `CIFAR100`.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from cotenant.tracing.data.data_options import SyntheticSample, first_image
from cotenant.tracing.data.images.synthetic_torchvision import blank_image
from cotenant.tracing.data.sample_paths import samples_for_all
from cotenant.tracing.patches.registry import Patch, Phase
from cotenant.tracing.sandbox.overlay import Overlay

_PIXELS = 3 * 32 * 32
_OWN_CLASS = str(Path("torchvision", "datasets", "cifar.py"))


@dataclass(frozen=True)
class _File:
    """One of the published files: its MD5 digest, its images (none: of names), and keys and classes of its labels."""

    md5: str
    images: int
    labels: tuple[tuple[str, int], ...]


_OF_10, _OF_100 = (("labels", 10),), (("coarse_labels", 20), ("fine_labels", 100))
_FILES = {  # those of CIFAR-100 by their folder, too: their names say nothing
    "data_batch_1": _File("c99cafc152244af753f735de768cd75f", 10_000, _OF_10),
    "data_batch_2": _File("d4bba439e000b95fd0a9bffe97cbabec", 10_000, _OF_10),
    "data_batch_3": _File("54ebc095f3ab1f0389bbae665268c751", 10_000, _OF_10),
    "data_batch_4": _File("634d18415352ddfa80567beed471001a", 10_000, _OF_10),
    "data_batch_5": _File("482c414d41f54cd18b22e5b47cb7c3cb", 10_000, _OF_10),
    "test_batch": _File("40351d587109b95175f43aff81a1287e", 10_000, _OF_10),
    "batches.meta": _File("5ff9c542aee3614f3951f8cda6e48888", 0, (("label_names", 10),)),
    "cifar-100-python/train": _File("16019d7e3df5f24257cddd939b257f8d", 50_000, _OF_100),
    "cifar-100-python/test": _File("f0ef6b0ae62326f3e7ffdfab6717acfc", 10_000, _OF_100),
    "cifar-100-python/meta": _File(
        "7973b15100ade9c7d40fb424638fde48", 0, (("coarse_label_names", 20), ("fine_label_names", 100))
    ),
}


class CifarBatches:
    """Makes such files. `warn`: is called with their names."""

    def __init__(self, samples: Sequence[SyntheticSample], overlay: Overlay, warn: Callable[[str], None]) -> None:
        self._has_image = first_image(samples_for_all(samples)) is not None
        self._overlay = overlay
        self._warn = warn
        self._published: dict[str, str] = {}

    def make(self, path: str) -> bool:
        """Make the file `path` that is missing; whether it was made."""
        full, file = self._overlay.absent(path), _FILES.get(_key(path))
        if full is None or file is None or not self._has_image or _is_of_torchvision():
            return False
        content = _content(_key(path), file)
        self._published[hashlib.md5(content, usedforsecurity=False).hexdigest()] = file.md5
        self._overlay.new_file(full).write_bytes(content)
        self._warn(f"`{path}`, a file of CIFAR,")
        return True

    def digest_patch(self) -> Patch:
        """`hashlib.md5`, for which a file that was made has the digest of the published one."""

        def wrapped(original: Any) -> Any:
            @functools.wraps(original)
            def md5(*args: Any, **kwargs: Any) -> Any:
                made = original(*args, **kwargs)
                return _Digest(made, self._published) if self._published else made

            return md5

        return Patch(
            target="hashlib:md5", replacement=wrapped, phase=Phase.DATA, wraps=True, stacks=True,
            reason="Scripts compare digests of files that are synthetic.",
            source="torchvision/datasets/utils.py, `check_integrity`",
        )  # fmt: skip


class _Digest:
    """An object of `hashlib.md5`, whose `hexdigest` is the published one for a file that was made."""

    def __init__(self, real: Any, published: dict[str, str]) -> None:
        self._real = real
        self._published = published

    def hexdigest(self) -> str:
        found = self._real.hexdigest()
        return self._published.get(found, found)

    def copy(self) -> _Digest:
        return _Digest(self._real.copy(), self._published)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def is_of_cifar(path: str) -> bool:
    """Whether a path is of one of the published files."""
    return _key(path) in _FILES


def _is_of_torchvision() -> bool:
    """Whether torchvision's own class asks, whose data set is made up as a whole: see `synthetic_torchvision`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.endswith(_OWN_CLASS):
        frame = frame.f_back
    return frame is not None


def _key(path: str) -> str:
    folder, name = Path(path).parts[-2:] if len(Path(path).parts) > 1 else ("", path)
    return name if name in _FILES else f"{folder}/{name}"


def _content(name: str, file: _File) -> bytes:
    """A pickle as Python 2 makes it, of a dictionary. Its texts are bytes there, `str` or `bytes` here."""
    entries = [_text("batch_label") + _text(name)]
    if file.images:
        entries += [_text(key) + _whole_numbers(file.images, classes) for key, classes in file.labels]
        entries.append(_text("data") + _array(file.images))
    else:
        entries += [_text(key) + _texts(count) for key, count in file.labels]
    return b"\x80\x02}(" + b"".join(entries) + b"u."


def _text(text: str) -> bytes:
    return b"U" + bytes([len(text)]) + text.encode()  # SHORT_BINSTRING


def _texts(count: int) -> bytes:
    return b"](" + b"".join(_text(f"class {index}") for index in range(count)) + b"e"


def _whole_numbers(count: int, classes: int) -> bytes:
    return b"](" + b"".join(b"K" + bytes([index % classes]) for index in range(count)) + b"e"


def _array(images: int) -> bytes:
    """An array of bytes, an image a row, as NumPy 1 pickles it."""
    pixels = blank_image(SyntheticSample(shape=(3, 32, 32), dtype="uint8")).tobytes() * images
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    shape = b"M" + images.to_bytes(2, "little") + b"M" + _PIXELS.to_bytes(2, "little") + b"\x86"
    return empty + b"(K\x01" + shape + dtype + b"\x89T" + len(pixels).to_bytes(4, "little") + pixels + b"tb"
