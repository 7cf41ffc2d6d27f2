"""Policies as compositions: an order of the queue, filters, and a score."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from cotenant.core.gpu import ServerSnapshot
from cotenant.core.job import Job, Queued
from cotenant.core.placement import Placement, Verdict, Wait
from cotenant.scheduling.filters import Filter, fresh_telemetry, kept_free
from cotenant.scheduling.ledger import Need, need_of, totals_bytes
from cotenant.scheduling.orders import Order
from cotenant.scheduling.scores import Score
from cotenant.scheduling.views import GpuView

Collocation = Literal["time-sliced", "mps", "mig"]
"""The ways to share a GPU; the remaining one of `Sharing` is not to share it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """Takes jobs in `order`; each gets the best `score` among the GPUs that all `filters` admit.

    `fresh_telemetry` comes before `filters` and cannot be left out. A job of several GPUs gets all or none.

    Attributes:
        backfill: a job that waits lets later ones pass. Without it the first that waits blocks all behind it,
            except a retry, which must not stop the queue because it failed.
        keep_after_s: with backfill, a job that has waited for so long gets its GPUs emptied: they take nobody
            else until it starts. One job at a time. None: never.
        alone: every job gets its GPUs alone.
        sharing: how jobs that are not alone share.
    """

    name: str
    order: Order
    filters: tuple[Filter, ...]
    score: Score
    backfill: bool = True
    keep_after_s: float | None = None
    alone: bool = False
    sharing: Collocation = "time-sliced"

    def decide(self, queue: Sequence[Job], server: ServerSnapshot) -> list[Placement | Wait]:
        """One answer per job, in the order considered."""
        return _Decision(self, server).answers(sorted(queue, key=self.order))


_Kind = tuple[int, int | None, bool, int, str]
MOST_KINDS = 64


class _Candidates:
    """The GPUs as all jobs that ask for the same see them; kept up to date by looking again at changed ones only.

    `ranking` is a heap of (-score, place); an entry whose GPU has changed since is out of date and is skipped.
    """

    __slots__ = ("changed", "ranking", "verdicts", "wait")

    def __init__(self, count: int) -> None:
        self.verdicts: list[Verdict | None] = [None] * count
        self.changed = set(range(count))
        self.ranking: list[tuple[float, int]] = []
        self.wait: Wait | None = None


