"""`kill -9` of the daemon in the middle of moves: real jobs that save their state, and go on elsewhere.

    python -m benchmarks.daemon.kills_in_moves [--kills N] [--quick] [--seed N] [--write]

60 jobs run on eight simulated GPUs and count their steps in a file. Short jobs keep arriving, so `marginal-gain` moves
the long ones to make room; its times are scaled, so that a job may be moved three seconds after its start. Half of the
kills happen on a server where every third job is a gang of two GPUs and short jobs have one or two, the others on one
where all jobs are such gangs: next to jobs of one GPU a gang seldom finds its GPUs again, and is seldom moved. Each
kill falls into a move, at one of these points in turn:

    asked       the order to stop is given, the job has not saved yet
    saved       its state is saved, its process has not ended
    ended       it has ended, and the journal does not know (the daemon was stopped by SIGSTOP from `saved` on)
    waiting     the journal knows, the next attempt is not placed
    starting    the next attempt is placed, its program does not run yet

Where a kill fell is read from the files of the attempts and the journal once the daemon is dead; one that missed is not
counted. In the end every job must have made each of its steps once, in order, by one process at a time, in as many
attempts as the journal knows.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import platform
import random
import shlex
import signal
import sqlite3
import statistics
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks._lib.daemon_process import Server, server
from benchmarks._lib.results import add_write_option, commit, today, write_result
from benchmarks.daemon.run_notes import RunNotes
from cotenant.core.errors import CotenantError
from cotenant.daemon.serve import JOURNAL_FILE
from cotenant.scheduling.checkpoints import MOVE_STOP

POINTS = ("asked", "saved", "ended", "waiting", "starting")
TIME_SCALE = 100.0
"""The 300 s of stay and the 60 s between looks of the rule become 3 s and 0.6 s."""
MAX_MOVES = 1000
FILLER_S = 0.8
"""Runs of less than a scaled minute teach the daemon no duration."""
FILLERS_WAITING = 2
"""Of each size."""
GANG_GPUS = 2
GANGS = (3, 1)
"""Every so many jobs is a gang, on the first server and on the second."""
PATIENCE_S = 60.0
"""After so long without a move at the point aimed at, the next point is aimed at."""
SIGNALS = ("TERM", "USR1", "USR2")

SCRIPT = textwrap.dedent(
    """
    import fcntl, os, random, sys, time
    from pathlib import Path

    from cotenant import checkpoint

    name, steps = sys.argv[1], int(sys.argv[2])
    checkpoint.install()
    with open(f"{name}.starts", "a") as starts:
        starts.write("start\\n")
    alone = open(f"{name}.lock", "w")
    try:
        fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        Path(f"{name}.twice").touch()
        sys.exit(1)
    state = Path(f"{name}.state")
    first = int(state.read_text()) if state.exists() else 0
    for step in range(first, steps):
        with open(f"{name}.steps", "a") as made:
            made.write(f"{step}\\n")
        time.sleep(0.02)
        if os.path.exists("finish"):
            break
        if checkpoint.should_stop():
            time.sleep(random.uniform(0.02, 0.3))
            Path(f"{name}.draft").write_text(str(step + 1))
            os.replace(f"{name}.draft", state)
            time.sleep(random.uniform(0.02, 0.3))
            checkpoint.exit_saved()
    """
)


class Moves:
    """Jobs that move on a server, where each is in its move, and what is wrong with them at the end.

    `gang_every`: every so many jobs is a gang; 1: all are, the short ones, too.
    """

    def __init__(self, found: Server, *, jobs: int, seed: int, gang_every: int = GANGS[0]) -> None:
        self.server = found
        self.gang_every = gang_every
        self._sizes = (GANG_GPUS,) if gang_every == 1 else (1, GANG_GPUS)
        self.count = jobs
        self.rng = random.Random(seed)
        self.ids: dict[int, str] = {}
        self.fillers: list[int] = []
        self.notes = RunNotes(found.root / "runs")
        self.down_s: list[float] = []
        self.at: Counter[str] = Counter()
        self.missed = 0
        self._counted: set[tuple[int, int, str]] = set()
        self._folder = found.root / "jobs"
        self._folder.mkdir()
        (self._folder / "train.py").write_text(SCRIPT)
        self._attempts = found.root / "state" / "attempts"
        self._closing = threading.Event()

    def submit(self) -> None:
        """Submit all jobs, after short ones that teach the daemon how long these take."""
        for gpus in self._sizes:
            self._fill(gpus)
        self.server.wait_for_all()
        for number in range(self.count):
            name = f"job-{number}"
            words = [sys.executable, "train.py", name, str(self.rng.randrange(9000, 27_000))]
            command = ["sh", "-c", f"{shlex.join(words)}; exit $?"] if number % 4 == 0 else words
            fields = {"workdir": str(self._folder), "env": dict(os.environ), "name": name, "exclusive": True}
            signal_name = SIGNALS[number % len(SIGNALS)]
            gpus = GANG_GPUS if self.is_gang(number) else 1
            job = self.server.jobs(1, *command, **fields, checkpoint_signal=signal_name, gpus=gpus)
            self.ids[int(self.server.client.submit(job)[0]["id"])] = name

    def is_gang(self, number: int) -> bool:
        """Whether the job of this number has several GPUs, of a server that has as many."""
        return number % self.gang_every == self.gang_every // 2 and len(self.server.client.gpus()) >= GANG_GPUS

    @contextlib.contextmanager
    def filling(self) -> Iterator[None]:
        """Keep short jobs waiting, which only a move makes room for."""
        thread = threading.Thread(target=self._keep_filling, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._closing.set()
            thread.join()

    def _keep_filling(self) -> None:
        while not self._closing.wait(0.1):
            with contextlib.suppress(CotenantError):  # the daemon is down
                active = self.server.client.jobs(active=True)
                for gpus in self._sizes:
                    waiting = [job for job in active if job["id"] not in self.ids and job["gpus"] == gpus]
                    if len(waiting) < FILLERS_WAITING:
                        self._fill(gpus)

    def _fill(self, gpus: int) -> None:
        """Submit a short job; one of several GPUs only where there are as many."""
        if gpus > len(self.server.client.gpus()):
            gpus = 1
        command = self.notes.command(FILLER_S)
        views = self.server.client.submit(self.server.jobs(1, *command, exclusive=True, gpus=gpus))
        self.fillers += [int(view["id"]) for view in views]

    def kill_at(self, point: str) -> None:
        """Kill the daemon when a job is at `point`, count where it was, and start the next one."""
        give_up_s = time.monotonic() + PATIENCE_S
        earlier = {"ended": "saved", "starting": "waiting"}.get(point, point)
        while (job_id := self._first_at(earlier)) is None:
            if time.monotonic() > give_up_s:
                self.missed += 1
                return
            time.sleep(0.0005)
        if point == "ended":
            self.server.process.send_signal(signal.SIGSTOP)
        while earlier != point and self.point(job_id) == earlier and time.monotonic() < give_up_s:
            time.sleep(0.0002)
        killed_at_s = time.time()
        self.server.kill()
        where = self.point(job_id, killed_at_s)
        if where is None:
            self.missed += 1
        else:
            self.at[where] += 1
            self._counted.add((job_id, self._journaled(job_id)[0], where))
        began_s = time.monotonic()
        self.server.start()
        self.down_s.append(time.monotonic() - began_s)

    def _first_at(self, point: str) -> int | None:
        """A job at `point` of a move that was not counted there: an order that a kill cut off stays in its file."""
        for job_id in self.ids:
            if self.point(job_id) == point and (job_id, self._journaled(job_id)[0], point) not in self._counted:
                return job_id
        return None

    def point(self, job_id: int, until_s: float = math.inf) -> str | None:
        """Where a job is in its move, or was at `until_s`; None outside of one."""
        placed, exited = self._journaled(job_id)
        attempts = self._attempts / str(job_id)
        if not placed:
            return None
        if _modified_s(attempts / str(placed) / "started.json") <= until_s:
            folder = attempts / str(placed)
            if not _is_moved(folder / "stop.json", "reason"):
                return None
            if (folder / "result.json").exists():
                return "waiting" if exited == placed else "ended"
            saved_s = _modified_s(self._folder / f"{self.ids[job_id]}.state")
            return "saved" if _modified_s(folder / "stop.json") < saved_s < math.inf else "asked"
        return "starting" if _is_moved(attempts / str(placed - 1) / "result.json", "detail") else None

    def _journaled(self, job_id: int) -> tuple[int, int]:
        """How many attempts of a job the journal has, and how many ends of them."""
        uri = f"{(self.server.root / 'state' / JOURNAL_FILE).as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as db:
            query = "SELECT total(type = 'AttemptPlaced'), total(type = 'AttemptExited') FROM events WHERE job_id = ?"
            placed, exited = db.execute(query, (job_id,)).fetchone()
        return int(placed), int(exited)

    def finish(self) -> None:
        """Let all jobs end at their next step, and wait for them."""
        (self._folder / "finish").touch()
        self.server.wait_for_all()

    def steps(self, job_id: int) -> list[int]:
        """The steps that the processes of a job have made, in their order."""
        return [int(step) for step in (self._folder / f"{self.ids[job_id]}.steps").read_text().split()]

    def faults(self) -> list[str]:
        """What must not be."""
        views = {int(job["id"]): job for job in self.server.client.jobs()}
        found = [f"job {job_id} is lost" for job_id in self.notes.lost([*self.ids, *self.fillers], views)]
        short = [job_id for job_id in views if job_id not in self.ids]
        found += [f"job {job_id} ran twice or in part" for job_id in self.notes.run_twice(short)]
        for job_id, name in self.ids.items():
            steps, attempts = self.steps(job_id), self.server.client.job(job_id)["attempt_list"]
            starts = len((self._folder / f"{name}.starts").read_text().split())
            known = sum(attempt["started_at"] is not None for attempt in attempts)
            if starts != known:
                found.append(f"job {job_id}: {starts} starts, {known} in the journal")
            if (self._folder / f"{name}.twice").exists():
                found.append(f"job {job_id}: two processes at once")
            if steps != list(range(len(steps))):
                found.append(f"job {job_id}: {len(steps) - len(set(steps))} steps made again")
        return found

    def moves(self) -> list[list[dict[str, Any]]]:
        """The attempts of each job that ended with a move."""
        lists = [self.server.client.job(job_id)["attempt_list"] for job_id in self.ids]
        return [[attempt for attempt in attempts if attempt["moved"]] for attempts in lists]


def _is_moved(path: Path, key: str) -> bool:
    """Whether a file of an attempt says that it is stopped to be moved."""
    try:
        return str(json.loads(path.read_text()).get(key, "")).startswith(MOVE_STOP)
    except FileNotFoundError:
        return False


def _modified_s(path: Path) -> float:
    """When a file was written; infinite without one."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return math.inf


