"""Allocations on 1,213 nodes that FGD published (Weng et al., ATC 2023), against the same rules here.

    python -m benchmarks.reproductions.fragmentation [--variants default,...] [--seeds 10] [--write]

Data: `../shared/data/traces`: nodes and pods of `openb` and `fgd_expected_alloc.csv`. Five of the seventeen published
workloads are there. The model is the published experiment's: pods in random order, those of the trace and then random
copies, until they ask for 1.3 times the GPUs; each is placed for good or never. Nodes have CPUs, memory and GPUs; a pod
asks for CPUs, memory, whole GPUs or a part of one, and maybe for GPU models. A rule gives each node that fits a whole
number; the largest wins, ties go by a random order of the nodes. Published values are means over ten seeds of a
generator that is not ours, so agreement is of means.
`06-FGD` takes `scheduling.placement.fragmentation`, as the policy `fgd` does. Below the published rules are ours: `fgd,
fullest` breaks ties by best fit, as `fgd` does (chosen on `default` with two seeds), `fgd, exact` does not round the
gradient; `best-fit` and `most-memory` rank GPUs as the policies of these names do, with parts of a GPU for memory.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import platform
import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks._lib.results import add_write_option, today, version, write_result
from cotenant.scheduling.placement.fragmentation import TypicalDemand, placement_score, unusable_room

TRACES = Path(__file__).parents[3] / "shared" / "data" / "traces"
WHOLE = 1000
MAX_CPU, MAX_GPU = 128_000, 8_000
ARRIVED = 1.3
AT_PERCENT = (90, 100, 130)
TOLERANCE_POINTS = 0.5
POPULAR = 0.95
FIRST_SEED = 42


class Pod(NamedTuple):
    """What a pod asks for; `milli`: of each GPU; `models`: those it accepts, empty for all."""

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


def read_pods(folder: Path = TRACES) -> dict[str, list[Pod]]:
    """The pods of each variant, in the order of the file."""
    found: dict[str, list[Pod]] = {}
    with gzip.open(folder / "alibaba2023_openb_pods.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            models = frozenset(model for model in row["gpu_spec"].split("|") if model)
            numbers = [int(float(row[name] or 0)) for name in ("cpu_milli", "gpu_milli", "n_gpus", "host_mem_mib")]
            cpu, milli, gpus, host_mib = numbers
            found.setdefault(row["variant"], []).append(Pod(cpu, milli if gpus else 0, gpus, models, host_mib))
    return found


def read_nodes(folder: Path = TRACES) -> list[Node]:
    with (folder / "alibaba2023_openb_nodes.csv").open() as file:
        return [
            Node(int(row["cpu_milli"]), int(row["host_mem_mib"]), int(row["n_gpus"]), row["gpu_model"])
            for row in csv.DictReader(file)
        ]


def read_expected(folder: Path = TRACES) -> dict[tuple[str, str], tuple[float, ...]]:
    """Published allocations in percent at `AT_PERCENT`, by variant and policy."""
    with (folder / "fgd_expected_alloc.csv").open() as file:
        return {
            (row["workload"].removeprefix("openb_pod_list_"), row["policy"]): (
                float(row["alloc_pct_at_arrival_90"]),
                float(row["at_100"]),
                float(row["at_130"]),
            )
            for row in csv.DictReader(file)
        }


def typical_pods(pods: Sequence[Pod]) -> list[tuple[Pod, float]]:
    """The commonest requests that make up `POPULAR` of all pods, with their shares of these."""
    counts = Counter(pod._replace(host_mib=0) for pod in pods)

    def rank(pod: Pod) -> tuple[object, ...]:
        return (counts[pod], pod.cpu, pod.milli, pod.gpus, "|".join(sorted(pod.models)))

    chosen: list[Pod] = []
    covered = 0
    for pod in sorted(counts, key=rank, reverse=True):
        if covered >= POPULAR * len(pods):
            break
        chosen.append(pod)
        covered += counts[pod]
    return [(pod, counts[pod] / covered) for pod in chosen]


def arrivals(pods: Sequence[Pod], total_milli: int, rng: random.Random) -> list[Pod]:
    """The trace in random order, cut or filled up with random pods of it until they ask for `ARRIVED` of the GPUs."""
    found = list(pods)
    rng.shuffle(found)
    asked = sum(pod.total_milli for pod in found)
    while asked > ARRIVED * total_milli:
        asked -= found.pop(rng.randrange(len(found))).total_milli
    while True:
        pod = rng.choice(pods)
        if asked + pod.milli > ARRIVED * total_milli:
            return found
        asked += pod.total_milli
        found.append(pod)


class Scores:
    """A rule's score of every node for every kind of pod, kept up to date by the nodes that changed."""

    def __init__(self, nodes: Sequence[Node], rule: Rule) -> None:
        self._nodes = nodes
        self._rule = rule
        self._changes: list[int] = []
        self._known: dict[Pod, tuple[np.ndarray, int]] = {}

    def best(self, pod: Pod, rng: random.Random) -> int | None:
        """The node with the largest score, the first of several; None if none fits."""
        known = self._known.get(pod)
        if known is None:
            scores, stale = np.full(len(self._nodes), -np.inf), range(len(self._nodes))
        else:
            scores, stale = known[0], set(self._changes[known[1] :])  # type: ignore[assignment]
        for index in stale:
            node = self._nodes[index]
            fits = node.fits(pod)
            if isinstance(self._rule, Random):
                scores[index] = 0 if fits else -np.inf
            else:
                scores[index] = self._rule.score(node, pod) if fits else -np.inf
        self._known[pod] = (scores, len(self._changes))
        if isinstance(self._rule, Random):
            fitting = np.flatnonzero(scores == 0)
            return int(rng.choice(fitting)) if len(fitting) else None
        best = int(scores.argmax())
        return None if scores[best] == -np.inf else best

    def changed(self, index: int) -> None:
        self._changes.append(index)


