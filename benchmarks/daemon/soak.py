"""Soak test: a simulated server under load, with wrong memory declarations and `kill -9` at random times.

    python -m benchmarks.daemon.soak [--minutes M] [--jobs N] [--seed N] [--attackers] [--write]

The jobs are the 90 of mix-90, on four A100s whose clock is scaled so that the trace takes M minutes. Every fourth job
declares 30 % of its peak memory, so that it may run out of memory. At times a foreign process allocates all free memory
of a GPU on which a job still grows, so that this job runs out of memory, too. The daemon is killed every 10 to 30 s and
restarted. Each attempt appends a line to a file of its job, so that attempts missing in the journal are found. As root,
the daemon serves all users and the jobs belong to three of them in turn, if they can run some Python.

With --attackers three more users attack all the time: a liar whose jobs promise 4 GiB and take 32, a forger who answers
for the estimator processes, and a flooder with idle connections, endless output and large environments.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import itertools
import math
import os
import platform
import pwd
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks._lib.daemon_process import Server, server
from benchmarks._lib.public_python import public_python, python_path
from benchmarks._lib.results import add_write_option, today, write_result
from benchmarks.daemon.soak_attackers import LIAR_PROMISES_GIB, LIAR_TAKES_GIB, Attackers
from cotenant.core.errors import CotenantError, UsageError
from cotenant.core.units import MiB
from cotenant.sim import traces
from cotenant.sim.trace import Trace
from cotenant.sim.workloads import workload
from cotenant.simserver.gpu import SimulatedOutOfMemory
from cotenant.simserver.server import Attachment, SimulatedServer

TRACE_SPAN_S = 26_000.0
"""Duration of the trace on four shared GPUs, in simulated seconds; sets the time scale."""
POLL_S = 0.25
ATTACK_EVERY_S = 1.0
CANCEL_TIMEOUT_S = 60.0
OUTPUT_LIMITS = {"COTENANT_OUTPUT__MAX_MIB": "16", "COTENANT_OUTPUT__MAX_USER_MIB": "256"}
"""Without a limit the flooder fills 100 GB in ten minutes."""
LOG_TAIL_CHARS = 20_000
FOREIGN_S = 3.0
TOO_SMALL_EVERY = 4
TOO_SMALL = 0.3
OTHERS = ("daemon", "games", "nobody")
"""Users that exist on every Debian and own no files."""


Available = tuple[float, list[int], list[int]]
"""Unix time of a poll, and the available bytes per GPU in descending order: of all GPUs, and of the empty ones."""


def wait_with_memory_s(earlier: dict[str, Any], later: dict[str, Any], polls: list[Available]) -> float:
    """Real seconds between the first poll with enough available memory for the `later` attempt and its placement.

    0 if no poll before the placement showed enough. Only memory counts, not the policy's other rules (activity, for
    example). There are no polls while the daemon is down.
    """
    ended_s, placed_s = _seconds(earlier["ended_at"]), _seconds(later["placed_at"])
    for at_s, shared, empty in polls:
        available = empty if later["sharing"] == "exclusive" else shared
        enough = [available_bytes for available_bytes in available if available_bytes >= later["promised_bytes"]]
        if ended_s <= at_s < placed_s and len(enough) >= len(later["gpu_uuids"]):
            return placed_s - at_s
    return 0.0


class Soak:
    """One soak run: submits, kills, polls, and checks the outcome."""

    def __init__(self, found: Server, *, time_scale: float, seed: int, jobs: int, attacked: bool = False) -> None:
        self.server = found
        self.time_scale = time_scale
        self.rng = random.Random(seed)
        self.trace: Trace = traces.load("mix-90")
        self.count = min(jobs, len(self.trace))
        self.submitted: list[int] = []
        self.kills = self.poll_count = 0
        self.foreign_count = 0
        self.foreign_at_s = 0.0
        self.hit: set[int] = set()  # a foreign process starves each job at most once: attempts are limited
        self.foreign: tuple[Attachment, float] | None = None
        self.over_promised: list[str] = []
        self.down_s: list[float] = []
        self.polls: list[Available] = []
        self.python = public_python()
        self.users = [pwd.getpwnam(other) for other in OTHERS] if self.python is not None else [None]
        found.root.chmod(0o755)  # all users connect to the socket
        for number in range(len(self.users)):
            (found.root / f"of-{number}").mkdir()
            (found.root / f"of-{number}").chmod(0o777)
        self.attackers: Attackers | None = None
        self.poll_s: list[float] = []
        self.max_rss_bytes = 0
        if attacked:
            if self.python is None:
                raise UsageError("attackers need root, and a Python that other users can run")
            self.attackers = Attackers(
                found.root, found.socket, self._submit_as, python=self.python, python_path=python_path(), seed=seed
            )

    def run(self) -> list[dict[str, Any]]:
        """Submit all jobs on schedule, kill and poll in between; returns the views of the honest jobs at the end."""
        began_s = time.monotonic()
        kill_at_s = began_s + self.rng.uniform(10, 30)
        self.foreign_at_s = began_s + self.rng.uniform(15, 30)
        attack_at_s = began_s
        while True:
            now_s = time.monotonic()
            while len(self.submitted) < self.count and self._due_s() <= now_s - began_s:
                self._submit()
            if now_s >= kill_at_s:
                self._kill()
                kill_at_s = time.monotonic() + self.rng.uniform(10, 30)
            self._poll()
            self._start_foreign_process()
            active = {job["id"] for job in self.server.client.jobs(active=True)}
            if self.attackers is not None and now_s >= attack_at_s:
                self.attackers.submit_jobs(self.server.client, active)
                attack_at_s = now_s + ATTACK_EVERY_S
            if len(self.submitted) == self.count and active.isdisjoint(self.submitted):
                return [job for job in self.server.client.jobs() if job["id"] in set(self.submitted)]
            time.sleep(POLL_S)

    def _due_s(self) -> float:
        return self.trace.submit_s[len(self.submitted)] / self.time_scale

    def _submit(self) -> None:
        number = len(self.submitted)
        name = self.trace.workloads[self.trace.workload_of[number]]
        found = workload(name)
        declared = found.peak_bytes * (TOO_SMALL if self._is_too_small(number) else 1.05)
        python = self.python or sys.executable
        program = f"{python} -m cotenant.simserver.fake_job --workload {name} --seed {number}"
        script = f"echo start >> {self._note(number)}; exec {program}"
        job = {
            "command": ["sh", "-c", script],
            "workdir": str(self._note(number).parent),
            "env": {"PATH": "/usr/bin:/bin", "PYTHONPATH": python_path()},
            "name": name,
            "gpus": found.gpus,
            "declared_bytes": int(declared),
        }
        self.submitted.append(self._submit_as(self.users[number % len(self.users)], job))

    def _note(self, number: int) -> Path:
        return self.server.root / f"of-{number % len(self.users)}" / f"starts-{number}"

    def _submit_as(self, user: pwd.struct_passwd | None, job: dict[str, Any]) -> int:
        """Submit the job from a process of `user`, since the daemon reads the user from SO_PEERCRED; the job's id."""
        if user is None:
            return int(self.server.client.submit([job])[0]["id"])
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.setgroups([])
                os.setgid(user.pw_gid)
                os.setuid(user.pw_uid)
                os.write(write_end, str(self.server.client.submit([job])[0]["id"]).encode())
                code = 0
            except CotenantError:
                pass  # the parent sees that there is no id
            finally:
                os._exit(code)
        os.close(write_end)
        with os.fdopen(read_end, "rb") as pipe:
            answer = pipe.read()
        os.waitpid(child, 0)
        return int(answer)  # ValueError: it was refused

    def _kill(self) -> None:
        self.server.kill()
        self.kills += 1
        began_s = time.monotonic()
        self.server.start()
        self.down_s.append(time.monotonic() - began_s)

    def _poll(self) -> None:
        self.poll_count += 1
        began_s = time.monotonic()
        gpus = self.server.client.gpus()
        self.poll_s.append(time.monotonic() - began_s)
        self.max_rss_bytes = max(self.max_rss_bytes, self.server.process.memory_info().rss)
        shared = sorted((gpu["available_bytes"] or 0 for gpu in gpus), reverse=True)
        empty = sorted((gpu["available_bytes"] or 0 for gpu in gpus if not gpu["residents"]), reverse=True)
        self.polls.append((time.time(), shared, empty))
        for gpu in gpus:
            if gpu["promised_bytes"] > gpu["memory_total_bytes"]:
                self.over_promised.append(f"GPU {gpu['index']}: {gpu['promised_bytes']} promised")

    def _start_foreign_process(self) -> None:
        """Allocate all free memory of a GPU whose job uses less than half of its promise, for `FOREIGN_S`."""
        now_s = time.monotonic()
        if self.foreign is not None:
            attachment, until_s = self.foreign
            if now_s >= until_s:
                attachment.detach()
                self.foreign = None
            return
        if now_s < self.foreign_at_s:
            return
        for gpu in self.server.client.gpus():
            for resident in gpu["residents"]:
                job_id = resident["job_id"]
                if (
                    job_id in self.hit
                    or job_id not in self.submitted
                    or self._is_too_small(self.submitted.index(job_id))
                ):
                    continue
                if (resident["observed_bytes"] or 0) * 2 >= resident["promised_bytes"]:
                    continue
                server = SimulatedServer.open(self.server.root / "state" / "simulated")
                attachment = server.attach(gpu["uuid"], context_bytes=0, label="foreign")
                with contextlib.suppress(SimulatedOutOfMemory):  # the job has grown since
                    attachment.allocate(max(0, server.gpu(gpu["index"]).free_bytes - 64 * MiB))
                self.hit.add(job_id)
                self.foreign_count += 1
                self.foreign = attachment, now_s + FOREIGN_S
                self.foreign_at_s = now_s + self.rng.uniform(15, 30)
                return

    def _is_too_small(self, number: int) -> bool:
        return number % TOO_SMALL_EVERY == TOO_SMALL_EVERY - 1

    def faults(self, views: list[dict[str, Any]]) -> list[str]:
        """Violated invariants: jobs lost, started without an attempt, not completed, run as the wrong user."""
        found = list(self.over_promised)
        if sorted(job["id"] for job in views) != sorted(self.submitted):
            found.append(f"{len(self.submitted)} jobs submitted, {len(views)} known")
        for number, job_id in enumerate(self.submitted):
            view = self.server.client.job(job_id)
            note = self._note(number)
            starts = len(note.read_text().splitlines()) if note.exists() else 0
            if starts != sum(attempt["started_at"] is not None for attempt in view["attempt_list"]):
                found.append(f"job {job_id}: {starts} starts, {view['attempts']} attempts")
            user = self.users[number % len(self.users)]
            if user is not None and view["user"] != user.pw_name:
                found.append(f"job {job_id}: ran as {view['user']}, was submitted by {user.pw_name}")
            if view["state"] != "COMPLETED":
                words = b"".join(self.server.client.logs(job_id, stream="stderr")).decode(errors="replace").split("\n")
                last = next((word for word in reversed(words) if word), "nothing on stderr")
                found.append(f"job {job_id}: {view['state']} ({view['reason']}): {last}")
        return found