@contextlib.contextmanager
def moving_server(gpus: str = "8xA100-40GB") -> Iterator[Server]:
    """A server whose policy moves jobs as often as it can."""
    flags = ("--policy", "marginal-gain")
    env = {"COTENANT_POLICY__OPTIONS__MAX_MOVES": str(MAX_MOVES)}
    with server(gpus=gpus, time_scale=TIME_SCALE, flags=flags, env=env) as found:
        yield found


def run(moves: Moves, kills: int, points: Sequence[str] = POINTS) -> None:
    """Submit, kill `kills` times in moves, at `points` in turn, and let all jobs end."""
    moves.submit()
    with moves.filling():
        for point in itertools.islice(itertools.cycle(points), 3 * kills):
            moves.kill_at(point)
            print(f"\r{dict(moves.at)}, {moves.missed} missed", end="", file=sys.stderr, flush=True)
            if sum(moves.at.values()) == kills:
                break
    moves.finish()


def report(runs: Sequence[Moves], *, seed: int, took_s: float, load: float) -> str:
    """The result page, as Markdown."""
    ran_s = [second_s for moves in runs for second_s in moves.down_s]
    lines = [
        f"# The daemon killed in the middle of moves, {today()}",
        "",
        f"Commit {commit()}; Python {platform.python_version()}; {os.cpu_count()} cores, no GPU, load average",
        f"before {load:.1f}; 8 simulated A100-40GB, time scale {TIME_SCALE:g}, seed {seed}.",
        f"It took {took_s / 60:.0f} minutes.",
        "Repeat with `python -m benchmarks.daemon.kills_in_moves --write`.",
        "",
        "| | " + " | ".join(_jobs_text(moves) for moves in runs) + " |",
        "| --- |" + " ---: |" * len(runs),
    ]
    for name, count in COUNTS.items():
        lines.append(f"| {name} | " + " | ".join(f"{count(moves):,}" for moves in runs) + " |")
    faults = [fault for moves in runs for fault in moves.faults()]
    lines += [
        "",
        "Faults are jobs lost, run twice, two processes at once, and starts that the journal lacks.",
        f"From the start of the next daemon until it serves: median {statistics.median(ran_s):.2f} s, max",
        f"{max(ran_s):.2f} s.",
        *(f"- {fault}" for fault in faults[:20]),
    ]
    return "\n".join(lines)


