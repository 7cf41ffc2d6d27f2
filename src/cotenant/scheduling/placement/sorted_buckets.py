"""Numbers sorted by a key, of which many change often and mostly the first few are wanted."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import islice

PLACE_BITS = 24
PLACE_MASK = (1 << PLACE_BITS) - 1

MAX_IN_BUCKET = 128


class SortedBuckets:
    """Places sorted by a key, an int from 0 on; each change and each question costs about a bucket, however many.

    A bucket is a sorted list of (key, place) packed into one int, all of them below those of the next; one that gets
    too long is cut in two, so it does not matter how many places have the same key.
    """

    __slots__ = ("_buckets", "_ends", "_packed")

    def __init__(self) -> None:
        self._buckets: list[list[int]] = []  # none is empty
        self._ends: list[int] = []  # of each bucket: none in it is above, all in the next are
        self._packed: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._packed)

    def put(self, place: int, key: int) -> None:
        """File `place` under `key`, wherever it was before."""
        packed = key << PLACE_BITS | place
        old = self._packed.get(place)
        if old == packed:
            return
        if old is not None:
            self._take_out(old)
        self._packed[place] = packed
        ends = self._ends
        number = bisect_left(ends, packed)
        if number < len(ends):
            bucket = self._buckets[number]
            insort(bucket, packed)
        elif ends:
            number -= 1
            bucket = self._buckets[number]
            bucket.append(packed)
            ends[number] = packed
        else:
            bucket = [packed]
            self._buckets.append(bucket)
            ends.append(packed)
        if len(bucket) > MAX_IN_BUCKET:
            self._cut(number)

    def _cut(self, number: int) -> None:
        bucket = self._buckets[number]
        middle = len(bucket) // 2
        self._buckets[number : number + 1] = [bucket[:middle], bucket[middle:]]
        self._ends.insert(number, bucket[middle - 1])

    def drop(self, place: int) -> None:
        """Forget `place`."""
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

    def first(self) -> int:
        """The place with the smallest key, or -1."""
        return self._buckets[0][0] & PLACE_MASK if self._buckets else -1

    def walk(self, start: int = 0) -> Iterator[int]:
        """Places from key `start` on, in order. Nothing may be filed meanwhile."""
        least = start << PLACE_BITS
        number = bisect_left(self._ends, least) if start else 0
        for bucket in islice(self._buckets, number, None):
            for each in islice(bucket, bisect_left(bucket, least), None) if bucket[0] < least else bucket:
                yield each & PLACE_MASK
