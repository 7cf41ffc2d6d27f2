"""Policies as compositions, asked over whole snapshots or put to work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cotenant.core.gpu import ServerSnapshot
from cotenant.core.job import Job
from cotenant.core.placement import Placement, Wait
from cotenant.scheduling.matches import LearningMatch
from cotenant.scheduling.placing.placer import Followed
from cotenant.scheduling.placing.rankings import LOOP_UP_TO
from cotenant.scheduling.placing.rules import AfterOom, Collocation, Rules
from cotenant.scheduling.policy import NOTHING, Facts

__all__ = ["AfterOom", "Collocation", "Ranked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked(Rules):
    """A policy that is a name for a composition: see `Rules` for what it is made of."""

    def placer(self, facts: Facts = NOTHING, *, loop_up_to: int = LOOP_UP_TO) -> Followed:
        """The policy at work on an empty queue and no GPU."""
        match = self.match.following(facts) if isinstance(self.match, LearningMatch) else self.match
        rules = self if match is self.match else replace(self, match=match)
        return Followed(rules, facts, loop_up_to=loop_up_to)

    def decide(self, queue: Sequence[Job], server: ServerSnapshot) -> list[Placement | Wait]:
        """One answer per job, in the order considered. A wait tells of the GPUs as this decision leaves them."""
        placer = self.placer()
        for gpu in server.gpus:
            placer.update(gpu)
        for job in queue:
            placer.add(job)
        placed = {each.job_id: each for each in placer.decide(server.at_s)}
        considered = sorted(queue, key=lambda job: self.order(job, NOTHING))
        return [placed.get(job.id) or placer.explain(job.id, server.at_s) for job in considered]
