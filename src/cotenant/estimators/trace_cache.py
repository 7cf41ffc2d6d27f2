"""Traces on disk: the second estimate of a script is a replay of milliseconds.

The key of a trace is what determines it: the script and every file that it imported, its arguments, the files they
name, its environment, the interpreter and its installed packages, the GPU's compute capability, and the version of the
tracing code. Data files that the script opens are not part of the key: if they decide its memory, it needs a new trace.
A script that reads the memory of its GPU is assumed to behave the same on every GPU of that capability.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cotenant
from cotenant.core.errors import CotenantError
from cotenant.core.trace import MemoryTrace
from cotenant.core.units import KiB, MiB
from cotenant.osutil import atomic
from cotenant.osutil.cache_folder import cache_folder
from cotenant.tracing.process import serialization
from cotenant.tracing.process.program import Program
from cotenant.tracing.process.provenance import SETTINGS, file_digest

SCHEMA = 1
LIMIT_BYTES = 256 * MiB
_READ_WHOLE_BYTES = 256 * KiB
_UNREADABLE = (
    OSError, EOFError, zlib.error, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError,
    CotenantError,
)  # fmt: skip
"""What reading a damaged or forged entry raises."""

_NO_MATTER = frozenset({
    "_", "CLICOLOR", "COLORTERM", "COLUMNS", "CUDA_VISIBLE_DEVICES", "DISPLAY", "EDITOR", "HISTCONTROL", "HISTFILE",
    "HISTSIZE", "LESS", "LESSCLOSE", "LESSOPEN", "LINES", "LS_COLORS", "MAIL", "NO_COLOR", "OLDPWD", "PAGER", "PS1",
    "PWD", "SHLVL", "STY", "TERM", "VISUAL", "WINDOWID",
    *SETTINGS,
})  # fmt: skip
_NO_MATTER_STARTS = ("COTENANT_", "DBUS_", "SSH_", "TERM_", "TMUX", "VSCODE_", "WAYLAND_", "XDG_")
"""Variables of terminals and sessions, which no training script reads. Any other variable is part of the key."""


def trace_key(
    program: Program,
    *,
    workdir: str,
    env: Mapping[str, str],
    capability: Sequence[int],
    devices: int,
    steps: int,
    options: Mapping[str, object] | None = None,
) -> str:
    """Name of the cache entry for a trace; what the script imports is checked when the entry is read."""
    target = Path(workdir, program.target)
    decides = {
        "cotenant": [cotenant.__version__, _tracer_digest()],
        "python": _interpreter(Path(program.python)),
        "launcher": list(program.launcher),
        "options": dict(options or {}),
        "program": [program.kind, program.target, file_digest(target) if program.kind != "module" else None],
        "folder": program.folder,
        "args": [[arg, _named_file(arg, workdir)] for arg in program.args],
        "workdir": os.path.realpath(workdir),
        "env": {name: value for name, value in sorted(env.items()) if _matters(name)},
        "gpu": [list(capability), devices],
        "steps": steps,
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


def default_folder() -> Path | None:
    """`traces` in the user's cache folder; None for a user without a home directory."""
    return cache_folder("traces")


