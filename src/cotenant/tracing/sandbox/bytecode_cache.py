"""Compiled code of modules that have none beside their source: of a checkout that has never run, or a new environment.

The sandbox keeps Python from writing it there, so without a cache every trace compiles the same files: 0.7 s of CPU
time for pandas. Entries are named by the source, its path and the version of Python, so none is ever out of date. A
script could change them, as it could change any other cache of its user; a later trace runs them in its sandbox.
Source: Lib/importlib/_bootstrap_external.py, `SourceLoader.get_code`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import marshal
import os
import sys
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

from cotenant.osutil.cache_folder import cache_folder
from cotenant.tracing.patches.registry import Patch, Phase
from cotenant.tracing.sandbox.overlay import real_listdir, real_lstat, real_makedirs, real_open, real_unlink

real_replace = os.replace  # taken before `overlay_hooks` replaces it

MAX_ENTRIES = 64  # of one folder, of 256: some 330 MiB in all
_MAX_BYTES = 16 << 20
_DIGEST_BYTES = hashlib.sha256().digest_size


def default_folder(env: Mapping[str, str]) -> str | None:
    """`bytecode` in the user's cache folder; None for a user without a home directory."""
    folder = cache_folder("bytecode", env)
    return None if folder is None else str(folder)


def patches(folder: str | None) -> list[Patch]:
    """The compiler of imported modules. `PYTHONDONTWRITEBYTECODE` is for files beside sources, and changes nothing."""
    if folder is None:
        return []
    return [
        Patch(
            target="importlib.machinery:SourceFileLoader.source_to_code", phase=Phase.SANDBOX, wraps=True,
            replacement=functools.partial(_caching, BytecodeCache(folder)),
            reason="Python writes no compiled code beside a source in the sandbox, and compiles it in every trace.",
            source="Lib/importlib/_bootstrap_external.py, `SourceLoader.get_code`",
        )
    ]  # fmt: skip


def _caching(cache: BytecodeCache, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def source_to_code(self: Any, data: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        if type(data) is not bytes or type(path) is not str or args or kwargs.get("_optimization", -1) != -1:
            return original(self, data, path, *args, **kwargs)  # such as a tree, of a loader that changes the source
        name = cache.name_of(data, path)
        code = cache.read(name)
        if code is None:
            code = original(self, data, path, **kwargs)
            cache.write(name, code)
        return code

    return source_to_code


class BytecodeCache:
    """Entries in 256 folders that only their owner can change. Nothing here raises: what cannot be read is compiled."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._version = importlib.util.MAGIC_NUMBER + bytes([sys.flags.optimize])

    def name_of(self, source: bytes, path: str) -> str:
        """The file of a source at `path`, which tracebacks show."""
        digest = hashlib.sha256(self._version + os.fsencode(path) + b"\0" + source).hexdigest()
        return f"{self._folder}/{digest[:2]}/{digest[2:]}"

    def read(self, name: str) -> CodeType | None:
        """The code of an entry; None without one, or where it is damaged or another user's."""
        with contextlib.suppress(OSError, ValueError, EOFError, TypeError):
            with os.fdopen(real_open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
                if os.fstat(file.fileno()).st_uid != os.getuid():
                    return None
                content = file.read(_MAX_BYTES)
            digest, body = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
            # `marshal` is not safe for damaged input: docs.python.org/3/library/marshal.html
            if hashlib.sha256(body).digest() == digest:
                code = marshal.loads(body)  # noqa: S302
                return code if isinstance(code, CodeType) else None
        return None

    def write(self, name: str, code: CodeType) -> None:
        """Add an entry: as a whole, or not at all."""
        folder, scratch = name.rpartition("/")[0], f"{name}.{os.getpid()}"
        with contextlib.suppress(OSError, ValueError, TypeError):
            body = marshal.dumps(code)
            real_makedirs(folder, mode=0o700, exist_ok=True)
            self._shrink(folder)
            number = real_open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(number, "wb") as file:
                file.write(hashlib.sha256(body).digest() + body)
            real_replace(scratch, name)

    def _shrink(self, folder: str) -> None:
        """Delete the older half of a full folder."""
        names = [f"{folder}/{name}" for name in real_listdir(folder)]
        if len(names) < MAX_ENTRIES:
            return
        for name in sorted(names, key=lambda name: real_lstat(name).st_mtime_ns)[: MAX_ENTRIES // 2]:
            real_unlink(name)
