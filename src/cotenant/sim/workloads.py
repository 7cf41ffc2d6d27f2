"""Measured training workloads of an A100, and the speeds of measured pairs."""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from cotenant.core.units import MiB

DATA_PATH = Path(__file__).parent / "data"
A100_CONTEXT_BYTES = 420 * MiB  # within what torch leaves outside its allocator on an A100; not part of the data set


class Workload(NamedTuple):
    """A workload alone on an A100-40GB.

    Attributes:
        gpus: how many it runs on, with the same use of each.
        first_peak_bytes: most memory in its first 200 s, context included.
        peak_bytes: most memory in the whole run, context included.
        solo_s: run time, from start to end.
        smact, smocc, drama, utilization: mean while training; ratios.
        source: where the figures come from; see the head of the file.
    """

    name: str
    gpus: int
    first_peak_bytes: int
    peak_bytes: int
    solo_s: float
    smact: float
    smocc: float
    drama: float
    utilization: float
    source: str


@functools.cache
def workloads() -> Mapping[str, Workload]:
    """All measured workloads, by name. Source: the head of `data/workloads_a100.csv`."""
    found = [
        Workload(
            name=row["name"],
            gpus=int(row["gpus"]),
            first_peak_bytes=int(row["first_peak_mib"]) * MiB,
            peak_bytes=int(row["peak_mib"]) * MiB,
            solo_s=float(row["solo_s"]),
            smact=float(row["smact"]),
            smocc=float(row["smocc"]),
            drama=float(row["drama"]),
            utilization=float(row["utilization"]),
            source=row["source"],
        )
        for row in _rows("workloads_a100.csv")
    ]
    return {workload.name: workload for workload in found}


def workload(name: str) -> Workload:
    """The workload of that name.

    Raises:
        UnknownName: there is none.
    """
    known = workloads()
    if name not in known:
        from cotenant.core.errors import UnknownName

        raise UnknownName("workload", name, known)
    return known[name]


@functools.cache
def pair_speeds() -> Mapping[tuple[str, str], float]:
    """Speed of the first workload beside the second, as a part of its speed alone; measured pairs only.

    A pair that was measured more than once has the mean. Source: the head of `data/pairs_a100.csv`.
    """
    found: dict[tuple[str, str], list[float]] = {}
    for row in _rows("pairs_a100.csv"):
        found.setdefault((row["first"], row["second"]), []).append(float(row["speed_first"]))
        found.setdefault((row["second"], row["first"]), []).append(float(row["speed_second"]))
    return {pair: sum(speeds) / len(speeds) for pair, speeds in found.items()}


def _rows(name: str) -> Iterator[dict[str, str]]:
    with (DATA_PATH / name).open(newline="") as file:
        yield from csv.DictReader(line for line in file if not line.startswith("#"))
