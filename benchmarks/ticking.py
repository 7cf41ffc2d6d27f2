"""A cluster simulator that ticks, written as the published ones are: for comparison, not for use.

What the simulators of Lucid and Helios, among others, do each simulated second: end what is due, then walk the queue
and look for free GPUs on every node. Nothing of it is taken from them. It knows exclusive GPUs only, and places nothing
but first come, first served; so it does less than ours in every tick.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cotenant.sim.jobs import Trace


@dataclass
class Node:
    """A server with its free GPUs."""

    gpus: int
    free: int


@dataclass
class Running:
    """A job that holds GPUs."""

    number: int
    left_s: float
    held: list[tuple[Node, int]] = field(default_factory=list)


def replay(trace: Trace, nodes: list[Node]) -> tuple[list[float], int]:
    """End of every job, and how many seconds were ticked through."""
    waiting: list[int] = []
    running: list[Running] = []
    ends_s = [0.0] * len(trace)
    now_s, arrived, ticks = 0.0, 0, 0
    while arrived < len(trace) or waiting or running:
        still: list[Running] = []
        for job in running:
            job.left_s -= 1.0
            if job.left_s <= 0.0:
                ends_s[job.number] = now_s
                for node, count in job.held:
                    node.free += count
            else:
                still.append(job)
        running = still
        while arrived < len(trace) and trace.submit_s[arrived] <= now_s:
            waiting.append(arrived)
            arrived += 1
        while waiting:
            held = _place(nodes, trace.gpus[waiting[0]])
            if held is None:
                break
            number = waiting.pop(0)
            running.append(Running(number, trace.duration_s[number], held))
        now_s += 1.0
        ticks += 1
    return ends_s, ticks


def _place(nodes: list[Node], gpus: int) -> list[tuple[Node, int]] | None:
    held: list[tuple[Node, int]] = []
    wanted = gpus
    for node in nodes:
        if node.free and wanted:
            taken = min(node.free, wanted)
            held.append((node, taken))
            wanted -= taken
    if wanted:
        return None
    for node, count in held:
        node.free -= count
    return held
