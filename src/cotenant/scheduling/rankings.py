"""GPUs in the order in which a policy likes them, kept up to date change by change.

All give the same answers: a plain loop, which is the clearest and the fastest for a handful of GPUs, and for many
GPUs one structure for each style of score.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator, Sequence
from itertools import islice
from typing import Protocol

from cotenant.scheduling.matches import Match
from cotenant.scheduling.scores import Score
from cotenant.scheduling.views import GpuView

LOOP_UP_TO = 16
"""So many GPUs are simply looped over; above, what keeping an order costs is less than looking at all."""

PLACE_BITS = 24
PLACE_MASK = (1 << PLACE_BITS) - 1
BUCKET_BITS = 10
KEY_SCALE = 1 << 20


class Ranking(Protocol):
    """Those GPUs that may take somebody now, in order."""

    def file(self, view: GpuView, eligible: bool) -> None:
        """`view` has changed. To be called after every change of what the order depends on."""
        ...

    def best(self, count: int, bytes_each: int, least_total_bytes: int, profile: Hashable) -> Sequence[GpuView]:
        """The best `count` GPUs with so much available, of at least that size; empty if there are fewer."""
        ...

    def taken(self, view: GpuView) -> None:
        """A job went there."""
        ...


class Loop:
    """Looks at all."""

    def __init__(self, views: list[GpuView], score: Score, match: Match | None) -> None:
        self._views = views
        self._eligible: dict[int, GpuView] = {}
        self._score = score
        self._match = match
        self._next = 0
        self._by_memory = match is None and score.style in ("spread", "pack")
        self._spread = score.style == "spread"

    def file(self, view: GpuView, eligible: bool) -> None:
        if eligible:
            self._eligible[view.place] = view
        else:
            self._eligible.pop(view.place, None)

    def best(self, count: int, bytes_each: int, least_total_bytes: int, profile: Hashable) -> Sequence[GpuView]:
        if count == 1 and self._by_memory:
            return self._one_by_memory(bytes_each, least_total_bytes)
        found = []
        for place, view in self._eligible.items():
            if (view.available_bytes or 0) >= bytes_each and view.total_bytes >= least_total_bytes:
                key = self._key(view, profile)
                if key is not None:
                    found.append((key, place))
        if len(found) < count:
            return ()
        if count == 1:
            return (self._views[min(found)[1]],)
        found.sort()
        return [self._views[place] for _, place in found[:count]]

    def _one_by_memory(self, bytes_each: int, least_total_bytes: int) -> Sequence[GpuView]:
        """The commonest question, answered without a list."""
        best: GpuView | None = None
        liked = 0
        spread = self._spread
        for view in self._eligible.values():
            available = view.available_bytes or 0
            if available < bytes_each or view.total_bytes < least_total_bytes:
                continue
            if best is None or (available > liked if spread else available < liked):
                best, liked = view, available
            elif available == liked and view.place < best.place:
                best = view
        return () if best is None else (best,)

    def _key(self, view: GpuView, profile: Hashable) -> tuple[float, float] | None:
        if self._match is not None:
            cost = self._match.cost(profile, view.signature)
            return None if cost is None else (cost, -(view.available_bytes or 0))
        if self._score.style == "ring":
            return ((view.place - self._next) % len(self._views), 0)
        if self._score.style != "key":
            return (self._score.key(view), 0)
        return (_key(self._score, view), 0)

    def taken(self, view: GpuView) -> None:
        if self._score.rotates:
            self._next = (view.place + 1) % len(self._views)


def _key(score: Score, view: GpuView) -> int:
    """The key of a GPU, of 0..1, in millionths: what is closer than that is equal."""
    return round(min(max(score.key(view), 0.0), 1.0) * KEY_SCALE)


class Buckets:
    """Places sorted by a key, an int from 0 to `most`; each change and each question costs about a bucket.

    A bucket is a sorted list of (key, place) packed into one int; a bit mask says which buckets have any.
    """

    __slots__ = ("_lists", "_mask", "_packed", "_shift")

    def __init__(self, most: int) -> None:
        self._shift = max(0, most.bit_length() - BUCKET_BITS)
        self._lists: list[list[int]] = [[] for _ in range((most >> self._shift) + 1)]
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
        bucket = key >> self._shift
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
        bucket = packed >> PLACE_BITS + self._shift
        held = self._lists[bucket]
        del held[bisect_left(held, packed)]
        if not held:
            self._mask ^= 1 << bucket

    def first(self) -> int:
        """The place with the smallest key, or -1."""
        mask = self._mask
        return self._lists[(mask & -mask).bit_length() - 1][0] & PLACE_MASK if mask else -1

    def walk(self, start: int = 0) -> Iterator[int]:
        """Places from key `start` on, in order. Nothing may be filed meanwhile."""
        bucket = start >> self._shift
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


class ByMemory:
    """Most, or least, memory available first."""

    def __init__(self, views: list[GpuView], *, spread: bool) -> None:
        self._views = views
        self._spread = spread
        self._most = max((each.total_bytes for each in views), default=0)
        self._buckets = Buckets(self._most)

    def file(self, view: GpuView, eligible: bool) -> None:
        if eligible:
            available = view.available_bytes or 0
            self._buckets.put(view.place, self._most - available if self._spread else available)
        else:
            self._buckets.drop(view.place)

    def best(self, count: int, bytes_each: int, least_total_bytes: int, _profile: Hashable) -> Sequence[GpuView]:
        if self._spread:
            place = self._buckets.first()
            if place < 0:
                return ()
            view = self._views[place]
            if (view.available_bytes or 0) < bytes_each:
                return ()
            if count == 1 and view.total_bytes >= least_total_bytes:
                return (view,)
        found = []
        for place in self._buckets.walk(0 if self._spread else bytes_each):
            view = self._views[place]
            if (view.available_bytes or 0) < bytes_each:
                break
            if view.total_bytes >= least_total_bytes:
                found.append(view)
                if len(found) == count:
                    return found
        return ()

    def taken(self, view: GpuView) -> None:
        """Nothing to remember."""


class ByKey:
    """By a key of 0..1, see `_key`."""

    def __init__(self, views: list[GpuView], score: Score) -> None:
        self._views = views
        self._score = score
        self._buckets = Buckets(KEY_SCALE)

    def file(self, view: GpuView, eligible: bool) -> None:
        if eligible:
            self._buckets.put(view.place, _key(self._score, view))
        else:
            self._buckets.drop(view.place)

    def best(self, count: int, bytes_each: int, least_total_bytes: int, _profile: Hashable) -> Sequence[GpuView]:
        found = []
        for place in self._buckets.walk():
            view = self._views[place]
            if (view.available_bytes or 0) >= bytes_each and view.total_bytes >= least_total_bytes:
                found.append(view)
                if len(found) == count:
                    return found
        return ()

    def taken(self, view: GpuView) -> None:
        """Nothing to remember."""


class Ring:
    """In display order, from the first or from behind the last taken. One bit for each GPU."""

    def __init__(self, views: list[GpuView], *, rotates: bool) -> None:
        self._views = views
        self._rotates = rotates
        self._mask = 0
        self._next = 0

    def file(self, view: GpuView, eligible: bool) -> None:
        bit = 1 << view.place
        if eligible:
            self._mask |= bit
        elif self._mask & bit:
            self._mask ^= bit

    def best(self, count: int, bytes_each: int, least_total_bytes: int, _profile: Hashable) -> Sequence[GpuView]:
        found = []
        behind = self._mask >> self._next << self._next
        for mask in (behind, self._mask ^ behind):
            left = mask
            while left:
                low = left & -left
                left ^= low
                view = self._views[low.bit_length() - 1]
                if (view.available_bytes or 0) >= bytes_each and view.total_bytes >= least_total_bytes:
                    found.append(view)
                    if len(found) == count:
                        return found
        return ()

    def taken(self, view: GpuView) -> None:
        if self._rotates:
            self._next = (view.place + 1) % len(self._views)


class ByMatch:
    """By what a match says, asked once for each group of GPUs that look alike to it; then most memory available."""

    def __init__(self, views: list[GpuView], match: Match) -> None:
        self._views = views
        self._match = match
        self._most = max((each.total_bytes for each in views), default=0)
        self._groups: dict[Hashable, Buckets] = {}
        self._group_of: dict[int, Hashable] = {}
        self._spare: list[Buckets] = []  # of groups that are no more

    def file(self, view: GpuView, eligible: bool) -> None:
        place = view.place
        old = self._group_of.get(place)
        new = view.signature if eligible else None
        if old is not None and old != new:
            group = self._groups[old]
            group.drop(place)
            del self._group_of[place]
            if not len(group):
                self._spare.append(self._groups.pop(old))
        if new is not None:
            self._group_of[place] = new
            found = self._groups.get(new)
            if found is None:
                found = self._groups[new] = self._spare.pop() if self._spare else Buckets(self._most)
            found.put(place, self._most - (view.available_bytes or 0))

    def best(self, count: int, bytes_each: int, least_total_bytes: int, profile: Hashable) -> Sequence[GpuView]:
        found: list[tuple[float, int, int]] = []
        for signature, group in self._groups.items():
            if (self._views[group.first()].available_bytes or 0) < bytes_each:
                continue
            cost = self._match.cost(profile, signature)
            if cost is None:
                continue
            left = count
            for place in group.walk():
                view = self._views[place]
                available = view.available_bytes or 0
                if not left or available < bytes_each:
                    break
                if view.total_bytes >= least_total_bytes:
                    found.append((cost, -available, place))
                    left -= 1
        found.sort()
        return [self._views[place] for _, _, place in found[:count]] if len(found) >= count else ()

    def taken(self, view: GpuView) -> None:
        """Nothing to remember."""


def ranking(views: list[GpuView], score: Score, match: Match | None, *, loop_up_to: int = LOOP_UP_TO) -> Ranking:
    """The structure for these GPUs."""
    if len(views) <= loop_up_to:
        return Loop(views, score, match)
    if match is not None:
        return ByMatch(views, match)
    if score.style in ("spread", "pack"):
        return ByMemory(views, spread=score.style == "spread")
    if score.style == "ring":
        return Ring(views, rotates=score.rotates)
    return ByKey(views, score)
