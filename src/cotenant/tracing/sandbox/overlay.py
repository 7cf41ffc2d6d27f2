"""What a traced script writes, moves and removes: in a scratch folder that lies over the file system, seen by it alone.

Files are copied there before they are changed, new ones are made there, removed ones are remembered. Below are the
functions of Python that scripts and libraries call for it; compiled code that opens files by itself is not redirected
but refused, by `fence`. Caches and devices are used as ever. Not modeled: links, owners, rights and times.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MAX_COPIED_BYTES = 256 << 20
_CACHES = (
    "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TORCH_HOME", "MPLCONFIGDIR", "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR", "NUMBA_CACHE_DIR", "PIP_CACHE_DIR",
)  # fmt: skip
_NEVER_REDIRECTED = ("/dev", "/proc", "/sys")

real_stat, real_lstat, real_open, real_listdir = os.stat, os.lstat, os.open, os.listdir
real_getcwd, real_chdir, real_makedirs, real_unlink = os.getcwd, os.chdir, os.makedirs, os.unlink


def cache_folders(env: Any) -> list[str]:
    """Where caches are kept: their content is nobody's work."""
    found = [env[name] for name in _CACHES if env.get(name)]
    home = env.get("HOME")
    if home:
        found += [f"{home}/.cache", f"{home}/.triton", f"{home}/.config/matplotlib", f"{home}/.nv"]
    return [os.path.abspath(each) for each in found]


class Overlay:
    """The scratch folder and what it hides.

    `captures_all`: false leaves every file alone that `write` did not make. `free`: paths left alone in any case.
    """

    def __init__(self, folder: str, *, captures_all: bool = True, free: tuple[str, ...] = ()) -> None:
        self.upper = os.path.join(os.path.realpath(folder), "files")
        self.root = os.path.dirname(self.upper)
        self.captures_all = captures_all
        self.removed: set[str] = set()
        self.cwd = real_getcwd()
        self._free = frozenset((*_NEVER_REDIRECTED, *free, self.root, *cache_folders(os.environ)))
        self._below_free = tuple(each + "/" for each in self._free)

    # -- where things are -------------------------------------------------------------------------------------

    def path_of(self, path: Any) -> str | None:
        """The absolute path that a script means; None for what is not redirected: numbers, devices, caches."""
        if isinstance(path, int):
            return None
        text = os.fsdecode(path)
        full = os.path.normpath(os.path.join(self.cwd, text))
        return None if self.is_free(full) else full

    def is_free(self, full: str) -> bool:
        """Whether a path is left alone."""
        return full in self._free or full.startswith(self._below_free)

    def above(self, full: str) -> str:
        """Where `full` would lie in the scratch folder."""
        return self.upper + full

    def seen(self, path: Any) -> Any:
        """The file to look at: the one in the scratch folder, or the real one, or one that does not exist."""
        full = self.path_of(path)
        if full is None:
            return path
        above = self.above(full)
        if _exists(above) or self._is_removed(full):
            return above
        return full

    def _is_removed(self, full: str) -> bool:
        return bool(self.removed) and any(each == full or full.startswith(each + "/") for each in self.removed)

    def holds(self, full: str) -> bool:
        """Whether the script sees something at `full`."""
        return _exists(self.above(full)) or (not self._is_removed(full) and _exists(full))

    def takes(self, full: str) -> bool:
        """Whether a change of `full` happens in the scratch folder."""
        return self.captures_all or _exists(self.above(full))

    # -- changing ---------------------------------------------------------------------------------------------

    def upper_path(self, full: str) -> str:
        """Where to make `full`; its folder must be there for the script."""
        folder = os.path.dirname(full)
        if not os.path.isdir(self.seen(folder)):
            raise _error(errno.ENOENT, full)
        real_makedirs(self.above(folder), exist_ok=True)
        return self.above(full)

    def for_writing(self, path: Any, *, fresh: bool) -> Any:
        """The file to write to; with its present content unless it is to be `fresh`."""
        full = self.path_of(path)
        if full is None or not self.takes(full):
            return path
        above = self.upper_path(full)
        hidden = self._is_removed(full)
        if os.path.islink(above):
            self._copy(os.path.realpath(above), above)
        elif not fresh and not _exists(above) and not hidden and os.path.isfile(full):
            self._copy(full, above)
        elif os.path.isdir(self.seen(full)):
            raise _error(errno.EISDIR, full)
        return above

    def _copy(self, source: str, target: str) -> None:
        if os.path.islink(target):
            real_unlink(target)
        if real_stat(source).st_size > MAX_COPIED_BYTES:
            raise _error(errno.EFBIG, source, "too large to be copied for a traced script that changes it")
        _copy_bytes(source, target)

    def write(self, path: Any, content: bytes) -> None:
        """A whole new file, in the scratch folder even if that does not take all."""
        full = self.path_of(path)
        target = os.fspath(path) if full is None else self.upper_path(full)
        with os.fdopen(real_open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)

    def remove(self, full: str) -> None:
        """Of files and links."""
        if not self.holds(full):
            raise _error(errno.ENOENT, full)
        if os.path.isdir(self.seen(full)):
            raise _error(errno.EISDIR, full)
        if _exists(self.above(full)):
            real_unlink(self.above(full))
        if _exists(full):
            self.removed.add(full)

    def remove_folder(self, full: str) -> None:
        """Of empty folders."""
        if not self.holds(full):
            raise _error(errno.ENOENT, full)
        if self.names(full):
            raise _error(errno.ENOTEMPTY, full)
        if _exists(self.above(full)):
            shutil.rmtree(self.above(full))
        if _exists(full):
            self.removed.add(full)

    def make_folder(self, full: str) -> None:
        """Below a folder that is there."""
        if self.holds(full):
            raise _error(errno.EEXIST, full)
        above = self.upper_path(full)
        real_makedirs(above, exist_ok=True)

    def move(self, source: str, target: str) -> None:
        """A file or a folder; what is at `target` is replaced, if it is a file."""
        if not self.holds(source):
            raise _error(errno.ENOENT, source)
        if os.path.isdir(self.seen(source)):
            self._move_folder(source, target)
            return
        content = self.seen(source)
        above = self.upper_path(target)
        if os.path.islink(above):
            real_unlink(above)
        if os.path.isdir(above):
            raise _error(errno.EISDIR, target)
        if content != above:
            self._copy(content, above)
            self.remove(source)

    def _move_folder(self, source: str, target: str) -> None:
        if self.holds(target):
            self.remove_folder(target)
        self.make_folder(target)
        for name in self.names(source):
            self.move(os.path.join(source, name), os.path.join(target, name))
        self.remove_folder(source)

    # -- looking ----------------------------------------------------------------------------------------------

    def names(self, full: str) -> list[str]:
        """What is in a folder."""
        above = self.above(full)
        found = set(real_listdir(above)) if os.path.isdir(above) else set()
        if not self._is_removed(full):
            try:
                found |= {name for name in real_listdir(full) if os.path.join(full, name) not in self.removed}
            except FileNotFoundError:
                if not os.path.isdir(above):
                    raise
        elif not os.path.isdir(above):
            raise _error(errno.ENOENT, full)
        return sorted(found)

    def change_folder(self, full: str) -> None:
        """The working folder, as the script believes; for compiled code and programs the real one, where it exists."""
        if not self.holds(full):
            raise _error(errno.ENOENT, full)
        is_real = not self._is_removed(full) and _exists(full)
        real_chdir(full if is_real else self.above(full))
        self.cwd = full


