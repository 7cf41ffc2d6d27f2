"""Conclusions from predictions hold until something is learned about their workloads."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cotenant.scheduling.prediction import prediction_cache
from cotenant.scheduling.prediction.interference import GpuActivity, LearnedInterference
from cotenant.scheduling.prediction.prediction_cache import PredictionCache


@pytest.mark.parametrize(
    ("workloads", "expected"),
    [
        pytest.param(("a",), None, id="the one that was slowed down"),
        pytest.param(("c", "b"), None, id="the one that slowed it down"),
        pytest.param(("c", "d"), 1.5, id="others"),
        pytest.param((), 1.5, id="nothing was predicted"),
    ],
)
def test_learning_about_a_group_forgets_what_depends_on_one_of_it(workloads, expected):
    predictor = LearnedInterference()
    cache = PredictionCache(predictor)
    cache.put("key", 1.5, workloads)
    assert cache.get("key") == 1.5
    predictor.learn([GpuActivity("a", 0.3), GpuActivity("b", 0.3)], [2.0, None], spread=0.1)
    assert cache.get("key") == expected
    assert cache.get("key") == expected, "also when asked again"
    cache.put("key", 2.5, workloads)
    assert cache.get("key") == 2.5


def test_nothing_is_cached_without_limit(monkeypatch):
    monkeypatch.setattr(prediction_cache, "MAX_CACHED", 2)
    cache = PredictionCache(LearnedInterference())
    for key in "abc":
        cache.put(key, 1.0, ())
    assert [cache.get(key) for key in "abc"] == [None, None, 1.0]


def test_what_holds_as_of_a_version_is_not_asked_for_again():
    asked = []

    def learned_at(workloads):
        asked.append(workloads)
        return 1

    predictor = SimpleNamespace(version=1, learned_at=learned_at)
    cache = PredictionCache(predictor)
    cache.put("key", 1.5, ("a",))
    predictor.version = 2
    assert [cache.get("key") for _ in range(3)] == [1.5, 1.5, 1.5]
    assert asked == [("a",)]
