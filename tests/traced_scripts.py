"""Traces small scripts in a fork of the pytest process, where torch is already imported."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import json
import multiprocessing
import os
import re
import sys
import textwrap
import traceback
import warnings
from pathlib import Path

import pytest

from cotenant.core.errors import TraceError, UsageError
from cotenant.core.ports import TraceOptions
from cotenant.core.trace import CATEGORIES, MemoryTrace
from cotenant.tracing.process import forkserver, garbage_collection, provenance, serialization

A100 = {"name": "A100", "total_bytes": 40 * 2**30, "capability": [8, 0], "sm_count": 108, "count": 1}
LIMIT_S = 120
TRAINING = """
import glob, io, os, sys, types, zipfile
from pathlib import Path
import torch
model = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train():
    for _ in range(4):
        model(torch.zeros(2, 4, device="cuda")).sum().backward()
        optimizer.step()
"""
"""A small network, and four steps of it: what scripts that are traced for another reason train."""


RARE = """
import argparse
from torch.utils.data import DataLoader
model = nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
args = argparse.Namespace(every=9)
@torch.no_grad()
def evaluate(net, width):
    net(torch.ones(5000, width, device="cuda"))
def train(x):
    model(x).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
{loop}
"""
STEP = "train(torch.ones(4, 64, device='cuda'))"
BIG = 4 * 5000 * 64
"""A script whose `loop` trains by `STEP`, and sometimes evaluates a batch whose output has `BIG` bytes."""


def trained(folder: Path, source: str, *args: str, **options: object) -> MemoryTrace:
    """Trace `TRAINING`, then `source`, then `train()`. Raises as `traced`."""
    return traced(folder, f"{TRAINING}{textwrap.dedent(source)}\ntrain()\n", *args, **options)


def traced(
    folder: Path,
    source: str,
    *args: str,
    steps: int = 3,
    capability: tuple[int, int] = (8, 0),
    gpus: int = 1,
    **more: object,
) -> MemoryTrace:
    """Trace a script with this source and check the trace. Its output is in `folder/log`. `more`: fields of
    `TraceOptions`, or of the request.

    Raises:
        TraceError: as in `trace_script`.
    """
    script, answer = folder / "train.py", folder / "answer"
    script.write_text(textwrap.dedent(source))
    names = {field.name for field in dataclasses.fields(TraceOptions)}
    options = TraceOptions(steps=steps, **{name: value for name, value in more.items() if name in names})
    request = {
        "program": {"kind": "script", "target": str(script), "args": list(args)},
        "gpu": {**A100, "capability": list(capability), "count": gpus},
        "options": dataclasses.asdict(options),
        **{name: value for name, value in more.items() if name not in names},
    }
    answer.unlink(missing_ok=True)
    _load()
    _tests_own_modules()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns about forks with threads; no thread of the parent computes
        process = multiprocessing.get_context("fork").Process(target=_child, args=(request, answer, folder))
        process.start()
    process.join(LIMIT_S)
    if process.is_alive():
        process.kill()
        raise AssertionError(f"not traced after {LIMIT_S} s:\n{(folder / 'log').read_text()}")
    assert answer.exists(), (folder / "log").read_text()
    result = json.loads(answer.read_text())
    if "error" in result:
        raise TraceError(result["error"]["kind"], result["error"]["message"], hint=result["error"]["hint"])
    trace = serialization.trace_from_dict(result["trace"])
    check_well_formed(trace)
    return trace


@functools.cache
def _load() -> None:
    """Import the fork server's modules once; in every fork this would be nine tenths of a small trace's time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        forkserver.import_tracer()
        for module in forkserver._PRELOADED_WHEN_IDLE:
            with contextlib.suppress(ImportError):
                importlib.import_module(module)
    garbage_collection.hide_objects()
    provenance.note_preloaded()
    traceback.extract_stack()  # `FakeTensorMode` takes one: its lines are read here, and not in every fork