class OverlayEntry:
    """What `os.scandir` tells of a name."""

    def __init__(self, folder: str, name: str) -> None:
        self.name = name
        self.path = os.path.join(folder, name)

    def __fspath__(self) -> str:
        return self.path

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a folder."""
        return self._is(stat.S_ISDIR, follow_symlinks=follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a file."""
        return self._is(stat.S_ISREG, follow_symlinks=follow_symlinks)

    def is_symlink(self) -> bool:
        """Whether it is a link."""
        return self._is(stat.S_ISLNK, follow_symlinks=False)

    def is_junction(self) -> bool:
        """Not here."""
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Of what the script sees."""
        return os.stat(self.path, follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        """Its number."""
        return self.stat(follow_symlinks=False).st_ino

    def _is(self, test: Any, *, follow_symlinks: bool) -> bool:
        try:
            return bool(test(self.stat(follow_symlinks=follow_symlinks).st_mode))
        except OSError:
            return False


class OverlayEntries:
    """The iterator of `os.scandir`."""

    def __init__(self, entries: Iterator[OverlayEntry]) -> None:
        self._entries = entries

    def __iter__(self) -> OverlayEntries:
        return self

    def __next__(self) -> OverlayEntry:
        return next(self._entries)

    def __enter__(self) -> OverlayEntries:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def close(self) -> None:
        """Nothing is open."""


def _exists(path: str) -> bool:
    try:
        real_lstat(path)
    except (OSError, ValueError):
        return False
    return True


def _copy_bytes(source: str, target: str) -> None:
    with (
        os.fdopen(real_open(source, os.O_RDONLY), "rb") as old,
        os.fdopen(real_open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as new,
    ):
        shutil.copyfileobj(old, new)


def _error(number: int, path: str, words: str | None = None) -> OSError:
    return OSError(number, words or os.strerror(number), path)


def make_scratch(folder: Path) -> None:
    """Make the place for an overlay that takes all; any other makes it when it needs it."""
    real_makedirs(folder / "files", exist_ok=True)
    real_makedirs(folder / "tmp", exist_ok=True)
