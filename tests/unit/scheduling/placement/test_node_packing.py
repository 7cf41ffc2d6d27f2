"""Jobs of several GPUs get them in as few servers as the order of the policy allows."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations

import pytest

from builders import a_job, a_resident, a_snapshot
from cotenant.core.units import GiB
from cotenant.scheduling.demand import Demand
from cotenant.scheduling.placement import orders, scores
from cotenant.scheduling.placement.gpu_index import make_index
from cotenant.scheduling.placement.gpu_view import EXCLUSIVE, GpuView
from cotenant.scheduling.placement.node_packing import NodeIndex, pack_fewest_nodes
from cotenant.scheduling.placement.pending_queue import DemandClass, PendingJob
from cotenant.scheduling.placement.policy import NO_PREDICTIONS
from cotenant.scheduling.placement.ranked import Ranked
from cotenant.scheduling.placement.reservation import include_busy, mig_instances
from cotenant.scheduling.placement.rules import AdmissionRules
from cotenant.scheduling.policies import create

RULES = AdmissionRules(gates=(), pairing=None)

SCORES = (
    scores.first,
    scores.round_robin,
    scores.most_available_memory,
    scores.least_available_memory,
    scores.least_active,
)


def a_gpu_of(server: str, place: int = 0, **of_snapshot):
    snapshot = a_snapshot(place, **of_snapshot)
    return replace(snapshot, gpu=replace(snapshot.gpu, server=server))


def views(*servers: str) -> list[GpuView]:
    return [GpuView(a_gpu_of(server, place), place) for place, server in enumerate(servers)]


def places(chosen) -> list[int]:
    return [view.place for view in chosen]


@pytest.mark.parametrize(
    ("servers", "count", "chosen"),
    [
        pytest.param("aabb", 2, [0, 1], id="the first that has enough"),
        pytest.param("abbb", 3, [1, 2, 3], id="one server, not the first GPUs"),
        pytest.param("aaabb", 2, [3, 4], id="least to spare"),
        pytest.param("abbcc", 3, [0, 1, 2], id="two servers where one has too few, the second filled up"),
        pytest.param("abcdee", 4, [0, 1, 4, 5], id="the largest first"),
        pytest.param("abab", 2, [0, 2], id="GPUs of a server need not stand together"),
        pytest.param("ab", 3, [], id="too few"),
    ],
)
def test_equally_ranked_gpus_are_taken_from_the_fewest_servers(servers, count, chosen):
    among = views(*servers)
    assert places(pack_fewest_nodes([("alike", view) for view in among], count)) == chosen
    free = NodeIndex(among)
    for view in among:
        free.update(view.place, is_free=True)
    assert places(free.best(count)) == chosen


def test_better_ranked_gpus_come_first_and_their_server_is_preferred_for_the_rest():
    a, b, c, d = views("a", "b", "b", "a")
    assert places(pack_fewest_nodes([(1, c), (2, a), (2, b), (2, d)], 2)) == [2, 1]


def test_gpus_of_one_server_are_taken_in_display_order():
    among = views("", "", "", "")
    assert places(pack_fewest_nodes([(0, view) for view in among], 3)) == [0, 1, 2]


def test_no_equally_ranked_choice_uses_fewer_servers():
    rng = random.Random(5)
    for _ in range(200):
        among = views(*[rng.choice("abcd") for _ in range(rng.randint(2, 8))])
        keys = sorted(rng.choice([1, 1, 1, 2, 3]) for _ in among)
        count = rng.randint(1, len(among))
        chosen = pack_fewest_nodes(zip(keys, among, strict=True), count)
        assert sorted(keys[view.place] for view in chosen) == keys[:count]
        fewest = min(
            len({view.server for view in choice})
            for choice in combinations(among, count)
            if sorted(keys[view.place] for view in choice) == keys[:count]
        )
        assert len({view.server for view in chosen}) == fewest


def test_node_index_tracks_allocated_and_freed_gpus():
    rng = random.Random(9)
    among = views(*"aabbbbccccccd")
    free, known = set(), NodeIndex(among)
    for _ in range(300):
        place = rng.randrange(len(among))
        free ^= {place}
        known.update(place, is_free=place in free)
        count = rng.randint(1, 6)
        expected = pack_fewest_nodes([(0, among[place]) for place in sorted(free)], count)
        assert places(known.best(count)) == places(expected)


@pytest.mark.parametrize("score", SCORES, ids=lambda item: item.name)
@pytest.mark.parametrize("policy", ["", "marginal-gain"])
@pytest.mark.parametrize("together", [True, False])
def test_indexes_agree_with_the_linear_scan(score, policy, together):
    rng = random.Random(3)
    pairing = create(policy).pairing if policy else None
    servers = [rng.choice("abcde") for _ in range(24)]
    among = views(*sorted(servers)) if together else views(*servers)
    orders_of = [make_index(among, score, pairing, linear_scan_max_gpus=view) for view in (0, 10**9)]
    for _ in range(200):
        view = rng.choice(among)
        residents = tuple(a_resident(rng.choice([4, 8]), job_id=number) for number in range(rng.choice([0, 0, 1, 2])))
        view.refresh(a_gpu_of(view.server, view.place, residents=residents, smact=rng.choice([0.1, 0.4])))
        view.gpu_class = pairing.gpu_class(view) if pairing else None
        eligible = rng.random() < 0.7
        count, least = rng.choice([1, 2, 3, 5]), rng.choice([0, 0, 30]) * GiB
        profile = pairing.profile(a_job(1, 8), NO_PREDICTIONS) if pairing else None
        for index in orders_of:
            index.update(view, eligible)
        few, many = [index.best(Demand(gpus=count, bytes=least, profile=profile), count) for index in orders_of]
        assert places(few) == places(many)
        for index in orders_of:
            for taken in few:
                index.taken(taken)


def test_gpus_reserved_for_a_gang_are_of_one_server():
    policy = Ranked(name="test", order=orders.fifo, score=scores.first, reserve_after_s=600.0)
    placer = policy.placer()
    for place, server in enumerate("abbb"):
        placer.update(a_gpu_of(server, place, residents=(a_resident(30, job_id=100 + place),)))
    placer.add(a_job(1, 20, gpus=3, at_s=0.0))
    placer.decide(600.0)
    placer.add(a_job(2, 5, at_s=0.0))
    assert [placement.gpu_uuids for placement in placer.decide(601.0)] == [("GPU-0",)], "the others are kept"


@pytest.mark.parametrize("policy", ["exclusive", "most-memory", "marginal-gain", "round-robin"])
def test_policies_place_a_gang_on_one_server_if_it_fits(policy):
    placer = create(policy).placer()
    for place, server in enumerate("aabbbbcc"):
        placer.update(a_gpu_of(server, place))
    placer.add(a_job(1, 8, gpus=4))
    placer.add(a_job(2, 8, gpus=2, at_s=1.0))
    placed = {placement.job_id: placement.gpu_uuids for placement in placer.decide(1.0)}
    second = ("GPU-6", "GPU-7") if policy == "round-robin" else ("GPU-0", "GPU-1")
    assert placed == {1: ("GPU-2", "GPU-3", "GPU-4", "GPU-5"), 2: second}


def test_fallback_searches_pack_onto_the_fewest_servers_too():
    entry = PendingJob(a_job(1, 8, gpus=2), (0.0,), DemandClass(Demand(gpus=2, bytes=GiB, ignores_activity=True)))
    assert places(include_busy(RULES, entry, views("a", "b", "b"), 0.0)) == [1, 2]
    for view in (among := views("a", "b", "b")):
        view.eligible_modes = EXCLUSIVE
    assert places(mig_instances(RULES, entry, among, 0.0)) == [1, 2]
