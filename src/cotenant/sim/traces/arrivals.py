"""When jobs came, where a source says no more than that: counts in bins, or submissions without run times.

Such a file is no trace; `mapper.onto_arrivals` lays the jobs of a trace on it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

from cotenant.core.errors import UsageError
from cotenant.sim.traces.rows import TraceRow, rows


def read_arrivals(path: Path, *, seed: int = 0, only: str | None = None) -> list[float]:
    """Submission times in ascending order, the first at 0.

    Reads tables with the `submit_s` of each job, and tables with `t_s` and `submit_gpu_job`, the number of jobs
    submitted in the bin that begins then (Helios Venus); times within a bin are drawn uniformly from `seed`.
    `only="set=philly"` selects the rows whose column `set` is `philly`.

    Raises:
        UsageError: the table has none of these columns, or no job.
        JobFileError: a cell is not a number.
    """
    found: list[float] = []
    bins: list[tuple[float, int]] = []
    column, _, value = (only or "").partition("=")
    for row in rows(path):
        if column and row.text(column) != value:
            continue
        at_s = row.number("submit_s")
        if at_s is not None:
            found.append(at_s)
        elif (start_s := row.number("t_s")) is not None:
            bins.append((start_s, _jobs(row)))
    found += _spread(bins, seed)
    if not found:
        raise UsageError(f"`{path}` has no arrivals", hint="wanted a column `submit_s`, or `t_s` and `submit_gpu_job`")
    found.sort()
    first_s = found[0]
    return [at_s - first_s for at_s in found]


def _jobs(row: TraceRow) -> int:
    count = row.number("submit_gpu_job")
    if count is None or count < 0:
        raise row.error("no `submit_gpu_job`")
    return int(count)


def _spread(bins: list[tuple[float, int]], seed: int) -> Iterator[float]:
    if len(bins) < 2:
        return
    drawn = random.Random(seed)  # noqa: S311 - no secret
    width_s = min(later - earlier for (earlier, _), (later, _) in itertools.pairwise(bins) if later > earlier)
    for start_s, count in bins:
        for _ in range(count):
            yield start_s + width_s * drawn.random()
