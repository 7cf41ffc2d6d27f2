"""Which GPUs a job of several gets: among GPUs that tie in preference, those on the fewest nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise

from cotenant.scheduling.placement.gpu_view import GpuView

MAX_TIED = 256
"""Ties beyond the number of GPUs wanted that are looked at: enough to find a node with room in an idle cluster."""


def pack_fewest_nodes(ranked: Iterable[tuple[Hashable, GpuView]], count: int) -> Sequence[GpuView]:
    """The first `count` of GPUs in order of preference, each with its rank; empty if there are fewer.

    Among ties for the last places, GPUs on the fewest nodes are taken: first on nodes that are in use anyway, then on
    the node with just enough of them.
    """
    preferred: list[GpuView] = []
    tied: list[GpuView] = []
    last: Hashable = None
    for rank, view in ranked:
        if rank != last:
            if len(preferred) + len(tied) >= count:
                break
            preferred += tied
            tied, last = [], rank
        elif len(tied) >= count + MAX_TIED:
            break
        tied.append(view)
    wanted = count - len(preferred)
    if len(tied) < wanted:
        return ()
    return [*preferred, *_pack_tied(tied, wanted, {view.server for view in preferred})]


def pack_one_node(ranked: Iterable[tuple[Hashable, GpuView]], count: int) -> Sequence[GpuView]:
    """`count` GPUs of one node; empty if none has as many.

    It is the node whose `count`-th GPU comes first in the order of preference; among ties for that, the one with least
    to spare.
    """
    by_node: dict[str, list[GpuView]] = {}
    complete: list[list[GpuView]] = []
    last: Hashable = None
    ties = 0
    for rank, view in ranked:
        if complete:
            ties += 1
            if rank != last or ties > MAX_TIED:
                break
        last = rank
        found = by_node.setdefault(view.server, [])
        found.append(view)
        if len(found) == count:
            complete.append(found)
    return min(complete, key=len)[:count] if complete else ()


def _pack_tied(tied: Sequence[GpuView], wanted: int, used: set[str]) -> list[GpuView]:
    """`wanted` of them, in the same order, first from nodes that are `used`, then from the fewest others."""
    by_node: dict[str, list[int]] = {}
    for index, view in enumerate(tied):
        by_node.setdefault(view.server, []).append(index)
    taken: list[int] = []
    for node in [node for node in by_node if node in used]:
        taken += by_node.pop(node)[: wanted - len(taken)]
    while len(taken) < wanted:
        missing = wanted - len(taken)
        enough = [indices for indices in by_node.values() if len(indices) >= missing]
        found = min(enough, key=len) if enough else max(by_node.values(), key=len)
        taken += found[:missing]
        del by_node[tied[found[0]].server]
    return [tied[index] for index in sorted(taken)]


class NodeIndex:
    """The free GPUs of each node: what `pack_fewest_nodes` answers where all GPUs tie, without a walk over them.

    It considers all ties, not `MAX_TIED` of them. Requires GPUs that are contiguous by node, see `is_contiguous`.
    """

    def __init__(self, views: Sequence[GpuView]) -> None:
        numbers: dict[str, int] = {}
        self._views = views
        self._node_of = [numbers.setdefault(view.server, len(numbers)) for view in views]
        self._free: list[set[int]] = [set() for _ in numbers]  # places, by node
        largest = max(Counter(self._node_of).values(), default=0)
        self._with_free: list[set[int]] = [set() for _ in range(largest + 1)]  # nodes, by their number of free GPUs

    def update(self, place: int, is_free: bool) -> None:
        """A GPU is free that was not, or the other way around."""
        node = self._node_of[place]
        free = self._free[node]
        self._with_free[len(free)].discard(node)
        if is_free:
            free.add(place)
        else:
            free.remove(place)
        self._with_free[len(free)].add(node)

    def best(self, count: int) -> Sequence[GpuView]:
        """`count` free GPUs on the fewest nodes; empty if there are fewer."""
        taken: list[int] = []
        used: set[int] = set()
        while len(taken) < count:
            node = self._next(count - len(taken), used)
            if node is None:
                return ()
            used.add(node)
            taken += sorted(self._free[node])[: count - len(taken)]
        return [self._views[place] for place in sorted(taken)]

    def _next(self, missing: int, used: set[int]) -> int | None:
        """The node with just enough free GPUs, else the one with most."""
        most = len(self._with_free) - 1
        for free in (*range(missing, most + 1), *range(min(missing - 1, most), 0, -1)):
            nodes: set[int] = self._with_free[free] - used
            if nodes:
                return min(nodes)
        return None


def is_contiguous(views: Sequence[GpuView]) -> bool:
    """Whether the GPUs of each node are next to each other in display order."""
    nodes = [view.server for view in views]
    return 1 + sum(1 for one, other in pairwise(nodes) if one != other) == len(set(nodes))
