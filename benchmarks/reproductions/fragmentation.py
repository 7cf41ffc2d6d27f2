"""Allocations on 1,213 nodes that FGD published (Weng et al., ATC 2023), against the same rules here.

    python -m benchmarks.reproductions.fragmentation [--variants default,...] [--seeds 10] [--write]

Data: `../shared/data/traces`: nodes and pods of `openb` and `fgd_expected_alloc.csv`. Five of the seventeen published
workloads are there. The model is the published experiment's: pods in random order, those of the trace and then random
copies, until they ask for 1.3 times the GPUs; each is placed for good or never. Nodes have CPUs, memory and GPUs; a pod
requests CPUs, memory, whole GPUs or a part of one, and maybe GPU models. A rule gives each node that fits a whole
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
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks._lib.results import add_write_option, today, version, write_result
from benchmarks.reproductions.fragmentation_rules import OURS, PUBLISHED, WHOLE, Node, Pod, Random, Rule, make_rule

TRACES = Path(__file__).parents[3] / "shared" / "data" / "traces"
ARRIVED = 1.3
AT_PERCENT = (90, 100, 130)
TOLERANCE_POINTS = 0.5
POPULAR = 0.95
FIRST_SEED = 42


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
    requested_milli = sum(pod.total_milli for pod in found)
    while requested_milli > ARRIVED * total_milli:
        requested_milli -= found.pop(rng.randrange(len(found))).total_milli
    while True:
        pod = rng.choice(pods)
        if requested_milli + pod.milli > ARRIVED * total_milli:
            return found
        requested_milli += pod.total_milli
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
    """Percent of the GPUs that are allocated when pods have requested `AT_PERCENT` of them."""
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
