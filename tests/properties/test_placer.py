"""An incremental placer decides as a plain loop over all jobs and GPUs would, after any sequence of updates."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import a_job, a_resident, a_snapshot
from cotenant.core.job import Attempt, AttemptExit, OomEvidence, Queued
from cotenant.core.placement import Placement
from cotenant.core.units import GiB
from cotenant.scheduling.demand import GpuSizes
from cotenant.scheduling.placement import gates, orders, scores
from cotenant.scheduling.placement.gpu_view import GpuView, NewResident
from cotenant.scheduling.placement.incremental import IncrementalPlacer
from cotenant.scheduling.placement.policy import NO_PREDICTIONS
from cotenant.scheduling.placement.ranked import Ranked
from cotenant.scheduling.placement.rules import demand_refusal, gpu_refusal
from cotenant.scheduling.policies import create, policies

SCORES = {
    score.name: score
    for score in (
        scores.first,
        scores.most_available_memory,
        scores.least_available_memory,
        scores.least_active,
        scores.most_active,
    )
}
GATES = (gates.warming_up(15.0), gates.smact_too_high(0.8), gates.max_jobs(3))


class Plain:
    """The least that decides rightly: every job in order, every GPU, every rule."""

    def __init__(self, policy: Ranked) -> None:
        self.policy = policy
        self.views: dict[str, GpuView] = {}
        self.jobs = {}

    def update(self, snapshot) -> None:
        known = self.views.get(snapshot.gpu.uuid)
        self.views[snapshot.gpu.uuid] = GpuView(snapshot, known.place if known else len(self.views))

    def decide(self, at_s: float) -> list[Placement]:
        placements = []
        gpus = [view.snapshot.gpu for view in self.views.values()]
        sizes, is_timed = GpuSizes(gpus, one_node=self.policy.one_node), any(gpu.available_until_s for gpu in gpus)
        stopped = False
        for job in sorted(self.jobs.values(), key=lambda job: self.policy.order(job, NO_PREDICTIONS)):
            demand = self.policy.demand(job, sizes, None, is_timed=is_timed)
            if stopped and not demand.ignores_activity:
                continue
            chosen = self.chosen(job, demand, at_s)
            if not chosen:
                may_ever = any(ends_in_time(view, job, at_s) for view in self.views.values())
                stopped = stopped or (not self.policy.backfill and not job.attempts and may_ever)
                continue
            placements.append(self.place(job, demand, chosen, at_s))
        return placements

    def chosen(self, job, demand, at_s) -> list[GpuView]:
        """The GPUs that it gets, none if there are too few."""
        meets = [
            view for view in self.views.values() if meets_demand(view, demand, at_s) and ends_in_time(view, job, at_s)
        ]
        is_open = [view for view in meets if not any(gate.check(view, at_s) for gate in self.gates_of(view))]
        found = self.best(is_open, demand.gpus, self.policy.score.key)
        if found or not demand.ignores_activity:
            return found
        busy = [
            view
            for view in meets
            if not any(gate.check(view, at_s) for gate in self.gates_of(view) if not gate.is_of_activity)
        ]
        return self.best(busy, demand.gpus, lambda view: (view not in is_open, -view.available_bytes))

    def best(self, views, count, key) -> list[GpuView]:
        """The first of them in order, or those of the node that has as many of them first, with least to spare."""
        groups = {view.server if self.policy.one_node and count > 1 else "": [] for view in views}
        for view in sorted(views, key=lambda view: (key(view), view.place)):
            groups[view.server if "" not in groups else ""].append(view)
        enough = [group for group in groups.values() if len(group) >= count]
        if not enough:
            return []
        worst = min(key(group[count - 1]) for group in enough)
        tied = [[view for view in group if key(view) <= worst] for group in enough if key(group[count - 1]) == worst]
        return min(tied, key=lambda group: (len(group), group[count - 1].place))[:count]

    def gates_of(self, view):
        return self.policy.gates if view.residents else ()

    def place(self, job, demand, chosen, at_s) -> Placement:
        promised = min(view.available_bytes for view in chosen) if demand.exclusive else demand.bytes
        sharing = "exclusive" if demand.exclusive else self.policy.sharing
        for view in chosen:
            view.take(NewResident(job.id, promised, sharing, at_s))
        del self.jobs[job.id]
        uuids = tuple(view.uuid for view in chosen)
        return Placement(job_id=job.id, gpu_uuids=uuids, sharing=sharing, promised_bytes=promised)


def meets_demand(view, demand, at_s) -> bool:
    return gpu_refusal(view, at_s) is None and demand_refusal(view, demand) is None


def ends_in_time(view, job, at_s) -> bool:
    until_s, limit_s = view.snapshot.gpu.available_until_s, job.spec.time_limit_s
    return until_s is None or limit_s is None or at_s + limit_s <= until_s


def an_attempt(gib: float) -> Attempt:
    """One that ran out of memory."""
    place = Placement(job_id=1, gpu_uuids=("GPU-0",), sharing="time-sliced", promised_bytes=int(gib * GiB))
    end = AttemptExit(exit_code=1, signal=None, reason="exited", oom=OomEvidence(exception=True))
    return Attempt(number=1, placement=place, placed_at_s=0.0, exit=end)


SIZES_GIB = (None, 0.3, 4, 8, 8, 12.3, 20, 39, 60)


def some_job(rng: random.Random, job_id: int, at_s: float, sizes_gib=SIZES_GIB, limits_s=(None,)):
    job = a_job(
        job_id,
        rng.choice(sizes_gib),
        at_s=at_s,
        gpus=rng.choice([1, 1, 1, 2, 3]),
        exclusive=rng.random() < 0.1,
        priority=rng.choice([0, 0, 0, 1]),
        time_limit_s=rng.choice(limits_s),
    )
    attempts = (an_attempt(rng.choice([4, 8])),) if rng.random() < 0.2 else ()
    return replace(job, attempts=attempts, exclusive_retry=rng.random() < 0.1)


def some_gpu(rng: random.Random, place: int, at_s: float, residents):
    return a_snapshot(
        place,
        gib=24 if place % 3 else 40,
        foreign=rng.choice([None, 0, 0, 0, 0.5, 6]),
        residents=tuple(residents),
        at_s=at_s,
        smact=rng.choice([None, 0.1, 0.3, 0.3, 0.6, 0.9]),
    )


def confined(snapshot):
    """The same in one of several nodes, whose GPUs are gone at different times."""
    place = snapshot.gpu.index
    until_s = (None, 200.0, 400.0, 300.0)[place % 4]
    gpu = replace(snapshot.gpu, server=f"node-{place // 3}", available_until_s=until_s)
    return replace(snapshot, gpu=gpu)


def as_resident(place: int, view_residents, rng: random.Random, at_s: float):
    return [
        a_resident(
            view_resident.promised_bytes / GiB,
            rng.choice([None, 1]),
            job_id=view_resident.job_id,
            sharing=view_resident.sharing,
            placed_at_s=view_resident.placed_at_s,
            first_active_at_s=rng.choice([None, view_resident.placed_at_s + 1]),
        )
        for view_resident in view_residents
    ]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from(sorted(SCORES)),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 5, 40]),
    st.booleans(),
)
def test_incremental_decisions_equal_a_plain_loop(seed, score, backfill, gated, gpus, on_hosts):
    rng = random.Random(seed)
    policy = Ranked(
        name="test",
        order=orders.fifo,
        score=SCORES[score],
        gates=GATES if gated else (),
        backfill=backfill,
        one_node=on_hosts,
    )
    limits_s = (None, 50.0, 150.0, 150.0, 1000.0) if on_hosts else (None,)
    plain = Plain(policy)
    placers = [policy.placer(linear_scan_max_gpus=limit) for limit in (0, 10**9)]
    at_s, last_id = 100.0, 0

    def update(place: int, residents) -> None:
        snapshot = some_gpu(rng, place, at_s, residents)
        snapshot = confined(snapshot) if on_hosts else snapshot
        for placer in (plain, *placers):
            placer.update(snapshot)

    for place in range(gpus):
        update(place, ())
    for _ in range(40):
        what = rng.random()
        if what < 0.5:
            last_id += 1
            job = some_job(rng, last_id, at_s, limits_s=limits_s)
            plain.jobs[job.id] = job
            for placer in placers:
                placer.add(job)
        elif what < 0.55 and plain.jobs:
            job = some_job(rng, rng.choice(sorted(plain.jobs)), at_s, limits_s=limits_s)
            job = replace(job, submitted_at_s=100.0)
            plain.jobs[job.id] = job
            for placer in placers:
                placer.add(job)
        elif what < 0.6 and plain.jobs:
            job_id = rng.choice(sorted(plain.jobs))
            del plain.jobs[job_id]
            for placer in placers:
                placer.remove(job_id)
        elif what < 0.9:
            view = rng.choice(list(plain.views.values()))
            staying = [
                resident for resident in as_resident(view.place, view.residents, rng, at_s) if rng.random() < 0.5
            ]
            update(view.place, staying)
        else:
            at_s += rng.choice([1.0, 20.0, 70.0])
        expected = plain.decide(at_s)
        for placer in placers:
            assert placer.decide(at_s) == expected
            assert placer.waiting == len(plain.jobs)
        for job_id in plain.jobs:
            assert placers[0].explain(job_id, at_s) == placers[1].explain(job_id, at_s)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(policies()), st.sampled_from([3, 30]), st.booleans())
def test_every_policy_places_the_same_by_linear_scan_and_by_index(seed, name, gpus, on_hosts):
    rng = random.Random(seed)
    policy = replace(create(name), one_node=on_hosts)
    limits_s = (None, 50.0, 150.0, 150.0, 1000.0) if on_hosts else (None,)
    placers = [IncrementalPlacer(policy, NO_PREDICTIONS, linear_scan_max_gpus=limit) for limit in (0, 10**9)]
    at_s, live = 100.0, []
    for place in range(gpus):
        snapshot = some_gpu(rng, place, at_s, ())
        for placer in placers:
            placer.update(confined(snapshot) if on_hosts else snapshot)
    for job_id in range(1, 80):
        job = some_job(rng, job_id, at_s, limits_s=limits_s)
        job = replace(job, state=Queued(since_s=at_s))
        ending = [job_id for job_id in live if rng.random() < 0.1]
        for placer in placers:
            placer.add(job)
            for ended in ending:
                placer.release(ended)
        live = [job_id for job_id in live if job_id not in ending]
        at_s += rng.choice([0.0, 3.0, 30.0, 900.0])
        first, second = (placer.decide(at_s) for placer in placers)
        assert first == second
        for placement in first:
            for placer in placers:
                placer.mark_active(placement.job_id, at_s + 1)
            live.append(placement.job_id)


@pytest.mark.parametrize("name", policies())
def test_promises_never_exceed_a_gpu_over_400_jobs(name):
    rng = random.Random(7)
    placer = create(name).placer()
    total = {f"GPU-{place}": (24 if place % 3 else 40) * GiB for place in range(6)}
    for place in range(6):
        placer.update(a_snapshot(place, gib=24 if place % 3 else 40, at_s=0.0, smact=0.2))
    promised = dict.fromkeys(total, 0)
    live: dict[int, Placement] = {}
    waiting = set()
    at_s = 0.0
    for job_id in range(1, 400):
        at_s += 10.0
        waiting.add(job_id)
        placer.add(some_job(rng, job_id, at_s, (None, 2, 8, 12.3, 20)))
        for ended in [job_id for job_id in live if rng.random() < 0.15]:
            placer.release(ended)
            for uuid in live[ended].gpu_uuids:
                promised[uuid] -= live[ended].promised_bytes
            del live[ended]
        for placement in placer.decide(at_s):
            waiting.remove(placement.job_id)
            live[placement.job_id] = placement
            for uuid in placement.gpu_uuids:
                promised[uuid] += placement.promised_bytes
                assert promised[uuid] <= total[uuid]
                residents = [mate for mate in live.values() if uuid in mate.gpu_uuids]
                assert len(residents) == 1 or all(mate.sharing != "exclusive" for mate in residents)
        assert placer.waiting == len(waiting)
    assert len(waiting) < 300
