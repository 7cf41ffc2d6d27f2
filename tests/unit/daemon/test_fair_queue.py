"""Owners of items take turns."""

from __future__ import annotations

import pytest

from cotenant.daemon.fair_queue import FairQueue


def a_queue(*items, **options):
    queue = FairQueue(**options)
    for uid, number in items:
        assert queue.put(uid, number)
    return queue


def test_owners_are_served_round_robin_one_item_at_a_time():
    queue = a_queue((1, "a"), (1, "b"), (1, "c"), (2, "d"), (3, "e"), (2, "f"))
    assert [queue.get() for _ in range(3)] == [(1, "a"), (2, "d"), (3, "e")]
    queue.task_done(2)
    assert queue.get() == (2, "f")
    queue.task_done(1)
    assert queue.get() == (1, "b"), "1 has its turn back, though 2 is still at it"
    queue.close()
    assert queue.get() is None


def test_an_owner_who_was_served_is_behind_the_others():
    queue = a_queue((1, "a"), (1, "b"), (2, "c"), (2, "d"))
    served = []
    for _ in range(4):
        served.append(queue.get())
        queue.task_done(served[-1][0])
    assert served == [(1, "a"), (2, "c"), (1, "b"), (2, "d")]


def test_an_owner_has_no_more_in_flight_than_allowed():
    queue = a_queue((1, "a"), (1, "b"), (1, "c"), max_in_flight=2)
    assert [queue.get() for _ in range(2)] == [(1, "a"), (1, "b")]
    with pytest.raises(TimeoutError):
        queue.get(timeout_s=0.0)
    queue.put(2, "d")
    assert queue.get() == (2, "d")
    queue.task_done(1)
    assert queue.get() == (1, "c")


def test_an_owner_has_no_more_waiting_than_allowed():
    queue = a_queue((1, "a"), (2, "b"), max_queued=1)
    assert not queue.put(1, "c")
    assert queue.put(3, "c")
