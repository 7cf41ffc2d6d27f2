"""Indexes of GPUs in the order of preference of a policy, updated change by change.

The order is that of the pairing rule's cost, then of `score.key`, then of display. All indexes give the same answers: a
linear scan, which is the fastest for a handful of GPUs, and sorted structures for more.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

from cotenant.scheduling.demand import Demand
from cotenant.scheduling.placement.gpu_view import GpuView
from cotenant.scheduling.placement.node_packing import MAX_TIED, NodeIndex, is_contiguous, pack_fewest_nodes
from cotenant.scheduling.placement.pairing import PairingRule, VersionedPairingRule
from cotenant.scheduling.placement.refusal import Refusal
from cotenant.scheduling.placement.rules import fits
from cotenant.scheduling.placement.scores import Score, constant, less_memory, more_memory
from cotenant.scheduling.placement.sorted_gpus import SortedGpus

LINEAR_SCAN_MAX_GPUS = 16
"""Up to this many GPUs are scanned; above, a scan costs more than keeping an order."""

MAX_PROFILES = 1_000
"""Profiles for which an index remembers what it judged."""

AnyPairingRule = PairingRule[Any, Any]


class GpuIndex(Protocol):
    """The GPUs that admit a job now, in order of preference."""

    def update(self, view: GpuView, eligible: bool) -> None:
        """`view` has changed. To be called after every change of what the order depends on."""
        ...

    def best(self, demand: Demand, count: int) -> Sequence[GpuView]:
        """The best `count` GPUs that meet `demand` in memory, size and pairing; empty if there are fewer.

        Several are packed onto the fewest nodes that ties allow, see `node_packing`.
        """
        ...

    def ranked(self, demand: Demand) -> Iterable[tuple[Hashable, GpuView]]:
        """All GPUs that meet `demand` in memory, size and pairing, in order, each with a rank that ties share."""
        ...

    def taken(self, view: GpuView) -> None:
        """A job was placed there: a score that rotates continues behind it."""
        ...


class LinearScan:
    """Looks at every GPU."""

    def __init__(self, views: list[GpuView], score: Score, pairing: AnyPairingRule | None) -> None:
        self._views = views
        self._key = score.key
        self._rotates = score.rotates
        self._pairing = pairing
        self._turn = 0
        self._keys: dict[int, float] = {}  # of the eligible GPUs, by place
        self._node_count = node_count(views)

    def update(self, view: GpuView, eligible: bool) -> None:
        if not eligible:
            self._keys.pop(view.place, None)
            return
        if self._key is more_memory:
            self._keys[view.place] = -(view.available_bytes or 0)  # without the call, as the next
        elif self._key is less_memory:
            self._keys[view.place] = view.available_bytes or 0
        else:
            key = self._key(view)
            self._keys[view.place] = key if type(key) is int else _number(key)

    def best(self, demand: Demand, count: int) -> Sequence[GpuView]:
        if self._pairing is None and count == 1 and not self._turn:
            return self._first(demand)
        ranked = self._ranked(demand)
        if len(ranked) < count:
            return ()
        if count == 1:
            return (self._views[min(ranked)[-1]],)
        ranked.sort()
        if self._node_count > 1:
            return pack_fewest_nodes([(rank[:2], self._views[rank[-1]]) for rank in ranked], count)
        return [self._views[rank[-1]] for rank in ranked[:count]]

    def _first(self, demand: Demand) -> Sequence[GpuView]:
        """The commonest search, without a list."""
        views = self._views
        best: GpuView | None = None
        best_key = 0.0
        needed, min_gpu_bytes = demand.bytes_per_gpu, demand.min_gpu_bytes
        for place, key in self._keys.items():
            if best is None or key < best_key or (key == best_key and place < best.place):
                view = views[place]
                # `rules.fits`, without the call.
                if (view.available_bytes or 0) >= needed and view.total_bytes >= min_gpu_bytes:
                    best, best_key = view, key
        return () if best is None else (best,)

    def ranked(self, demand: Demand) -> Iterable[tuple[Hashable, GpuView]]:
        return [(rank[:2], self._views[rank[-1]]) for rank in sorted(self._ranked(demand))]

    def _ranked(self, demand: Demand) -> list[tuple[float, float, int, int]]:
        """Those that will do: cost, key, how far behind the turn, and place."""
        views, turn, profile = self._views, self._turn, demand.profile
        judge = None if self._pairing is None else self._pairing.judge
        ranked = []
        for place, key in self._keys.items():
            view = views[place]
            if fits(view, demand):
                cost = 0.0 if judge is None else judge(profile, view.gpu_class)
                if not isinstance(cost, Refusal):
                    ranked.append((cost, key, (place - turn) % len(views), place))
        return ranked

    def taken(self, view: GpuView) -> None:
        if self._rotates:
            self._turn = (view.place + 1) % len(self._views)


class TiedIndex:
    """For a constant score: display order, which needs no sorting. One byte for each GPU, 1 for the eligible ones."""

    def __init__(self, views: list[GpuView], score: Score) -> None:
        self._views = views
        self._eligible = bytearray(len(views))
        self._rotates = score.rotates
        self._turn = 0
        self._node_count = node_count(views)
        # Where all GPUs will do, nodes are packed without a walk over their GPUs.
        is_packed = self._node_count > 1 and not score.rotates and is_contiguous(views)
        self._nodes = NodeIndex(views) if is_packed else None

    def update(self, view: GpuView, eligible: bool) -> None:
        place = view.place
        if self._eligible[place] != eligible:
            self._eligible[place] = eligible
            if self._nodes is not None:
                self._nodes.update(place, eligible)

    def best(self, demand: Demand, count: int) -> Sequence[GpuView]:
        if count == 1:
            return self._first(demand)
        if self._nodes is not None and not demand.bytes_per_gpu and not demand.min_gpu_bytes:
            return self._nodes.best(count)
        ranked = self.ranked(demand)
        return pack_fewest_nodes(ranked, count) if self._node_count > 1 else _first(ranked, count)

    def ranked(self, demand: Demand) -> Iterator[tuple[int, GpuView]]:
        return ((0, view) for view in self._walk(demand))

    def _first(self, demand: Demand) -> Sequence[GpuView]:
        place = self._eligible.find(1, self._turn)  # mostly the first of all
        if place >= 0 and fits(self._views[place], demand):
            return (self._views[place],)
        view = next(self._walk(demand), None)
        return () if view is None else (view,)

    def _walk(self, demand: Demand) -> Iterator[GpuView]:
        """Those that meet `demand` in memory and size: from the turn on, then those before it."""
        views, find, turn = self._views, self._eligible.find, self._turn
        needed, min_gpu_bytes = demand.bytes_per_gpu, demand.min_gpu_bytes
        for start, end in ((turn, len(views)), (0, turn)):
            place = find(1, start, end)
            while place >= 0:
                view = views[place]
                # `rules.fits`, without the call.
                if (view.available_bytes or 0) >= needed and view.total_bytes >= min_gpu_bytes:
                    yield view
                place = find(1, place + 1, end)

    def taken(self, view: GpuView) -> None:
        if self._rotates:
            self._turn = (view.place + 1) % len(self._views)


class ScoreIndex(SortedGpus):
    """Sorted by score."""

    __slots__ = ("_node_count", "_rotates")

    def __init__(self, views: list[GpuView], score: Score) -> None:
        super().__init__(views, score)
        self._rotates = score.rotates
        self._node_count = node_count(views)

    def update(self, view: GpuView, eligible: bool) -> None:
        if not eligible:
            self.drop(view.place)
        elif self._key is more_memory:
            self.put_key(view.place, -(view.available_bytes or 0))  # as `put`, with fewer calls
        else:
            self.put(view)

    def best(self, demand: Demand, count: int) -> Sequence[GpuView]:
        if count == 1:
            view = self.first(demand)
            return () if view is None else (view,)
        ranked = self.walk(demand)
        return pack_fewest_nodes(ranked, count) if self._node_count > 1 else _first(ranked, count)

    def ranked(self, demand: Demand) -> Iterator[tuple[int, GpuView]]:
        return self.walk(demand)

    def taken(self, view: GpuView) -> None:
        if self._rotates:
            self.turn = (view.place + 1) % len(self._views)


class ClassMembers(SortedGpus):
    """The GPUs of one class; `serial` grows from class to class."""

    __slots__ = ("serial",)

    def __init__(self, views: list[GpuView], score: Score, serial: int) -> None:
        super().__init__(views, score)
        self.serial = serial


class AdmittingClasses(NamedTuple):
    """The classes that admit jobs of one profile, with their costs, of all up to the serial `judged`."""

    judged: int
    classes: list[tuple[float, ClassMembers]]


class PairingIndex:
    """Sorted by score within each class of GPUs that look alike to a pairing rule, which judges each class once.

    Of a `VersionedPairingRule` the classes that admit a profile are remembered: most classes refuse most jobs.
    """

    def __init__(self, views: list[GpuView], score: Score, pairing: AnyPairingRule) -> None:
        self._views = views
        self._score = score
        self._judge = pairing.judge
        self._classes: dict[Hashable, ClassMembers] = {}  # in the order of their serials
        self._class_of: dict[int, Hashable] = {}
        self._serial = 0
        self._versioned = pairing if isinstance(pairing, VersionedPairingRule) else None
        self._admitting: dict[Hashable, AdmittingClasses] = {}  # by profile, as of `_version`
        self._version = -1
        self._turn = 0
        self._node_count = node_count(views)

    def update(self, view: GpuView, eligible: bool) -> None:
        place = view.place
        old = self._class_of.get(place)
        new = view.gpu_class if eligible else None
        if old is not None and old != new:
            members = self._classes[old]
            members.drop(place)
            del self._class_of[place]
            if not len(members):
                del self._classes[old]
        if new is not None:
            self._class_of[place] = new
            found = self._classes.get(new)
            if found is None:
                self._serial += 1
                found = self._classes[new] = ClassMembers(self._views, self._score, self._serial)
                found.turn = self._turn
            found.put(view)

    def best(self, demand: Demand, count: int) -> Sequence[GpuView]:
        key, turn, total = self._score.key, self._turn, len(self._views)
        is_gang = count > 1 and self._node_count > 1
        most = count + MAX_TIED if is_gang else count
        ranked: list[tuple[float, float, int, int]] = []
        min_cost = math.inf
        for cost, head, members in self._candidates(demand):
            if count > 1:
                heads = islice((view for _, view in members.walk(demand)), most)
                ranked += [(cost, _number(key(view)), (view.place - turn) % total, view.place) for view in heads]
            elif cost <= min_cost:  # else another class is preferred
                min_cost = cost
                ranked.append((cost, _number(key(head)), (head.place - turn) % total, head.place))
        if len(ranked) < count:
            return ()
        if count == 1:
            return (self._views[min(ranked)[-1]],)
        ranked.sort()
        if is_gang:
            return pack_fewest_nodes([(rank[:2], self._views[rank[-1]]) for rank in ranked], count)
        return [self._views[rank[-1]] for rank in ranked[:count]]

    def ranked(self, demand: Demand) -> Iterable[tuple[Hashable, GpuView]]:
        key, turn, total = self._score.key, self._turn, len(self._views)
        found: list[tuple[float, float, int, GpuView]] = []
        for cost, _, members in self._candidates(demand):
            found += [(cost, _number(key(view)), (view.place - turn) % total, view) for _, view in members.walk(demand)]
        found.sort(key=itemgetter(0, 1, 2))
        return [(rank[:2], rank[-1]) for rank in found]

    def _candidates(self, demand: Demand) -> Iterator[tuple[float, GpuView, ClassMembers]]:
        """The classes that admit a job and have a GPU that meets its demand: cost, first such GPU, all of the class."""
        if self._versioned is not None:
            for cost, members in self._classes_for(demand.profile, self._versioned.version):
                head = members.first(demand)
                if head is not None:
                    yield cost, head, members
            return
        judge, profile = self._judge, demand.profile
        for gpu_class, members in self._classes.items():
            head = members.first(demand)
            if head is not None:
                judgment = judge(profile, gpu_class)
                if not isinstance(judgment, Refusal):
                    yield judgment, head, members

    def _classes_for(self, profile: Hashable, version: int) -> list[tuple[float, ClassMembers]]:
        """The classes that admit jobs of a profile, some of which may have no member left."""
        if version != self._version or len(self._admitting) > MAX_PROFILES:
            self._admitting.clear()
            self._version = version
        known = self._admitting.get(profile)
        if known is not None and known.judged == self._serial:
            return known.classes
        judged = 0 if known is None else known.judged
        found = [] if known is None else [(cost, members) for cost, members in known.classes if len(members)]
        for gpu_class, members in reversed(self._classes.items()):
            if members.serial <= judged:
                break
            judgment = self._judge(profile, gpu_class)
            if not isinstance(judgment, Refusal):
                found.append((judgment, members))
        self._admitting[profile] = AdmittingClasses(self._serial, found)
        return found

    def taken(self, view: GpuView) -> None:
        if self._score.rotates:
            self._turn = (view.place + 1) % len(self._views)
            for members in self._classes.values():
                members.turn = self._turn


def node_count(views: Sequence[GpuView]) -> int:
    """The number of nodes that the GPUs are in."""
    return len({view.server for view in views})


def _number(key: float) -> float:
    """A key that can be compared: NaN is worst."""
    return math.inf if key != key else key  # noqa: PLR0124


def _first(ranked: Iterator[tuple[int, GpuView]], count: int) -> Sequence[GpuView]:
    found = [view for _, view in islice(ranked, count)]
    return found if len(found) == count else ()


def make_index(
    views: list[GpuView],
    score: Score,
    pairing: AnyPairingRule | None,
    *,
    linear_scan_max_gpus: int = LINEAR_SCAN_MAX_GPUS,
) -> GpuIndex:
    """The fastest index for these GPUs."""
    if len(views) <= linear_scan_max_gpus:
        return LinearScan(views, score, pairing)
    if pairing is not None:
        return PairingIndex(views, score, pairing)
    return TiedIndex(views, score) if score.key is constant else ScoreIndex(views, score)
