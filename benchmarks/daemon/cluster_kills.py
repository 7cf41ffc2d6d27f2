"""Random kills on a real Slurm of two nodes while jobs are submitted: are jobs lost, or run twice?

    python -m benchmarks.daemon.cluster_kills [--kills N] [--places hosts pilot] [--seed N] [--write]

`hosts`: agents in allocations that somebody holds there; `pilot`: allocations that a pilot requests. Each victim is
killed with SIGKILL: the daemon, all agents, slurmctld, a slurmd, or a node, i.e. its slurmd and all that runs there,
which is then marked as down in Slurm. What was killed is started again after a random time, also while others are dead.
It needs root and Debian's Slurm.

Each job holds a lock, and appends a line to its file when it starts and when it ends. Jobs request to be requeued when
their node is lost, so a job that was killed in the middle starts again, and a file may have several starts. It has run
twice if it found the lock held, started after its end, or has more starts than the daemon knows attempts.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from benchmarks._lib.daemon_process import Server, server
from benchmarks._lib.results import add_write_option, commit, today, write_result
from cotenant.core.errors import CotenantError
from cotenant.core.units import GiB
from cotenant.demo.slurm_cluster import SlurmInFolder, why_no_cluster
from cotenant.simserver.server import SimulatedServer
from tests.support.slurm_nodes import kill_node

SEED = 20261123
PLACES = ("hosts", "pilot")
VICTIMS = ("daemon", "agents", "slurmctld", "slurmd", "node")
KILLS_IN_A_ROW = 3
"""Kills until a job must have started: without jobs there would be nothing to lose."""
MAX_WAITING = 12
"""Jobs that have not ended, at most: enough that some run everywhere, and the machine is not the limit."""
PATIENCE_S = 20.0
"""How long no job starts while something is dead, which is then started again."""
DRAIN_S = 900.0
LOGGED = ("--log-level", "info")  # what the daemon did to a job that fared badly
JOB = """
file={runs}/$COTENANT_JOB_ID
exec 9>>$file.lock; flock -n 9 || echo twice >>$file
echo start >>$file; sleep {seconds:.1f}; echo end >>$file
"""
ON_NODE = """\
name=host-$1; shift
exec srun --jobid=$(squeue -h -n $name -t R -o %A | head -1) --overlap -N1 -n1 --quiet "$@"
"""


class Cluster:
    """A Slurm, a daemon with hosts on its nodes, and what kills them."""

    def __init__(self, place: str, root: Path, slurm: SlurmInFolder, rng: random.Random) -> None:
        self.place, self.root, self.slurm, self.rng = place, root, slurm, rng
        self.state = root / "daemon" / "state"
        self.kills: Counter[str] = Counter()
        self.pauses = 0
        self.waits_s = [0.0]
        self.dead: dict[str, Callable[[], None]] = {}
        self.promised: list[int] = []
        self.found: Server
        (root / "runs").mkdir()
        for number, node in enumerate(slurm.nodes):
            SimulatedServer.create(root / f"gpus-{node}", "1xA100-40GB", time_scale=60, seed=number)

    def environment(self) -> dict[str, str]:
        """Variables of the daemon; for `hosts` also their configuration."""
        env = {
            "SLURM_CONF": self.slurm.env["SLURM_CONF"],
            "XDG_CONFIG_HOME": str(self.root / "config"),
            "COTENANT_POLICY__OPTIONS__WARMUP_S": "0",
            "COTENANT_SCHEDULING__STOP_GRACE_S": "0.5",
        }
        on_node = f'exec env COTENANT_SIM_SERVER={self.root}/gpus-$SLURMD_NODENAME "$@"'
        if self.place == "pilot":
            settings = {"enabled": "true", "sbatch": "--exclusive --gres=gpu:1 -t 60", "max_allocations": "2"}
            settings |= {"launcher": f"sh -c {shlex.quote(on_node)} sh", "backlog": "2", "idle_s": "3"}
            settings |= {"poll_s": "0.5", "retry_s": "1"}
            return {**env, **{f"COTENANT_PILOT__{name.upper()}": value for name, value in settings.items()}}
        (self.root / "on-node").write_text(ON_NODE)
        (self.root / "gpus").write_text(f"{on_node}\n")
        lines = [f'{node} = "sh {self.root}/on-node {node} sh {self.root}/gpus"' for node in self.slurm.nodes]
        (self.root / "config" / "cotenant").mkdir(parents=True)
        (self.root / "config" / "cotenant" / "config.toml").write_text("\n".join(["[hosts.agents]", *lines, ""]))
        return env

    def keep_allocations(self, stopping: threading.Event) -> None:
        """Submit an allocation for each node that has none, as somebody would who looks after them."""
        while not stopping.wait(0.5):
            with contextlib.suppress(CotenantError, subprocess.SubprocessError):
                there = self.slurm.slurm("squeue", "-h", "-o", "%j").split()
                for node in self.slurm.nodes:
                    if f"host-{node}" not in there:
                        words = ("--no-requeue", "-w", node, "--gres=gpu:1", f"--job-name=host-{node}")
                        self.slurm.slurm("sbatch", *words, "--wrap=sleep 100000")

    def submit_jobs(self, stopping: threading.Event) -> None:
        """Submit a job about every half second, while not too many wait."""
        rng = random.Random(self.rng.random())
        while not stopping.wait(rng.uniform(0.0, 1.0)):
            with contextlib.suppress(CotenantError):
                if len(self.found.client.jobs(active=True)) >= MAX_WAITING:
                    continue
                script = JOB.format(runs=self.root / "runs", seconds=rng.uniform(0.0, 3.0))
                fields = {"declared_bytes": 10 * GiB, "requeue": True, "max_attempts": 100}
                job = {**self.found.jobs(1, "/bin/sh", "-c", script)[0], **fields}
                self.promised.append(int(self.found.client.submit([job])[0]["id"]))

    def kill_one(self) -> None:
        """Kill something, or start again what is dead; the daemon is started at once, or its queue would be idle."""
        victim = self.rng.choice(VICTIMS)
        name = f"slurmd {self.rng.choice(self.slurm.nodes)}" if victim in ("slurmd", "node") else victim
        if name in self.dead:
            self.dead.pop(name)()
            return
        node = name.rpartition(" ")[2]
        if victim == "daemon":
            self.found.kill()
            time.sleep(self.rng.uniform(0.0, 1.0))
            self.found.start()
        elif victim == "agents":
            for pid in self.agents():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        elif victim == "node" and "slurmctld" in self.dead:
            return  # nothing would mark it as down in Slurm
        elif victim == "node":
            kill_node(self.slurm.folder, node, self.state)
            self.slurm.slurm("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=killed")
            self.dead[name] = lambda: self.start_again("slurmd", "-N", node)
        else:
            self.kill_by_file("slurmctld.pid" if victim == "slurmctld" else f"slurmd.{node}.pid")
            words = ("slurmctld",) if victim == "slurmctld" else ("slurmd", "-N", node)
            self.dead[name] = lambda: self.start_again(*words)
        self.kills[victim] += 1

    def kill_by_file(self, name: str) -> None:
        pid = int((self.slurm.folder / name).read_text())
        os.kill(pid, signal.SIGKILL)
        self.slurm.until(lambda: not Path(f"/proc/{pid}").exists(), "it is gone")

    def start_again(self, *words: str) -> None:
        self.slurm.slurm(*words)
        if words == ("slurmctld",):
            self.slurm.until(self.is_answered, "slurmctld answers")

    def is_answered(self) -> bool:
        return (
            subprocess.run(["scontrol", "ping"], env=self.slurm.env, check=False, capture_output=True).returncode == 0
        )

    def agents(self) -> list[int]:
        """Agents, and not the commands that started them."""
        mark = f"--state-dir\0{self.state}\0".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                text = path.read_bytes()
                if text.split(b"\0")[1:3] == [b"-m", b"cotenant.hosts.agent"] and mark in text:
                    found.append(int(path.parent.name))
        return found

    def await_a_start(self) -> None:
        """Wait until one more job has started; then start again what is dead, if that is what it waits for."""
        before, began_s, revived = self.starts(), time.monotonic(), 0
        while self.starts() == before:
            if self.dead and time.monotonic() - began_s > PATIENCE_S * (revived + 1):
                self.dead.popitem()[1]()
                revived += 1
            time.sleep(0.1)
        self.waits_s.append(time.monotonic() - began_s)

    def starts(self) -> int:
        return sum(path.read_text().count("start") for path in (self.root / "runs").iterdir() if not path.suffix)

    def drain(self) -> None:
        """Wait until all jobs have ended. A pilot that has paused needs its daemon to be started again."""
        give_up_s = time.monotonic() + DRAIN_S
        while time.monotonic() < give_up_s and self.found.client.jobs(active=True, last=1):
            if (self.found.client.status().get("pilot") or {}).get("state") == "paused":
                self.pauses += 1
                self.found.kill()
                self.found.start()
            time.sleep(0.5)

    def say(self) -> None:
        """Progress."""
        print(f"{self.place}: {sum(self.kills.values())} kills, {len(self.promised)} jobs", file=sys.stderr, flush=True)

    def verdict(self) -> list[str]:
        """What became of all jobs, in lines; jobs that failed are named."""
        views = {int(view["id"]): view for view in self.found.client.jobs()}
        lost = [job_id for job_id in self.promised if self.state_of(views, job_id) != "COMPLETED"]
        twice = [job_id for job_id, view in views.items() if self.ran_twice(job_id, view)]
        states = Counter(view["state"] for view in views.values())
        attempts = sum(int(view["attempts"]) for view in views.values())
        lines = [
            f"{sum(self.kills.values())} kills ({', '.join(f'{name} {count}' for name, count in self.kills.items())}),",
            f"{len(self.promised)} jobs acknowledged, {len(views)} known, {attempts} attempts:",
            f"**{len(lost)} lost, {len(twice)} run twice**.",
            f"Times that the pilot had paused at the end: {self.pauses}.",
            f"Longest wait for a job to start after {KILLS_IN_A_ROW} kills: {max(self.waits_s):.0f} s.",
            f"States: {', '.join(f'{state} {count}' for state, count in states.items())}.",
        ]
        for job_id in sorted({*lost, *twice}):
            view = views.get(job_id, {})
            lines.append(f"- job {job_id}: {view.get('state')}, {view.get('reason')}, wrote {self.wrote(job_id)}")
        return lines

    def state_of(self, views: Mapping[int, Mapping[str, object]], job_id: int) -> object:
        """The state of a job, unless its file says another."""
        state = views.get(job_id, {}).get("state")
        return "not ended by its file" if state == "COMPLETED" and self.wrote(job_id)[-1:] != ["end"] else state

    def ran_twice(self, job_id: int, view: Mapping[str, object]) -> bool:
        wrote = self.wrote(job_id)
        return "twice" in wrote or "end" in wrote[:-1] or wrote.count("start") > int(str(view["attempts"]))

    def wrote(self, job_id: int) -> list[str]:
        path = self.root / "runs" / str(job_id)
        return path.read_text().split() if path.exists() else []


def kills(place: str, count: int, seed: int) -> list[str]:
    """Kill so many times, wait for all jobs, and judge; returns lines of the page."""
    root = Path(tempfile.mkdtemp(prefix="ct-kills-", dir="/tmp"))
    root.chmod(0o755)
    (root / "slurm").mkdir()
    slurm = SlurmInFolder(root / "slurm")
    began_s = time.monotonic()
    try:
        slurm.start()
        cluster = Cluster(place, root, slurm, random.Random(seed))
        with server(root=root / "daemon", gpus=None, flags=LOGGED, env=cluster.environment()) as cluster.found:
            with running(cluster.keep_allocations if place == "hosts" else None):
                with running(cluster.submit_jobs):
                    while sum(cluster.kills.values()) < count:
                        time.sleep(cluster.rng.uniform(0.0, 3.0))
                        cluster.kill_one()
                        cluster.say()
                        if sum(cluster.kills.values()) % KILLS_IN_A_ROW == 0:
                            cluster.await_a_start()
                for start in cluster.dead.values():
                    start()
                cluster.drain()
            lines = cluster.verdict()
            (root / "daemon" / "log").rename(root / "log")
        took_s = time.monotonic() - began_s
        if "**0 lost, 0 run twice**." not in lines:
            print(f"the daemon's log: {root}/log", file=sys.stderr)
        return [*lines, "", f"({took_s:.0f} s, seed {seed})"]
    finally:
        slurm.stop()


@contextlib.contextmanager
def running(task: Callable[[threading.Event], None] | None) -> Iterator[None]:
    """Run a task in a thread of its own, until the end of the block."""
    stopping = threading.Event()
    thread = threading.Thread(target=lambda: None if task is None else task(stopping))
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="in each place")
    parser.add_argument("--places", nargs="+", choices=PLACES, default=list(PLACES))
    parser.add_argument("--seed", type=int, default=SEED)
    add_write_option(parser)
    args = parser.parse_args()
    why = why_no_cluster()
    if why is not None:
        parser.error(why)
    load = os.getloadavg()[0]
    lines = [line for place in args.places for line in ("", f"## {place}", "", *kills(place, args.kills, args.seed))]
    print("\n".join(lines))
    if args.write:
        version = subprocess.run(["slurmctld", "-V"], check=True, capture_output=True, text=True).stdout.strip()
        head = [
            f"# Random kills on two nodes of a Slurm, {today()}",
            "",
            f"Commit {commit()}; {version}; Python {platform.python_version()}; {os.cpu_count()} cores, no GPU.",
            f"Load average before {load:.1f}, after {os.getloadavg()[0]:.1f}.",
            f"Repeat with `python -m benchmarks.daemon.cluster_kills --kills {args.kills} --write`.",
            "",
            "Killed at random with SIGKILL: the daemon, all agents, slurmctld, a slurmd, or a node with all that runs",
            "there. A job has run twice if two of it ran at the same time, or it started after its end, or more often",
            "than the daemon knows attempts. It is lost if it was acknowledged and did not complete.",
            f"After {KILLS_IN_A_ROW} kills a job must start before the next kill; each {PATIENCE_S:.0f} s without one",
            "something that is dead is started again.",
        ]
        write_result("cluster-kills", "\n".join([*head, *lines]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
