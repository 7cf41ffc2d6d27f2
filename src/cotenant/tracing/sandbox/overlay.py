"""An overlay of the file system: what a traced script writes, moves and removes happens in a scratch folder.

Files are copied there before they are changed, new files are made there, and removed ones are remembered. Python's
functions for files use it through `overlay_hooks`; `restrictions` refuses compiled code that writes elsewhere. Caches
and devices are not redirected. Not modeled: links, owners, permissions and times.
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
    "TORCHINDUCTOR_CACHE_DIR", "NUMBA_CACHE_DIR", "PIP_CACHE_DIR", "TORCH_EXTENSIONS_DIR",
)  # fmt: skip
_NEVER_REDIRECTED = ("/dev", "/proc", "/sys")

_MAX_FOLDERS_NAMED = 3  # in warnings

# Taken before `overlay_hooks` replaces them in `os`.
real_stat, real_lstat, real_open, real_listdir = os.stat, os.lstat, os.open, os.listdir
real_isdir, real_isfile = os.path.isdir, os.path.isfile  # a script's questions are answered with made-up files
real_getcwd, real_chdir, real_makedirs, real_unlink = os.getcwd, os.chdir, os.makedirs, os.unlink
real_symlink = os.symlink


def cache_folders(env: Any) -> list[str]:
    """Folders of caches, which a script may change: they hold no work of the user."""
    found = [env[name] for name in _CACHES if env.get(name)]
    home = env.get("HOME")
    if home:
        found += [f"{home}/.cache", f"{home}/.triton", f"{home}/.config/matplotlib", f"{home}/.nv"]
    return [os.path.abspath(folder) for folder in found]


class Overlay:
    """The scratch folder, and what it hides.

    Attributes:
        upper: the folder whose tree lies over the file system.
        captures_all: whether all changes go there; else only files that `write` made.
        cwd: the working folder, as the script sees it.
        assumed_folders: folders that did not exist when the script wrote a file to them, and that were made.
    """

    def __init__(self, folder: str, *, captures_all: bool = True, free: tuple[str, ...] = ()) -> None:
        self.upper = os.path.join(os.path.realpath(folder), "files")
        self.root = os.path.dirname(self.upper)
        self.captures_all = captures_all
        self.removed: set[str] = set()
        self.cwd = real_getcwd()
        self.assumed_folders: list[str] = []
        self._free = frozenset((*_NEVER_REDIRECTED, *free, self.root, *cache_folders(os.environ)))
        self._below_free = tuple(path + "/" for path in self._free)

    # -- where things are -------------------------------------------------------------------------------------

    def path_of(self, path: Any) -> str | None:
        """The absolute path that a script means; None for what is not redirected: descriptors, devices, caches.

        And for an empty path, which names nothing, not even the working folder.
        """
        if isinstance(path, int):
            return None
        text = os.fsdecode(path)
        if not text:
            return None
        full = os.path.normpath(os.path.join(self.cwd, text))
        return None if self.is_free(full) else full

    def is_free(self, full: str) -> bool:
        """Whether a path is not redirected."""
        return full in self._free or full.startswith(self._below_free)

    def above(self, full: str) -> str:
        """Where `full` would lie in the scratch folder."""
        return self.upper + full

    def visible(self, path: Any) -> Any:
        """The file to read: the one in the scratch folder, the real one, or one that does not exist."""
        full = self.path_of(path)
        if full is None:
            return path
        above = self.above(full)
        if _exists(above) or self._is_removed(full):
            return above
        return full

    def _is_removed(self, full: str) -> bool:
        return bool(self.removed) and any(path == full or full.startswith(path + "/") for path in self.removed)

    def exists(self, full: str) -> bool:
        """Whether the script sees something at `full`."""
        return _exists(self.above(full)) or (not self._is_removed(full) and _exists(full))

    def _is_folder(self, full: str) -> bool:
        """Whether the script sees a folder at `full`; a link to one is none."""
        path = self.visible(full)
        return real_isdir(path) and not os.path.islink(path)

    def is_real(self, full: str) -> bool:
        """Whether something is at `full` outside the scratch folder."""
        return _exists(full)

    def absent(self, path: Any) -> str | None:
        """The absolute path that a script means, if a file that is missing there may be made for it; else None."""
        full = self.path_of(path)
        return None if full is None or not self.captures_all or self.exists(full) else full

    def captures(self, full: str) -> bool:
        """Whether a change of `full` happens in the scratch folder."""
        return self.captures_all or _exists(self.above(full))

    # -- changing ---------------------------------------------------------------------------------------------

    def upper_path(self, full: str) -> str:
        """The place in the scratch folder at which to make `full`; the script must see its folder."""
        folder = os.path.dirname(full)
        if not real_isdir(self.visible(folder)):
            raise _error(errno.ENOENT, full)
        real_makedirs(self.above(folder), exist_ok=True)
        return self.above(full)

    def new_file(self, full: str) -> Path:
        """The place in the scratch folder of a file that is made for the script, with its folders."""
        above = Path(self.above(full))
        real_makedirs(above.parent, exist_ok=True)
        return above

    def for_writing(self, path: Any, *, fresh: bool) -> Any:
        """The file to write to, with its present content unless `fresh`."""
        full = self.path_of(path)
        if full is None or not self.captures(full):
            return path
        self.assume_folder_of(full)
        above = self.upper_path(full)
        hidden = self._is_removed(full)
        if os.path.islink(above):
            self._copy(os.path.realpath(above), above)
        elif not fresh and not _exists(above) and not hidden and real_isfile(full):
            self._copy(full, above)
        elif real_isdir(self.visible(full)):
            raise _error(errno.EISDIR, full)
        return above

    def assume_folder_of(self, full: str) -> None:
        """Make the folder in which the script makes a file or a folder: a README may ask for `mkdir logs` before."""
        folder = os.path.dirname(full)
        if not self.captures_all or self.exists(folder):
            return
        parent = next(path for path in self._folders_above(folder) if self.exists(path))
        if real_isdir(self.visible(parent)):
            real_makedirs(self.above(folder), exist_ok=True)
            self.assumed_folders.append(folder)

    @staticmethod
    def _folders_above(path: str) -> Iterator[str]:
        while path != "/":
            path = os.path.dirname(path)
            yield path

    def warnings(self) -> list[str]:
        """Sentences about folders that the script's own run will lack."""
        names = [path.removeprefix(self.cwd + "/") for path in self.assumed_folders]
        what = "does not exist, and the script writes to it: make it before the job starts"
        found = [f"the folder `{name}` {what}" for name in names[:_MAX_FOLDERS_NAMED]]
        left = len(names) - len(found)
        return [*found, f"{left:,} more folders do not exist that the script writes to"] if left > 0 else found

    def _copy(self, source: str, target: str) -> None:
        if os.path.islink(target):
            real_unlink(target)
        if real_stat(source).st_size > MAX_COPIED_BYTES:
            raise _error(errno.EFBIG, source, "too large to be copied for a traced script that changes it")
        _copy_bytes(source, target)

    def write(self, path: Any, content: bytes) -> None:
        """Write a whole new file, in the scratch folder even where that does not capture all changes."""
        full = self.path_of(path)
        if full is not None:
            self.assume_folder_of(full)
        target = os.fspath(path) if full is None else self.upper_path(full)
        with os.fdopen(real_open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)

    def remove(self, full: str) -> None:
        """Remove a file or link."""
        if not self.exists(full):
            raise _error(errno.ENOENT, full)
        if self._is_folder(full):
            raise _error(errno.EISDIR, full)
        if _exists(self.above(full)):
            real_unlink(self.above(full))
        if _exists(full):
            self.removed.add(full)

    def remove_folder(self, full: str) -> None:
        """Remove an empty folder."""
        if not self.exists(full):
            raise _error(errno.ENOENT, full)
        if self.names(full):
            raise _error(errno.ENOTEMPTY, full)
        if _exists(self.above(full)):
            shutil.rmtree(self.above(full))
        if _exists(full):
            self.removed.add(full)

    def make_folder(self, full: str) -> None:
        """Make a folder in an existing one."""
        if self.exists(full):
            raise _error(errno.EEXIST, full)
        above = self.upper_path(full)
        real_makedirs(above, exist_ok=True)

    def move(self, source: str, target: str) -> None:
        """Move a file, a link or a folder; a file or link at `target` is replaced."""
        if not self.exists(source):
            raise _error(errno.ENOENT, source)
        if source == target:
            return
        if self._is_folder(source):
            if target.startswith(source + "/"):
                raise _error(errno.EINVAL, target)
            self._move_folder(source, target)
            return
        content = self.visible(source)
        above = self.upper_path(target)
        if self._is_folder(target):
            raise _error(errno.EISDIR, target)
        if _exists(above):
            real_unlink(above)
        if os.path.islink(content):
            real_symlink(os.path.realpath(content), above)
        else:
            self._copy(content, above)
        self.remove(source)

    def _move_folder(self, source: str, target: str) -> None:
        if self.exists(target):
            self.remove_folder(target)
        self.make_folder(target)
        for name in self.names(source):
            self.move(os.path.join(source, name), os.path.join(target, name))
        self.remove_folder(source)

    # -- looking ----------------------------------------------------------------------------------------------

    def names(self, full: str) -> list[str]:
        """Names in a folder, sorted."""
        above = self.above(full)
        found = set(real_listdir(above)) if real_isdir(above) else set()
        if not self._is_removed(full):
            try:
                below = real_listdir(full)
                if self.removed:
                    below = [name for name in below if os.path.join(full, name) not in self.removed]
                found.update(below)
            except FileNotFoundError:
                if not real_isdir(above):
                    raise
        elif not real_isdir(above):
            raise _error(errno.ENOENT, full)
        return sorted(found)

    def change_folder(self, full: str) -> None:
        """Change the working folder; for compiled code and programs, too, if the real folder exists."""
        if not self.exists(full):
            raise _error(errno.ENOENT, full)
        is_real = not self._is_removed(full) and _exists(full)
        real_chdir(full if is_real else self.above(full))
        self.cwd = full


class OverlayEntry:
    """An entry of `os.scandir`. A script may make millions: `Path.glob` for each item, which reads the names alone."""

    __slots__ = ("_folder", "name")

    def __init__(self, folder: str, name: str) -> None:
        self.name = name
        self._folder = folder

    @property
    def path(self) -> str:
        """The folder, as given to `os.scandir`, and the name."""
        return os.path.join(self._folder, self.name)

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
        """False: junctions are of Windows."""
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Status of the file that the script sees."""
        return os.stat(self.path, follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        """Its inode number."""
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
    """Make the folders of an overlay that captures all changes; any other makes them when it needs them."""
    real_makedirs(folder / "files", exist_ok=True)
    real_makedirs(folder / "tmp", exist_ok=True)
