"""Priorities that grow while jobs wait."""

from __future__ import annotations

import pytest

from builders import a_job
from cotenant.core.errors import UsageError
from cotenant.daemon.setup import with_aging
from cotenant.scheduling.placement import orders
from cotenant.scheduling.placement.policy import NO_PREDICTIONS
from cotenant.scheduling.placement.ranked import Ranked
from cotenant.scheduling.policies import create, policies

HOUR_S = 3600.0


@pytest.mark.parametrize(
    ("waited_h", "priority", "ahead"),
    [
        pytest.param(1.0, 0, True, id="as long, submitted before"),
        pytest.param(2.5, 4, True, id="four points are two hours, and it has waited longer"),
        pytest.param(1.5, 4, False, id="not long enough"),
    ],
)
def test_a_long_wait_outranks_a_higher_priority(waited_h, priority, ahead):
    order = orders.aged(orders.fifo, 2.0)
    old = a_job(1, at_s=100 * HOUR_S)
    new = a_job(2, at_s=(100 + waited_h) * HOUR_S, priority=priority)
    assert (order(old, NO_PREDICTIONS) < order(new, NO_PREDICTIONS)) is ahead


def test_zero_aging_leaves_the_order_of_the_policy_unchanged():
    assert orders.aged(orders.fifo, 0.0) is orders.fifo
    policy = create("most-memory")
    assert with_aging(policy, 0.0) is policy


@pytest.mark.parametrize("points", [-1.0, float("inf"), float("nan")])
def test_invalid_aging_rates_are_refused(points):
    with pytest.raises(UsageError, match="cannot grow by"):
        orders.aged(orders.fifo, points)


@pytest.mark.parametrize("name", policies())
def test_every_ranked_policy_sorts_by_priority_first(name):
    policy = create(name)
    if not isinstance(policy, Ranked):
        with pytest.raises(UsageError, match="cannot age"):
            with_aging(policy, 1.0)
        return
    job = a_job(1, at_s=HOUR_S, priority=7)
    assert policy.order(job, NO_PREDICTIONS)[0] == -7
    assert with_aging(policy, 2.0).order(job, NO_PREDICTIONS) == (-5.0, *policy.order(job, NO_PREDICTIONS)[1:])
