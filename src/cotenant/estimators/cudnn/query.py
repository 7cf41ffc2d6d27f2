"""Workspaces of the job's convolutions from the cuDNN of the job's own environment, queried without a GPU.

The query runs in its own process, which sees no GPU and has a time limit (`worker`); answers are cached on disk for
each library and compute capability. Where anything fails there is no answer, and the estimate continues without it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotenant.core.trace import LibraryCall
from cotenant.core.units import MiB
from cotenant.osutil import atomic

_DTYPES = {"float32", "float16", "bfloat16"}
_MIN_VERSION = (9, 8)
_TIMEOUT_S = 20.0
_CACHE_BYTES = 4 * MiB
_WORKER = (sys.executable, "-m", "cotenant.estimators.cudnn.worker")
_GRAPH = "libcudnn_graph.so.9"
_SPATIAL = ("stride", "padding", "dilation")
_TRANSPOSED = {"conv_forward": "conv_dgrad", "conv_dgrad": "conv_forward", "conv_wgrad": "conv_wgrad"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CudnnWorkspaces:
    """Workspaces of one cuDNN for one compute capability. Called with a `LibraryCall`: its bytes, or None if unknown.

    Attributes:
        version: as `cudnnGetVersion` gives it, such as 91002.
    """

    version: int
    capability: tuple[int, int]
    found: Mapping[str, int | None]

    def __call__(self, call: LibraryCall) -> int | None:
        queries = query_of(call)
        return None if queries is None else self.found.get(_key(queries))


@dataclass(frozen=True, slots=True, kw_only=True)
class CudnnLibrary:
    """A cuDNN on this machine: its graph library, and the libraries that must be loaded before it."""

    graph: Path
    preload: tuple[Path, ...]


def version_text(version: int) -> str:
    """For people: `cuDNN 9.10.2` for 91002."""
    return f"cuDNN {version // 10_000}.{version // 100 % 100}.{version % 100}"


def query_of(call: LibraryCall) -> dict[str, Any] | None:
    """The query for `call`; None where torch would not take cuDNN's first plan, or not use cuDNN.

    One-dimensional convolutions run with a height of 1, and a transposed one as the gradient of an ordinary one.
    """
    p: dict[str, Any] = dict(call.params)
    if p["groups"] > 1 or p["dtype"] not in _DTYPES or p.get("benchmark") or not p.get("enabled", True):
        return None
    x, w, y = (list(p[name]) for name in "xwy")
    spatial = {name: list(p[name]) for name in _SPATIAL}
    if len(x) == 3:
        x, w, y = ([*shape[:2], 1, shape[2]] for shape in (x, w, y))
        spatial = {name: [int(name != "padding"), *extents] for name, extents in spatial.items()}
    kind = call.kind
    if p.get("transposed"):
        kind, x, y = _TRANSPOSED[kind], y, x
    return {
        "kind": kind,
        "dtype": p["dtype"],
        "channels_last": bool(p["channels_last"]),
        "tf32": bool(p.get("allow_tf32", True)),
        "deterministic": bool(p.get("deterministic")),
        "x": x,
        "w": w,
        "y": y,
        **spatial,
    }


def installed_cudnn(torch_folder: str) -> CudnnLibrary | None:
    """The cuDNN that the torch in `torch_folder` would load, if it can be queried: 9.8 or later, as a shared library.

    Searched where pip's wheels put it: beside torch, and in torch's own `lib`.
    """
    torch, site = Path(torch_folder), Path(torch_folder).parent
    for folder in (site / "nvidia" / "cudnn" / "lib", torch / "lib"):
        graph = folder / _GRAPH
        if graph.is_file():
            known = _header_version(folder.parent / "include")
            if known is not None and known < _MIN_VERSION:
                return None
            blas = sorted(site.glob("nvidia/*/lib/libcublasLt.so.*")) or sorted(folder.glob("libcublasLt.so.*"))
            return CudnnLibrary(graph=graph, preload=tuple(blas[-1:]))
    return None


def _header_version(include: Path) -> tuple[int, int] | None:
    try:
        text = (include / "cudnn_version.h").read_text()
    except (OSError, UnicodeDecodeError):
        return None
    found = [re.search(rf"#define CUDNN_{part}\s+(\d+)", text) for part in ("MAJOR", "MINOR")]
    return (int(found[0][1]), int(found[1][1])) if found[0] and found[1] else None


def query_cudnn(
    library: CudnnLibrary,
    capability: tuple[int, int],
    calls: Iterable[LibraryCall],
    *,
    folder: Path | None = None,
    timeout_s: float = _TIMEOUT_S,
    worker: Sequence[str] = _WORKER,
) -> CudnnWorkspaces | None:
    """Workspaces of `calls`; None where the library does not answer in time, or no call can be queried.

    `folder`: cache of answers; None: no cache. `worker`: the program that loads the library. Never raises.
    """
    queries = {_key(query): query for query in map(query_of, calls) if query is not None}
    if not queries:
        return None
    cache = _QueryCache(folder, library, capability)
    version, found = cache.read()
    missing = [key for key in queries if key not in found]
    if missing:
        reply = _run_worker(worker, library, capability, [queries[key] for key in missing], timeout_s)
        if reply is None:
            return None
        version, fresh = reply
        found = {**found, **dict(zip(missing, fresh, strict=True))}
        cache.write(version, found, {key: found[key] for key in queries})
    return CudnnWorkspaces(version=version, capability=capability, found={key: found[key] for key in queries})


def _key(question: Mapping[str, Any]) -> str:
    return json.dumps(question, sort_keys=True, separators=(",", ":"))


def _run_worker(
    worker: Sequence[str],
    library: CudnnLibrary,
    capability: tuple[int, int],
    questions: Sequence[Mapping[str, Any]],
    timeout_s: float,
) -> tuple[int, list[int | None]] | None:
    """Version and an answer for each query, from a process that sees no GPU; None if it fails in any way."""
    request = {
        "graph": str(library.graph),
        "preload": [str(path) for path in library.preload],
        "capability": 10 * capability[0] + capability[1],
        "calls": list(questions),
    }
    try:
        done = subprocess.run(
            worker,
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "CUDNN_LOGLEVEL_DBG": "0"},
        )
        answer = json.loads(done.stdout) if done.returncode == 0 else {}
        version, found = answer["version"], answer["bytes"]
        fits = isinstance(version, int) and all(nbytes is None or isinstance(nbytes, int) for nbytes in found)
        return (version, found) if fits and len(found) == len(questions) else None
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError):
        return None


class _QueryCache:
    """Answers on disk: a file for each library and capability, started anew above its limit."""

    def __init__(self, folder: Path | None, library: CudnnLibrary, capability: tuple[int, int]) -> None:
        self._path: Path | None = None
        with contextlib.suppress(OSError):
            if folder is not None:
                stat = library.graph.stat()
                which = f"{library.graph.resolve()} {stat.st_size} {stat.st_mtime_ns} {capability}"
                self._path = folder / f"{hashlib.sha256(which.encode()).hexdigest()[:24]}.json"

    def read(self) -> tuple[int, dict[str, int | None]]:
        """Version and answers; empty if the file cannot be read, or belongs to another user."""
        try:
            if self._path is None or self._path.stat().st_uid != os.getuid():
                return 0, {}
            held = json.loads(self._path.read_text())
            return int(held["version"]), dict(held["bytes"])
        except (OSError, ValueError, LookupError, TypeError):
            return 0, {}

    def write(self, version: int, found: Mapping[str, int | None], latest: Mapping[str, int | None]) -> None:
        """Write all of `found`, or `latest` alone where that is above the limit."""
        texts = (json.dumps({"version": version, "bytes": workspaces}) for workspaces in (found, latest))
        text = next((candidate for candidate in texts if len(candidate) <= _CACHE_BYTES), None)
        if self._path is None or text is None:
            return
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            atomic.write_text(self._path, text)
