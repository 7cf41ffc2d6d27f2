"""Profilers that record nothing, since nothing runs on the GPU; their reports are empty."""

from __future__ import annotations

from typing import Any

from cotenant.tracing.patches.registry import Patch, PatchContext, Phase, patch_attributes


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


def patches(context: PatchContext) -> list[Patch]:
    """Profilers that record nothing."""
    reason = "Kineto and the CUDA profiler need a driver; no kernel runs that they could time."
    return [
        *patch_attributes(
            "torch.profiler", {"profile": NullProfiler},
            phase=Phase.DEVICE, reason=reason, source="torch/profiler/profiler.py, `profile`",
        ),
        *patch_attributes(
            "torch.autograd.profiler", {"profile": NullProfiler, "emit_nvtx": NullProfiler},
            phase=Phase.DEVICE, reason=reason, source="torch/autograd/profiler.py, `profile`",
        ),
        *patch_attributes(
            "torch.cuda.memory",
            {
                "_record_memory_history": lambda *_, **__: None,
                "_snapshot": lambda *_, **__: {"segments": [], "device_traces": []},
            },
            phase=Phase.DEVICE, reason="The CUDA caching allocator, whose history these read, is not there.",
            source="torch/cuda/memory.py, `_record_memory_history`",
        ),
        *patch_attributes(
            "torch.cuda.profiler", {"start": lambda: None, "stop": lambda: None},
            phase=Phase.DEVICE, reason=reason, source="torch/cuda/profiler.py, `start`",
        ),
    ]  # fmt: skip
