"""Policies that are a name for a composition: `composition` is what a placer needs, this is what makes a placer.

A module of its own: policies import it, and what it composes imports no policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cotenant.core.gpu import ServerSnapshot
from cotenant.core.job import Job
from cotenant.core.placement import Deferral, Placement
from cotenant.scheduling.placement.composition import AfterOom, Collocation, Composition
from cotenant.scheduling.placement.gpu_index import LINEAR_SCAN_MAX_GPUS
from cotenant.scheduling.placement.incremental import IncrementalPlacer
from cotenant.scheduling.placement.pairing import LearningPairingRule
from cotenant.scheduling.placement.policy import NO_PREDICTIONS, JobPredictions
from cotenant.scheduling.placement.snapshot_adapter import place_snapshot

__all__ = ["AfterOom", "Collocation", "Ranked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked(Composition):
    """A policy made of the parts of `Composition`."""

    def placer(
        self, predictions: JobPredictions = NO_PREDICTIONS, *, linear_scan_max_gpus: int = LINEAR_SCAN_MAX_GPUS
    ) -> IncrementalPlacer:
        """A placer with an empty queue and no GPU."""
        policy = self
        if isinstance(self.pairing, LearningPairingRule):
            policy = replace(self, pairing=self.pairing.with_predictions(predictions))
        return IncrementalPlacer(policy, predictions, linear_scan_max_gpus=linear_scan_max_gpus)

    def decide(self, queue: Sequence[Job], server: ServerSnapshot) -> list[Placement | Deferral]:
        """One answer per job, in the order considered. A deferral shows the GPUs as this decision leaves them."""
        placer = self.placer()
        placed = place_snapshot(placer, queue, server)
        considered = sorted(queue, key=lambda job: self.order(job, NO_PREDICTIONS))
        return [placed.get(job.id) or placer.explain(job.id, server.at_s) for job in considered]
