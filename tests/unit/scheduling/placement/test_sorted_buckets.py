"""Places sorted by key: against a plain sort, through cuts, moves and ends of buckets."""

from __future__ import annotations

import random

import pytest

from cotenant.scheduling.placement.sorted_buckets import MAX_IN_BUCKET, SortedBuckets

MOST = 40 * 2**30


def in_order(keys: dict[int, int], start: int = 0) -> list[int]:
    return [place for key, place in sorted((key, place) for place, key in keys.items()) if key >= start]


@pytest.mark.parametrize("different", [1, 3, 200])
@pytest.mark.parametrize("places", [3, MAX_IN_BUCKET, 6 * MAX_IN_BUCKET])
def test_as_a_plain_sort(different: int, places: int) -> None:
    rng = random.Random(different * places)
    choices = [0, MOST, *[rng.randrange(MOST) for _ in range(different)]][-different:]
    buckets, keys = SortedBuckets(), {}
    for turn in range(8 * places):
        place = rng.randrange(places)
        if rng.random() < (0.7 if turn > 6 * places else 0.2):
            buckets.drop(place)
            keys.pop(place, None)
        else:
            keys[place] = rng.choice(choices)
            buckets.put(place, keys[place])
        assert len(buckets) == len(keys)
        if turn % max(1, places // 4) == 0:
            start = rng.choice([*choices, rng.randrange(MOST)])
            assert list(buckets.walk()) == in_order(keys)
            assert list(buckets.walk(start)) == in_order(keys, start)
            assert buckets.first() == next(iter(in_order(keys)), -1)


def test_equal_keys_are_cut_too() -> None:
    """Twenty-five thousand idle GPUs have the same key: none of them waits for a list of all."""
    buckets = SortedBuckets()
    for place in range(50 * MAX_IN_BUCKET):
        buckets.put(place, 7)
    assert max(len(each) for each in buckets._buckets) <= MAX_IN_BUCKET
    assert list(buckets.walk(7)) == list(range(50 * MAX_IN_BUCKET))
    assert list(buckets.walk(8)) == []


def test_none_left() -> None:
    buckets = SortedBuckets()
    buckets.put(5, 1)
    buckets.drop(5)
    buckets.drop(5)
    assert (buckets.first(), len(buckets), list(buckets.walk())) == (-1, 0, [])
    buckets.put(6, 0)
    assert buckets.first() == 6
