"""When a live server repartitions an empty GPU in MIG mode, and what is hidden meanwhile. The rule is `repartition`.

From the decision until its end is journaled, the instances of the GPU are in no inventory that the policy sees, so no
job is placed on an instance that vanishes. A daemon that was killed in between resumes the repartition.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from cotenant.core.events import (
    AttemptExited,
    Journaled,
    Repartition,
    RepartitionEnded,
    RepartitionStarted,
    ServerSampled,
)
from cotenant.core.gpu import Gpu
from cotenant.core.mig import MigGpu, layout_texts
from cotenant.scheduling.admission import AdmissionControl
from cotenant.scheduling.job_table import JobTable
from cotenant.scheduling.policy_driver import PolicyDriver
from cotenant.scheduling.repartition import RepartitionPlanner
from cotenant.scheduling.telemetry.samples import Telemetry

BACKOFF = 2.0
MAX_BACKOFF = 64.0
"""After each failure in a row on a GPU, the pause before the next try is longer by the factor, up to this."""


class RepartitionWatch:
    """The repartitions of a live server. Without a planner none is begun, but one that an earlier daemon began ends.

    Attributes:
        pending: repartitions that have not ended, by UUID of the GPU.
    """

    def __init__(self, *, pace: float = 1.0) -> None:
        self.pending: dict[str, RepartitionStarted] = {}
        self._pace = pace
        self._planner: RepartitionPlanner | None = None
        self._ended: dict[str, RepartitionEnded] = {}
        self._failures: dict[str, int] = {}  # in a row
        self._mig_gpus: tuple[MigGpu, ...] = ()
        self._largest: tuple[Gpu, ...] = ()
        self._possible: tuple[tuple[Gpu, ...], tuple[Gpu, ...]] = ((), ())
        self._vacated_s: dict[str, float] = {}  # when a job left an instance, by UUID
        self._looked_at: object = None

    def bind(
        self,
        planner: RepartitionPlanner | None,
        table: JobTable,
        admission: AdmissionControl,
        telemetry: Telemetry,
        driver: PolicyDriver,
    ) -> None:
        """Use these from now on."""
        self._planner = planner
        self._table = table
        self._admission = admission
        self._telemetry = telemetry
        self._driver = driver

    def apply(self, event: Journaled) -> None:
        """A repartition begins or is over, or an attempt has left its GPUs; other events change nothing."""
        if isinstance(event, RepartitionStarted):
            self.pending[event.gpu_uuid] = event
        elif isinstance(event, RepartitionEnded):
            uuid = event.gpu_uuid
            self.pending.pop(uuid, None)
            self._ended[uuid] = event
            self._failures[uuid] = 0 if event.error is None else self._failures.get(uuid, 0) + 1
            self._looked_at = None
        elif isinstance(event, AttemptExited):
            job = self._table.jobs.get(event.job_id)
            if job is not None and job.attempts:
                self._vacated_s.update(dict.fromkeys(job.attempts[-1].placement.gpu_uuids, event.at_s))

    def load(self, pending: Iterable[RepartitionStarted]) -> None:
        """Take over the repartitions of a snapshot."""
        self.pending = {started.gpu_uuid: started for started in pending}

    def resumed(self, at_s: float) -> list[Repartition]:
        """After a restart: the commands that bring the repartitions of an earlier daemon to their end."""
        return [
            Repartition(at_s=at_s, cause="restart", started=started, is_resumed=True)
            for started in self.pending.values()
        ]

    def visible(self, event: ServerSampled) -> ServerSampled:
        """`event` without the instances of GPUs that are being repartitioned, or were when it was taken."""
        self._mig_gpus = event.mig_gpus
        if self._planner is not None:
            self._largest = tuple(_largest(gpu) for gpu in event.mig_gpus if not gpu.foreign)
        hidden = {gpu.uuid for gpu in event.mig_gpus if self._is_outdated(gpu, event.at_s)} | self.pending.keys()
        if not hidden:
            return event
        gpus = tuple(gpu for gpu in event.gpus if gpu.mig_parent not in hidden)
        return replace(event, gpus=self._telemetry.gpus if gpus == self._telemetry.gpus else gpus)

    def _is_outdated(self, gpu: MigGpu, at_s: float) -> bool:
        """Whether it was sampled before its last repartition ended, and had other instances."""
        ended = self._ended.get(gpu.uuid)
        return ended is not None and at_s <= ended.at_s and layout_texts(gpu.layout) != ended.layout

    def possible_gpus(self) -> Sequence[Gpu]:
        """The inventory, and the largest instance of every GPU that may be repartitioned: a job may wait for that."""
        gpus, largest = self._telemetry.gpus, self._largest
        if not largest:
            return gpus
        if self._possible[0] is not gpus or self._possible[1][len(gpus) :] != largest:
            self._possible = gpus, (*gpus, *largest)
        return self._possible[1]

    def commands(self, at_s: float) -> list[Repartition]:
        """The repartition that is worth most, already applied, or none. Its instances are hidden from now on.

        It comes before jobs are placed: the jobs that gain by it would be placed on the old instances.
        """
        planner = self._planner
        if planner is None or not self._mig_gpus or self.pending:
            return []
        waiting = self._admission.offered()
        if not waiting:
            return []
        excluded = {gpu.uuid for gpu in self._mig_gpus if at_s < self._not_before_s(gpu.uuid, planner)}
        snapshots = self._driver.snapshot(at_s).gpus
        present = {snapshot.gpu.uuid for snapshot in snapshots}
        self._vacated_s = {uuid: left_s for uuid, left_s in self._vacated_s.items() if uuid in present}
        candidates = planner.candidates(self._mig_gpus, snapshots, excluded, self._vacated_s)
        looked_at = (self._driver.changes, tuple(candidates))
        if not candidates or looked_at == self._looked_at:
            return []
        self._looked_at = looked_at
        plan = planner.plan(candidates, snapshots, waiting, vacated_s=self._vacated_s)
        if plan is None:
            return []
        started = RepartitionStarted(
            at_s=at_s,
            cause=plan.reason,
            job_id=plan.job_id,
            gpu_uuid=plan.gpu.uuid,
            gpu_index=plan.gpu.index,
            before=layout_texts(plan.gpu.layout),
            after=layout_texts(plan.layout),
        )
        self._table.apply(started)
        self.apply(started)
        self._telemetry.hide_instances(plan.gpu.uuid)
        self._driver.sampled()
        return [Repartition(at_s=at_s, cause=plan.reason, started=started)]

    def _not_before_s(self, uuid: str, planner: RepartitionPlanner) -> float:
        ended = self._ended.get(uuid)
        if ended is None:
            return -math.inf
        factor = min(MAX_BACKOFF, BACKOFF ** self._failures.get(uuid, 0))
        return ended.at_s + planner.rule.period_s / self._pace * factor

    def note(self) -> str:
        """What a waiting job is told of repartitions; empty if there is nothing to tell."""
        notes = [
            f"GPU {started.gpu_index} is repartitioned into {', '.join(started.after)} for job {started.job_id}"
            for started in self.pending.values()
        ]
        notes += [
            f"GPU {ended.gpu_index} could not be repartitioned: {ended.error}"
            for uuid, ended in self._ended.items()
            if ended.error is not None and uuid not in self.pending
        ]
        return "; ".join(notes)


def _largest(gpu: MigGpu) -> Gpu:
    profile = max(gpu.profiles, key=lambda profile: profile.memory_bytes)
    return Gpu(
        uuid=f"{gpu.uuid} {profile.name}",
        index=gpu.index,
        name=profile.name,
        memory_total_bytes=profile.memory_bytes,
        mig_parent=gpu.uuid,
        mig_profile=profile.name,
    )
