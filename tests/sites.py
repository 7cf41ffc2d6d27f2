"""A real daemon on a simulated server, in a folder of its own, with nothing left behind."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

from cotenant.core.errors import UsageError
from cotenant.daemon.client import Client

TIMEOUT_S = 120
COTENANT = (sys.executable, "-m", "cotenant")


class Site:
    """A state folder, the daemons that lived on it, and its clients."""

    command = COTENANT

    def __init__(self, root):
        self.root = root
        self.mark = uuid.uuid4().hex
        self.socket = root / "sock"
        self.env = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "COTENANT_SOCKET": str(self.socket),
            "COTENANT_SCHEDULING__STOP_GRACE_S": "0.5",
            "XDG_STATE_HOME": str(root / "state"),
            "XDG_CONFIG_HOME": str(root / "config"),
            "COTENANT_TEST_MARK": self.mark,
        }
        self.log = root / "daemon.log"
        self.daemon = None
        self.gates = {}
        self.client = Client(self.socket, timeout_s=TIMEOUT_S)

    def set_constant(self, module, name, value):
        """Give a constant this value in daemons and command lines of the site: a time-out that a test waits for."""
        code = f"import {module} as module; module.{name} = {value!r}; from cotenant.cli.main import run; run()"
        self.command = (self.command[0], "-c", code)

    def start(self, *flags, simulate="2xA100-40GB"):
        """Start a daemon, on the driver's GPUs with `simulate=None`; returns once it serves."""
        read_end, write_end = os.pipe()
        simulated = () if simulate is None else ("--simulate", simulate, "--time-scale", "60")
        fast = (*simulated, "--tick", "0.1")
        with self.log.open("ab") as log:
            self.daemon = subprocess.Popen(
                [*self.command, "daemon", *fast, *flags, "--ready-fd", str(write_end)],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(write_end,),
            )
        os.close(write_end)
        with os.fdopen(read_end, "rb") as body:
            answer = json.loads(body.read() or b"{}")
        assert "pid" in answer, (answer, self.log.read_text())
        return self

    def kill(self):
        """End the daemon as a crash would."""
        self.daemon.kill()
        self.daemon.wait(TIMEOUT_S)

    def stop(self):
        if self.daemon is not None:
            self.daemon.terminate()
            assert self.daemon.wait(TIMEOUT_S) == 0, self.log.read_text()
            self.daemon = None

    def cli(self, *args, cwd=None):
        """Run a command line to its end."""
        return subprocess.run(
            [*self.command, *args],
            env=self.env,
            cwd=cwd or self.root,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )

    def popen(self, *args, stdin=None):
        """Start a command line that goes on."""
        return subprocess.Popen(
            [*self.command, *args],
            env=self.env,
            cwd=self.root,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def job(self, *command, **fields):
        """The job of a client: `command`, or a shell script."""
        argv = ["sh", "-c", command[0]] if len(command) == 1 else list(command)
        body = {"command": argv, "workdir": str(self.root), "env": self.env, "name": "job", "declared_bytes": 2**30}
        return {**body, **fields}

    def submit(self, *command, **fields):
        """Id of a new job."""
        return self.client.submit([self.job(*command, **fields)])[0]["id"]

    def simulated(self, *options, gib, **fields):
        """Id of a new job that uses simulated GPUs, `gib` of memory promised."""
        command = (sys.executable, "-m", "cotenant.simserver.fake_job", *options)
        return self.submit(*command, declared_bytes=int(gib * 2**30), **fields)

    def wait(self, job_id):
        """The view of a job that is over."""
        view = self.client.wait(job_id, timeout_s=TIMEOUT_S)
        assert view["exit_code"] is not None, (view, self.log.read_text())
        return view

    def started(self, job_id):
        """The view of a job that has started."""
        view = self.client.wait(job_id, until="started", timeout_s=TIMEOUT_S)
        assert view["started_at"] is not None, (view, self.log.read_text())
        return view

    def gate(self):
        """A shell command that jobs wait in until `open_gate` is called with it, however many and however late."""
        held = (self.root / f"gate-{len(self.gates)}").open("w")
        fcntl.flock(held, fcntl.LOCK_EX)
        command = f"flock --shared {held.name} true"
        self.gates[command] = held
        return command

    def open_gate(self, command):
        """Let the jobs that wait in `command` go on."""
        self.gates[command].close()

    def left_behind(self):
        """Processes that carry our mark in their environment, zombies left out."""
        found = []
        for path in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                pid = int(path.name)
                if self.mark.encode() in (path / "environ").read_bytes():
                    found.append((pid, (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()))
        return found

    def kill_left_behind(self):
        """Kill what `left_behind` finds; some of it may be ending."""
        for pid, _ in self.left_behind():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def open_site():
    """A site without a daemon. Afterwards all of its jobs are cancelled, and no process may be left."""
    root = Path(tempfile.mkdtemp(prefix="cotenant-e2e-"))
    site = Site(root)
    try:
        yield site
        if site.daemon is not None and site.daemon.poll() is None:
            for view in site.client.jobs(active=True):
                with contextlib.suppress(UsageError):  # it has ended meanwhile
                    site.client.cancel(view["id"])
            for view in site.client.jobs():
                site.wait(view["id"])
            site.stop()
        assert site.left_behind() == [], site.log.read_text() if site.log.exists() else ""
    finally:
        site.kill_left_behind()
        shutil.rmtree(root, ignore_errors=True)
