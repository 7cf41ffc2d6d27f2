"""Holds queued jobs that fit on no GPU of the server, and queues them again when there is one that is large enough.

The hold follows from the newest inventory, so it is not journaled. Only jobs that are new or have changed are compared
with the GPUs, and all of them when the inventory changes. A module of its own: the manager only calls it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cotenant.core.gpu import Gpu
from cotenant.scheduling.demand import never_fits
from cotenant.scheduling.job_table import JobTable


class FitCheck:
    """Compares the jobs of `table` with the GPUs and MIG instances."""

    def __init__(self, table: JobTable) -> None:
        self._table = table
        self._unchecked: set[int] = set()
        self._gpus: Sequence[Gpu] = ()
        self._totals_bytes: list[int] = []  # largest first
        self._instances_bytes: list[int] = []

    def add(self, job_ids: Iterable[int]) -> None:
        """These jobs have changed."""
        self._unchecked.update(job_ids)

    def update(self, gpus: Sequence[Gpu], at_s: float) -> bool:
        """Hold and queue again what is due; returns whether any job was compared. `done` follows."""
        self._take_inventory(gpus)
        totals, instances = self._totals_bytes, self._instances_bytes
        if not totals or not self._unchecked:
            return False
        table = self._table
        for job_id in sorted(self._unchecked):
            if job_id not in table.queued and job_id not in table.unsatisfiable:
                continue
            job = table.jobs[job_id]
            why = never_fits(job, instances if job.spec.sharing == "mig" else totals)
            if why is not None:
                table.hold_unsatisfiable(job, why, at_s)
            elif job_id in table.unsatisfiable:
                table.requeue_satisfiable(job)
        return True

    def done(self) -> None:
        """All jobs are compared, those included that have changed by it."""
        self._unchecked.clear()

    def _take_inventory(self, gpus: Sequence[Gpu]) -> None:
        if gpus is self._gpus:
            return
        self._gpus = gpus
        totals = sorted((gpu.memory_total_bytes for gpu in gpus), reverse=True)
        instances = sorted((gpu.memory_total_bytes for gpu in gpus if gpu.mig_profile is not None), reverse=True)
        if totals != self._totals_bytes or instances != self._instances_bytes:
            self._unchecked |= self._table.queued | self._table.unsatisfiable.keys()
            self._totals_bytes, self._instances_bytes = totals, instances