def _jobs_text(moves: Moves) -> str:
    every = moves.gang_every
    return f"all jobs have {GANG_GPUS} GPUs" if every == 1 else f"every {every}rd job has {GANG_GPUS} GPUs"


def _gang_moves(moves: Moves) -> int:
    return sum(len(found) for number, found in enumerate(moves.moves()) if moves.is_gang(number))


def _unsaved(moves: Moves) -> int:
    """Without those of jobs that completed when they got the signal to save their state."""
    stopped = [attempt for attempts in moves.moves() for attempt in attempts if attempt["exit"]["exit_code"] != 0]
    return sum(not attempt["saved"] for attempt in stopped)


def _made(moves: Moves) -> int:
    return sum(len(moves.steps(job_id)) for job_id in moves.ids)


def _made_again(moves: Moves) -> int:
    steps = [moves.steps(job_id) for job_id in moves.ids]
    return sum(len(made) - len(set(made)) for made in steps)


COUNTS: Mapping[str, Callable[[Moves], int]] = {
    "jobs that save their state": lambda moves: len(moves.ids),
    "short jobs acknowledged": lambda moves: len(moves.fillers),
    "moves": lambda moves: sum(map(len, moves.moves())),
    "moves of gangs": _gang_moves,
    "jobs moved": lambda moves: sum(map(bool, moves.moves())),
    "moves without a saved state": _unsaved,
    "`kill -9` in a move": lambda moves: sum(moves.at.values()),
    **{f"`kill -9`, {point}": partial(lambda point, moves: moves.at[point], point) for point in POINTS},
    "kills that missed their move": lambda moves: moves.missed,
    "steps made": _made,
    "steps made again after they were saved or lost": _made_again,
    "faults": lambda moves: len(moves.faults()),
}
"""Rows of the result page."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="kills in moves, in all (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=60, help="jobs that save their state (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="10 kills, 12 jobs")
    parser.add_argument("--seed", type=int, default=20261123, help="random seed (default: %(default)s)")
    add_write_option(parser)
    args = parser.parse_args()
    kills, jobs = (10, 12) if args.quick else (args.kills, args.jobs)
    load, began_s = os.getloadavg()[0], time.monotonic()
    with contextlib.ExitStack() as servers:
        runs = []
        for gang_every in GANGS:
            found = servers.enter_context(moving_server())
            moves = Moves(found, jobs=jobs, seed=args.seed, gang_every=gang_every)
            run(moves, kills // len(GANGS))
            runs.append(moves)
        text = report(runs, seed=args.seed, took_s=time.monotonic() - began_s, load=load)
        faults = [fault for moves in runs for fault in moves.faults()]
    print(text)
    if args.write:
        write_result("kills-in-moves", text)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
