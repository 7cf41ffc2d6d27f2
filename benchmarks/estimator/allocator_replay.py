"""Events per second of a replay through the allocator, compared with a replay that only sums sizes.

    python -m benchmarks.estimator.allocator_replay [--quick] [--write]

The trace is synthetic: a network with the layer sizes of a small transformer, trained for some steps. The ratio to the
baseline hardly depends on the machine; the absolute rate does. `--write` writes the result to `benchmarks/results`.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import random
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks._lib.results import add_write_option
from cotenant.allocator import parse_options, replay, rules_for
from cotenant.core.trace import MemoryEvent

TORCH = "2.13.0"
SEED = 1
SETTINGS = {
    "default": "",
    "expandable": "expandable_segments:True",
    "max split 64 MiB": "max_split_size_mb:64",
    "roundup 8": "roundup_power2_divisions:8",
}


def a_training(layers: int, steps: int, seed: int = SEED) -> Iterator[MemoryEvent]:
    """Events of `steps` optimizer steps: per layer parameters, saved activations, temporaries, gradients, states."""
    rng = random.Random(seed)
    sizes = [rng.choice((768 * 768, 768 * 3072, 768, 3072)) * 4 for _ in range(layers * 6)]
    ids = iter(range(10**9))

    def alloc(size: int, category: str, phase: str) -> MemoryEvent:
        return MemoryEvent("alloc", next(ids), size, category, phase, "", 0, 0)

    def free(storage_id: int, phase: str) -> MemoryEvent:
        return MemoryEvent("free", storage_id, 0, "", phase, "", 0, 0)

    for size in sizes:
        yield alloc(size, "parameter", "load")
    for step in range(steps):
        saved = []
        for size in sizes:
            temporary = alloc(size * 2 + 100, "temporary", "forward")
            yield temporary
            event = alloc(size * rng.randint(1, 4) + rng.randrange(2048), "activation", "forward")
            yield event
            saved.append(event.storage_id)
            yield free(temporary.storage_id, "forward")
        gradients = []
        for storage_id, size in zip(reversed(saved), reversed(sizes), strict=True):
            temporary = alloc(size, "temporary", "backward")
            yield temporary
            event = alloc(size, "gradient", "backward")
            yield event
            gradients.append(event.storage_id)
            yield free(storage_id, "backward")
            yield free(temporary.storage_id, "backward")
        if step == 0:
            for size in sizes:
                yield alloc(size, "optimizer state", "step")
                yield alloc(size, "optimizer state", "step")
        for storage_id in gradients:
            yield free(storage_id, "step")


def sum_only(events: Sequence[MemoryEvent]) -> int:
    """Peak of the sum of live sizes: the baseline, without an allocator."""
    live: dict[int, int] = {}
    total = peak = 0
    for action, storage_id, size, _, _, _, _, _, _ in events:
        if action == "alloc":
            live[storage_id] = size
            total += size
            peak = max(peak, total)
        elif action == "free":
            total -= live.pop(storage_id)
    return peak


def best_seconds(call: Callable[[], object], repeats: int) -> float:
    def once() -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    return min(once() for _ in range(repeats))


def measure(events: Sequence[MemoryEvent], repeats: int) -> list[str]:
    rules = rules_for(TORCH)
    base_s = best_seconds(lambda: sum_only(events), repeats)
    rows = [
        "| replay | events/s | cost relative to the sum |",
        "|---|---|---|",
        f"| sum only | {len(events) / base_s:,.0f} | 1.0 |",
    ]
    for name, text in SETTINGS.items():
        options = parse_options(text, TORCH)
        took_s = best_seconds(partial(replay, events, options=options, rules=rules), repeats)
        rows.append(f"| {name} | {len(events) / took_s:,.0f} | {took_s / base_s:.1f} |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the events, one repeat")
    add_write_option(parser)
    arguments = parser.parse_args()
    events = list(a_training(layers=24, steps=10 if arguments.quick else 100))
    rows = measure(events, repeats=1 if arguments.quick else 5)
    print(f"{len(events):,} events, best of {1 if arguments.quick else 5}")
    print("\n".join(rows))
    if arguments.write:
        write(events, rows, arguments.quick)


def write(events: Sequence[MemoryEvent], rows: Sequence[str], quick: bool) -> None:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    today = datetime.datetime.now(tz=datetime.timezone.utc).date()
    path = Path(__file__).parents[1] / "results" / f"allocator_replay_cpu_{today}.md"
    path.write_text(
        f"# Allocator replay, {today}\n\n"
        f"Commit {commit.stdout.strip() or 'unknown'}, no GPU, Python {platform.python_version()}, "
        f"{platform.machine()}; rules of torch {TORCH}, seed {SEED}, {len(events):,} events.\n"
        f"Repeat: `python -m benchmarks.estimator.allocator_replay{' --quick' if quick else ''}`\n\n"
        + "\n".join(rows)
        + "\n"
    )
    print(f"written to {path}")


if __name__ == "__main__":
    main()
