"""Kernels that Inductor chooses by their speed, which the null GPU does not have: one candidate of each kind is enough.

`mode="max-autotune"` compiles some twenty kernels of Triton for each matrix product and measures them, 744 s for a
perceptron of two layers. With one candidate beside cuBLAS all buffers of a measurement are still allocated.
Source: torch/_inductor/select_algorithm.py; torch/_inductor/template_heuristics/triton.py, `_finalize_mm_configs`.

A module of its own: the rules of one part of Inductor, which the session installs.
"""

from __future__ import annotations

import sys
from typing import Any

from cotenant.tracing.patches.registry import Patch, Phase

TUNED = (
    "kernels of `max-autotune` are chosen by their speed, which a null GPU does not have: one candidate of each was "
    "compiled, and the one that a GPU finds fastest may need other buffers"
)
_CANDIDATES = {"max_mm_configs": 1, "max_flex_configs": 1}


def patches() -> list[Patch]:
    """Fewer candidates, and no search around the best."""
    common: dict[str, Any] = {"phase": Phase.LIBRARIES, "missing": "some versions: names vary"}
    return [
        *(
            Patch(
                target=f"torch._inductor.config:test_configs.{name}", replacement=count,
                reason="Compiling takes minutes, and no measurement tells candidates apart.",
                source="torch/_inductor/config.py, `test_configs`", **common,
            )
            for name, count in _CANDIDATES.items()
        ),
        Patch(
            target="torch._inductor.runtime.triton_heuristics:CachingAutotuner.coordinate_descent_tuning",
            replacement=lambda self, launcher, *_, **__: launcher,
            reason="It compiles neighbors of the best configuration until none is faster.",
            source="torch/_inductor/runtime/triton_heuristics.py, `coordinate_descent_tuning`", **common,
        ),
    ]  # fmt: skip


def has_tuned() -> bool:
    """Whether Inductor has chosen a kernel by its speed."""
    counters: Any = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return bool(counters.get("inductor", {}).get("select_algorithm_autotune"))
