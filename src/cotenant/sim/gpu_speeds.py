"""How fast a job alone is on one kind of GPU beside another.

Seven kinds are known: by workload where one was measured on both, else by the medians of many workloads, each beside
the V100. Of other kinds nothing is known, and a job takes the same time there.
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
    """What is known of a kind of GPU.

    Attributes:
        median: speed of many workloads, as a part of that on a V100.
        by_workload: speed of one, as a part of its own on a kind that the source chose.
    """

    median: float
    by_workload: Mapping[str, float]


def relative_speed(gpu_type: str, reference_gpu: str, workload: str | None = None) -> float:
    """Speed of a job alone on a GPU of one type, over its speed on one of the type `reference_gpu`.

    1.0 where one of the two is not known. A MIG instance counts as the GPU it is cut from. Source: the head of
    `data/gpu_speeds.csv`.
    """
    here, there = speeds().get(family_of(gpu_type)), speeds().get(family_of(reference_gpu))
    if here is None or there is None:
        return 1.0
    own, base = here.by_workload.get(workload or ""), there.by_workload.get(workload or "")
    return here.median / there.median if own is None or base is None else own / base


def reference_type(cluster: Cluster, reference_gpu: str | None) -> str:
    """The GPU type that run times are of: the one given, or the first of the cluster.

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
    """What a reader of results should know: whose run times, and on which kinds of GPU nothing is known of them."""
    base = reference_type(cluster, reference_gpu)
    others = {family_of(slot.gpu_type): slot.gpu_type.partition("/")[0] for slot in cluster.slots}
    others.pop(family_of(base), None)
    if not others:
        return None
    unknown = [name for kind, name in others.items() if kind not in speeds() or family_of(base) not in speeds()]
    told = f"run times are of `{base}`"
    if len(unknown) < len(others):
        told += "; elsewhere they are what published run times say of the kinds of GPU"
    return f"{told}; nothing is known of {', '.join(unknown)}: the same times there" if unknown else told


@functools.cache
def speeds() -> Mapping[str, GpuSpeed]:
    """All that is known, by kind of GPU."""
    medians: dict[str, float] = {}
    by_workload: dict[str, dict[str, float]] = {}
    for row in read_csv(SPEEDS_PATH):
        if row["workload"]:
            by_workload.setdefault(row["gpu"], {})[row["workload"]] = float(row["speed"])
        else:
            medians[row["gpu"]] = float(row["speed"])
    return {kind: GpuSpeed(median, by_workload.get(kind, {})) for kind, median in medians.items()}
