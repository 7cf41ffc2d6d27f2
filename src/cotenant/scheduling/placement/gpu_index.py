"""GPUs in the order in which a policy likes them, kept up to date change by change.

All give the same answers: a plain loop, which is the clearest and the fastest for a handful of GPUs, and for many
GPUs one structure for each style of score.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import islice
from typing import Protocol

from cotenant.scheduling.placement.gpu_view import GpuView
from cotenant.scheduling.placement.node_packing import MAX_TIED, NodeIndex, is_contiguous, pack_fewest_nodes
from cotenant.scheduling.placement.pairing import PairingRule
from cotenant.scheduling.placement.scores import Score
from cotenant.scheduling.placement.sorted_buckets import SortedBuckets

LINEAR_SCAN_MAX_GPUS = 16
"""So many GPUs are simply looped over; above, what keeping an order costs is less than looking at all."""

KEY_SCALE = 1 << 20


class GpuIndex(Protocol):
    """Those GPUs that may take somebody now, in order."""

    def file(self, view: GpuView, eligible: bool) -> None:
        """`view` has changed. To be called after every change of what the order depends on."""
        ...

    def best(self, count: int, bytes_per_gpu: int, min_gpu_bytes: int, profile: Hashable) -> Sequence[GpuView]:
        """The best `count` GPUs with so much available, of at least that size; empty if there are fewer.

        Several are in the fewest servers that equals allow, see `gangs`.
        """
        ...

    def taken(self, view: GpuView) -> None:
        """A job went there."""
        ...


class LinearScan:
    """Looks at all."""

    def __init__(self, views: list[GpuView], score: Score, match: PairingRule | None) -> None:
        self._views = views
        self._eligible: dict[int, GpuView] = {}
        self._score = score
        self._match = match
        self._next = 0
        self._by_memory = match is None and score.style in ("spread", "pack")
        self._spread = score.style == "spread"
        self._ring = match is None and score.style == "ring"
        self._servers = _node_count(views)

    def file(self, view: GpuView, eligible: bool) -> None:
        if eligible:
            self._eligible[view.place] = view
        else:
            self._eligible.pop(view.place, None)

    def best(self, count: int, bytes_per_gpu: int, min_gpu_bytes: int, profile: Hashable) -> Sequence[GpuView]:
        if count == 1 and self._by_memory:
            return self._one_by_memory(bytes_per_gpu, min_gpu_bytes)
        found = []
        for place, view in self._eligible.items():
            if (view.available_bytes or 0) >= bytes_per_gpu and view.total_bytes >= min_gpu_bytes:
                key = self._key(view, profile)
                if key is not None:
                    found.append((key, place))
        if len(found) < count:
            return ()
        if count == 1:
            return (self._views[min(found)[1]],)
        found.sort()
        if self._servers > 1:
            return pack_fewest_nodes([(0 if self._ring else key, self._views[place]) for key, place in found], count)
        return [self._views[place] for _, place in found[:count]]

    def _one_by_memory(self, bytes_per_gpu: int, min_gpu_bytes: int) -> Sequence[GpuView]:
        """The commonest question, answered without a list."""
        best: GpuView | None = None
        liked = 0
        spread = self._spread
        for view in self._eligible.values():
            available = view.available_bytes or 0
            if available < bytes_per_gpu or view.total_bytes < min_gpu_bytes:
                continue
            if best is None or (available > liked if spread else available < liked):
                best, liked = view, available
            elif available == liked and view.place < best.place:
                best = view
        return () if best is None else (best,)

    def _key(self, view: GpuView, profile: Hashable) -> tuple[float, float] | None:
        if self._match is not None:
            cost = self._match.cost(profile, view.gpu_class)
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


class MemoryIndex:
    """Most, or least, memory available first."""

    def __init__(self, views: list[GpuView], *, spread: bool) -> None:
        self._views = views
        self._spread = spread
        self._most = max((each.total_bytes for each in views), default=0)
        self._buckets = SortedBuckets()
        self._servers = _node_count(views)

    def file(self, view: GpuView, eligible: bool) -> None:
        if eligible:
            available = view.available_bytes or 0
            self._buckets.put(view.place, self._most - available if self._spread else available)
        else:
            self._buckets.drop(view.place)

    def best(self, count: int, bytes_per_gpu: int, min_gpu_bytes: int, _profile: Hashable) -> Sequence[GpuView]:
        if self._spread:
            place = self._buckets.first()
            if place < 0:
                return ()
            view = self._views[place]
            if (view.available_bytes or 0) < bytes_per_gpu:
                return ()
            if count == 1 and view.total_bytes >= min_gpu_bytes:
                return (view,)
        liked = self._in_order(bytes_per_gpu, min_gpu_bytes)
        return _first(liked, count) if count == 1 or self._servers == 1 else pack_fewest_nodes(liked, count)

    def _in_order(self, bytes_per_gpu: int, min_gpu_bytes: int) -> Iterator[tuple[int, GpuView]]:
        for place in self._buckets.walk(0 if self._spread else bytes_per_gpu):
            view = self._views[place]
            available = view.available_bytes or 0
            if available < bytes_per_gpu:
                break
            if view.total_bytes >= min_gpu_bytes:
                yield available, view

    def taken(self, view: GpuView) -> None:
        """Nothing to remember."""


class ScoreIndex:
    """By a key of 0..1, see `_key`."""

    def __init__(self, views: list[GpuView], score: Score) -> None:
        self._views = views
        self._score = score
        self._buckets = SortedBuckets()
        self._servers = _node_count(views)

    def file(self, view: GpuView, eligible: bool) -> None:
        if eligible:
            self._buckets.put(view.place, _key(self._score, view))
        else:
            self._buckets.drop(view.place)

    def best(self, count: int, bytes_per_gpu: int, min_gpu_bytes: int, _profile: Hashable) -> Sequence[GpuView]:
        liked = self._in_order(bytes_per_gpu, min_gpu_bytes)
        return _first(liked, count) if count == 1 or self._servers == 1 else pack_fewest_nodes(liked, count)

    def _in_order(self, bytes_per_gpu: int, min_gpu_bytes: int) -> Iterator[tuple[int, GpuView]]:
        for place in self._buckets.walk():
            view = self._views[place]
            if (view.available_bytes or 0) >= bytes_per_gpu and view.total_bytes >= min_gpu_bytes:
                yield _key(self._score, view), view

    def taken(self, view: GpuView) -> None:
        """Nothing to remember."""


class RoundRobinIndex:
    """In display order, from the first or from behind the last taken. One bit for each GPU."""

    def __init__(self, views: list[GpuView], *, rotates: bool) -> None:
        self._views = views
        self._rotates = rotates
        self._mask = 0
        self._next = 0
        self._servers = _node_count(views)
        self._free = NodeIndex(views) if self._servers > 1 and not rotates and is_contiguous(views) else None

    def file(self, view: GpuView, eligible: bool) -> None:
        bit = 1 << view.place
        if eligible != bool(self._mask & bit):
            self._mask ^= bit
            if self._free is not None:
                self._free.file(view.place, is_free=eligible)

    def best(self, count: int, bytes_per_gpu: int, min_gpu_bytes: int, _profile: Hashable) -> Sequence[GpuView]:
        if count > 1 and self._free is not None and not bytes_per_gpu and not min_gpu_bytes:
            return self._free.best(count)
        if count == 1 and not self._next and self._mask:
            view = self._views[(self._mask & -self._mask).bit_length() - 1]
            if (view.available_bytes or 0) >= bytes_per_gpu and view.total_bytes >= min_gpu_bytes:
                return (view,)
        liked = self._in_order(bytes_per_gpu, min_gpu_bytes)
        return _first(liked, count) if count == 1 or self._servers == 1 else pack_fewest_nodes(liked, count)

    def _in_order(self, bytes_per_gpu: int, min_gpu_bytes: int) -> Iterator[tuple[int, GpuView]]:
        behind = self._mask >> self._next << self._next
        for mask in (behind, self._mask ^ behind):
            left = mask
            while left:
                low = left & -left
                left ^= low
                view = self._views[low.bit_length() - 1]
                if (view.available_bytes or 0) >= bytes_per_gpu and view.total_bytes >= min_gpu_bytes:
                    yield 0, view

    def taken(self, view: GpuView) -> None:
        if self._rotates:
            self._next = (view.place + 1) % len(self._views)


class PairingIndex:
    """By what a match says, asked once for each group of GPUs that look alike to it; then most memory available."""

    def __init__(self, views: list[GpuView], match: PairingRule) -> None:
        self._views = views
        self._match = match
        self._most = max((each.total_bytes for each in views), default=0)
        self._groups: dict[Hashable, SortedBuckets] = {}
        self._group_of: dict[int, Hashable] = {}
        self._servers = _node_count(views)

    def file(self, view: GpuView, eligible: bool) -> None:
        place = view.place
        old = self._group_of.get(place)
        new = view.gpu_class if eligible else None
        if old is not None and old != new:
            group = self._groups[old]
            group.drop(place)
            del self._group_of[place]
            if not len(group):
                del self._groups[old]
        if new is not None:
            self._group_of[place] = new
            found = self._groups.get(new)
            if found is None:
                found = self._groups[new] = SortedBuckets()
            found.put(place, self._most - (view.available_bytes or 0))

    def best(self, count: int, bytes_per_gpu: int, min_gpu_bytes: int, profile: Hashable) -> Sequence[GpuView]:
        found: list[tuple[float, int, int]] = []
        together = count > 1 and self._servers > 1
        most = 2 * count + MAX_TIED if together else count
        for gpu_class, group in self._groups.items():
            if (self._views[group.first()].available_bytes or 0) < bytes_per_gpu:
                continue
            cost = self._match.cost(profile, gpu_class)
            if cost is None:
                continue
            left = most
            for place in group.walk():
                view = self._views[place]
                available = view.available_bytes or 0
                if not left or available < bytes_per_gpu:
                    break
                if view.total_bytes >= min_gpu_bytes:
                    found.append((cost, -available, place))
                    left -= 1
        found.sort()
        if together:
            return pack_fewest_nodes([(each[:2], self._views[each[2]]) for each in found], count)
        return [self._views[place] for _, _, place in found[:count]] if len(found) >= count else ()

    def taken(self, view: GpuView) -> None:
        """Nothing to remember."""


def _node_count(views: Sequence[GpuView]) -> int:
    """In how many they are."""
    return len({each.server for each in views})


def _first(liked: Iterator[tuple[int, GpuView]], count: int) -> Sequence[GpuView]:
    """So many; empty if there are fewer."""
    if count == 1:
        best = next(liked, None)
        return () if best is None else (best[1],)
    found = [view for _, view in islice(liked, count)]
    return found if len(found) == count else ()


def make_index(
    views: list[GpuView], score: Score, match: PairingRule | None, *, linear_scan_max_gpus: int = LINEAR_SCAN_MAX_GPUS
) -> GpuIndex:
    """The structure for these GPUs."""
    if len(views) <= linear_scan_max_gpus:
        return LinearScan(views, score, match)
    if match is not None:
        return PairingIndex(views, match)
    if score.style in ("spread", "pack"):
        return MemoryIndex(views, spread=score.style == "spread")
    if score.style == "ring":
        return RoundRobinIndex(views, rotates=score.rotates)
    return ScoreIndex(views, score)
