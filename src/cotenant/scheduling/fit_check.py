"""Holds queued jobs that fit on no GPU of the server, and queues them again when there is one that is large enough.

A job whose time limit is longer than GPUs can be had for is held, too.
The hold follows from the newest inventory, so it is not journaled. Only jobs that are new or have changed are compared
with the GPUs, and all of them when the inventory changes. A module of its own: the manager only calls it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cotenant.core.gpu import Gpu
from cotenant.core.job import Held, Job
from cotenant.core.units import format_duration
from cotenant.scheduling.demand import GpuSizes, never_fits
from cotenant.scheduling.job_table import JobTable


class Supply(NamedTuple):
    """GPUs that can be had besides those there are.

    Attributes:
        why_none: why there are no more yet; empty if none can be requested.
        longest_s: for how long they can be had; infinite if that is not known.
    """

    why_none: str = ""
    longest_s: float = math.inf


class FitCheck:
    """Compares the jobs of `table` with the GPUs and MIG instances. `one_node`: as in `Composition`."""

    def __init__(self, table: JobTable, *, one_node: bool = False) -> None:
        self._table = table
        self._one_node = one_node
        self._unchecked: set[int] = set()
        self._gpus: Sequence[Gpu] = ()
        self._sizes = self._instances = GpuSizes()
        self._longest_s = math.inf
        self._too_long: set[int] = set()  # jobs that are held for their time limit

    def add(self, job_ids: Iterable[int]) -> None:
        """These jobs have changed."""
        self._unchecked.update(job_ids)

    def update(self, gpus: Sequence[Gpu], at_s: float, longest_s: float = math.inf) -> bool:
        """Hold and queue again what is due; returns whether any job was compared. `done` follows.

        `longest_s`: as in `Supply`.
        """
        self._take_inventory(gpus)
        if longest_s != self._longest_s:
            self._unchecked |= self._table.queued | self._table.unsatisfiable.keys()
            self._longest_s = longest_s
        if not self._unchecked or not (self._sizes or self._too_long or longest_s < math.inf):
            return False
        table = self._table
        for job_id in sorted(self._unchecked):
            if job_id not in table.queued and job_id not in table.unsatisfiable:
                continue
            job = table.jobs[job_id]
            why = self._why_never(job)
            if why is not None:
                table.hold_unsatisfiable(job, why, at_s)
            elif job_id in table.unsatisfiable:
                table.requeue_satisfiable(job)
        return True

    def done(self) -> None:
        """All jobs are compared, those included that have changed by it."""
        self._unchecked.clear()
        self._too_long &= self._table.unsatisfiable.keys()

    def _why_never(self, job: Job) -> str | None:
        limit_s, longest_s, was_too_long = job.spec.time_limit_s, self._longest_s, job.id in self._too_long
        if limit_s is not None and limit_s > longest_s:
            self._too_long.add(job.id)
            limit, longest = format_duration(limit_s), format_duration(longest_s)
            return f"its time limit of {limit} is longer than the {longest} of an allocation"
        self._too_long.discard(job.id)
        if self._sizes:
            sizes = self._instances if job.spec.sharing == "mig" else self._sizes
            return never_fits(job, sizes.of(job.spec.gpus), one_node=self._one_node)
        # Without a GPU nothing is known but the time: what did not fit the last ones is held until there are others.
        return job.state.reason if isinstance(job.state, Held) and not was_too_long else None

    def _take_inventory(self, gpus: Sequence[Gpu]) -> None:
        if gpus is self._gpus:
            return
        self._gpus = gpus
        sizes = GpuSizes(gpus, one_node=self._one_node)
        instances = GpuSizes((gpu for gpu in gpus if gpu.mig_profile is not None), one_node=self._one_node)
        if sizes != self._sizes or instances != self._instances:
            self._unchecked |= self._table.queued | self._table.unsatisfiable.keys()
            self._sizes, self._instances = sizes, instances
