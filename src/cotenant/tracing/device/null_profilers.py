"""Profilers that record nothing, since nothing runs on the GPU; their reports are empty."""

from __future__ import annotations

from typing import Any

import torch


class _EmptyReport:
    """An empty table of events."""

    def table(self, *_: object, **__: object) -> str:
        """No rows."""
        return ""

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 0


class NullProfiler:
    """Replaces `torch.profiler.profile` and `torch.autograd.profiler.profile`."""

    def __init__(self, *_: object, **options: Any) -> None:
        self.step_num = 0
        self.current_action = None
        self.profiler = None

    def __enter__(self) -> NullProfiler:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def start(self) -> None:
        """Nothing to start."""

    def stop(self) -> None:
        """Nothing to stop."""

    def step(self) -> None:
        """One more step."""
        self.step_num += 1

    def key_averages(self, *_: object, **__: object) -> _EmptyReport:
        """No events."""
        return _EmptyReport()

    def events(self) -> _EmptyReport:
        """No events."""
        return _EmptyReport()

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("export_", "add_metadata", "preset_", "toggle_", "total_average")):
            return lambda *_, **__: None
        raise AttributeError(name)


def install() -> None:
    """Replace the profilers."""
    torch.profiler.profile = NullProfiler
    torch.autograd.profiler.profile = NullProfiler
    torch.autograd.profiler.emit_nvtx = NullProfiler
    torch.cuda.memory._record_memory_history = lambda *_, **__: None
    torch.cuda.memory._snapshot = lambda *_, **__: {"segments": [], "device_traces": []}
    torch.cuda.memory._dump_snapshot = lambda *_, **__: None
    for name in ("start", "stop"):
        setattr(torch.cuda.profiler, name, lambda: None)
