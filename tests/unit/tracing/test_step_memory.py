"""Memory of the work of each step, and whether that work would need more in a later one."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.tracing.step_memory import LiveRange, StepMemory


def test_a_range_has_the_least_and_the_most_since_it_began_again():
    live = LiveRange()
    for nbytes in (100, -60, 20):
        live.add(nbytes)
    assert (live.now, live.least, live.most) == (60, 0, 100)
    live.restart()
    assert (live.now, live.least, live.most) == (60, 60, 60)
    live.add(-10)
    live.add(5)
    assert (live.now, live.least, live.most) == (55, 50, 60)
    live.clear()
    assert (live.now, live.least, live.most) == (0, 0, 0)


def trained(*, before=0, works=(0, 0), weights=100, states=200):
    """A training: work before it, then work in each step, of so many bytes; the first step leaves states."""
    live = LiveRange()
    memory = StepMemory(live)
    live.add(weights)
    live.add(before)
    live.add(-before)
    for number, work in enumerate(works):
        memory.training_begins()
        live.add(work)
        live.add(-work)
        memory.step_begins()
        live.add(0 if number else states)
        memory.step_ends()
    return memory


def test_steps_are_counted_from_the_first_one_of_the_training():
    assert StepMemory(LiveRange()).number == 0
    assert trained(works=(0,)).number == 2  # the work before the training is 0, that of the first step 1
    assert trained(works=(0, 0, 0)).number == 4


@pytest.mark.parametrize(
    ("before", "works", "number", "more"),
    [
        pytest.param(500, (0, 0), 0, True, id="a validation before the training, without the states beside it"),
        pytest.param(50, (400, 400), 0, False, id="one that stays below the peak with them"),
        pytest.param(0, (500, 0), 1, True, id="a regularization in the first step"),
        pytest.param(0, (500, 500), 2, False, id="one in the second step has the states beside it"),
        pytest.param(500, (0, 0), 3, False, id="a step that has not ended"),
    ],
)
def test_work_of_an_early_step_needs_more_beside_what_later_steps_leave(before, works, number, more):
    assert trained(before=before, works=works).would_need_more(number) is more


def test_a_difference_below_a_hundredth_of_the_peak_does_not_count():
    assert not trained(before=50_000, works=(0, 0), states=500).would_need_more(0)
    assert trained(before=50_000, works=(0, 0), states=600).would_need_more(0)
