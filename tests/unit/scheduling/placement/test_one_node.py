"""Gangs where an attempt runs on one host: GPUs of one node, or none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import a_gpu, a_job, a_resident, a_snapshot
from cotenant.core.units import GiB
from cotenant.scheduling.demand import GpuSizes, never_fits
from cotenant.scheduling.placement.gpu_view import GpuView
from cotenant.scheduling.placement.node_packing import pack_one_node
from cotenant.scheduling.policies import create, policies


def of_node(snapshot, server):
    return replace(snapshot, gpu=replace(snapshot.gpu, server=server))


def a_view(server, place):
    return GpuView(of_node(a_snapshot(place), server), place)


@pytest.mark.parametrize(
    ("nodes", "ranks", "count", "chosen"),
    [
        pytest.param("aabb", "0000", 2, [0, 1], id="the first of equals"),
        pytest.param("aaabb", "00000", 2, [3, 4], id="the one with least to spare"),
        pytest.param("abab", "0011", 2, [0, 2], id="GPUs need not stand together"),
        pytest.param("abb", "012", 2, [1, 2], id="a worse pair of one node, not the best two"),
        pytest.param("abba", "0112", 2, [1, 2], id="the node whose second comes first"),
        pytest.param("aabbb", "00111", 2, [0, 1], id="preference before what is to spare"),
        pytest.param("abc", "000", 2, [], id="none has two"),
        pytest.param("", "", 2, [], id="no GPU"),
    ],
)
def test_gpus_of_one_node(nodes, ranks, count, chosen):
    ranked = [(rank, a_view(node, place)) for place, (node, rank) in enumerate(zip(nodes, ranks, strict=True))]
    assert [view.place for view in pack_one_node(ranked, count)] == chosen


@pytest.mark.parametrize("name", policies())
@pytest.mark.parametrize("most", [0, 10**9], ids=["by index", "by linear scan"])
@pytest.mark.parametrize("exclusive", [True, False])
def test_every_policy_keeps_a_gang_on_one_node(name, most, exclusive):
    placer = replace(create(name), one_node=True).placer(linear_scan_max_gpus=most)
    taken = (a_resident(40, sharing="exclusive"),)
    for place, (server, residents) in enumerate([("a", ()), ("a", taken), ("b", ()), ("c", ()), ("c", ())]):
        placer.update(of_node(a_snapshot(place, residents=residents), server))
    placer.add(a_job(1, 8, gpus=2, exclusive=exclusive))
    (placement,) = placer.decide(0.0)
    assert sorted(placement.gpu_uuids) == ["GPU-3", "GPU-4"]
    placer.add(a_job(2, 36, gpus=2, exclusive=exclusive))
    assert placer.decide(1.0) == []
    deferral = placer.explain(2, 1.0)
    if deferral.reason.count("of one host"):
        assert "2 GPUs of one host are needed at once" in {
            item.reason.partition("but ")[2] for item in deferral.rejections
        }


def test_gpus_are_reserved_on_one_node():
    placer = replace(create("first-fit", {"reserve_after_s": 60.0}), one_node=True).placer()
    for place, server in enumerate("abcb"):
        residents = (
            a_resident(30, job_id=100 + place),
            *((a_resident(1, job_id=200 + place),) if server == "b" else ()),
        )
        placer.update(of_node(a_snapshot(place, residents=residents), server))
    placer.add(a_job(1, 36, gpus=2))
    assert placer.decide(100.0) == []
    assert {item.gpu_uuid for item in placer.explain(1, 100.0).rejections} == {f"GPU-{place}" for place in range(4)}
    placer.add(a_job(2, 5, gpus=1, at_s=100.0))
    assert [placement.gpu_uuids for placement in placer.decide(101.0)] == [("GPU-0",)]
    for place in (1, 3):
        placer.update(of_node(a_snapshot(place), "b"))
    assert [sorted(placement.gpu_uuids) for placement in placer.decide(102.0)] == [["GPU-1", "GPU-3"]]


def test_a_gang_that_takes_all_of_its_node_is_alone_there():
    """Larger GPUs of nodes that have one each are none for it."""
    placer = replace(create("first-fit"), one_node=True).placer()
    for place, (server, gib) in enumerate((("a", 80), ("b", 80), ("c", 40), ("c", 40))):
        placer.update(of_node(a_snapshot(place, gib=gib), server))
    placer.add(a_job(1, 39.5, gpus=2))
    (placement,) = placer.decide(0.0)
    assert (placement.gpu_uuids, placement.sharing) == (("GPU-2", "GPU-3"), "exclusive")


def of_nodes(nodes, gib=40):
    return [replace(a_gpu(index, gib), server=node) for index, node in enumerate(nodes)]


def test_what_never_fits_is_compared_with_the_best_node_for_it():
    gpus = [*of_nodes("aab"), replace(a_gpu(9, 80), server="b"), replace(a_gpu(10, 80), server="c")]
    sizes = GpuSizes(gpus, one_node=True)
    assert (list(sizes.of(1)), list(sizes.of(2)), bool(sizes)) == (
        [80 * GiB, 80 * GiB, 40 * GiB, 40 * GiB, 40 * GiB],
        [40 * GiB, 40 * GiB],
        True,
    )
    assert never_fits(a_job(1, 30, gpus=2), sizes.of(2), one_node=True) is None
    assert "the largest has 40.0 GiB" in never_fits(a_job(1, 70, gpus=2), sizes.of(2), one_node=True)
    assert never_fits(a_job(1, 70), sizes.of(1), one_node=True) is None
    why = "needs 3 GPUs of one host, no host has more than 2"
    assert never_fits(a_job(1, 30, gpus=3), sizes.of(3), one_node=True) == why
    assert never_fits(a_job(1, 30, gpus=3), GpuSizes(gpus).of(3)) is None
    smaller = [*of_nodes("aa"), *(replace(a_gpu(index, 24), server="b") for index in (5, 6, 7))]
    assert list(GpuSizes(smaller, one_node=True).of(2)) == [40 * GiB, 40 * GiB], "not the node with most GPUs"
    assert sizes != GpuSizes(gpus)
    assert sizes == GpuSizes(reversed(gpus), one_node=True)