def _child(request: dict, answer: Path, folder: Path) -> None:
    sink = os.open(folder / "log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    os.chdir(folder)
    _forget_modules_beside(folder)
    _forget_tests()
    warnings.resetwarnings()
    warnings.simplefilter("ignore")
    import torch

    from cotenant.tracing.process import session as tracing_session

    torch.set_num_threads(1)
    try:
        session = tracing_session.TracingSession(request, answer)
    except TraceError as error:
        tracing_session.answer_error(answer, error)
    except UsageError as error:
        tracing_session.answer_error(answer, tracing_session.as_trace_error(error))
    session.run(session.script)


def _forget_modules_beside(folder: Path) -> None:
    """Drop the modules that an earlier test imported and that the script has beside it, as its own process has them."""
    beside = {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    if any(name in sys.modules for name in beside):  # a look at every name of a module would copy its page
        for name in list(sys.modules):
            if name.partition(".")[0] in beside:
                del sys.modules[name]


_forgotten: list[object] = []  # else the fork would spend time on freeing them


@functools.cache
def _tests_own_modules() -> tuple[str, ...]:
    """Names of the modules of tests and benchmarks that are loaded."""
    root = Path(__file__).parents[1]
    own = tuple(str(root / folder) + os.sep for folder in ("tests", "benchmarks"))
    files = {name: str(getattr(module, "__file__", None)) for name, module in list(sys.modules.items())}
    return tuple(name for name, file in files.items() if file.startswith(own))


def _forget_tests() -> None:
    """Drop the modules of tests: a trace would read and hash the 600 files of a whole suite, as the script's own."""
    _forgotten.extend(sys.modules.pop(name) for name in _tests_own_modules() if name in sys.modules)


def check_well_formed(trace: MemoryTrace) -> None:
    """Check that frees match live storages, ids are unique, and categories and phases are known."""
    live: set[int] = set()
    known: set[int] = set()
    for event in trace.events:
        if event.action == "alloc":
            assert event.storage_id not in known
            assert event.category in CATEGORIES
            assert event.bytes >= 0
            live.add(event.storage_id)
            known.add(event.storage_id)
        elif event.action == "free":
            assert event.storage_id in live
            live.remove(event.storage_id)
        elif event.action == "op":
            assert 0 <= event.op_id < len(trace.ops)
        assert event.phase in {"load", "forward", "backward", "step"}


def live_bytes(trace: MemoryTrace):
    """(event, live requested bytes after it), in order."""
    sizes: dict[int, int] = {}
    total = 0
    for event in trace.events:
        if event.action == "alloc":
            sizes[event.storage_id] = event.bytes
            total += event.bytes
        elif event.action == "free":
            total -= sizes.pop(event.storage_id)
        yield event, total


def peak(trace: MemoryTrace, phase: str | None = None) -> int:
    """Peak of live requested bytes, in one phase or in all."""
    return max(total for event, total in live_bytes(trace) if phase is None or event.phase == phase)


def allocations(trace: MemoryTrace, phase: str | None = None, category: str | None = None) -> list[int]:
    """Requested bytes of each allocation."""
    return [
        event.bytes
        for event in trace.events
        if event.action == "alloc" and phase in (None, event.phase) and category in (None, event.category)
    ]


def by_category(trace: MemoryTrace) -> dict[str, int]:
    """Total requested bytes allocated, by category."""
    totals: dict[str, int] = {}
    for event in trace.events:
        if event.action == "alloc":
            totals[event.category] = totals.get(event.category, 0) + event.bytes
    return totals


@contextlib.contextmanager
def failing(kind: str, words: str = ""):
    """The block raises a `TraceError` of this kind, whose message contains `words`."""
    with pytest.raises(TraceError, match=re.escape(words) or None) as caught:
        yield caught
    assert caught.value.kind == kind


def work_area_warnings(folder: Path, call: str) -> list[str]:
    """Warnings of work areas in a training that makes this call of a matrix `x`, of 256 x 256."""
    source = f"""
    import torch
    x = torch.nn.Parameter(torch.ones(256, 256, device="cuda"))
    optimizer = torch.optim.SGD([x], lr=0.1)
    for _ in range(4):
        {call}.abs().sum().backward()
        optimizer.step()
    """
    return [warning for warning in traced(folder, textwrap.dedent(source)).warnings if "work area" in warning]
