"""Measured interference of workloads on one GPU model, as `cotenant study collocate --install` writes it.

A table replaces what predictions assume of a workload before anything was observed: its activity, and its effects as a
victim and as an aggressor, by way to share. What the daemon observes later moves predictions away from it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cotenant.core.errors import UsageError

FORMAT = 1
MAX_WORKLOADS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadAlone:
    """A workload alone on the GPU; None where a figure was not read.

    Attributes:
        name: of the job in the campaign. smact, smocc, drama: ratios. memory_bytes: of the whole GPU, above idle.
        gpu_memory_bytes: what the GPU has.
        slice_speeds: speed on a MIG instance, by profile, as a part of that on the whole GPU.
    """

    name: str
    step_s: float
    smact: float | None = None
    smocc: float | None = None
    drama: float | None = None
    memory_bytes: int | None = None
    gpu_memory_bytes: int | None = None
    power_w: float | None = None
    slice_speeds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedEffects:
    """Effects of one workload in log slowdown, on top of the prior by activity, each with its variance."""

    victim: float
    victim_variance: float
    aggressor: float
    aggressor_variance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingTable:
    """What was fitted for one way to share.

    Attributes:
        effects: by workload key.
        pair_speeds: speed of the first workload beside the second, as a part of its speed alone.
        group_factors: measured over predicted slowdown, by the number of jobs, 3 and more.
        median_error, p90_error: of the slowdowns that the fit gives for the rows it was made of, relative.
        rows: slowdowns that it was made of.
    """

    effects: Mapping[str, FittedEffects]
    pair_speeds: Mapping[tuple[str, str], float]
    group_factors: Mapping[int, float]
    median_error: float
    p90_error: float
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InterferenceTable:
    """All that a campaign measured on one GPU.

    Attributes:
        gpu: its name; `is_simulated`: no real one.
        provenance: who made it of what, as text by name.
        workloads: by workload key. ways: by way to share, e.g. `time-sliced`, `mps`, `mps:30`.
    """

    gpu: str
    is_simulated: bool
    provenance: Mapping[str, str]
    workloads: Mapping[str, WorkloadAlone]
    ways: Mapping[str, SharingTable]

    @property
    def digest(self) -> str:
        """Of all figures: equal digests predict equally."""
        body = {**self.to_json(), "provenance": {}}
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]

    def way(self, sharing: str) -> SharingTable | None:
        """The table of a way to share; for `mps`, one without a limit of SMs, else the first with one."""
        exact = self.ways.get(sharing)
        if exact is not None or sharing != "mps":
            return exact
        return next((table for way, table in sorted(self.ways.items()) if way.startswith("mps:")), None)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for `table_from_json`."""
        return {
            "format": FORMAT,
            "gpu": self.gpu,
            "simulated": self.is_simulated,
            "provenance": dict(self.provenance),
            "workloads": {
                key: {
                    "name": found.name, "step_s": found.step_s, "smact": found.smact, "smocc": found.smocc,
                    "drama": found.drama, "memory_bytes": found.memory_bytes,
                    "gpu_memory_bytes": found.gpu_memory_bytes, "power_w": found.power_w,
                    "slice_speeds": dict(found.slice_speeds),
                }
                for key, found in self.workloads.items()
            },
            "ways": {
                way: {
                    "effects": {
                        key: [found.victim, found.victim_variance, found.aggressor, found.aggressor_variance]
                        for key, found in table.effects.items()
                    },
                    "pair_speeds": [[first, second, speed] for (first, second), speed in table.pair_speeds.items()],
                    "group_factors": {str(count): factor for count, factor in table.group_factors.items()},
                    "median_error": table.median_error,
                    "p90_error": table.p90_error,
                    "rows": table.rows,
                }
                for way, table in self.ways.items()
            },
        }  # fmt: skip


def parse_table(text: str, where: str) -> InterferenceTable:
    """The table in a JSON text; `where` names it in messages.

    Raises:
        UsageError: it is no such table, or of another version.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: no JSON: {error}", hint=_HINT) from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        found = data.get("format") if isinstance(data, dict) else data
        raise UsageError(f"{where}: no interference table of format {FORMAT}, found {found!r:.60}", hint=_HINT)
    try:
        return _table(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{where}: no interference table: {type(error).__name__}: {error}", hint=_HINT) from error


_HINT = "make it again with `cotenant study collocate --install`, or remove it"


def _table(data: Mapping[str, Any]) -> InterferenceTable:
    if len(data["workloads"]) > MAX_WORKLOADS:
        raise ValueError(f"more than {MAX_WORKLOADS} workloads")
    return InterferenceTable(
        gpu=str(data["gpu"]),
        is_simulated=bool(data["simulated"]),
        provenance={str(name): str(value) for name, value in data["provenance"].items()},
        workloads={str(key): _workload(value) for key, value in data["workloads"].items()},
        ways={str(way): _way(value) for way, value in data["ways"].items()},
    )


def _workload(data: Mapping[str, Any]) -> WorkloadAlone:
    memory, gpu_memory = data["memory_bytes"], data["gpu_memory_bytes"]
    return WorkloadAlone(
        name=str(data["name"]),
        step_s=_above_zero(data["step_s"]),
        smact=_ratio(data["smact"]),
        smocc=_ratio(data["smocc"]),
        drama=_ratio(data["drama"]),
        memory_bytes=None if memory is None else int(_above_zero(memory)),
        gpu_memory_bytes=None if gpu_memory is None else int(_above_zero(gpu_memory)),
        power_w=None if data["power_w"] is None else _above_zero(data["power_w"]),
        slice_speeds={str(profile): _above_zero(speed) for profile, speed in data["slice_speeds"].items()},
    )


def _way(data: Mapping[str, Any]) -> SharingTable:
    return SharingTable(
        effects={
            str(key): FittedEffects(
                victim=_finite(values[0]),
                victim_variance=_above_zero(values[1]),
                aggressor=_finite(values[2]),
                aggressor_variance=_above_zero(values[3]),
            )
            for key, values in data["effects"].items()
        },
        pair_speeds={(str(first), str(second)): _above_zero(speed) for first, second, speed in data["pair_speeds"]},
        group_factors={int(count): _above_zero(factor) for count, factor in data["group_factors"].items()},
        median_error=_finite(data["median_error"]),
        p90_error=_finite(data["p90_error"]),
        rows=int(data["rows"]),
    )


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is not finite")
    return number


def _above_zero(value: Any) -> float:
    number = _finite(value)
    if number <= 0:
        raise ValueError(f"{value!r} is not above 0")
    return number


def _ratio(value: Any) -> float | None:
    if value is None:
        return None
    number = _finite(value)
    if not 0.0 <= number <= 1.0:
        raise ValueError(f"{value!r} is no ratio from 0 to 1")
    return number
