"""Answers of the tracing process as JSON files, with events in columns."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

from cotenant.core.errors import CotenantError, TraceError
from cotenant.core.trace import KernelGroup, LayerCall, LibraryCall, MemoryEvent, MemoryTrace, NcclUsage, TraceHeader

SCHEMA = 2
EXITED = "the script exited"
ENDED_WITHOUT_GPU = "the script ended without putting anything on a GPU"
"""Beginning of the message where a script ended itself: its last words say why."""
RENEWED = "renewed"
"""A file beside the answer that changes when an optimizer step renews the limit of time."""
COMPILED = "compiled"
"""A file beside the answer that exists as soon as the compiler is started for code of `torch.compile`."""
UNINSTALLED = "uninstalled"
"""A file beside the answer that names the package whose absence ended the script, if a null object can replace it."""
USAGE = "usage"
"""Kind of an error that `trace_script` raises as a `UsageError`."""
_INTERNED = ("action", "category", "phase", "module")


def trace_to_dict(trace: MemoryTrace) -> dict[str, Any]:
    """Plain JSON; texts that repeat are stored once."""
    texts: dict[str, int] = {}
    columns: dict[str, list[Any]] = {}
    rows = list(zip(*trace.events, strict=True)) if trace.events else [()] * len(MemoryEvent._fields)
    for name, values in zip(MemoryEvent._fields, rows, strict=True):
        if name in _INTERNED:
            columns[name] = [texts.setdefault(value, len(texts)) for value in values]
        else:
            columns[name] = list(values)
    return {
        "schema": SCHEMA,
        "texts": list(texts),
        "columns": columns,
        "ops": [{"kind": op.kind, "thread": op.thread, "params": dict(op.params)} for op in trace.ops],
        "header": _header_to_dict(trace.header),
        "warnings": list(trace.warnings),
        "partial": trace.partial,
    }


def trace_from_dict(value: dict[str, Any]) -> MemoryTrace:
    """The trace, of this schema or of schema 1, which had no release.

    Raises:
        CotenantError: the file is of another version, or damaged.
    """
    if value.get("schema") == 1:
        value = _from_schema_1(value)
    if value.get("schema") != SCHEMA:
        raise CotenantError(
            f"the trace has schema {value.get('schema')!r}, wanted 1 to {SCHEMA}", hint="trace the script again"
        )
    texts, columns = value["texts"], value["columns"]
    ready = [
        [texts[index] for index in columns[name]] if name in _INTERNED else columns[name]
        for name in MemoryEvent._fields
    ]
    return MemoryTrace(
        events=tuple(map(MemoryEvent._make, zip(*ready, strict=True))),
        ops=tuple(
            LibraryCall(kind=op["kind"], thread=op["thread"], params=_tuples(op["params"])) for op in value["ops"]
        ),
        header=_header_from_dict(value["header"]),
        warnings=tuple(value["warnings"]),
        partial=value["partial"],
    )


def _header_to_dict(header: TraceHeader) -> dict[str, Any]:
    nccl = header.nccl
    values: dict[str, Any] = {field.name: getattr(header, field.name) for field in fields(header)}
    return {
        **values,
        "nccl": None if nccl is None else {field.name: getattr(nccl, field.name) for field in fields(nccl)},
    }


def _header_from_dict(value: dict[str, Any]) -> TraceHeader:
    nccl, capability, sources, sites = (value[key] for key in ("nccl", "capability", "sources", "site_folders"))
    return TraceHeader(
        **{
            **value,
            "capability": None if capability is None else (capability[0], capability[1]),
            "nccl": None if nccl is None else NcclUsage(**{**nccl, "group_sizes": tuple(nccl["group_sizes"])}),
            "layers": tuple(LayerCall(kind, count, tuple(shape)) for kind, count, shape in value["layers"]),
            "sources": None if sources is None else tuple((path, digest) for path, digest in sources),
            "site_folders": None if sites is None else tuple(sites),
            "runs_otherwise": tuple(value.get("runs_otherwise", ())),
            "lines": dict(value.get("lines", {})),
            "kernels": tuple(KernelGroup(*group) for group in value.get("kernels", ())),
        }
    )


def _from_schema_1(value: dict[str, Any]) -> dict[str, Any]:
    """The header had keys without a type, absent where not known; `op` events had the index of the call as storage."""
    old = value["header"]
    nccl = old.get("nccl")
    header = {
        "torch_version": old["torch"],
        "torch_folder": old.get("torch_folder"),
        "cuda_version": old.get("cuda"),
        "python_version": old.get("python"),
        "gpu": old.get("card"),
        "capability": old.get("capability"),
        "gpus": old.get("devices"),
        "processes": old.get("processes"),
        "steps": old.get("steps"),
        "nccl": None,
        "memory_fraction": old.get("memory_fraction"),
        "oom_raised": bool(old.get("oom_raised")),
        "libraries": old.get("libraries") or {},
        "layers": old.get("layers") or [],
        "sources": old.get("sources"),
        "site_folders": old.get("site_folders"),
        "settings": old.get("settings"),
        "settings_before": old.get("settings_before"),
        "alloc_conf": old.get("alloc_conf"),
        "cublas_workspace_config": old.get("cublas_workspace_config"),
    }
    if nccl:
        header["nccl"] = {
            "group_sizes": nccl["groups"],
            "max_channels": _nccl_number(nccl.get("max_channels")),
            "buffer_bytes": _nccl_number(nccl.get("buffer_bytes")),
        }
    columns = value["columns"]
    is_op = [value["texts"][index] == "op" for index in columns["action"]]
    op_ids = [number if op else -1 for number, op in zip(columns["storage_id"], is_op, strict=True)]
    storage_ids = [-1 if op else number for number, op in zip(columns["storage_id"], is_op, strict=True)]
    return {
        **value,
        "schema": 2,
        "header": header,
        "columns": {**columns, "storage_id": storage_ids, "op_id": op_ids},
    }


def _nccl_number(text: object) -> int | None:
    """The number in an environment variable of NCCL; None if it is not set, or no number."""
    return int(text) if isinstance(text, str) and text.isdecimal() else None


def _tuples(params: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in params.items()}


def output_paths(path: Path) -> tuple[str, str]:
    """The file that `save` writes, and the temporary file that becomes it."""
    return str(path), str(path.with_name(f"{path.name}.{os.getpid()}.part"))


def save(path: Path, value: dict[str, Any]) -> None:
    """Write the whole file or nothing."""
    scratch = Path(output_paths(path)[1])
    scratch.write_text(json.dumps(value, separators=(",", ":")))
    scratch.replace(path)


def error_to_dict(error: TraceError) -> dict[str, Any]:
    """The error as JSON."""
    return {"kind": error.kind, "message": error.message, "hint": error.hint}
