"""A look at every GPU, for the few jobs that the orders of `rankings` do not serve."""

from __future__ import annotations

from collections.abc import Sequence

from cotenant.scheduling.placing import verdicts
from cotenant.scheduling.placing.gangs import in_fewest_servers
from cotenant.scheduling.placing.rules import Rules
from cotenant.scheduling.placing.views import EMPTY, SHARED, GpuView
from cotenant.scheduling.placing.waiting import Entry


def instances(rules: Rules, entry: Entry, views: Sequence[GpuView], at_s: float) -> Sequence[GpuView]:
    """The smallest MIG instances that will do; none where there are too few."""
    found = _admitting(rules, entry, [each for each in views if each.filed & EMPTY], at_s)
    found.sort(key=lambda each: (each.total_bytes, each.place))
    return in_fewest_servers([(each.total_bytes, each) for each in found], entry.kind.gpus)


def busy_too(rules: Rules, entry: Entry, views: Sequence[GpuView], at_s: float) -> Sequence[GpuView]:
    """For a job that starts at once (see `Need`): also GPUs that rules on activity close, but the open ones first."""
    kind, match = entry.kind, rules.match

    def rank(view: GpuView) -> tuple[float, ...]:
        cost = match.cost(kind.profile, view.signature) if match is not None else None
        return (not view.filed & SHARED, cost or 0.0, -(view.available_bytes or 0))

    ranked = [(rank(each), each) for each in _admitting(rules, entry, views, at_s)]
    ranked.sort(key=lambda each: (each[0], each[1].place))
    return in_fewest_servers(ranked, kind.gpus)


def _admitting(rules: Rules, entry: Entry, views: Sequence[GpuView], at_s: float) -> list[GpuView]:
    kind = entry.kind
    return [
        view
        for view in views
        if (view.available_bytes or 0) >= kind.bytes_each
        if verdicts.verdict(rules, kind, entry.job.id, view, at_s) is None
    ]
