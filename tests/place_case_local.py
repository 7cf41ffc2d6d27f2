"""Jobs of the daemon of this machine."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from cotenant.osutil import procfs
from sites import Site


def missing():
    return None


class Case:
    adopts = True
    after_node_loss = "LOST"

    def __init__(self, root, first):
        self.root = root
        self._site = Site(root)
        self._site.env["COTENANT_POLICY__OPTIONS__WARMUP_S"] = "0"
        self._site.start()
        self.client, self.env = self._site.client, self._site.env
        self._first = self._site.submit(first)

    def crash(self):
        self._site.kill()
        self._site.start()

    def lose_node(self):
        self._site.kill()
        jobs = [pid for pid, _ in self._site.left_behind()]
        runners = {runner for pid in jobs if (runner := runner_of(pid)) is not None}
        for number in (signal.SIGSTOP, signal.SIGKILL):  # all at once: no runner may see the end of its job
            for pid in (*runners, *jobs):
                send(pid, number)
        self._site.start()

    def ended(self):
        view = self.client.job(self._first)
        return view["state"] if view["ended_at"] is not None else None

    def close(self):
        self._site.stop()
        self._site.kill_left_behind()


def runner_of(pid):
    """The runner whose child a process is, or None; it has an environment of its own."""
    stat = procfs.read_stat(pid)
    with contextlib.suppress(OSError):
        if stat is not None and b"cotenant/runner" in Path(f"/proc/{stat.parent}/cmdline").read_bytes():
            return stat.parent
    return None


def send(pid, number):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
