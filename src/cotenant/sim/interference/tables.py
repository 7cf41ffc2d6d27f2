"""The shipped measurements of pairs, and the fits to them."""

from __future__ import annotations

import csv
import functools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from cotenant.core.errors import UsageError
from cotenant.sim.interference.kernel import KernelFit, Traits, activity_traits
from cotenant.sim.interference.model import TrueActivity

DATA_PATH = Path(__file__).parent.parent / "data"
FITS_PATH = DATA_PATH / "interference_fits.json"

PairRow = tuple[str, str, float, float]
"""Two workloads, and the speed of each beside the other."""

FILES = {
    "A100": "pairs_a100.csv",
    "RTX2080Ti": "pairs_rtx2080ti.csv",
    "V100": "pairs_gavel.csv",
    "P100": "pairs_gavel.csv",
    "K80": "pairs_gavel.csv",
}
"""File of measured pairs, by GPU family."""


def family_of(gpu_type: str) -> str:
    """The GPU family whose pairs apply to this type: `A100` for `A100-40GB` and its MIG instances."""
    return re.split(r"[-/]", gpu_type, maxsplit=1)[0]


def pair_rows(family: str) -> list[PairRow]:
    """All measurements on this GPU family; a pair may occur more than once."""
    rows = read_csv(DATA_PATH / FILES[family])
    return [_pair(row) for row in rows if row.get("gpu", family) == family]


def read_pairs(path: Path) -> list[PairRow]:
    """Read pairs from a CSV with `first`, `second`, `speed_first`, `speed_second`; `#` begins a comment.

    Raises:
        UsageError: the file or a row cannot be read; the message names the row.
    """
    found: list[PairRow] = []
    try:
        for number, row in enumerate(read_csv(path), start=1):
            try:
                found.append(_pair(row))
            except (KeyError, TypeError, ValueError) as error:
                raise UsageError(
                    f"{path}: pair {number} is {dict(row)!r}: {error}",
                    hint="the columns are first,second,speed_first,speed_second; speeds are above 0",
                ) from error
    except OSError as error:
        raise UsageError(f"cannot read `{path}`: {error.strerror}") from error
    return found


def mean_speeds(rows: Iterable[PairRow]) -> Mapping[tuple[str, str], float]:
    """Speed of the first of a pair beside the second, the mean over repeated measurements."""
    found: dict[tuple[str, str], list[float]] = {}
    for first, second, speed_first, speed_second in rows:
        found.setdefault((first, second), []).append(speed_first)
        found.setdefault((second, first), []).append(speed_second)
    return {pair: sum(speeds) / len(speeds) for pair, speeds in found.items()}


@functools.cache
def measured(family: str) -> Mapping[tuple[str, str], float]:
    """All measured speeds on this GPU family."""
    return mean_speeds(pair_rows(family))


@functools.cache
def fits() -> Mapping[str, KernelFit]:
    """The fits made by `benchmarks/simulator/interference.py --write`, by GPU family."""
    data = json.loads(FITS_PATH.read_text())
    return {family: KernelFit.from_json(fit) for family, fit in data["fits"].items()}


def traits(family: str) -> dict[str, Traits]:
    """Inputs of the fit for each workload measured on this GPU family.

    On the A100, the activity that DCGM measured alone. Elsewhere only what the name contains: batch size, model and
    data set and, on the RTX 2080 Ti, the peak memory.
    """
    names = sorted({name for pair in measured(family) for name in pair})
    if family == "A100":
        from cotenant.sim.workloads import workloads

        found: dict[str, Traits] = {}
        for name in names:
            job = workloads()[name]
            activity = TrueActivity(name, job.smact, job.smocc, job.drama, job.utilization, job.first_peak_bytes)
            if (seen := activity_traits(activity)) is not None:
                found[name] = seen
        return found
    if family == "RTX2080Ti":
        peaks_mib = {row["name"]: float(row["peak_mib"]) for row in read_csv(DATA_PATH / "workloads_rtx2080ti.csv")}
        return {name: _named(name, r"^(.*?)_bs(\d+)", math.log(peaks_mib[name])) for name in names if name in peaks_mib}
    return {name: _named(name, r"^(.*)\|(\d+)$") for name in names}


def _named(name: str, pattern: str, *values: float) -> Traits:
    found = re.match(pattern, name)
    family, batch = (found.group(1), int(found.group(2))) if found else (name, 0)
    return Traits((math.log2(max(1, batch)), *values), family)


def _pair(row: Mapping[str, str]) -> PairRow:
    speeds = float(row["speed_first"]), float(row["speed_second"])
    if not all(0.0 < speed < math.inf for speed in speeds):
        raise ValueError("a speed is not above 0")
    return row["first"], row["second"], *speeds


def read_csv(path: Path) -> Iterator[dict[str, str]]:
    """Rows of a CSV whose comments begin with `#`."""
    with path.open(newline="") as file:
        yield from csv.DictReader(line for line in file if not line.startswith("#"))
