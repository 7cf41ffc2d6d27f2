"""`kill -9` of the daemon while it changes the MIG layout of an empty GPU: real jobs wait for the new instances.

    python -m benchmarks.daemon.kills_in_repartitions [--kills N] [--quick] [--seed N] [--write]

A simulated GPU in MIG mode gets jobs of another size in each round, which its instances do not hold or serve badly, so
the daemon repartitions it. The simulated driver needs 0.1 s for each instance that is destroyed or created. The daemon
is killed at a random time after it has journaled the begin of the repartition; where the kill fell is read from the
layout and the journal once the daemon is dead:

    before      no instance is changed yet
    middle      the layout is neither the old one nor the new one
    after       the layout is the new one, and the journal does not know
    ended       the journal knows

Then the daemon is started again. In the end every job must have completed, by one process; every repartition in
the journal must have its end; and the journal's last layout must be that of the GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import platform
import random
import shlex
import sqlite3
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks._lib.daemon_process import Server, server
from benchmarks._lib.results import add_write_option, commit, today, write_result
from cotenant.core.units import GiB
from cotenant.daemon.serve import JOURNAL_FILE
from cotenant.daemon.setup import SIMULATED_DIR
from cotenant.simserver.mig import DRIVER_S

TIME_SCALE = 20.0
GPUS = "1xA100-40GB/" + "+".join(["1g.5gb"] * 7)
ROUNDS: tuple[tuple[int, int], ...] = ((1, 30), (4, 3))
"""Jobs of each round, and the GiB that each declares: the whole GPU, and small ones side by side."""
PATIENCE_S = 60.0


class Repartitions:
    """Rounds of jobs on a server, where each kill fell, and what is wrong at the end."""

    def __init__(self, found: Server, *, seed: int) -> None:
        self.server = found
        self.rng = random.Random(seed)
        self.at: Counter[str] = Counter()
        self.missed = 0
        self.down_s: list[float] = []
        self.ids: list[int] = []
        self._folder = found.root / "jobs"
        self._folder.mkdir()

    def kill_in_round(self, jobs: int, gib: int) -> None:
        """Submit the jobs of a round, kill the daemon in the repartition that they lead to, and let them end."""
        known = len(self._events("RepartitionStarted"))
        for _ in range(jobs):
            self._submit(gib)
        give_up_s = time.monotonic() + PATIENCE_S
        while len(self._events("RepartitionStarted")) == known:
            if time.monotonic() > give_up_s or not self.server.client.jobs(active=True, last=1):
                self.missed += 1
                self.server.wait_for_all()
                return
            time.sleep(0.005)
        started = self._events("RepartitionStarted")[known]
        steps = len(set(started["before"]) ^ set(started["after"]))
        time.sleep(self.rng.uniform(0.0, 1.5 * steps * DRIVER_S / TIME_SCALE))
        self.server.kill()
        self.at[self._point(known)] += 1
        began_s = time.monotonic()
        self.server.start()
        self.down_s.append(time.monotonic() - began_s)
        self.server.wait_for_all()

    def _submit(self, gib: int) -> None:
        name = f"job-{len(self.ids)}"
        program = [sys.executable, "-m", "cotenant.simserver.fake_job", "--duration", "5", "--delay", "1"]
        line = f"echo start >> {name}; exec {shlex.join([*program, '--peak-gib', str(gib - 1)])}"
        fields = {"workdir": str(self._folder), "env": dict(os.environ), "declared_bytes": gib * GiB}
        view = self.server.client.submit(self.server.jobs(1, "sh", "-c", line, **fields))[0]
        self.ids.append(int(view["id"]))

    def _point(self, known: int) -> str:
        started, ended = self._events("RepartitionStarted")[known], self._events("RepartitionEnded")[known:]
        if ended:
            return "ended"
        layout = self.layout()
        return {tuple(started["before"]): "before", tuple(started["after"]): "after"}.get(layout, "middle")

    def layout(self) -> tuple[str, ...]:
        """The instances that the simulated driver has."""
        return tuple(json.loads((self.server.root / "state" / SIMULATED_DIR / "mig-0.json").read_text()))

    def _events(self, kind: str) -> list[dict[str, Any]]:
        uri = f"{(self.server.root / 'state' / JOURNAL_FILE).as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as db:
            rows = db.execute("SELECT body FROM events WHERE type = ? ORDER BY seq", (kind,)).fetchall()
        return [json.loads(body) for (body,) in rows]

    def repartitions(self) -> int:
        """How many the journal has."""
        return len(self._events("RepartitionStarted"))

    def faults(self) -> list[str]:
        """What must not be."""
        found = []
        for number, job_id in enumerate(self.ids):
            view = self.server.client.job(job_id)
            ends = [attempt["exit"]["reason"] for attempt in view["attempt_list"]]
            # An attempt that was placed and not launched yet when the daemon was killed never ran.
            if view["state"] != "COMPLETED" or [reason for reason in ends if reason != "never-ran"] != ["exited"]:
                found.append(f"job {job_id}: {view['state']}, attempts {', '.join(ends)}")
            starts = (self._folder / f"job-{number}").read_text().split()
            if len(starts) != 1:
                found.append(f"job {job_id}: {len(starts)} processes")
        started, ended = self._events("RepartitionStarted"), self._events("RepartitionEnded")
        if len(started) != len(ended):
            found.append(f"{len(started)} repartitions, {len(ended)} ends in the journal")
        found += [f"a repartition failed: {event['error']}" for event in ended if event["error"] is not None]
        if tuple(ended[-1]["layout"]) != self.layout():
            found.append(f"the journal's layout is {ended[-1]['layout']}, the driver's {self.layout()}")
        return found


@contextlib.contextmanager
def repartitioning_server() -> Iterator[Server]:
    """A server that repartitions its only GPU as often as it gains by it; no two jobs share an instance."""
    env = {"COTENANT_MIG__REPARTITION": "true", "COTENANT_MIG__PERIOD_S": "0", "COTENANT_MIG__COST_S": "0"}
    with server(gpus=GPUS, time_scale=TIME_SCALE, flags=("--policy", "exclusive"), env=env) as found:
        yield found


def run(rounds: Repartitions, kills: int) -> None:
    """Kill the daemon `kills` times in repartitions."""
    for jobs, gib in itertools.islice(itertools.cycle(ROUNDS), 3 * kills):
        rounds.kill_in_round(jobs, gib)
        print(f"\r{dict(rounds.at)}, {rounds.missed} missed", end="", file=sys.stderr, flush=True)
        if sum(rounds.at.values()) == kills:
            break


def report(rounds: Repartitions, *, seed: int, took_s: float, load: float) -> str:
    """The result page, as Markdown."""
    faults = rounds.faults()
    points = ", ".join(f"{rounds.at[point]} {point}" for point in ("before", "middle", "after", "ended"))
    lines = [
        f"# The daemon killed while it changes a MIG layout, {today()}",
        "",
        f"Commit {commit()}; Python {platform.python_version()}; {os.cpu_count()} cores, no GPU, load average",
        f"before {load:.1f}; 1 simulated A100-40GB in MIG mode, time scale {TIME_SCALE:g}, seed {seed};",
        f"{DRIVER_S / TIME_SCALE:g} s per instance. It took {took_s / 60:.0f} minutes.",
        "Repeat with `python -m benchmarks.daemon.kills_in_repartitions --write`.",
        "",
        "| | |",
        "| --- | ---: |",
        f"| kills | {sum(rounds.at.values())} |",
        f"| where they fell | {points} |",
        f"| repartitions | {rounds.repartitions()} |",
        f"| jobs | {len(rounds.ids)} |",
        f"| rounds without a repartition | {rounds.missed} |",
        f"| faults | {len(faults)} |",
        "",
        "Faults are jobs that did not complete by one process, repartitions that failed or have no end, and a layout",
        "in the journal that is not the driver's. From the start of the next daemon until it serves: median",
        f"{statistics.median(rounds.down_s):.2f} s, max {max(rounds.down_s):.2f} s.",
        *(f"- {fault}" for fault in faults[:20]),
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=60, help="default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="6 kills")
    parser.add_argument("--seed", type=int, default=1)
    add_write_option(parser)
    args = parser.parse_args(argv)
    began_s, load = time.monotonic(), os.getloadavg()[0]
    with repartitioning_server() as found:
        rounds = Repartitions(found, seed=args.seed)
        run(rounds, 6 if args.quick else args.kills)
        text = report(rounds, seed=args.seed, took_s=time.monotonic() - began_s, load=load)
    print(text)
    if args.write:
        write_result("kills-in-repartitions", text + "\n")


if __name__ == "__main__":
    main()
