"""Which GPUs a job of several gets: among those that a policy likes alike, GPUs of as few servers as can be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise

from cotenant.scheduling.placement.gpu_view import GpuView

MAX_TIED = 256
"""Beyond what is wanted, so many GPUs of one kind are looked at: of an idle cluster, enough to find a server."""


def pack_fewest_nodes(liked: Iterable[tuple[Hashable, GpuView]], count: int) -> Sequence[GpuView]:
    """The first `count` of GPUs that come in order, each with what the order goes by; empty if there are fewer.

    Those that are equal by that are exchanged for others that are equal, so that all are in the fewest servers; where
    several servers have enough, in the one that has least to spare.
    """
    better: list[GpuView] = []
    alike: list[GpuView] = []
    last: Hashable = None
    for key, view in liked:
        if key != last:
            if len(better) + len(alike) >= count:
                break
            better += alike
            alike, last = [], key
        elif len(alike) >= count + MAX_TIED:
            break
        alike.append(view)
    wanted = count - len(better)
    if len(alike) < wanted:
        return ()
    return [*better, *_pack_tied(alike, wanted, {each.server for each in better})]


def _pack_tied(alike: Sequence[GpuView], wanted: int, servers: set[str]) -> list[GpuView]:
    """`wanted` of them, in the same order, first from `servers`, then from as few others as can be."""
    places: dict[str, list[int]] = {}
    for place, view in enumerate(alike):
        places.setdefault(view.server, []).append(place)
    taken: list[int] = []
    for server in [each for each in places if each in servers]:
        taken += places.pop(server)[: wanted - len(taken)]
    while len(taken) < wanted:
        missing = wanted - len(taken)
        enough = [each for each in places.values() if len(each) >= missing]
        found = min(enough, key=len) if enough else max(places.values(), key=len)
        taken += found[:missing]
        del places[alike[found[0]].server]
    return [alike[each] for each in sorted(taken)]


class NodeIndex:
    """Which GPUs are free, by server: what `pack_fewest_nodes` says where all are alike, without a walk.

    The same only where the GPUs of each server stand together, see `is_contiguous`.
    """

    def __init__(self, views: Sequence[GpuView]) -> None:
        numbers: dict[str, int] = {}
        self._views = views
        self._server_of = [numbers.setdefault(each.server, len(numbers)) for each in views]
        self._free: list[set[int]] = [set() for _ in numbers]  # places, by server
        largest = max(Counter(self._server_of).values(), default=0)
        self._with: list[set[int]] = [set() for _ in range(largest + 1)]  # servers, by how many are free

    def file(self, place: int, *, is_free: bool) -> None:
        """One is free now that was not, or the other way around."""
        server = self._server_of[place]
        free = self._free[server]
        self._with[len(free)].discard(server)
        if is_free:
            free.add(place)
        else:
            free.remove(place)
        self._with[len(free)].add(server)

    def best(self, count: int) -> Sequence[GpuView]:
        """So many that are free, in the fewest servers; empty if there are fewer."""
        taken: list[int] = []
        used: set[int] = set()
        while len(taken) < count:
            server = self._next(count - len(taken), used)
            if server is None:
                return ()
            used.add(server)
            taken += sorted(self._free[server])[: count - len(taken)]
        return [self._views[each] for each in sorted(taken)]

    def _next(self, missing: int, used: set[int]) -> int | None:
        """The server that has enough and least to spare, or else the one that has most."""
        most = len(self._with) - 1
        for free in (*range(missing, most + 1), *range(min(missing - 1, most), 0, -1)):
            found: set[int] = self._with[free] - used
            if found:
                return min(found)
        return None


def is_contiguous(views: Sequence[GpuView]) -> bool:
    """Whether the GPUs of each server are next to each other in display order."""
    servers = [each.server for each in views]
    return 1 + sum(1 for one, other in pairwise(servers) if one != other) == len(set(servers))
