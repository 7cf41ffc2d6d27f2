"""A composed policy at work: what waits, what the GPUs look like, and who goes where.

A decision looks at the first job of each kind of need that may have a chance, not at every job; and at the best GPU
of an order that is kept, not at every GPU. What cannot have become possible since it was last found impossible is not
looked at again: a kind that found no place is blocked until some GPU gets better.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING

from cotenant.core.gpu import GpuSnapshot, Sharing
from cotenant.core.job import Job, Share
from cotenant.core.placement import Placement, Wait
from cotenant.scheduling import filters, verdicts
from cotenant.scheduling.interference import Activity
from cotenant.scheduling.kept import Kept
from cotenant.scheduling.policy import Facts
from cotenant.scheduling.rankings import LOOP_UP_TO, Ranking, ranking
from cotenant.scheduling.views import EMPTY, SHARED, GpuView, Newcomer
from cotenant.scheduling.waiting import MOST_KINDS, Entry, Kind, Queue, asked

if TYPE_CHECKING:
    from cotenant.scheduling.ranked import Ranked

WAYS: Mapping[Share, Sharing] = {"time": "time-sliced", "mps": "mps"}


class Followed:
    """`Ranked` at work. `loop_up_to`: see `rankings`; other values are for tests."""

    def __init__(self, policy: Ranked, facts: Facts, *, loop_up_to: int = LOOP_UP_TO) -> None:
        self._policy = policy
        self._facts = facts
        self._loop_up_to = loop_up_to
        self._gate_opens_at_s = filters.all_open_at_s(policy.gates)
        self._now_s = -math.inf
        self._views: list[GpuView] = []
        self._by_uuid: dict[str, GpuView] = {}
        self._totals: list[int] = []
        self._unranked = True
        self._shared: Ranking = ranking([], policy.score, policy.match)
        self._empty: Ranking = self._shared
        self._queue = Queue(in_line=not policy.backfill)
        self._asked: dict[Hashable, Kind] = {}
        self._better: set[int] = set()
        self._placed: dict[int, Sequence[GpuView]] = {}
        self._timers: list[tuple[float, int]] = []  # (at_s, place of a GPU, or -1 for the queue)
        self._kept = Kept(policy)
        self._changes = 0

    # What is told.

    @property
    def waiting(self) -> int:
        """How many jobs wait."""
        return len(self._queue.entries)

    @property
    def wakes_at_s(self) -> float | None:
        """When a decision may come out differently although nothing changes; None: never."""
        return self._timers[0][0] if self._timers and self._queue.entries else None

    def add(self, job: Job) -> None:
        """`job` waits from now on, and may start. Whoever waits already is taken as changed."""
        old = self._queue.entries.get(job.id)
        if old is not None:
            self._queue.strike(old)
        self._enter(job)

    def _enter(self, job: Job) -> None:
        kind = self._kind_of(job)
        entry = Entry(job, self._policy.order(job, self._facts), kind)
        self._queue.enter(entry)
        if kind.blocked:
            self._mind_age(entry)
        if self._kept.job_id == job.id:
            self._kept.try_now = True

    def _kind_of(self, job: Job) -> Kind:
        learned = self._facts.need_bytes(job)
        profile = self._policy.match.profile(job, self._facts) if self._policy.match is not None else None
        same = (asked(job), learned, profile)
        # What a policy asks for after a failure may depend on each attempt: then needs alone are compared.
        individual = bool(job.attempts) and self._policy.after_oom is not None
        kind = None if individual else self._asked.get(same)
        if kind is None:
            kind = self._queue.kind(self._policy.need(job, self._totals, learned), profile)
            if not individual:
                if len(self._asked) >= MOST_KINDS:
                    self._asked.clear()
                self._asked[same] = kind
        return kind

    def remove(self, job_id: int) -> None:
        """The job waits no longer; nothing if it does not wait."""
        entry = self._queue.entries.get(job_id)
        if entry is not None:
            self._queue.strike(entry)
            self._stop_keeping(job_id)

    def update(self, gpu: GpuSnapshot) -> None:
        """The truth about one GPU. The order in which GPUs come for the first time is their display order."""
        view = self._by_uuid.get(gpu.gpu.uuid)
        if view is None:
            view = GpuView(gpu, len(self._views))
            self._views.append(view)
            self._by_uuid[view.uuid] = view
            self._unranked = True
            return
        if view.total_bytes != gpu.gpu.memory_total_bytes:
            self._unranked = True
        before = (view.available_bytes, view.residents, view.smact)
        view.tell(gpu)
        available, residents, smact = before
        worse = view.available_bytes is None or (available is not None and view.available_bytes <= available)
        self._refile(view, better=not worse or view.residents != residents or view.smact != smact)

    def release(self, job_id: int) -> None:
        """A job that this placer placed has left its GPUs."""
        for view in self._placed.pop(job_id, ()):
            view.leave(job_id)
            self._refile(view, better=True)

    def seen(self, job_id: int, at_s: float) -> None:
        """A job that this placer placed has touched its GPUs for the first time."""
        for view in self._placed.get(job_id, ()):
            view.see(job_id, at_s)
            self._shows_more(view)

    def activity(self, gpu_uuid: str, activity: Activity) -> None:
        """What a GPU was seen to do since its newest resident was at work; stands in for its samples."""
        view = self._by_uuid[gpu_uuid]
        view.told = activity
        self._shows_more(view)

    def _shows_more(self, view: GpuView) -> None:
        """Its activity is better known: good for who waits if a gate opens, or a match sees another company there."""
        before = view.signature
        self._refile(view, better=view.kept_for is not None)
        if view.filed and view.signature != before:
            self._better.add(view.place)

    # What is decided.

    def decide(self, at_s: float) -> list[Placement]:
        """Who starts now, and where; already counted in when it returns."""
        self._now_s = at_s
        if self._unranked:
            self._rank_anew()
        if self._timers and self._timers[0][0] <= at_s:
            self._wake(at_s)
        if self._better:
            self._look_again()
        if not self._policy.backfill:
            return self._in_line(at_s)
        placements = self._for_kept(at_s) if self._kept.try_now else []
        return placements + self._by_kind(at_s) if self._queue.ready else placements

    def _for_kept(self, at_s: float) -> list[Placement]:
        """The job that GPUs are kept for, if it finds them all: it need not be the first of its kind."""
        self._kept.try_now = False
        entry = None if self._kept.job_id is None else self._queue.entries.get(self._kept.job_id)
        placement = None if entry is None else self._try(entry, at_s)
        return [] if placement is None else [placement]

    def _by_kind(self, at_s: float) -> list[Placement]:
        """The first of each kind that is not blocked, in order, until all are blocked."""
        ready = self._queue.ready
        if len(ready) == 1:
            return self._of_kind(next(iter(ready)), at_s)
        placements: list[Placement] = []
        heads = [(entry.key, entry) for kind in ready if (entry := kind.head()) is not None]
        heapify(heads)
        while heads:
            entry = heads[0][1]
            kind = entry.kind
            placement = self._try(entry, at_s)
            if placement is None:
                heappop(heads)
                self._queue.block(kind)
                self._mind_age(entry)
                continue
            placements.append(placement)
            follower = kind.head()
            if follower is None:
                heappop(heads)
            else:
                heapreplace(heads, (follower.key, follower))
        return placements

    def _of_kind(self, kind: Kind, at_s: float) -> list[Placement]:
        """As `_by_kind` where only this one may have a chance, which is the commonest case."""
        placements: list[Placement] = []
        while (entry := kind.head()) is not None:
            placement = self._try(entry, at_s)
            if placement is None:
                self._queue.block(kind)
                self._mind_age(entry)
                break
            placements.append(placement)
        return placements

    def _in_line(self, at_s: float) -> list[Placement]:
        """One after the other; the first that finds no place stops all but a retry, which lets others pass."""
        placements: list[Placement] = []
        aside: list[Entry] = []
        line = self._queue.line
        while (entry := line.head()) is not None:
            placement = None if entry.kind.blocked else self._try(entry, at_s)
            if placement is not None:
                placements.append(placement)
                continue
            self._queue.block(entry.kind)
            if not entry.retried or self._policy.retries_block:
                break
            aside.append(line.step_aside())
        for each in aside:
            line.add(each)
        return placements

    def _try(self, entry: Entry, at_s: float) -> Placement | None:
        kind = entry.kind
        need = kind.need
        if self._kept.job_id == entry.job.id:
            chosen = self._kept.best(kind, self._views, self._empty if need.alone else self._shared, at_s)
        elif need.share == "mig":
            chosen = self._instances(entry)
        elif need.alone:
            chosen = self._empty.best(need.gpus, kind.bytes_each, need.least_total_bytes, None)
        else:
            chosen = self._shared.best(need.gpus, kind.bytes_each, 0, kind.profile)
        if not chosen:
            return None
        return self._place(entry, chosen, at_s)

    def _place(self, entry: Entry, chosen: Sequence[GpuView], at_s: float) -> Placement:
        need = entry.kind.need
        job_id = entry.job.id
        if need.alone or need.bytes is None:
            # Who is alone is promised all there is, which is what its GPUs are kept from others for.
            promised = min([each.available_bytes or 0 for each in chosen])
            sharing: Sharing = "exclusive"
        else:
            promised = need.bytes
            sharing = WAYS.get(need.share, self._policy.sharing)
        placement = Placement(
            job_id=job_id,
            gpu_uuids=(chosen[0].uuid,) if len(chosen) == 1 else tuple([each.uuid for each in chosen]),
            sharing=sharing,
            promised_bytes=promised,
        )
        match = self._policy.match
        bound = entry.job.spec.slowdown_bound
        self._queue.strike(entry)
        for view in chosen:
            mate = Newcomer(job_id, promised, sharing, at_s)
            mate.slowdown_bound = bound
            if match is not None:
                match.describe(mate, entry.kind.profile)
            view.take(mate)
            self._refile(view, better=False)
            if self._policy.score.rotates:
                (self._empty if need.alone else self._shared).taken(view)
        self._placed[job_id] = chosen
        if self._kept.job_id == job_id:
            self._stop_keeping(job_id)
        return placement

    # What waits, and for what.

    def _look_again(self) -> None:
        """Some GPUs got better: kinds that are blocked, and the job that GPUs are kept for, may have a chance now."""
        if self._queue.blocked:
            shared = empty = -1
            for place in self._better:
                view = self._views[place]
                if view.kept_for is not None:
                    self._kept.try_now = True
                if view.filed:
                    available = view.available_bytes or 0
                    shared = max(shared, available if view.filed & SHARED else -1)
                    empty = max(empty, available if view.filed & EMPTY else -1)
            self._queue.unblock(shared, empty)
        self._better.clear()

    def _mind_age(self, entry: Entry) -> None:
        """One that waits too long gets GPUs emptied. Called for the first of a kind that is blocked."""
        due_at_s = self._kept.due_at_s(entry, len(self._views))
        if due_at_s is None:
            return
        if due_at_s > self._now_s:
            heappush(self._timers, (due_at_s, -1))
            return
        for view in self._kept.begin(entry, self._views):
            self._refile(view, better=False)

    def _stop_keeping(self, job_id: int) -> None:
        if self._kept.job_id != job_id:
            return
        heappush(self._timers, (self._now_s, -1))  # the next in line may be overdue
        for view in self._kept.end():
            self._refile(view, better=True)

    def _instances(self, entry: Entry) -> Sequence[GpuView]:
        """The smallest MIG instances that will do."""
        least, needed = entry.kind.bytes_each, entry.kind.need.gpus
        found = [
            view
            for view in self._views
            if view.filed & EMPTY and (view.available_bytes or 0) >= least
            if verdicts.verdict(self._policy, entry.kind, entry.job.id, view, self._now_s) is None
        ]
        found.sort(key=lambda each: (each.total_bytes, each.place))
        return found[:needed] if len(found) >= needed else ()

    def _refile(self, view: GpuView, *, better: bool) -> None:
        """Look again at what this GPU may take; `better`: somebody who waits may have a chance now."""
        self._changes += 1
        if self._unranked:
            return
        if self._policy.match is not None:
            view.signature = self._policy.match.signature(view)
        before, filed = view.filed, 0
        is_open = not view.residents or self._opens_at_s(view) <= self._now_s
        if view.available_bytes is not None and view.kept_for is None and not view.is_closed:
            filed = (SHARED if is_open else 0) | (EMPTY if view.is_empty else 0)
        view.filed = filed
        if filed | before:
            self._shared.file(view, filed & SHARED != 0)
            if (filed | before) & EMPTY:
                self._empty.file(view, filed & EMPTY != 0)
        if (better or filed & ~before) and (filed or view.kept_for is not None):
            self._better.add(view.place)

    def _opens_at_s(self, view: GpuView) -> float:
        """When the gates of a GPU with residents are all open; then it will be looked at again."""
        opens_at_s = self._gate_opens_at_s(view)
        if self._now_s < opens_at_s < math.inf and opens_at_s != view.opens_at_s:
            heappush(self._timers, (opens_at_s, view.place))
        view.opens_at_s = opens_at_s
        return opens_at_s

    def _rank_anew(self) -> None:
        """GPUs have come, or are of another size: needs, orders and verdicts begin afresh."""
        policy = self._policy
        self._unranked = False
        self._totals = sorted((each.total_bytes for each in self._views), reverse=True)
        self._shared = ranking(self._views, policy.score, policy.match, loop_up_to=self._loop_up_to)
        self._empty = ranking(self._views, policy.score, None, loop_up_to=self._loop_up_to)
        for view in self._views:
            view.filed = 0
            view.opens_at_s = -math.inf
            self._refile(view, better=True)
        self._asked.clear()
        waiting = [each.job for each in self._queue.entries.values()]
        self._queue = Queue(in_line=not policy.backfill)
        for job in waiting:
            self._enter(job)

    def _wake(self, at_s: float) -> None:
        """Time has come for gates to open, or for jobs to have waited too long."""
        aged = False
        timers = self._timers
        while timers and timers[0][0] <= at_s:
            place = heappop(timers)[1]
            if place < 0:
                aged = True
            else:
                view = self._views[place]
                self._refile(view, better=view.kept_for is not None)
        if aged and self._kept.job_id is None:
            heads = [entry for kind in self._queue.blocked if (entry := kind.head()) is not None]
            for entry in sorted(heads, key=lambda each: each.key):
                self._mind_age(entry)

    def explain(self, job_id: int, at_s: float) -> Wait:
        """Why a job that waits is not placed, with one verdict for every GPU.

        Raises:
            KeyError: it does not wait.
        """
        if self._unranked:
            self._rank_anew()
        entry = self._queue.entries[job_id]
        head = None if self._policy.backfill else self._queue.line.head()
        stopped = head is not None and head.kind.blocked and head.key < entry.key
        if head is not None and stopped and (not head.retried or self._policy.retries_block):
            return verdicts.behind(job_id, head.job.id, self._views)
        kind = entry.kind
        as_of = (self._changes, at_s)
        if self._kept.job_id == job_id:
            return verdicts.wait(self._policy, kind, job_id, self._views, at_s)
        if kind.answered != as_of or kind.wait is None:
            kind.answered, kind.wait = as_of, verdicts.wait(self._policy, kind, job_id, self._views, at_s)
        return Wait(job_id=job_id, reason=kind.wait.reason, verdicts=kind.wait.verdicts)
