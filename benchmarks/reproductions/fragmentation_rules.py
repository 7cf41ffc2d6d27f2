"""Pods, nodes, and the rules that rank nodes for a pod: FGD's six (Weng et al., ATC 2023), and ours.

CPUs are in thousandths, GPUs too: `WHOLE` is a GPU, host memory is in MiB.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cotenant.scheduling.placement.fragmentation import TypicalDemand, placement_score, unusable_room

WHOLE = 1000
MAX_CPU, MAX_GPU = 128_000, 8_000


class Pod(NamedTuple):
    """What a pod requests; `milli`: of each GPU; `models`: those it accepts, empty for all."""

    cpu: int
    milli: int
    gpus: int
    models: frozenset[str]
    host_mib: int

    @property
    def total_milli(self) -> int:
        return self.milli * self.gpus

    @property
    def affinity(self) -> int:
        """GPU clustering's class of it: 0 for a part of a GPU, else the number of GPUs."""
        return 0 if self.milli < WHOLE else self.gpus


class Node:
    """What is left of a node, and the classes of the GPU pods on it."""

    def __init__(self, cpu: int, host_mib: int, gpus: int, model: str) -> None:
        self.cpu = cpu
        self.host_mib = host_mib
        self.free = [WHOLE] * gpus
        self.model = model
        self.affinities: set[int] = set()

    def fits(self, pod: Pod) -> bool:
        if pod.cpu > self.cpu or pod.host_mib > self.host_mib:
            return False
        if not pod.gpus:
            return True
        if pod.models and self.model not in pod.models:
            return False
        return sum([left >= pod.milli for left in self.free]) >= pod.gpus

    def fullest(self, pod: Pod) -> list[int]:
        """GPUs for `pod`, those with the least room first."""
        by_room = sorted(range(len(self.free)), key=lambda index: self.free[index])
        return [index for index in by_room if self.free[index] >= pod.milli][: pod.gpus]

    def take(self, pod: Pod, indices: Sequence[int]) -> None:
        self.cpu -= pod.cpu
        self.host_mib -= pod.host_mib
        for index in indices:
            self.free[index] -= pod.milli
        if pod.gpus:
            self.affinities.add(pod.affinity)


class Rule:
    """Scores a node that fits a pod: larger is better. `gpus`: those that the pod gets there."""

    def score(self, node: Node, pod: Pod) -> float:
        raise NotImplementedError

    def gpus(self, node: Node, pod: Pod) -> Sequence[int]:
        return node.fullest(pod)


class DotProduct(Rule):
    """Tetris' alignment, reversed as published: of the room and the request in CPUs and GPUs."""

    def score(self, node: Node, pod: Pod) -> float:
        cpus = node.cpu / MAX_CPU * (pod.cpu / MAX_CPU)
        aligned = (cpus + sum(node.free) / MAX_GPU * (pod.total_milli / MAX_GPU)) / 2
        return int(100 * (1 - aligned))


class GpuClustering(Rule):
    """Pods of one number of GPUs together, on the fullest of such nodes."""

    def score(self, node: Node, pod: Pod) -> float:
        if not pod.gpus:
            return 0
        fullness = 25 * (MAX_GPU - sum(node.free)) // MAX_GPU
        if pod.affinity in node.affinities:
            return fullness + (75 if len(node.affinities) == 1 else 50)
        return fullness + (0 if node.affinities else 25)