def report(soak: Soak, views: list[dict[str, Any]], *, took_s: float, seed: int) -> str:
    """The result page, as Markdown."""
    faults = soak.faults(views)
    retried = [view for view in views if view["attempts"] > 1]
    waits_s, memory_waits_s = [], []
    for job in retried:
        attempts = soak.server.client.job(job["id"])["attempt_list"]
        for earlier, later in itertools.pairwise(attempts):
            waits_s.append(_seconds(later["placed_at"]) - _seconds(earlier["ended_at"]))
            memory_waits_s.append(wait_with_memory_s(earlier, later, soak.polls))
    states = ", ".join(f"{count} {state}" for state, count in Counter(view["state"] for view in views).items())
    scale = soak.time_scale
    machine = f"{platform.machine()}, Python {platform.python_version()}, seed {seed}"
    down = f"median {statistics.median(soak.down_s or [0]):.2f} s, max {max(soak.down_s, default=0):.2f} s"
    waited = f"median {statistics.median(waits_s or [0]) * scale:.0f} s, max {max(waits_s, default=0) * scale:.0f} s"
    with_memory_s = sorted(wait_s * scale for wait_s in memory_waits_s) or [0.0]
    waited_with_memory = (
        f"median {statistics.median(with_memory_s):.0f} s, "
        f"P95 {with_memory_s[math.ceil(0.95 * len(with_memory_s)) - 1]:.0f} s, max {with_memory_s[-1]:.0f} s"
    )
    queued_s = [view["queueing_s"] * scale for view in views if view["queueing_s"] is not None]
    users = ", ".join(sorted({view["user"] for view in views}))
    lines = [
        f"# Soak test of {took_s / 60:.1f} minutes, {today()}",
        "",
        f"{machine}; simulated 4 x A100-40GB, time scale {scale:.0f}. Waits are in simulated seconds.",
        f"Repeat with `python -m benchmarks.daemon.soak{' --attackers' if soak.attackers else ''} --write`.",
        "",
        f"- {len(soak.submitted)} jobs of mix-90, submitted by {users}: {states}.",
        f"- Queueing time: median {statistics.median(queued_s):.0f} s, max {max(queued_s):.0f} s.",
        f"- {soak.kills} `kill -9` of the daemon; recovery (real time): {down}.",
        f"- {soak.foreign_count} times a foreign process allocated all free memory of a growing job's GPU,",
        f"  for {FOREIGN_S * scale:.0f} s.",
        f"- {len(retried)} jobs ran out of memory; {len(waits_s)} retries. From failure to the next placement:",
        f"  {waited}; {sum(wait_s * scale <= 60 for wait_s in waits_s)} within 60 s, under all the faults above.",
        "- From enough available memory to the next placement, whatever other rules of the policy apply:",
        f"  {waited_with_memory}; {sum(wait_s <= 60 for wait_s in with_memory_s)} within 60 s.",
        f"  GPUs were polled every {POLL_S * scale:.0f} s while the daemon was up.",
        *attack_lines(soak),
        f"- {soak.poll_count} polls of the GPUs; promises above a GPU's memory: {len(soak.over_promised)}.",
        f"- Faults (job lost, start without an attempt, not completed, over-promised): {len(faults)}.",
        *(f"  - {fault}" for fault in faults[:20]),
        "",
    ]
    return "\n".join(lines)


