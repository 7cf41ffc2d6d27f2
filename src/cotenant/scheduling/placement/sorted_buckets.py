"""Ints sorted by a key, of which many change often and mostly the first few are read."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import chain, islice

PLACE_BITS = 24
PLACES = 1 << PLACE_BITS
"""Places are below this."""

MAX_IN_BUCKET = 128


class SortedBuckets:
    """Places (ints from 0) sorted by an int key, then by place. A change or a lookup costs about one bucket.

    A bucket is a sorted list of `key * PLACES + place`, all below those of the next bucket. A bucket that gets too
    long is split, so equal keys cost nothing extra. Answers are these packed ints.
    """

    __slots__ = ("_buckets", "_ends", "_packed")

    def __init__(self) -> None:
        self._buckets: list[list[int]] = []  # none is empty
        self._ends: list[int] = []  # of each bucket: none in it is above, all in the next are
        self._packed: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._packed)

    def put_key(self, place: int, key: int) -> None:
        """Sort `place` in under `key`, wherever it was before."""
        packed = key * PLACES + place
        known, ends, buckets = self._packed, self._ends, self._buckets
        old = known.get(place)
        if old is not None:
            if old == packed:
                return
            number = bisect_left(ends, old)  # `_take_out`, without the call
            bucket = buckets[number]
            if len(bucket) == 1:
                del buckets[number], ends[number]
            else:
                del bucket[bisect_left(bucket, old)]
        known[place] = packed
        number = bisect_left(ends, packed)
        if number < len(ends):
            bucket = buckets[number]
            insort(bucket, packed)
        elif ends:
            number -= 1
            bucket = buckets[number]
            bucket.append(packed)
            ends[number] = packed
        else:
            bucket = [packed]
            buckets.append(bucket)
            ends.append(packed)
        if len(bucket) > MAX_IN_BUCKET:
            self._split(number)

    def _split(self, number: int) -> None:
        bucket = self._buckets[number]
        middle = len(bucket) // 2
        self._buckets[number : number + 1] = [bucket[:middle], bucket[middle:]]
        self._ends.insert(number, bucket[middle - 1])

    def drop(self, place: int) -> None:
        """Remove `place`, if it is there."""
        old = self._packed.pop(place, None)
        if old is not None:
            self._take_out(old)

    def _take_out(self, packed: int) -> None:
        number = bisect_left(self._ends, packed)
        bucket = self._buckets[number]
        if len(bucket) == 1:
            del self._buckets[number], self._ends[number]
            return
        del bucket[bisect_left(bucket, packed)]

    def first_packed(self, low: int | None = None) -> int | None:
        """The smallest packed int from `low` on, or None."""
        if not self._buckets:
            return None
        if low is None:
            return self._buckets[0][0]
        number = bisect_left(self._ends, low)
        if number == len(self._ends):
            return None
        bucket = self._buckets[number]
        index = bisect_left(bucket, low)
        if index < len(bucket):
            return bucket[index]
        # An end may stay when the last of its bucket is taken out; then the next bucket begins above `low`.
        return self._buckets[number + 1][0] if number + 1 < len(self._buckets) else None

    def walk_packed(self, low: int | None = None) -> Iterator[int]:
        """Packed ints from `low` on, in order. Nothing may change meanwhile."""
        if low is None:
            return chain.from_iterable(self._buckets)
        number = bisect_left(self._ends, low)
        return chain.from_iterable(
            bucket if bucket[0] >= low else islice(bucket, bisect_left(bucket, low), None)
            for bucket in islice(self._buckets, number, None)
        )

    def items(self) -> list[tuple[int, int]]:
        """Every place with its key."""
        return [(place, packed // PLACES) for place, packed in self._packed.items()]