class GpuPacking(Rule):
    """GPUs in use before idle ones, and idle ones on nodes in use before idle nodes."""

    def score(self, node: Node, pod: Pod) -> float:
        if not pod.gpus:
            return 0
        idle = node.free.count(WHOLE)
        if idle == len(node.free):
            return max(100 // 3 - idle, idle)
        rooms = [node.free[index] for index in node.fullest(pod)]
        opened = rooms.count(WHOLE)
        if opened:
            return max(50 - opened, 100 // 3)
        return max(100 - sum([room * 100 // WHOLE for room in rooms]) // 10, 50)


class BestFit(Rule):
    """The least room left in CPUs and GPUs, in equal parts."""

    def score(self, node: Node, pod: Pod) -> float:
        return int(100 * (1 - self.left(node, pod) / 2))

    @staticmethod
    def left(node: Node, pod: Pod) -> float:
        return (node.cpu - pod.cpu) / MAX_CPU + (sum(node.free) - pod.total_milli) / MAX_GPU


class Random(Rule):
    """Any node, any GPU."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def gpus(self, node: Node, pod: Pod) -> Sequence[int]:
        fitting = [index for index, left in enumerate(node.free) if left >= pod.milli]
        return [self._rng.choice(fitting)] if pod.milli < WHOLE else fitting[: pod.gpus]


class Fgd(Rule):
    """The node, and of a part of a GPU the GPU, whose fragments grow least."""

    def __init__(self, typical: Sequence[tuple[Pod, float]]) -> None:
        self._typical = [(pod, TypicalDemand(pod.milli, pod.gpus, share)) for pod, share in typical]
        self._cpus = sorted({pod.cpu for pod, _ in typical})
        self._known: dict[tuple[object, ...], float] = {}

    def rounded(self, gradient: float) -> float:
        return placement_score(gradient / WHOLE)

    def score(self, node: Node, pod: Pod) -> float:
        return self._best(node, pod)[0]

    def gpus(self, node: Node, pod: Pod) -> Sequence[int]:
        return self._best(node, pod)[1]

    def _best(self, node: Node, pod: Pod) -> tuple[float, Sequence[int]]:
        before = self.fragments(node.cpu, node.free, node.model)
        if pod.gpus == 1 and pod.milli < WHOLE:
            choices: list[Sequence[int]] = []
            rooms: set[int] = set()
            for index, left in enumerate(node.free):
                if left >= pod.milli and left not in rooms:  # GPUs of equal room are alike, and the first wins
                    rooms.add(left)
                    choices.append([index])
        else:
            choices = [node.fullest(pod)]
        best: tuple[float, Sequence[int]] | None = None
        for indices in choices:
            free = list(node.free)
            for index in indices:
                free[index] -= pod.milli
            found = self.rounded(self.fragments(node.cpu - pod.cpu, free, node.model) - before)
            if best is None or found > best[0]:
                best = (found, indices)
        assert best is not None
        return best

    def fragments(self, cpu: int, free: Sequence[int], model: str) -> float:
        """`placement.fragmentation.fragments`, where a job needs CPUs and maybe a GPU model, too."""
        enough = sum([needed <= cpu for needed in self._cpus])  # typical pods see no more of the CPUs
        key = (enough, model, *sorted(free))
        found = self._known.get(key)
        if found is None:
            total = sum(free)
            found = self._known[key] = sum(
                [
                    demand.share
                    * (
                        unusable_room(free, demand.room, demand.gpus)
                        if pod.gpus and pod.cpu <= cpu and (not pod.models or model in pod.models)
                        else total
                    )
                    for pod, demand in self._typical
                ]
            )
        return found


class ExactFgd(Fgd):
    """Not rounded."""

    def rounded(self, gradient: float) -> float:
        return -round(gradient, 3)


class FullestFgd(Fgd):
    """Of nodes with equal scores, the one that best fit would take."""

    def score(self, node: Node, pod: Pod) -> float:
        return super().score(node, pod) - 1e-3 * BestFit.left(node, pod)


class ByGpu(Rule):
    """GPUs ranked by their own room, whatever node they are on; a gang by the sum over its GPUs."""

    def __init__(self, sign: int) -> None:
        self._sign = sign

    def score(self, node: Node, pod: Pod) -> float:
        return self._sign * sum([node.free[index] for index in self.gpus(node, pod)])

    def gpus(self, node: Node, pod: Pod) -> Sequence[int]:
        fitting = [index for index, left in enumerate(node.free) if left >= pod.milli]
        return sorted(fitting, key=lambda index: -self._sign * node.free[index])[: pod.gpus]


PUBLISHED = ("01-Random", "02-DotProd", "03-GpuClustering", "04-GpuPacking", "05-BestFit", "06-FGD")
OURS = ("fgd, fullest", "fgd, exact", "best-fit", "most-memory")


def make_rule(name: str, typical: Sequence[tuple[Pod, float]], rng: random.Random) -> Rule:
    rules: dict[str, Callable[[], Rule]] = {
        "01-Random": lambda: Random(rng),
        "02-DotProd": DotProduct,
        "03-GpuClustering": GpuClustering,
        "04-GpuPacking": GpuPacking,
        "05-BestFit": BestFit,
        "06-FGD": lambda: Fgd(typical),
        "fgd, exact": lambda: ExactFgd(typical),
        "fgd, fullest": lambda: FullestFgd(typical),
        "best-fit": lambda: ByGpu(-1),
        "most-memory": lambda: ByGpu(1),
    }
    return rules[name]()
