"""A simulated server under load for a while: the 90 jobs of a published trace, wrong promises, and `kill -9` at random.

    python -m benchmarks.daemon.soak [--minutes M] [--jobs N] [--seed N] [--write]

Four A100s whose time runs as fast as the trace needs to last so long. Every fourth job declares three tenths of what it
will take, so that it may run out of memory; and now and then a stranger takes all that is free on a card on which a job
is still growing, which then does. The daemon is killed every ten to thirty seconds and started again. Each
attempt leaves a line in a file of its job, so that attempts that nobody knows of would be seen. As root, the daemon
serves all users and the jobs are those of three of them in turn, if there is a Python that they may run.
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
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks._lib.daemon_process import Server, server
from benchmarks._lib.results import add_write_option, today, write_result
from cotenant.core.errors import CotenantError
from cotenant.core.units import MiB
from cotenant.sim import traces
from cotenant.sim.trace import Trace
from cotenant.sim.workloads import workload
from cotenant.simserver.server import Attachment, SimulatedServer

TRACE_SPAN_S = 26_000.0
"""How long the trace takes on four GPUs that are shared; sets the time scale."""
LOOK_S = 0.25
STRANGER_S = 3.0
TOO_SMALL_EVERY = 4
TOO_SMALL = 0.3
OTHERS = ("daemon", "games", "nobody")
"""Users that every Debian has, and who have nothing."""


def public_python() -> str | None:
    """A Python that others may run, as root; None if there is none, or we are somebody else."""
    if os.geteuid() != 0:
        return None
    for each in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        command = [each, "-c", "import cotenant.simserver.fake_job"]
        env = {"PATH": os.defpath, "PYTHONPATH": python_path()}
        with contextlib.suppress(OSError):
            other = {"user": "nobody", "group": "nogroup", "cwd": "/", "env": env}
            if subprocess.run(command, capture_output=True, check=False, **other).returncode == 0:
                return each
    return None


def python_path() -> str:
    """Where our modules are."""
    return os.pathsep.join(path for path in sys.path if path.endswith(("site-packages", "src")))


Room = tuple[float, list[int], list[int]]
"""When it was looked (seconds since 1970), and the bytes that GPUs had to promise, most first: all, the empty ones."""


def wait_for_room_s(earlier: dict[str, Any], later: dict[str, Any], rooms: list[Room]) -> float:
    """Real seconds from when its GPUs were first seen to have memory for the `later` attempt until that was placed.

    0 where none was seen before: it took the room between two looks. Other rules of the policy, on activity say, are
    not looked at. While the daemon is down, nothing is seen.
    """
    ended_s, placed_s = _seconds(earlier["ended_at"]), _seconds(later["placed_at"])
    for at_s, shared, alone in rooms:
        room = alone if later["sharing"] == "exclusive" else shared
        enough = [each for each in room if each >= later["promised_bytes"]]
        if ended_s <= at_s < placed_s and len(enough) >= len(later["gpu_uuids"]):
            return placed_s - at_s
    return 0.0


class Soak:
    """One run."""

    def __init__(self, found: Server, *, time_scale: float, seed: int, jobs: int) -> None:
        self.server = found
        self.time_scale = time_scale
        self.rng = random.Random(seed)
        self.trace: Trace = traces.load("mix-90")
        self.count = min(jobs, len(self.trace))
        self.submitted: list[int] = []
        self.kills = self.looks = 0
        self.strangers = 0
        self.stranger_at_s = 0.0
        self.hit: set[int] = set()  # jobs that a stranger was sent to: once each, for attempts are few
        self.stranger: tuple[Attachment, float] | None = None
        self.over: list[str] = []
        self.down_s: list[float] = []
        self.rooms: list[Room] = []
        self.python = public_python()
        self.users = [pwd.getpwnam(other) for other in OTHERS] if self.python is not None else [None]
        found.root.chmod(0o755)  # the socket is for all
        for number in range(len(self.users)):
            (found.root / f"of-{number}").mkdir()
            (found.root / f"of-{number}").chmod(0o777)

    def run(self) -> list[dict[str, Any]]:
        """Submit all jobs at their times, kill and look in between; the views of all jobs at the end."""
        began_s = time.monotonic()
        kill_at_s = began_s + self.rng.uniform(10, 30)
        self.stranger_at_s = began_s + self.rng.uniform(15, 30)
        while True:
            now_s = time.monotonic()
            while len(self.submitted) < self.count and self._due_s() <= now_s - began_s:
                self._submit()
            if now_s >= kill_at_s:
                self._kill()
                kill_at_s = time.monotonic() + self.rng.uniform(10, 30)
            self._look()
            self._send_stranger()
            if len(self.submitted) == self.count and not self.server.client.jobs(active=True):
                return self.server.client.jobs()
            time.sleep(LOOK_S)

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
        """The id of the job, submitted by a process of that user: who asks is what the kernel says."""
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
            finally:
                os._exit(code)
        os.close(write_end)
        with os.fdopen(read_end, "rb") as told:
            answer = told.read()
        os.waitpid(child, 0)
        return int(answer)

    def _kill(self) -> None:
        self.server.kill()
        self.kills += 1
        began_s = time.monotonic()
        self.server.start()
        self.down_s.append(time.monotonic() - began_s)

    def _look(self) -> None:
        self.looks += 1
        gpus = self.server.client.gpus()
        shared = sorted((each["available_bytes"] or 0 for each in gpus), reverse=True)
        alone = sorted((each["available_bytes"] or 0 for each in gpus if not each["residents"]), reverse=True)
        self.rooms.append((time.time(), shared, alone))
        for gpu in gpus:
            if gpu["promised_bytes"] > gpu["memory_total_bytes"]:
                self.over.append(f"GPU {gpu['index']}: {gpu['promised_bytes']} promised")

    def _send_stranger(self) -> None:
        """Take what is free on a card where a job is at less than half of its promise, for some seconds."""
        now_s = time.monotonic()
        if self.stranger is not None:
            attachment, until_s = self.stranger
            if now_s >= until_s:
                attachment.detach()
                self.stranger = None
            return
        if now_s < self.stranger_at_s:
            return
        for gpu in self.server.client.gpus():
            for each in gpu["residents"]:
                job_id = each["job_id"]
                if (
                    job_id in self.hit
                    or job_id not in self.submitted
                    or self._is_too_small(self.submitted.index(job_id))
                ):
                    continue
                if (each["observed_bytes"] or 0) * 2 >= each["promised_bytes"]:
                    continue
                server = SimulatedServer.open(self.server.root / "state" / "simulated")
                attachment = server.attach(gpu["uuid"], context_bytes=0, label="stranger")
                attachment.allocate(max(0, server.card(gpu["index"]).free_bytes - 64 * MiB))
                self.hit.add(job_id)
                self.strangers += 1
                self.stranger = attachment, now_s + STRANGER_S
                self.stranger_at_s = now_s + self.rng.uniform(15, 30)
                return

    def _is_too_small(self, number: int) -> bool:
        return number % TOO_SMALL_EVERY == TOO_SMALL_EVERY - 1

    def faults(self, views: list[dict[str, Any]]) -> list[str]:
        """What must not have happened."""
        found = list(self.over)
        if sorted(each["id"] for each in views) != self.submitted:
            found.append(f"{len(self.submitted)} jobs submitted, {len(views)} known")
        for number, job_id in enumerate(self.submitted):
            view = self.server.client.job(job_id)
            note = self._note(number)
            starts = len(note.read_text().splitlines()) if note.exists() else 0
            if starts != sum(each["started_at"] is not None for each in view["attempt_list"]):
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
    """The result as a page."""
    faults = soak.faults(views)
    retried = [view for view in views if view["attempts"] > 1]
    waits_s, room_waits_s = [], []
    for each in retried:
        attempts = soak.server.client.job(each["id"])["attempt_list"]
        for earlier, later in itertools.pairwise(attempts):
            waits_s.append(_seconds(later["placed_at"]) - _seconds(earlier["ended_at"]))
            room_waits_s.append(wait_for_room_s(earlier, later, soak.rooms))
    states = ", ".join(f"{count} {state}" for state, count in Counter(view["state"] for view in views).items())
    scale = soak.time_scale
    machine = f"{platform.machine()}, Python {platform.python_version()}, seed {seed}"
    down = f"{statistics.median(soak.down_s or [0]):.2f} s in the median, {max(soak.down_s, default=0):.2f} s at most"
    waited = f"{statistics.median(waits_s or [0]) * scale:.0f} s in the median, {max(waits_s, default=0) * scale:.0f} s"
    roomy = sorted(each * scale for each in room_waits_s) or [0.0]
    waited_with_room = (
        f"{statistics.median(roomy):.0f} s in the median, "
        f"{roomy[math.ceil(0.95 * len(roomy)) - 1]:.0f} s in the 95th percentile, {roomy[-1]:.0f} s at most"
    )
    queued_s = [view["queueing_s"] * scale for view in views if view["queueing_s"] is not None]
    people = ", ".join(sorted({view["user"] for view in views}))
    lines = [
        f"# A soak of {took_s / 60:.1f} minutes, {today()}",
        "",
        f"{machine}; simulated 4 x A100-40GB, time runs {scale:.0f} times as fast.",
        "Repeat with `python -m benchmarks.daemon.soak --write`.",
        "",
        f"- {len(soak.submitted)} jobs of mix-90, of {people}: {states}.",
        f"- Until the first start: {statistics.median(queued_s):.0f} s in the median, {max(queued_s):.0f} s at most.",
        f"- {soak.kills} times `kill -9`; serving again after {down}.",
        f"- {soak.strangers} times a stranger took what was free on the card of a job that was growing, and kept it",
        f"  for {STRANGER_S:.0f} s, which are {STRANGER_S * scale:.0f} s of the server.",
        f"- {len(retried)} jobs ran out of memory and were tried again, {len(waits_s)} times; the next attempt",
        f"  was placed after {waited} at most, in the server's time,",
        f"  within 60 s {sum(each * scale <= 60 for each in waits_s)} times, strangers and restarts included.",
        "- From when GPUs were seen to have the memory for it, whatever else the policy asks of them, after",
        f"  {waited_with_room},",
        f"  within 60 s {sum(each <= 60 for each in roomy)} times. The GPUs were looked at every {LOOK_S} s, which are",
        f"  {LOOK_S * scale:.0f} s of the server, while the daemon was up.",
        f"- {soak.looks} looks at the GPUs, {len(soak.over)} times more promised than there is.",
        f"- Faults (a job lost, started without an attempt, not completed, over-promised): {len(faults)}.",
        *(f"  - {fault}" for fault in faults[:20]),
        "",
    ]
    return "\n".join(lines)


def _seconds(text: str) -> float:
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--jobs", type=int, default=90, help="only the first N, at the pace of all")
    parser.add_argument("--seed", type=int, default=0)
    add_write_option(parser)
    args = parser.parse_args()
    time_scale = TRACE_SPAN_S / (60 * args.minutes)
    began_s = time.monotonic()
    try:
        flags = ("--all-users",) if public_python() is not None else ()
        with server(cards="4xA100-40GB", time_scale=time_scale, flags=flags) as found:
            soak = Soak(found, time_scale=time_scale, seed=args.seed, jobs=args.jobs)
            views = soak.run()
            text = report(soak, views, took_s=time.monotonic() - began_s, seed=args.seed)
    except CotenantError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(text)
    if args.write:
        write_result("soak", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
