"""Policies as compositions, asked over whole snapshots or put to work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cotenant.core.gpu import ServerSnapshot
from cotenant.core.job import Job
from cotenant.core.placement import Deferral, Placement
from cotenant.scheduling.placement.gpu_index import LINEAR_SCAN_MAX_GPUS
from cotenant.scheduling.placement.incremental import IncrementalPlacer
from cotenant.scheduling.placement.pairing import LearningPairingRule
from cotenant.scheduling.placement.policy import NO_PREDICTIONS, JobPredictions
from cotenant.scheduling.placement.rules import AfterOom, Collocation, Rules

__all__ = ["AfterOom", "Collocation", "Ranked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked(Rules):
    """A policy that is a name for a composition: see `Rules` for what it is made of."""

    def placer(
        self, facts: JobPredictions = NO_PREDICTIONS, *, linear_scan_max_gpus: int = LINEAR_SCAN_MAX_GPUS
    ) -> IncrementalPlacer:
        """The policy at work on an empty queue and no GPU."""
        match = self.match.with_predictions(facts) if isinstance(self.match, LearningPairingRule) else self.match
        rules = self if match is self.match else replace(self, match=match)
        return IncrementalPlacer(rules, facts, linear_scan_max_gpus=linear_scan_max_gpus)

    def decide(self, queue: Sequence[Job], server: ServerSnapshot) -> list[Placement | Deferral]:
        """One answer per job, in the order considered. A wait tells of the GPUs as this decision leaves them."""
        placer = self.placer()
        for gpu in server.gpus:
            placer.update(gpu)
        for job in queue:
            placer.add(job)
        placed = {each.job_id: each for each in placer.decide(server.at_s)}
        considered = sorted(queue, key=lambda job: self.order(job, NO_PREDICTIONS))
        return [placed.get(job.id) or placer.explain(job.id, server.at_s) for job in considered]
