"""Python's functions for files go through an `Overlay`: those that read, and those that change something."""

from __future__ import annotations

import errno
import functools
import importlib
import io
import os
import pathlib
from collections.abc import Callable
from typing import Any

from cotenant.tracing import script_location
from cotenant.tracing.patches.registry import Entry, HookPatch, Patch, Phase, patch_attributes
from cotenant.tracing.sandbox import bytecode_cache
from cotenant.tracing.sandbox.builtin_function import as_builtin
from cotenant.tracing.sandbox.overlay import Overlay, OverlayEntries, OverlayEntry, real_chdir, real_getcwd, real_open
from cotenant.tracing.sandbox.written_modules import find_written

_OPEN_ALIASES = {"bz2": "_builtin_open", "tarfile": "bltn_open", "tokenize": "_builtin_open"}
"""Modules that hold `open` under a name of their own."""
_RELATIVE = "refused during a trace: the path is relative to an open folder"
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

_READS = ("stat", "lstat", "access", "readlink", "statvfs")


def patches(overlay: Overlay) -> list[Entry]:
    """Functions of `os`, `open`, and the folder for temporary files."""
    functions = {**_reading_functions(overlay), **_changing_functions(overlay), **_moving_functions(overlay)}
    source, reason = "Lib/os.py", "The script sees the overlay, and changes nothing else."
    opened = _open_functions(overlay)
    entries: list[Entry] = [
        *patch_attributes("os", functions, phase=Phase.SANDBOX, reason=reason, source=source, missing="other systems"),
        Patch(target="os:open", phase=Phase.SANDBOX, replacement=opened["os.open"], reason=reason, source=source),
        Patch(target="builtins:open", phase=Phase.SANDBOX, replacement=opened["open"], reason=reason, source=source),
        Patch(target="io:open", phase=Phase.SANDBOX, replacement=opened["open"], reason=reason, source=source),
        Patch(
            target="io:FileIO", phase=Phase.SANDBOX, replacement=_raw_file(opened["os.open"]),
            reason="A class that opens files without `open`, as the library blobfile does.",
            source="Modules/_io/fileio.c, `_io_FileIO___init___impl`",
        ),
    ]  # fmt: skip
    for module, name in _OPEN_ALIASES.items():
        if getattr(importlib.import_module(module), name, None) is io.open:
            entries += patch_attributes(
                module, {name: opened["open"]}, phase=Phase.SANDBOX, reason=f"It holds `open` as `{name}`.",
                source=f"Lib/{module}.py",
            )  # fmt: skip
    entries += _accessor_patches({**functions, "open": opened["open"]})
    entries.append(
        HookPatch(
            target="sys:meta_path", phase=Phase.SANDBOX, register=functools.partial(find_written, overlay),
            reason="The script may import what it has written.", source="Lib/importlib/_bootstrap_external.py",
        )
    )  # fmt: skip
    entries.append(
        Patch(
            target="multiprocessing.spawn:get_preparation_data", phase=Phase.SANDBOX, wraps=True,
            replacement=_starting_in_real_folder,
            reason="A spawned process has no overlay; it goes to the folder where its parent is.",
            source="Lib/multiprocessing/spawn.py, `get_preparation_data`",
        )
    )  # fmt: skip
    if overlay.captures_all:
        folder = os.path.join(overlay.root, "tmp")
        entries += bytecode_cache.patches(bytecode_cache.default_folder(os.environ))
        entries += [
            Patch(
                target="shutil:_use_fd_functions", phase=Phase.SANDBOX, replacement=False,
                reason="Functions that take the descriptor of a folder are not redirected.",
                source="Lib/shutil.py, `rmtree`",
            ),
            Patch(
                target="tempfile:tempdir", phase=Phase.SANDBOX, replacement=folder,
                reason="Temporary files go to the scratch folder, where compiled code may write as well.",
                source="Lib/tempfile.py, `gettempdir`",
            ),
            HookPatch(
                target="os:environ", phase=Phase.SANDBOX,
                register=lambda: os.environ.__setitem__("TMPDIR", folder),
                reason="Programs that the script starts read it.", source="Lib/tempfile.py, `_candidate_tempdir_list`",
            ),
        ]  # fmt: skip
    return entries


