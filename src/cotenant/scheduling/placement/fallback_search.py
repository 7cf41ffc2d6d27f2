"""A look at every GPU, for the few jobs that the orders of `rankings` do not serve."""

from __future__ import annotations

from collections.abc import Sequence

from cotenant.scheduling.placement import rejections
from cotenant.scheduling.placement.gpu_view import EMPTY, SHARED, GpuView
from cotenant.scheduling.placement.node_packing import pack_fewest_nodes
from cotenant.scheduling.placement.pending_queue import PendingJob
from cotenant.scheduling.placement.rules import Rules


def mig_instances(rules: Rules, entry: PendingJob, views: Sequence[GpuView], at_s: float) -> Sequence[GpuView]:
    """The smallest MIG instances that will do; none where there are too few."""
    found = _qualifying(rules, entry, [each for each in views if each.eligible_modes & EMPTY], at_s)
    found.sort(key=lambda each: (each.total_bytes, each.place))
    return pack_fewest_nodes([(each.total_bytes, each) for each in found], entry.kind.gpus)


def include_busy(rules: Rules, entry: PendingJob, views: Sequence[GpuView], at_s: float) -> Sequence[GpuView]:
    """For a job that starts at once (see `MemoryDemand`): also GPUs that rules on activity close, but the open ones first."""
    kind, match = entry.kind, rules.match

    def rank(view: GpuView) -> tuple[float, ...]:
        cost = match.cost(kind.profile, view.gpu_class) if match is not None else None
        return (not view.eligible_modes & SHARED, cost or 0.0, -(view.available_bytes or 0))

    ranked = [(rank(each), each) for each in _qualifying(rules, entry, views, at_s)]
    ranked.sort(key=lambda each: (each[0], each[1].place))
    return pack_fewest_nodes(ranked, kind.gpus)


def _qualifying(rules: Rules, entry: PendingJob, views: Sequence[GpuView], at_s: float) -> list[GpuView]:
    kind = entry.kind
    return [
        view
        for view in views
        if (view.available_bytes or 0) >= kind.bytes_per_gpu
        if rejections.rejection(rules, kind, entry.job.id, view, at_s) is None
    ]
