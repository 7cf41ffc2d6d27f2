"""GPUs sorted by a score, of which those that meet a demand are walked in order."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator

from cotenant.scheduling.demand import Demand
from cotenant.scheduling.placement.gpu_view import GpuView
from cotenant.scheduling.placement.scores import Score, less_memory, more_memory
from cotenant.scheduling.placement.sorted_buckets import PLACES, SortedBuckets

_PLACE_MASK = PLACES - 1
_FLOAT, _INT = struct.Struct("<d"), struct.Struct("<q")


class SortedGpus(SortedBuckets):
    """Sorts GPUs by `score.key`, then by display order.

    Keys are ints or floats. While all are ints they are sorted as they are; from the first float on, all are sorted
    by their bits, see `ordered_int`.

    Attributes:
        turn: the place at which each run of ties begins.
    """

    __slots__ = ("_are_floats", "_key", "_views", "turn")

    def __init__(self, views: list[GpuView], score: Score) -> None:
        super().__init__()
        self._views = views
        self._key = score.key
        self._are_floats = False
        self.turn = 0

    def put(self, view: GpuView) -> None:
        """Sort `view` in, or anew after a change."""
        if self._key is more_memory:  # without the call
            self.put_key(view.place, -(view.available_bytes or 0))
            return
        key = view.available_bytes or 0 if self._key is less_memory else self._key(view)
        self.put_key(view.place, key if type(key) is int and not self._are_floats else self._float_key(key))

    def _float_key(self, key: float) -> int:
        if not self._are_floats:
            self._are_floats = True
            for place, known in self.items():
                self.put_key(place, ordered_int(known))
        return ordered_int(key)

    def first(self, demand: Demand) -> GpuView | None:
        """The first GPU that meets `demand` in memory and size."""
        if not self._buckets:
            return None
        if not self.turn:  # mostly the first of all, or the first with enough memory
            packed = self._buckets[0][0]
            if self._key is less_memory:
                with_room = self.first_packed(demand.bytes_per_gpu * PLACES)
                if with_room is None:
                    return None
                packed = with_room
            view = self._views[packed & _PLACE_MASK]
            # `rules.fits`, without the call.
            if (view.available_bytes or 0) >= demand.bytes_per_gpu and view.total_bytes >= demand.min_gpu_bytes:
                return view
            if self._key is more_memory and (view.available_bytes or 0) < demand.bytes_per_gpu:
                return None  # no other has more
        found = next(self.walk(demand), None)
        return None if found is None else found[1]

    def walk(self, demand: Demand) -> Iterator[tuple[int, GpuView]]:
        """Those that meet `demand` in memory and size, in order, each with an int that is equal for ties.

        In an order by available memory, the walk begins or ends where there is too little.
        """
        start = demand.bytes_per_gpu * PLACES if self._key is less_memory else None
        end = (1 - demand.bytes_per_gpu) * PLACES if self._key is more_memory else math.inf
        views, needed, min_gpu_bytes = self._views, demand.bytes_per_gpu, demand.min_gpu_bytes
        for packed in self._rotated(start) if self.turn else self.walk_packed(start):
            if packed >= end:
                break
            view = views[packed & _PLACE_MASK]
            # `rules.fits`, without the call.
            if (view.available_bytes or 0) >= needed and view.total_bytes >= min_gpu_bytes:
                yield packed // PLACES, view

    def _rotated(self, start: int | None) -> Iterator[int]:
        """As `walk_packed`, but each run of ties begins at `turn`."""
        packed = self.first_packed(start)
        while packed is not None:
            run = packed - packed % PLACES
            for low, high in ((run + self.turn, run + PLACES), (run, run + self.turn)):
                for tied in self.walk_packed(low):
                    if tied >= high:
                        break
                    yield tied
            packed = self.first_packed(run + PLACES)


def ordered_int(key: float) -> int:
    """An int for each number, in the order of the numbers; NaN is the largest.

    The bits of a positive IEEE 754 double, read as an int, are ordered as the numbers are; those of a negative one are
    ordered the other way around.
    """
    number = float(key)
    if math.isnan(number):
        number = math.inf
    bits: int = _INT.unpack(_FLOAT.pack(number))[0]
    return bits if bits >= 0 else -(bits & 0x7FFF_FFFF_FFFF_FFFF)
