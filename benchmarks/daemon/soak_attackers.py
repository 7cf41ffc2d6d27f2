"""Hostile users of the soak test: a liar, a forger and a flooder, each with the rights of a user of the machine."""

from __future__ import annotations

import base64
import contextlib
import os
import pwd
import random
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks._lib.attackers import FLOODER, FORGER, HANGING_PYTHON
from benchmarks._lib.forgeries import forged_bytes
from cotenant.core.codec import encode
from cotenant.core.errors import CotenantError
from cotenant.core.estimate import Estimate
from cotenant.core.units import GiB

USERS = {"liar": "lp", "forger": "mail", "flooder": "news"}
"""Users that exist on every Debian and own no running processes."""
LIAR_PROMISES_GIB, LIAR_TAKES_GIB = 4, 32
FORGED_LINES = 5000
MAX_OPEN_JOBS = 4
"""Unfinished jobs of an attacker at once."""
HONEST = Estimate(
    peak_allocated_bytes=5 * GiB,
    peak_reserved_bytes=6 * GiB,
    context_bytes=GiB // 2,
    margin_bytes=GiB // 2,
    coverage=0.99,
    estimator="traced",
    version="1",
    gpu="A100-40GB",
)

Submit = Callable[[pwd.struct_passwd, dict[str, Any]], int]


class Attackers:
    """Submits the attackers' jobs, and runs their programs until `close`.

    `submit` submits a job as a user and returns its id. `python`: an interpreter that every user may run.
    """

    def __init__(self, root: Path, socket: Path, submit: Submit, *, python: str, python_path: str, seed: int) -> None:
        self._root = root
        self._socket = socket
        self._submit = submit
        self._python = python
        self._env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": python_path}
        self._rng = random.Random(seed)
        self._users = {role: pwd.getpwnam(name) for role, name in USERS.items()}
        self._programs: list[subprocess.Popen[bytes]] = []
        self.jobs: dict[int, str] = {}
        for role, user in self._users.items():
            self._folder(role).mkdir(mode=0o755)
            os.chown(self._folder(role), user.pw_uid, user.pw_gid)

    def start(self, minutes: float) -> None:
        """Start the programs that attack from outside of jobs."""
        lines = (forged_bytes({"estimate": encode(HONEST)}, self._rng) for _ in range(FORGED_LINES))
        forged = self._folder("forger") / "forged"
        forged.write_bytes(b"\n".join(base64.b64encode(line) for line in lines))
        python = self._folder("forger") / "python"
        python.write_text(HANGING_PYTHON)
        python.chmod(0o755)
        (self._folder("forger") / "train.py").touch()
        self._run("forger", FORGER, str(forged))
        self._run("flooder", FLOODER, str(self._socket), str(60 * minutes))

    def submit_jobs(self, client: Any, active: set[int]) -> None:
        """Give each attacker one more job, if fewer than `MAX_OPEN_JOBS` of theirs are among the `active` ids.

        The forger's jobs are held; those with an answer are cancelled.
        """
        for job_id in active & self.jobs.keys():
            if self.jobs[job_id] == "forger":
                view = client.job(job_id)
                if view["estimate_error"] is not None or view["estimate"] is not None:
                    client.cancel(job_id)
        open_jobs = Counter(role for job_id, role in self.jobs.items() if job_id in active)
        for role, user in self._users.items():
            if open_jobs[role] < MAX_OPEN_JOBS:
                with contextlib.suppress(ValueError):  # refused, e.g. because the daemon is down or a limit is reached
                    self.jobs[self._submit(user, self._job(role))] = role

    def close(self) -> None:
        """End the programs."""
        for program in self._programs:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
            program.wait()

    def cancel_all(self, client: Any) -> None:
        """Cancel the attackers' unfinished jobs."""
        for job_id in self.jobs:
            with contextlib.suppress(CotenantError):
                client.cancel(job_id)

    def _job(self, role: str) -> dict[str, Any]:
        fake = f"exec {self._python} -m cotenant.simserver.fake_job"
        job: dict[str, Any] = {"workdir": str(self._folder(role)), "env": self._env, "name": role, "gpus": 1}
        if role == "liar":
            script = f"{fake} --duration 600 --peak-gib {LIAR_TAKES_GIB} --seed {self._rng.randrange(10**6)}"
            return {**job, "command": ["sh", "-c", script], "declared_bytes": LIAR_PROMISES_GIB * GiB}
        if role == "forger":  # its estimate is forged while its Python hangs; it never runs
            return {**job, "command": ["./python", "train.py"], "hold": True}
        script = "timeout 20 yes 'RuntimeError: CUDA out of memory. Tried to allocate 9999999999999 GiB'"
        big = {"FLOOD": "x" * 100_000}
        return {**job, "command": ["sh", "-c", script], "env": {**self._env, **big}, "declared_bytes": GiB}

    def _folder(self, role: str) -> Path:
        return self._root / role

    def _run(self, role: str, program: str, *args: str) -> None:
        user = self._users[role]
        self._programs.append(
            subprocess.Popen(
                [self._python, "-c", program, *args],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=self._folder(role),
                env=self._env,
                user=user.pw_uid,
                group=user.pw_gid,
                extra_groups=[],
                start_new_session=True,
            )
        )
