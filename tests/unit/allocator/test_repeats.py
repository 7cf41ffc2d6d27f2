"""How often an iteration comes again until no more is reserved."""

from __future__ import annotations

import pytest

from cotenant.allocator import count_growing_repeats, of_iteration_before, parse_options, rules_for
from cotenant.allocator.repeats import MAX_REPEATS
from traces import alloc, free

OLD = of_iteration_before(1)


class Events(list):
    """Counts how often it is served."""

    served = 0

    def __iter__(self):
        self.served += 1
        return super().__iter__()


def repeats(before, iteration, carried=(), conf="", **more):
    rules = rules_for("2.13.0")
    return count_growing_repeats(before, iteration, carried, options=parse_options(conf, "2.13.0"), rules=rules, **more)


def test_the_last_repeat_that_reserves_more_is_counted():
    # The old result lies in the only block of its size when the new one is allocated; then there are two.
    assert repeats([alloc(1, 30)], [alloc(1, 30), free(OLD)], (1,)) == 1
    assert repeats([alloc(1, 30)], [free(OLD), alloc(1, 30)], (1,)) == 0


def test_growth_without_end_is_counted_up_to_the_limit():
    growing = [alloc(1, 30), free(OLD), alloc(2, 30)]
    assert repeats([alloc(1, 30)], Events(growing), (1,)) == MAX_REPEATS


@pytest.mark.parametrize(
    ("iteration", "served"),
    [
        pytest.param([free(OLD), alloc(1, 30)], 1, id="as before"),
        pytest.param([alloc(1, 30), free(OLD)], 3, id="two blocks in turn"),
        pytest.param([alloc(9, 4), free(9)], 2, id="nothing is carried"),
    ],
)
def test_repeats_end_where_the_blocks_lie_as_they_did(iteration, served):
    events = Events(iteration)
    repeats([alloc(1, 30)], events, (1,) if iteration[-1].storage_id != 9 else ())
    assert events.served == served


def test_without_memory_for_a_workspace_the_iteration_goes_on():
    conf = "throw_on_cudamalloc_oom:True"
    events = [alloc(1, 30), free(OLD), alloc(2, 90), free(2)]
    assert repeats([alloc(1, 30)], events, (1,), conf, total_bytes=100 << 20, optional_storages={2}) == 1
    assert repeats([alloc(1, 30)], events, (1,), conf, total_bytes=100 << 20) == 0


def test_the_cache_is_emptied_as_the_script_does():
    empty = alloc(0, 0)._replace(action="empty_cache")
    before = [alloc(1, 20), alloc(2, 20), free(1), free(2)]
    assert repeats(before, [empty, alloc(3, 30), free(3)]) == 0
    assert repeats(before, [alloc(3, 30), free(3)]) == 1
