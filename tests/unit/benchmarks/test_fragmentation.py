"""FGD's published allocations, by the rule that the policy `fgd` takes, too."""

from __future__ import annotations

import pytest

pytest.importorskip("numpy")

from benchmarks.reproductions import fragmentation
from benchmarks.reproductions.fragmentation_rules import Fgd, Node, Pod
from shared_data import SHARED_DATA

TRACES = SHARED_DATA / "traces"


@pytest.mark.skipif(not (TRACES / "fgd_expected_alloc.csv").exists(), reason="the shared traces are absent")
@pytest.mark.parametrize("rule", ["04-GpuPacking", "06-FGD"])
def test_allocations_are_within_half_a_point_of_the_published(rule):
    """One seed of ten; all rules, workloads and seeds are on the result page."""
    published = fragmentation.read_expected(TRACES)["default", rule]
    pods = fragmentation.read_pods(TRACES)["default"]
    found = fragmentation.allocated(rule, fragmentation.read_nodes(TRACES), pods, 42)
    assert found == pytest.approx(published, abs=fragmentation.TOLERANCE_POINTS)


def test_a_part_of_a_gpu_goes_where_fragments_grow_least():
    half = Pod(cpu=1000, milli=500, gpus=1, models=frozenset(), host_mib=0)
    rule = Fgd([(half, 1.0)])
    node = Node(cpu=64_000, host_mib=0, gpus=2, model="T4")
    node.free = [700, 900]
    quarter = half._replace(milli=250)
    assert rule.gpus(node, quarter) == [1], "the first would leave 450 that no typical pod can use"
    node.cpu = 0
    assert rule.fragments(node.cpu, node.free, node.model) == 1600, "without CPUs all is lost"
