"""The first GPU of an order that meets a demand."""

from __future__ import annotations

from builders import a_snapshot
from cotenant.core.units import GiB
from cotenant.scheduling.demand import Demand
from cotenant.scheduling.placement.gpu_view import GpuView
from cotenant.scheduling.placement.scores import most_available_memory
from cotenant.scheduling.placement.sorted_gpus import SortedGpus


def test_a_gpu_that_is_too_small_does_not_hide_a_larger_one_with_less_memory_available():
    views = [GpuView(a_snapshot(0, gib=40, foreign=2), 0), GpuView(a_snapshot(1, gib=80, foreign=60), 1)]
    index = SortedGpus(views, most_available_memory)
    for view in views:
        index.put(view)
    assert index.first(Demand(1, 10 * GiB)) is views[0]
    assert index.first(Demand(1, 10 * GiB, min_gpu_bytes=60 * GiB)) is views[1]
    assert index.first(Demand(1, 39 * GiB)) is None
