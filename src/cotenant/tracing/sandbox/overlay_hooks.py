"""Puts an `Overlay` behind Python's functions for files: those that look, and those that change something."""

from __future__ import annotations

import builtins
import errno
import importlib
import io
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

from cotenant.tracing.sandbox.overlay import Overlay, OverlayEntries, OverlayEntry, real_chdir, real_open

_OWN_OPEN = {"bz2": "_builtin_open", "tarfile": "bltn_open", "tokenize": "_builtin_open"}
"""Modules that keep the function by which Python opens files, under names of their own."""
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def install(overlay: Overlay) -> None:
    """Redirect this process, for good."""
    table = {**_reading_functions(overlay), **_changing_functions(overlay), **_moving_functions(overlay)}
    for name, function in table.items():
        if hasattr(os, name):
            setattr(os, name, function)
    _install_open(overlay)
    old_accessor: Any = getattr(pathlib, "_NormalAccessor", None)  # Python 3.10 keeps its own references
    table["open"] = io.open
    for name, function in table.items():
        if old_accessor is not None and hasattr(old_accessor, name):
            setattr(old_accessor, name, staticmethod(function))
    if overlay.captures_all:
        vars(shutil)["_use_fd_functions"] = False  # file descriptors of folders are not redirected
        tempfile.tempdir = os.environ["TMPDIR"] = os.path.join(overlay.root, "tmp")


def _reading_functions(overlay: Overlay) -> dict[str, Callable[..., Any]]:
    def listdir(path: Any = ".") -> list[str]:
        full = overlay.path_of(path)
        return originals["listdir"](path) if full is None else overlay.names(full)

    def scandir(path: Any = ".") -> Any:
        full = overlay.path_of(path)
        if full is None:
            return originals["scandir"](path)
        folder = os.fsdecode(path)
        return OverlayEntries(iter([OverlayEntry(folder, name) for name in overlay.names(full)]))

    def chdir(path: Any) -> None:
        full = overlay.path_of(path)
        if full is not None:
            overlay.change_folder(full)
        elif not isinstance(path, int):
            real_chdir(path)
            overlay.cwd = originals["getcwd"]()
        else:
            real_chdir(path)

    originals = {name: getattr(os, name) for name in ("listdir", "scandir", "getcwd")}
    plain = {name: _seen(overlay, getattr(os, name)) for name in ("stat", "lstat", "access", "readlink")}
    return {**plain, "listdir": listdir, "scandir": scandir, "chdir": chdir, "getcwd": lambda: overlay.cwd}


def _seen(overlay: Overlay, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(path: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("dir_fd") is not None:
            return function(path, *args, **kwargs)
        return function(overlay.seen(path), *args, **kwargs)

    return call


def _changing_functions(overlay: Overlay) -> dict[str, Callable[..., Any]]:
    """Functions of one path."""

    def through(name: str, change: Callable[..., Any]) -> Callable[..., Any]:
        original = getattr(os, name)

        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            full = None if kwargs.get("dir_fd") is not None else overlay.path_of(path)
            if full is None and overlay.captures_all and kwargs.get("dir_fd") is not None:
                raise PermissionError(errno.EACCES, "refused while traced: the place is an open folder", path)
            if full is None or not overlay.takes(full):
                return original(path, *args, **kwargs)
            return change(full, *args, **kwargs)

        return call

    def truncate(full: str, length: int) -> None:
        os.truncate(os.open(full, os.O_RDWR), length)

    def leave(full: str, *_: Any, **__: Any) -> None:
        if not overlay.holds(full):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), full)

    changes: dict[str, Callable[..., Any]] = {
        "mkdir": lambda full, *_, **__: overlay.make_folder(full),
        "rmdir": lambda full, **__: overlay.remove_folder(full),
        "unlink": lambda full, **__: overlay.remove(full),
        "remove": lambda full, **__: overlay.remove(full),
        "truncate": truncate,
        **dict.fromkeys(("chmod", "lchmod", "chown", "lchown", "utime", "chflags", "setxattr", "removexattr"), leave),
    }
    return {name: through(name, change) for name, change in changes.items() if hasattr(os, name)}


def _moving_functions(overlay: Overlay) -> dict[str, Callable[..., Any]]:
    """Functions of two paths."""

    def through(name: str, change: Callable[[str, str], None]) -> Callable[..., Any]:
        original = getattr(os, name)

        def call(source: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
            if any(value is not None for key, value in kwargs.items() if key.endswith("dir_fd")):
                raise PermissionError(errno.EACCES, "refused while traced: the place is an open folder", source)
            paths = overlay.path_of(source), overlay.path_of(target)
            if paths[0] is None or paths[1] is None:
                return original(overlay.seen(source), _place(overlay, target), *args, **kwargs)
            if not overlay.takes(paths[0]):
                return original(source, target, *args, **kwargs)
            return change(paths[0], paths[1])

        return call

    def link(source: str, target: str) -> None:
        if overlay.holds(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        content = pathlib.Path(overlay.seen(source)).read_bytes()
        overlay.write(target, content)

    def symlink(source: Any, target: Any, target_is_directory: bool = False, *, dir_fd: Any = None) -> None:
        full = overlay.path_of(target)
        if full is None or not overlay.captures_all:
            make_link(source, target, target_is_directory, dir_fd=dir_fd)
        else:
            make_link(overlay.seen(os.path.join(os.path.dirname(full), source)), overlay.upper_path(full))

    make_link = os.symlink
    both = {"rename": overlay.move, "replace": overlay.move, "link": link}
    return {**{name: through(name, change) for name, change in both.items()}, "symlink": symlink}


def _place(overlay: Overlay, path: Any) -> Any:
    """Where to put something that comes from, or goes to, a place that is not redirected."""
    full = overlay.path_of(path)
    return path if full is None or not overlay.takes(full) else overlay.upper_path(full)


def _install_open(overlay: Overlay) -> None:
    plain = io.open

    def open_(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, int) or (len(args) > 4 and args[4]) or kwargs.get("opener"):
            return plain(file, mode, *args, **kwargs)
        return plain(_opened(overlay, file, mode), mode, *args, **kwargs)

    def os_open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is not None or isinstance(path, int):
            return real_open(path, flags, mode, dir_fd=dir_fd)
        if not flags & _WRITING:
            return real_open(overlay.seen(path), flags, mode)
        wanted = "x" if flags & os.O_EXCL else "w" if flags & os.O_TRUNC else "a" if flags & os.O_CREAT else "r+"
        return real_open(_opened(overlay, path, wanted), flags, mode)

    builtins.open = io.open = open_
    os.open = os_open
    for module, name in _OWN_OPEN.items():
        own: Any = importlib.import_module(module)
        if getattr(own, name, None) is plain:
            setattr(own, name, open_)


def _opened(overlay: Overlay, path: Any, mode: str) -> Any:
    """The file to open for a mode."""
    full = overlay.path_of(path)
    if full is None:
        return path
    if not set(mode) & set("wax+"):
        return overlay.seen(path)
    if overlay.takes(full):
        if "x" in mode and overlay.holds(full):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        if "r" in mode and not overlay.holds(full):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return overlay.for_writing(path, fresh="w" in mode or "x" in mode)