class _Decision:
    """One call of `decide`: the GPUs as this call leaves them, and what it found out so far."""

    def __init__(self, policy: Ranked, server: ServerSnapshot) -> None:
        self.policy = policy
        self.at_s = server.at_s
        self.views = [GpuView(each, server.at_s) for each in server.gpus]
        self.totals_bytes = totals_bytes(server)
        self.filters = (fresh_telemetry, kept_free, *policy.filters)
        self.kept_for: int | None = None
        self.kinds: dict[_Kind, _Candidates] = {}

    def answers(self, jobs: Sequence[Job]) -> list[Placement | Wait]:
        answers: list[Placement | Wait] = []
        head: int | None = None
        for job in jobs:
            if head is not None:
                answers.append(self._behind(job, head))
                continue
            answer = self._answer(job)
            answers.append(answer)
            if isinstance(answer, Wait):
                self._keep_for(job)
                if not self.policy.backfill and not job.attempts:
                    head = job.id
        return answers

    def _answer(self, job: Job) -> Placement | Wait:
        need = need_of(job, self.totals_bytes)
        if self.policy.alone and not need.alone:
            need = replace(need, alone=True, why_alone="the policy shares no GPU")
        candidates = self._candidates(need)
        chosen = self._best(need, candidates)
        if len(chosen) >= need.gpus > 0:
            return self._place(need, chosen)
        if candidates.wait is None:
            candidates.wait = self._wait(need, candidates.verdicts)
        return Wait(job_id=job.id, reason=candidates.wait.reason, verdicts=candidates.wait.verdicts)

    def _candidates(self, need: Need) -> _Candidates:
        """What is known of the GPUs for this kind of need, after a look at those that changed."""
        kind = (need.gpus, need.bytes, need.alone, need.least_total_bytes, need.why_alone)
        found = self.kinds.get(kind)
        if found is None:
            if len(self.kinds) >= MOST_KINDS:
                self.kinds.clear()
            found = self.kinds[kind] = _Candidates(len(self.views))
        if found.changed:
            found.wait = None
            for place in found.changed:
                view = self.views[place]
                verdict = found.verdicts[place] = self._verdict(need, view)
                if verdict is None:
                    heapq.heappush(found.ranking, (-self.policy.score(view), place))
            found.changed.clear()
        return found

    def _best(self, need: Need, candidates: _Candidates) -> list[int]:
        """Places of the best GPUs, as many as needed, or fewer if there are not so many.

        Those found leave the ranking: either they change now, or no later job of this kind finds more.
        """
        best: list[tuple[float, int]] = []
        ranking = candidates.ranking
        while ranking and len(best) < need.gpus:
            entry = heapq.heappop(ranking)
            place = entry[1]
            current = candidates.verdicts[place] is None and entry[0] == -self.policy.score(self.views[place])
            if current and entry not in best:
                best.append(entry)
        return [place for _, place in best]

    def _verdict(self, need: Need, view: GpuView) -> Verdict | None:
        for each in self.filters:
            reason = each.refuses(need, view)
            if reason is not None:
                return Verdict(gpu_uuid=view.uuid, rule=each.rule, reason=reason)
        return None

    def _place(self, need: Need, places: list[int]) -> Placement:
        chosen = [self.views[each] for each in places]
        # Who is alone is promised all there is, which is what its GPUs are kept from others for.
        whole = min(each.available_bytes or 0 for each in chosen)
        placement = Placement(
            job_id=need.job_id,
            gpu_uuids=tuple(each.uuid for each in chosen),
            sharing="exclusive" if need.alone else self.policy.sharing,
            promised_bytes=whole if need.alone or need.bytes is None else need.bytes,
        )
        for each in chosen:
            each.take(placement)
        self._changed(places)
        return placement

    def _changed(self, places: Iterable[int]) -> None:
        for each in self.kinds.values():
            each.changed.update(places)

    def _wait(self, need: Need, verdicts: Sequence[Verdict | None]) -> Wait:
        qualify = sum(1 for each in verdicts if each is None)
        found = f"{qualify} of {len(self.views)} qualif{'y' if qualify > 1 else 'ies'}"
        if not self.views:
            found = "no GPU is known"
        elif not qualify:
            found = f"none of {len(self.views)} qualifies"
        short = f"qualifies, but {need.gpus} GPUs are needed at once"
        every = tuple(
            each or Verdict(gpu_uuid=view.uuid, rule="gang", reason=short)
            for view, each in zip(self.views, verdicts, strict=True)
        )
        return Wait(job_id=need.job_id, reason=f"{need.text}, {found}", verdicts=every)

    def _behind(self, job: Job, head: int) -> Wait:
        reason = f"job {head} is ahead and this policy lets nobody pass"
        verdicts = tuple(Verdict(gpu_uuid=view.uuid, rule="in_order", reason=reason) for view in self.views)
        return Wait(job_id=job.id, reason=reason, verdicts=verdicts)

    def _keep_for(self, job: Job) -> None:
        """Start to empty GPUs for a job that has waited too long: those with the fewest residents."""
        after_s = self.policy.keep_after_s
        if after_s is None or self.kept_for is not None or not isinstance(job.state, Queued):
            return
        if self.at_s - job.state.since_s < after_s:
            return
        need = need_of(job, self.totals_bytes)
        least = max(need.least_total_bytes, need.bytes or 0)
        suitable = [
            place
            for place, view in enumerate(self.views)
            if view.available_bytes is not None and view.total_bytes >= least
        ]
        if len(suitable) < need.gpus:
            return
        self.kept_for = job.id
        kept = sorted(suitable, key=lambda place: len(self.views[place].residents))[: need.gpus]
        for place in kept:
            self.views[place].kept_for = job.id
        self._changed(kept)
