"""Metrics of `evaluate`, and of older versions of `datasets`, that are not on this machine: their results are 0.

On the null GPU as in a trace: a metric is computed on the CPU.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from cotenant.tracing.patches.registry import AbsenceContext, Patch, Phase


def patches(context: AbsenceContext) -> list[Patch]:
    """The functions that load a metric by its name."""
    return [
        Patch(
            target="evaluate.loading:load", phase=Phase.LIBRARIES,
            replacement=functools.partial(_with_missing_metrics, context.recorder), wraps=True,
            reason="A metric of `evaluate` is a script that is downloaded from the hub.",
            source="evaluate/loading.py, `load`",
        ),
        Patch(
            target="datasets:load_metric", phase=Phase.LIBRARIES, missing="datasets from 3 on",
            replacement=functools.partial(_with_missing_metrics, context.recorder), wraps=True,
            reason="A metric is a script that is downloaded.", source="datasets/load.py, `load_metric` (2.18)",
        ),
    ]  # fmt: skip


class _ZeroScores(dict[str, float]):
    """A metric's result that has every requested score: `glue` gives an accuracy or an `f1`, by its part.

    It is printed as a number where it must be one: the result of `wer` is no dict.
    """

    def __missing__(self, name: str) -> float:
        return 0.0

    def __format__(self, spec: str) -> str:
        return format(0.0, spec) if spec else str(self)


class _StubMetric:
    """Takes what a metric takes; its result is 0."""

    def __init__(self, name: str) -> None:
        self.name = name

    def compute(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        return _ZeroScores({self.name: 0.0})

    def add(self, *args: Any, **kwargs: Any) -> None:
        return None

    add_batch = add


def _with_missing_metrics(recorder: Any, original: Any) -> Any:
    def load(path: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(path, *args, **kwargs)
        except (OSError, ImportError):
            if Path(path).suffix == ".py":
                raise
        recorder.warn(f"the metric `{path}` is not on this machine: its result is 0")
        return _StubMetric(path)

    return load
