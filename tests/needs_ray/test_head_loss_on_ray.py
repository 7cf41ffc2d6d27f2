"""The loss of a Ray head while jobs of a pilot run: nothing is decided until there is a head, then they run again."""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import ray_clusters
from gated_jobs import GATE, lines
from places import until
from running import is_running

if importlib.util.find_spec("ray") is None:
    pytest.skip(ray_clusters.MISSING, allow_module_level=True)


@pytest.fixture
def root():
    """A folder whose path is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="ct-ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


class Head:
    """A cluster of one node with a GPU, in a process of its own."""

    def __init__(self, folder):
        program = Path(__file__).parents[1] / "ray_head.py"
        self._process = subprocess.Popen(
            [sys.executable, str(program), str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.address = self._process.stdout.readline().strip()
        assert self.address

    def send(self, word):
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline().strip() == "done", "the cluster's process has ended"

    def close(self):
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


def test_jobs_of_a_lost_head_run_again_once_there_is_another_one(root):
    with contextlib.ExitStack() as stack:
        head = Head(root)
        stack.callback(head.close)
        site = stack.enter_context(ray_clusters.pilot_site(root, head.address, max_allocations=1))
        site.start(simulate=None)
        path = root / "runs"
        requeues = site.submit(GATE.format(path), requeue=True)
        does_not = site.submit(GATE.format(f"{path}2"), requeue=False)
        until(lambda: lines(path) and lines(Path(f"{path}2")), "both run")
        first = [int(lines(Path(file))[0]) for file in (path, f"{path}2")]
        head.send("lose")
        until(lambda: site.client.status()["pilot"]["state"] == "unreachable", "the daemon sees it")
        assert "the pilot cannot go on" in site.client.status()["pilot"]["message"]
        until(lambda: not any(is_running(pid) for pid in first), "the keeper ends the jobs of workers that are gone")
        views = [site.client.job(job_id) for job_id in (requeues, does_not)]
        assert [view["ended_at"] for view in views] == [None, None], "nothing is decided while Ray does not answer"
        assert len(lines(path)) == 1
        head.send("again")
        until(lambda: len(lines(path)) == 2, "it runs again, in an allocation of the new head")
        view = site.client.wait(does_not, timeout_s=60)
        assert (view["state"], "its allocation ended" in view["reason"]) == ("LOST", True)
        Path(f"{path}.open").touch()
        assert site.wait(requeues)["state"] == "COMPLETED"
        assert lines(Path(f"{path}.ends")) == ["end"]
        assert site.client.status()["pilot"]["state"] == "on"