def attack_lines(soak: Soak) -> list[str]:
    """What the attackers did, and what it cost the daemon."""
    if soak.attackers is None:
        return []
    views = {job["id"]: job for job in soak.server.client.jobs() if job["id"] in soak.attackers.jobs}
    by_role: dict[str, Counter[str]] = {}
    for job_id, role in soak.attackers.jobs.items():
        by_role.setdefault(role, Counter())[views[job_id]["state"] if job_id in views else "UNKNOWN"] += 1
    states = "; ".join(
        f"{role}: " + ", ".join(f"{count} {state}" for state, count in found.items()) for role, found in by_role.items()
    )
    forger = [soak.server.client.job(job_id) for job_id, role in soak.attackers.jobs.items() if role == "forger"]
    refused = sum((job["estimate_error"] or "").startswith("the estimator's answer is refused") for job in forger)
    answered = sum(job["estimate_error"] is not None or job["estimate"] is not None for job in forger)
    tracebacks = (soak.server.root / "log").read_text().count("Traceback")
    poll_s = sorted(soak.poll_s)
    ms = [1e3 * poll_s[int(share * (len(poll_s) - 1))] for share in (0.5, 0.99, 1.0)]
    victims = sum(view["attempts"] > 1 for view in soak.server.client.jobs() if view["id"] in soak.submitted)
    return [
        f"- Attackers' jobs: {states}.",
        f"  The liar promises {LIAR_PROMISES_GIB} GiB and takes {LIAR_TAKES_GIB}; {victims} honest jobs were retried.",
        f"  {answered} estimates of the forger had an answer, {refused} of them were refused.",
        f"- `gpus` was answered in {ms[0]:.0f} ms (median), {ms[1]:.0f} ms (P99), {ms[2]:.0f} ms (max, real time);",
        f"  largest resident set {soak.max_rss_bytes / MiB:.0f} MiB; tracebacks in its log: {tracebacks}.",
    ]