def _starting_in_real_folder(original: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    def get_preparation_data(name: str) -> dict[str, Any]:
        return {**original(name), "dir": real_getcwd()}

    return get_preparation_data


def _accessor_patches(functions: dict[str, Callable[..., Any]]) -> list[Patch]:
    """Python 3.10 holds the functions of `os` in a class of `pathlib`; later versions do not."""
    accessor = getattr(pathlib, "_NormalAccessor", None)
    return patch_attributes(
        "pathlib:_NormalAccessor",
        {name: staticmethod(function) for name, function in functions.items() if hasattr(accessor, name)},
        phase=Phase.SANDBOX,
        reason="It holds functions of `os`.",
        source="Lib/pathlib.py, `_NormalAccessor`",
        missing="from Python 3.11 on",
    )


def _reading_functions(overlay: Overlay) -> dict[str, Callable[..., Any]]:
    def listdir(path: Any = ".") -> list[str]:
        full = overlay.path_of(path)
        return originals["listdir"](path) if full is None else overlay.names(full)

    def scandir(path: Any = ".") -> Any:
        full = overlay.path_of(path)
        if full is None:
            return originals["scandir"](path)
        return OverlayEntries(map(functools.partial(OverlayEntry, os.fsdecode(path)), overlay.names(full)))

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
    plain = {name: _redirect_reads(overlay, getattr(os, name)) for name in _READS}
    return {**plain, "listdir": listdir, "scandir": scandir, "chdir": chdir, "getcwd": lambda: overlay.cwd}


def _redirect_reads(overlay: Overlay, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(path: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("dir_fd") is not None:
            return function(path, *args, **kwargs)
        return function(overlay.visible(path), *args, **kwargs)

    return call


def _changing_functions(overlay: Overlay) -> dict[str, Callable[..., Any]]:
    """Functions of one path."""

    def through(name: str, change: Callable[..., Any]) -> Callable[..., Any]:
        original = getattr(os, name)

        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            full = None if kwargs.get("dir_fd") is not None else overlay.path_of(path)
            if full is None and overlay.captures_all and kwargs.get("dir_fd") is not None:
                raise PermissionError(errno.EACCES, _RELATIVE, path)
            if full is None or not overlay.captures(full):
                return original(path, *args, **kwargs)
            return change(full, *args, **kwargs)

        return call

    def make_folder(full: str, *_: Any, **__: Any) -> None:
        makes_parents = script_location.local_value(script_location.calling_frame(), "parents") is True
        if not makes_parents:  # else `pathlib.Path.mkdir` makes them itself, after an error
            overlay.assume_folder_of(full)
        overlay.make_folder(full)

    def truncate(full: str, length: int) -> None:
        descriptor = os.open(full, os.O_RDWR)
        try:
            os.ftruncate(descriptor, length)
        finally:
            os.close(descriptor)

    def ignore(full: str, *_: Any, **__: Any) -> None:
        if not overlay.exists(full):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), full)

    changes: dict[str, Callable[..., Any]] = {
        "mkdir": make_folder,
        "rmdir": lambda full, **__: overlay.remove_folder(full),
        "unlink": lambda full, **__: overlay.remove(full),
        "remove": lambda full, **__: overlay.remove(full),
        "truncate": truncate,
        **dict.fromkeys(("chmod", "lchmod", "chown", "lchown", "utime", "chflags", "setxattr", "removexattr"), ignore),
    }
    return {name: through(name, change) for name, change in changes.items() if hasattr(os, name)}


def _moving_functions(overlay: Overlay) -> dict[str, Callable[..., Any]]:
    """Functions of two paths."""

    def through(name: str, change: Callable[[str, str], None]) -> Callable[..., Any]:
        original = getattr(os, name)

        def call(source: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
            if any(value is not None for key, value in kwargs.items() if key.endswith("dir_fd")):
                raise PermissionError(errno.EACCES, _RELATIVE, source)
            paths = overlay.path_of(source), overlay.path_of(target)
            if paths[0] is None or paths[1] is None:
                return original(overlay.visible(source), _redirect_other(overlay, target), *args, **kwargs)
            if not overlay.captures(paths[0]):
                return original(source, target, *args, **kwargs)
            return change(paths[0], paths[1])

        return call

    def link(source: str, target: str) -> None:
        if overlay.exists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        content = pathlib.Path(overlay.visible(source)).read_bytes()
        overlay.write(target, content)

    def symlink(source: Any, target: Any, target_is_directory: bool = False, *, dir_fd: Any = None) -> None:
        full = overlay.path_of(target)
        if full is None or not overlay.captures_all:
            make_link(source, target, target_is_directory, dir_fd=dir_fd)
        else:
            make_link(overlay.visible(os.path.join(os.path.dirname(full), source)), overlay.upper_path(full))

    make_link = os.symlink
    both = {"rename": overlay.move, "replace": overlay.move, "link": link}
    return {**{name: through(name, change) for name, change in both.items()}, "symlink": symlink}


def _redirect_other(overlay: Overlay, path: Any) -> Any:
    """The path to use where the other one of two is not redirected."""
    full = overlay.path_of(path)
    return path if full is None or not overlay.captures(full) else overlay.upper_path(full)


def _open_functions(overlay: Overlay) -> dict[str, Callable[..., Any]]:
    plain = io.open

    def open_(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, int) or (len(args) > 4 and args[4]) or kwargs.get("opener"):
            return plain(file, mode, *args, **kwargs)
        return plain(_path_to_open(overlay, file, mode), mode, *args, **kwargs)

    def os_open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is not None or isinstance(path, int):
            return real_open(path, flags, mode, dir_fd=dir_fd)
        if not flags & _WRITING:
            return real_open(overlay.visible(path), flags, mode)
        wanted = "x" if flags & os.O_EXCL else "w" if flags & os.O_TRUNC else "a" if flags & os.O_CREAT else "r+"
        return real_open(_path_to_open(overlay, path, wanted), flags, mode)

    return {"open": as_builtin(open_, plain), "os.open": os_open}


def _raw_file(os_open: Callable[..., int]) -> Any:
    """`io.FileIO` whose path goes through `os_open`; files that `open` makes are instances of it, too."""
    plain: Any = io.FileIO

    class Kind(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, plain)

    class FileIO(plain, metaclass=Kind):
        def __init__(self, file: Any, mode: str = "r", closefd: bool = True, opener: Any = None) -> None:
            opens = opener is None and not isinstance(file, int)
            super().__init__(file, mode, closefd, functools.partial(os_open, mode=0o666) if opens else opener)

    return FileIO


def _path_to_open(overlay: Overlay, path: Any, mode: str) -> Any:
    """The path to open for a mode."""
    full = overlay.path_of(path)
    if full is None:
        return path
    if not set(mode) & set("wax+"):
        return overlay.visible(path)
    if overlay.captures(full):
        if "x" in mode and overlay.exists(full):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        if "r" in mode and not overlay.exists(full):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return overlay.for_writing(path, fresh="w" in mode or "x" in mode)
