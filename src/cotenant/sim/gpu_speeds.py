"""Relative speeds of GPU types, for jobs that run alone.

Seven types are known: by workload if it was measured on both types, else by the median over many workloads, relative
to the V100. A job takes the same time on all other types.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

from cotenant.core.errors import UnknownName
from cotenant.sim.cluster import Cluster, memory_bytes
from cotenant.sim.interference.tables import DATA_PATH, family_of, read_csv

SPEEDS_PATH = DATA_PATH / "gpu_speeds.csv"


class GpuSpeed(NamedTuple):
    """Speeds of one GPU type.

    Attributes:
        median: over many workloads, relative to a V100.
        by_workload: relative to the type that the source chose.
    """

    median: float
    by_workload: Mapping[str, float]


def relative_speed(gpu_type: str, reference_gpu: str, workload: str | None = None) -> float:
    """Speed of a job alone on `gpu_type`, relative to `reference_gpu`; 1.0 if one of them is unknown.

    A MIG instance counts as its whole GPU. Source: the head of
    `data/gpu_speeds.csv`.
    """
    here, there = speeds().get(family_of(gpu_type)), speeds().get(family_of(reference_gpu))
    if here is None or there is None:
        return 1.0
    own, base = here.by_workload.get(workload or ""), there.by_workload.get(workload or "")
    return here.median / there.median if own is None or base is None else own / base


def reference_type(cluster: Cluster, reference_gpu: str | None) -> str:
    """The GPU type that the run times refer to: the one given, or the first of the cluster.

    Raises:
        UnknownName: there is no such type.
    """
    if reference_gpu is None:
        return cluster.slots[0].gpu_type
    if family_of(reference_gpu) not in speeds():
        try:
            memory_bytes(reference_gpu)
        except UnknownName as error:
            from cotenant.gpu_specs import gpu_specs_by_name

            raise UnknownName("GPU type", reference_gpu, {*gpu_specs_by_name(), *speeds()}) from error
    return reference_gpu


def note(cluster: Cluster, reference_gpu: str | None) -> str | None:
    """The assumptions about run times on GPU types other than the reference, for people; None if there are none."""
    base = reference_type(cluster, reference_gpu)
    others = {family_of(slot.gpu_type): slot.gpu_type.partition("/")[0] for slot in cluster.slots}
    others.pop(family_of(base), None)
    if not others:
        return None
    unknown = [name for kind, name in others.items() if kind not in speeds() or family_of(base) not in speeds()]
    text = f"run times refer to `{base}`"
    if len(unknown) < len(others):
        text += "; on other types they scale with published relative speeds"
    return f"{text}; the relative speeds of {', '.join(unknown)} are unknown and taken as 1" if unknown else text


@functools.cache
def speeds() -> Mapping[str, GpuSpeed]:
    """All known speeds, by GPU type."""
    medians: dict[str, float] = {}
    by_workload: dict[str, dict[str, float]] = {}
    for row in read_csv(SPEEDS_PATH):
        if row["workload"]:
            by_workload.setdefault(row["gpu"], {})[row["workload"]] = float(row["speed"])
        else:
            medians[row["gpu"]] = float(row["speed"])
    return {kind: GpuSpeed(median, by_workload.get(kind, {})) for kind, median in medians.items()}