def _seconds(text: str) -> float:
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


@contextlib.contextmanager
def attacked(soak: Soak, minutes: float) -> Iterator[None]:
    """Let the attackers work; afterwards their programs end and their jobs are cancelled."""
    if soak.attackers is None:
        yield
        return
    soak.attackers.start(2 * minutes)
    try:
        yield
    finally:
        soak.attackers.close()
        soak.attackers.cancel_all(soak.server.client)
        give_up_s = time.monotonic() + CANCEL_TIMEOUT_S
        while soak.server.client.jobs(active=True, last=1) and time.monotonic() < give_up_s:
            time.sleep(POLL_S)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0, help="real duration (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=90, help="submit only the first N jobs, at the same rate")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    parser.add_argument("--attackers", action="store_true", help="three more users attack the daemon (needs root)")
    add_write_option(parser)
    args = parser.parse_args()
    time_scale = TRACE_SPAN_S / (60 * args.minutes)
    began_s = time.monotonic()
    try:
        python = public_python()
        options: dict[str, Any] = {}
        if python is not None:
            env = {"PYTHONPATH": python_path(), **OUTPUT_LIMITS}
            options = {"flags": ("--all-users",), "python": python, "env": env}
        with server(gpus="4xA100-40GB", time_scale=time_scale, **options) as found:
            soak = Soak(found, time_scale=time_scale, seed=args.seed, jobs=args.jobs, attacked=args.attackers)
            try:
                with attacked(soak, args.minutes):
                    views = soak.run()
            except CotenantError:
                print((found.root / "log").read_text()[-LOG_TAIL_CHARS:], file=sys.stderr)
                raise
            text = report(soak, views, took_s=time.monotonic() - began_s, seed=args.seed)
    except CotenantError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(text)
    if args.write:
        write_result("soak-attacked" if args.attackers else "soak", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
