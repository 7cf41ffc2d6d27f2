"""A simulated server under load for a while: the 90 jobs of a published trace, wrong promises, and `kill -9` at random.

    python benchmarks/soak.py [--minutes M] [--seed N] [--write]

Four A100s whose time runs as fast as the trace needs to last so long. Every eighth job declares two fifths of what it
will take, so that it runs out of memory. The daemon is killed every ten to thirty seconds and started again. Each
attempt leaves a line in a file of its job, so that attempts that nobody knows of would be seen.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import platform
import random
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from bench_server import Server, server

from cotenant.core.errors import CotenantError
from cotenant.sim import traces
from cotenant.sim.jobs import Trace
from cotenant.sim.workloads import workload

RESULTS = Path(__file__).parent / "results"
TRACE_SPAN_S = 26_000.0
"""How long the trace takes on four GPUs that are shared; sets the time scale."""
TOO_SMALL_EVERY = 8
TOO_SMALL = 0.4


class Soak:
    """One run."""

    def __init__(self, found: Server, *, time_scale: float, seed: int) -> None:
        self.server = found
        self.time_scale = time_scale
        self.rng = random.Random(seed)
        self.trace: Trace = traces.load("mix-90")
        self.submitted: list[int] = []
        self.kills = self.looks = 0
        self.over: list[str] = []
        self.down_s: list[float] = []

    def run(self) -> list[dict[str, Any]]:
        """Submit all jobs at their times, kill and look in between; the views of all jobs at the end."""
        began_s = time.monotonic()
        kill_at_s = began_s + self.rng.uniform(10, 30)
        while True:
            now_s = time.monotonic()
            while len(self.submitted) < len(self.trace) and self._due_s() <= now_s - began_s:
                self._submit()
            if now_s >= kill_at_s:
                self._kill()
                kill_at_s = time.monotonic() + self.rng.uniform(10, 30)
            self._look()
            if len(self.submitted) == len(self.trace) and not self.server.client.jobs(active=True):
                return self.server.client.jobs()
            time.sleep(0.25)

    def _due_s(self) -> float:
        return self.trace.submit_s[len(self.submitted)] / self.time_scale

    def _submit(self) -> None:
        number = len(self.submitted)
        name = self.trace.workloads[self.trace.workload_of[number]]
        found = workload(name)
        declared = found.peak_bytes * (TOO_SMALL if number % TOO_SMALL_EVERY == TOO_SMALL_EVERY - 1 else 1.05)
        note = self.server.root / f"starts-{number}"
        script = f"echo start >> {note}; exec {sys.executable} -m cotenant.sim.job --workload {name} --seed {number}"
        job = {
            "command": ["sh", "-c", script],
            "workdir": str(self.server.root),
            "env": {"PATH": "/usr/bin:/bin"},
            "name": name,
            "gpus": found.gpus,
            "declared_bytes": int(declared),
        }
        self.submitted.append(self.server.client.submit([job])[0]["id"])

    def _kill(self) -> None:
        self.server.kill()
        self.kills += 1
        began_s = time.monotonic()
        self.server.start()
        self.down_s.append(time.monotonic() - began_s)

    def _look(self) -> None:
        self.looks += 1
        for gpu in self.server.client.gpus():
            if gpu["promised_bytes"] > gpu["memory_total_bytes"]:
                self.over.append(f"GPU {gpu['index']}: {gpu['promised_bytes']} promised")

    def faults(self, views: list[dict[str, Any]]) -> list[str]:
        """What must not have happened."""
        found = list(self.over)
        if sorted(each["id"] for each in views) != self.submitted:
            found.append(f"{len(self.submitted)} jobs submitted, {len(views)} known")
        for number, job_id in enumerate(self.submitted):
            view = self.server.client.job(job_id)
            note = self.server.root / f"starts-{number}"
            starts = len(note.read_text().splitlines()) if note.exists() else 0
            if starts != sum(each["started_at"] is not None for each in view["attempt_list"]):
                found.append(f"job {job_id}: {starts} starts, {view['attempts']} attempts")
            if view["state"] != "COMPLETED":
                found.append(f"job {job_id}: {view['state']} ({view['reason']})")
        return found


def report(soak: Soak, views: list[dict[str, Any]], *, took_s: float, seed: int) -> str:
    """The result as a page."""
    faults = soak.faults(views)
    retried = [each for each in views if each["attempts"] > 1]
    waits_s = []
    for each in retried:
        attempts = soak.server.client.job(each["id"])["attempt_list"]
        pairs = itertools.pairwise(attempts)
        waits_s += [_seconds(later["placed_at"]) - _seconds(earlier["ended_at"]) for earlier, later in pairs]
    states = ", ".join(f"{count} {state}" for state, count in Counter(each["state"] for each in views).items())
    scale = soak.time_scale
    machine = f"{platform.machine()}, Python {platform.python_version()}, seed {seed}"
    down = f"{statistics.median(soak.down_s or [0]):.2f} s in the median, {max(soak.down_s, default=0):.2f} s at most"
    waited = f"{statistics.median(waits_s or [0]) * scale:.0f} s in the median, {max(waits_s, default=0) * scale:.0f} s"
    lines = [
        f"# A soak of {took_s / 60:.1f} minutes, {datetime.date.today()}",  # noqa: DTZ011 - the day here
        "",
        f"{machine}; simulated 4 x A100-40GB, time runs {scale:.0f} times as fast.",
        "Repeat with `python benchmarks/soak.py --write`.",
        "",
        f"- {len(soak.submitted)} jobs of mix-90: {states}.",
        f"- {soak.kills} times `kill -9`; serving again after {down}.",
        f"- {len(retried)} jobs ran out of memory and were tried again, {len(waits_s)} times; the next attempt",
        f"  was placed after {waited} at most, in the server's time.",
        f"- {soak.looks} looks at the GPUs, {len(soak.over)} times more promised than there is.",
        f"- Faults (a job lost, started without an attempt, not completed, over-promised): {len(faults)}.",
        *(f"  - {each}" for each in faults[:20]),
        "",
    ]
    return "\n".join(lines)


def _seconds(text: str) -> float:
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results")
    args = parser.parse_args()
    time_scale = TRACE_SPAN_S / (60 * args.minutes)
    began_s = time.monotonic()
    try:
        with server(cards="4xA100-40GB", time_scale=time_scale) as found:
            soak = Soak(found, time_scale=time_scale, seed=args.seed)
            views = soak.run()
            text = report(soak, views, took_s=time.monotonic() - began_s, seed=args.seed)
    except CotenantError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(text)
    if args.write:
        (RESULTS / f"soak_no-gpu_{datetime.date.today()}.md").write_text(text)  # noqa: DTZ011
    return 0


if __name__ == "__main__":
    sys.exit(main())
