"""Memory over the traced steps in few points: no peak is lost."""

from __future__ import annotations

from cotenant.core.trace import CATEGORIES
from cotenant.estimators.memory_profile import MAX_POINTS, memory_profile
from traces import a_trace, alloc, free, steps


def test_it_is_what_the_live_storages_add_up_to():
    events = [
        alloc(1, 100, "parameter", "load"),
        alloc(2, 40, "activation", "forward"),
        free(2, "backward"),
        alloc(3, 30, "gradient", "backward"),
    ]
    profile = memory_profile(events)
    mib = {name: [value >> 20 for value in column] for name, column in profile.category_bytes.items()}
    assert mib == {"parameter": [100] * 4, "activation": [0, 40, 0, 0], "gradient": [0, 0, 0, 30]}
    assert profile.phases == ((0, "load"), (1, "forward"), (2, "backward"))


def test_many_events_are_few_points_and_keep_the_peak():
    events = [event for i in range(5000) for event in (alloc(i, 1 + (i == 2500) * 700), free(i))]
    profile = memory_profile(events)
    assert len(profile.category_bytes["activation"]) <= MAX_POINTS
    assert max(profile.category_bytes["activation"]) >> 20 == 701
    assert set(profile.category_bytes) <= set(CATEGORIES)


def test_another_gpu_and_no_events_have_none():
    assert memory_profile(a_trace([alloc(1, 5)]).events, device=1) is None
    assert memory_profile([]) is None
    assert memory_profile(steps().events) is not None