def allocated(name: str, nodes: Sequence[Node], pods: Sequence[Pod], seed: int) -> tuple[float, ...]:
    """Percent of the GPUs that are allocated when pods have asked for `AT_PERCENT` of them."""
    rng = random.Random(seed)
    nodes = [Node(node.cpu, node.host_mib, len(node.free), node.model) for node in nodes]
    total_milli = sum(WHOLE * len(node.free) for node in nodes)
    arriving = arrivals(pods, total_milli, rng)
    rng.shuffle(nodes)
    rule = make_rule(name, typical_pods(pods), rng)
    scores = Scores(nodes, rule)
    arrived = used = 0
    readings: dict[int, list[float]] = {percent: [] for percent in AT_PERCENT}
    for pod in arriving:
        arrived += pod.total_milli
        index = scores.best(pod, rng)
        if index is not None:
            nodes[index].take(pod, rule.gpus(nodes[index], pod) if pod.gpus else ())
            scores.changed(index)
            used += pod.total_milli
        percent = round(100 * arrived / total_milli)
        if percent in readings:
            readings[percent].append(100 * used / total_milli)
    return tuple(statistics.mean(readings[percent]) for percent in AT_PERCENT)


def table(variants: Sequence[str], rules: Sequence[str], seeds: int) -> Iterator[str]:
    """Lines of the result; the last one counts."""
    nodes, pods, expected = read_nodes(), read_pods(), read_expected()
    yield "| workload | rule | at 90 % | at 100 % | at 130 % | published | difference |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: |"
    within = total = 0
    for variant in variants:
        for name in rules:
            runs = [allocated(name, nodes, pods[variant], FIRST_SEED + seed) for seed in range(seeds)]
            means = [statistics.mean(run[position] for run in runs) for position in range(len(AT_PERCENT))]
            cells = [f"{mean:.2f}" for mean in means]
            published = expected.get((variant, name))
            if published is None:
                cells += ["-", "-"]
            else:
                differences = [mean - value for mean, value in zip(means, published, strict=True)]
                within += sum(abs(difference) <= TOLERANCE_POINTS for difference in differences)
                total += len(differences)
                cells.append(" ".join(f"{value:.2f}" for value in published))
                cells.append(" ".join(f"{difference:+.2f}" for difference in differences))
            yield f"| {variant} | {name} | " + " | ".join(cells) + " |"
    yield ""
    yield f"{within} of {total} allocations are within {TOLERANCE_POINTS} points of the published."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", default="default,gpushare40,gpushare100,gpuspec33,multigpu30")
    parser.add_argument("--rules", default=";".join((*PUBLISHED, *OURS)), help="separated by `;`")
    parser.add_argument("--seeds", type=int, default=10)
    add_write_option(parser)
    args = parser.parse_args()
    lines = []
    for line in table(args.variants.split(","), args.rules.split(";"), args.seeds):
        lines.append(line)
        print(line, flush=True)
    if args.write:
        head = [
            "# Allocations under fragmentation, against FGD's",
            "",
            f"{today()}, {platform.machine()}, {platform.python_version()}, cotenant {version('cotenant')}.",
            "Command: `python -m benchmarks.reproductions.fragmentation --write`.",
            "",
            *(__doc__ or "").split("\n\n")[2].splitlines(),
            "",
        ]
        write_result("fragmentation", "\n".join([*head, *lines, ""]))


if __name__ == "__main__":
    main()
