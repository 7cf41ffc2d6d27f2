"""Files that are complete or absent: written under another name first, then renamed."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from collections.abc import Iterator
from typing import IO

READ_BYTES = 64 * 1024

_numbers = itertools.count()


@contextlib.contextmanager
def replacing(
    path: str | os.PathLike[str], *, mode: int = 0o600, durable: bool = False, locked: bool = False
) -> Iterator[IO[bytes]]:
    """A file to write into; it takes the place of `path` when the block ends, and is removed when the block raises.

    Readers see the old content or the new, never a part. With `durable` it is on the disk when the block has ended:
    the content first, then the name, which takes an fsync of the folder (fsync(2)). `locked`: the caller holds a lock
    on `path`, so the draft has one fixed name, and what a killed writer left there is overwritten.

    Raises:
        OSError: it cannot be written; `path` is as it was.
    """
    folder, name = os.path.split(os.fspath(path))
    draft, descriptor = _draft(os.path.join(folder, f".{name}"), locked=locked)
    try:
        with open(descriptor, "wb") as file:
            if mode != 0o600:
                os.fchmod(descriptor, mode)  # the mode given to open(2) would be cut by the umask
            yield file
            file.flush()
            if durable:
                os.fsync(descriptor)
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)
        raise
    if durable:
        sync_folder(folder or ".")


def write_bytes(
    path: str | os.PathLike[str], data: bytes, *, mode: int = 0o600, durable: bool = False, locked: bool = False
) -> None:
    """Replace the content of `path`, as `replacing` does.

    Raises:
        OSError: it cannot be written; `path` is as it was.
    """
    # Not by `replacing`: a file object and a context manager would double the time, and every launch comes by here.
    folder, slash, name = os.fspath(path).rpartition("/")
    draft, descriptor = _draft(f"{folder}{slash}.{name}", locked=locked)
    try:
        try:
            if mode != 0o600:
                os.fchmod(descriptor, mode)
            left = data
            while left:
                left = left[os.write(descriptor, left) :]
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)
        raise
    if durable:
        sync_folder(folder or slash or ".")


def read_bytes(path: str) -> bytes:
    """The content of `path`, in half the time of a file object, which queries the size and the position first.

    Raises:
        OSError: it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = piece = os.read(descriptor, READ_BYTES)
        while piece:
            data += (piece := os.read(descriptor, READ_BYTES))
        return data
    finally:
        os.close(descriptor)


def write_text(
    path: str | os.PathLike[str], text: str, *, mode: int = 0o600, durable: bool = False, locked: bool = False
) -> None:
    """Replace the content of `path` by `text` in UTF-8, as `replacing` does.

    Raises:
        OSError: it cannot be written; `path` is as it was.
    """
    write_bytes(path, text.encode(), mode=mode, durable=durable, locked=locked)


def create_once(path: str | os.PathLike[str], data: bytes) -> bool:
    """Create `path` with its content; False if it exists. Of several callers exactly one gets True.

    Raises:
        OSError: it cannot be created.
    """
    if os.path.lexists(path):  # on a full disk no draft could be written
        return False
    folder, name = os.path.split(os.fspath(path))
    draft, descriptor = _draft(os.path.join(folder, f".{name}"), locked=False)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        # A link appears together with its content, and link(2) fails if the name is taken; rename(2) would replace it.
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(draft)
    return True


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Bring the names in a folder to the disk: an fsync of a file does not include its name (fsync(2)).

    Raises:
        OSError: the disk failed.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # this file system cannot sync a folder
            raise
    finally:
        os.close(descriptor)


def _draft(stem: str, *, locked: bool) -> tuple[str, int]:
    """(Name, descriptor) of a new file beside the one to be written."""
    if locked:
        draft = f"{stem}.draft"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)  # it may belong to another user, and then could not be overwritten
        return draft, _created(draft)
    while True:
        draft = f"{stem}.{os.getpid()}.{next(_numbers)}.draft"
        with contextlib.suppress(FileExistsError):  # of a killed process that had our pid
            return draft, _created(draft)


def _created(path: str) -> int:
    # O_EXCL follows no symbolic link (open(2)), which matters in a folder that other users may write to.
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
