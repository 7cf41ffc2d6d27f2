"""Places sorted by key: against a plain sort, through cuts, moves and ends of buckets."""

from __future__ import annotations

import random

import pytest

from cotenant.scheduling.placement.sorted_buckets import MAX_IN_BUCKET, PLACES, SortedBuckets

MOST = 40 * 2**30


def in_order(keys: dict[int, int], start: int = -MOST) -> list[int]:
    return [place for key, place in sorted((key, place) for place, key in keys.items()) if key >= start]


def place_of(packed):
    return None if packed is None else packed % PLACES


def places_of(buckets, start=None):
    return [place_of(packed) for packed in buckets.walk_packed(None if start is None else start * PLACES)]


@pytest.mark.parametrize("different", [1, 3, 200])
@pytest.mark.parametrize("places", [3, MAX_IN_BUCKET, 6 * MAX_IN_BUCKET])
def test_sorted_buckets_agree_with_a_plain_sort(different: int, places: int) -> None:
    rng = random.Random(different * places)
    choices = [0, -MOST, MOST, *[rng.randrange(-MOST, MOST) for _ in range(different)]][-different:]
    buckets, keys = SortedBuckets(), {}
    for turn in range(8 * places):
        place = rng.randrange(places)
        if rng.random() < (0.7 if turn > 6 * places else 0.2):
            buckets.drop(place)
            keys.pop(place, None)
        else:
            keys[place] = rng.choice(choices)
            buckets.put_key(place, keys[place])
        assert len(buckets) == len(keys)
        if turn % max(1, places // 4) == 0:
            start = rng.choice([*choices, rng.randrange(-MOST, MOST)])
            assert places_of(buckets) == in_order(keys)
            assert places_of(buckets, start) == in_order(keys, start)
            assert place_of(buckets.first_packed()) == next(iter(in_order(keys)), None)
            assert place_of(buckets.first_packed(start * PLACES)) == next(iter(in_order(keys, start)), None)


def test_a_bucket_of_equal_keys_is_split() -> None:
    """Twenty-five thousand idle GPUs have the same key: so a bucket of equal keys is split."""
    buckets = SortedBuckets()
    for place in range(50 * MAX_IN_BUCKET):
        buckets.put_key(place, 7)
    assert max(len(bucket) for bucket in buckets._buckets) <= MAX_IN_BUCKET
    assert places_of(buckets, 7) == list(range(50 * MAX_IN_BUCKET))
    assert places_of(buckets, 8) == []


def test_empty_buckets_have_no_first_place() -> None:
    buckets = SortedBuckets()
    buckets.put_key(5, 1)
    buckets.drop(5)
    buckets.drop(5)
    assert (buckets.first_packed(), len(buckets), places_of(buckets)) == (None, 0, [])
    buckets.put_key(6, 0)
    assert place_of(buckets.first_packed()) == 6