class TraceCache:
    """Traces in a folder that only its owner can read; above the limit the least recently used are deleted.

    Nothing here raises: an entry that cannot be read is a miss, one that cannot be written is dropped.
    """

    def __init__(self, folder: Path, *, limit_bytes: int = LIMIT_BYTES) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes

    def get(self, key: str, env: Mapping[str, str]) -> MemoryTrace | None:
        """The trace stored as `key`, if its sources are unchanged and it is valid in `env`."""
        path = self._path(key)
        try:
            if path.stat().st_uid != os.getuid():
                return None
            with gzip.open(path, "rt", encoding="utf-8") as file:
                manifest = json.loads(file.readline())
                if not _holds(manifest, env):
                    return None
                trace = serialization.trace_from_dict(json.loads(file.readline()))
        except _UNREADABLE:
            return None
        with contextlib.suppress(OSError):
            # The last use, by which entries are deleted: reading updates no `st_atime` under noatime (mount(8)).
            os.utime(path)
        return trace

    def put(self, key: str, trace: MemoryTrace, env: Mapping[str, str]) -> None:
        """Store a trace made in `env`, unless it is incomplete, has no provenance, or holds an out-of-memory error,
        which is valid for one GPU only.
        """
        header = trace.header
        if trace.partial or header.sources is None or header.oom_raised:
            return
        manifest = {
            "schema": SCHEMA,
            "sources": header.sources,
            "sites": {site_folder: site_digest(Path(site_folder)) for site_folder in header.site_folders or ()},
            "before": _settings(env),
            "after": dict(header.settings or {}),
        }
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.folder.chmod(0o700)
            self._write(self._path(key), (manifest, serialization.trace_to_dict(trace)))
            self._shrink()
        except OSError:
            return

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json.gz"

    def _write(self, path: Path, values: Sequence[Mapping[str, Any]]) -> None:
        """Write the file atomically, readable by its owner only."""
        with atomic.replacing(path) as raw, gzip.open(raw, "wt", compresslevel=3, encoding="utf-8") as file:
            for value in values:
                file.write(json.dumps(value, separators=(",", ":")) + "\n")

    def _shrink(self) -> None:
        entries = []
        for path in self.folder.glob("*.json.gz"):
            with contextlib.suppress(OSError):
                stat = path.stat()
                entries.append((stat.st_mtime_ns, stat.st_size, path))
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= self.limit_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size


def site_digest(folder: Path) -> str | None:
    """Digest of a set of installed packages: their names, versions and times of installation."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith((".dist-info", ".egg-info", ".egg-link", ".pth")):
                    found.append(f"{entry.name} {entry.stat().st_mtime_ns}")
    except OSError:
        return None
    return hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest()


def _holds(manifest: Mapping[str, Any], env: Mapping[str, str]) -> bool:
    return (
        manifest["schema"] == SCHEMA
        and all(file_digest(Path(path)) == digest for path, digest in manifest["sources"])
        and all(site_digest(Path(folder)) == digest for folder, digest in manifest["sites"].items())
        and _same_settings(manifest["before"], manifest["after"], _settings(env))
    )


def _same_settings(before: Mapping[str, str], after: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Whether a script that left the settings `after` would treat `now` as it treated `before`.

    A script that found nothing set and set nothing leaves the settings alone. Any other may have acted on what it
    found, so it is traced again where that differs.
    """
    return all(
        (name not in before and name not in after) or (name in before) == (name in now)
        for name in {*before, *after, *now}
    )


def _settings(env: Mapping[str, str]) -> dict[str, str]:
    return {name: env[name] for name in SETTINGS if name in env}


def _matters(name: str) -> bool:
    return name not in _NO_MATTER and not name.startswith(_NO_MATTER_STARTS)


def _named_file(arg: str, workdir: str) -> str | None:
    """Content of the file that an argument names, by itself or after `=`, such as a configuration file."""
    path = Path(workdir, arg.rpartition("=")[2])
    try:
        if not path.is_file():
            return None
        stat = path.stat()
        if stat.st_size <= _READ_WHOLE_BYTES:
            return hashlib.sha256(path.read_bytes()).hexdigest()
    except (OSError, ValueError):
        return None
    return f"{stat.st_size}-{stat.st_mtime_ns}"


def _interpreter(python: Path) -> list[object]:
    real = Path(os.path.realpath(python))
    config = python.parent.parent / "pyvenv.cfg"
    return [str(python), str(real), file_digest(real), file_digest(config)]


def _tracer_digest() -> str:
    """Digest of the tracing code: other code may make another trace."""
    package = Path(cotenant.__file__).parent
    files = [*sorted((package / "tracing").rglob("*.py")), package / "core" / "trace.py"]
    lines = [f"{file.relative_to(package)} {file_digest(file)}" for file in files]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
