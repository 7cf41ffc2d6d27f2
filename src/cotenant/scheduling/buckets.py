"""Numbers sorted by a key, of which many change often and mostly the first few are wanted."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import islice

PLACE_BITS = 24
PLACE_MASK = (1 << PLACE_BITS) - 1
BUCKET_BITS = 10


class Buckets:
    """Places sorted by a key, an int from 0 to `most`; each change and each question costs about a bucket.

    A bucket is a sorted list of (key, place) packed into one int; a bit mask says which buckets have any.
    """

    __slots__ = ("_lists", "_mask", "_packed", "_shift")

    def __init__(self, most: int) -> None:
        self._shift = max(0, most.bit_length() - BUCKET_BITS) + PLACE_BITS
        self._lists: list[list[int]] = [[] for _ in range((most << PLACE_BITS >> self._shift) + 1)]
        self._mask = 0
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
        bucket = packed >> self._shift
        held = self._lists[bucket]
        if held:
            insort(held, packed)
        else:
            held.append(packed)
            self._mask |= 1 << bucket

    def drop(self, place: int) -> None:
        """Forget `place`."""
        old = self._packed.pop(place, None)
        if old is not None:
            self._take_out(old)

    def _take_out(self, packed: int) -> None:
        bucket = packed >> self._shift
        held = self._lists[bucket]
        if len(held) > 1:
            del held[bisect_left(held, packed)]
        else:
            held.clear()
            self._mask ^= 1 << bucket

    def first(self) -> int:
        """The place with the smallest key, or -1."""
        mask = self._mask
        return self._lists[(mask & -mask).bit_length() - 1][0] & PLACE_MASK if mask else -1

    def walk(self, start: int = 0) -> Iterator[int]:
        """Places from key `start` on, in order. Nothing may be filed meanwhile."""
        bucket = start << PLACE_BITS >> self._shift
        if bucket >= len(self._lists):
            return
        mask = self._mask >> bucket
        if mask & 1:
            held = self._lists[bucket]
            for each in islice(held, bisect_left(held, start << PLACE_BITS), None):
                yield each & PLACE_MASK
        mask = mask >> 1 << 1
        while mask:
            low = mask & -mask
            for each in self._lists[bucket + low.bit_length() - 1]:
                yield each & PLACE_MASK
            mask ^= low
