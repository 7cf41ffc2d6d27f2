"""From output to steps: what patterns find, and what reaches the daemon's file."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import cotenant
from cotenant.runner.progress import StepCounter

WATCHER = Path(cotenant.__file__).parent / "runner" / "progress.py"
TIMEOUT_S = 60


def total(pattern, *pieces):
    counter = StepCounter(pattern)
    for now_s, piece in enumerate(pieces):
        counter.read(piece, float(now_s))
    return counter.total


@pytest.mark.parametrize(
    ("pattern", "pieces", "steps"),
    [
        pytest.param(r"step (\d+)", ["step 10\n", "loss 3\nstep 15\nstep 18\n"], 8, id="a count"),
        pytest.param(r"step (\d+)", ["step 10\n", "step 1", "5\n", "step 16\n"], 6, id="a number cut in two"),
        pytest.param(r"step (\d+)", ["step 90\nstep 100\nstep 1\nstep 5\n"], 15, id="a new epoch begins at 1"),
        pytest.param(r"step ([\d,]+)", ["step 1,000\n", "step 1,250\n"], 250, id="thousands"),
        pytest.param(r"(?P<rate>[\d.]+)it/s", ["2.0it/s ", "2.0it/s ", "3.0it/s "], 5, id="a rate"),
        pytest.param(r"(?P<seconds>[\d.]+)s/it", ["0.5s/it ", "0.5s/it ", "0.0s/it "], 2, id="seconds a step"),
        pytest.param(r"(\w+)", ["nan inf -3 e "], 0, id="no number"),
        pytest.param(r"x(y)?", ["x x x "], 0, id="a group that found nothing"),
        pytest.param(
            "tqdm",
            [
                "\r  0%|          | 0/500 [00:00<?, ?it/s]",
                "\r 10%|#         | 50/500 [00:10<01:30,  5.00it/s]",
                "\r 12%|#2        | 60/500 [00:12<01:28,  5.00it/s]",
                "\nEpoch 2:  1%| | 5/500 [00:01<01:39,  5.00it/s]\n",
            ],
            65,
            id="tqdm",
        ),
    ],
)
def test_steps_are_counted_in_output(pattern, pieces, steps):
    assert total(pattern, *pieces) == pytest.approx(steps)


def test_a_match_at_the_very_end_waits_for_more_output():
    counter = StepCounter(r"step (\d+)")
    assert not counter.read("step 12", 0.0)
    assert counter.read("3\n", 1.0)
    assert not counter.read("nothing\n", 2.0)


@pytest.fixture
def watch(tmp_path):
    """Runs the watcher over the output of a job that has ended; the file it writes to, and its exit code."""

    def watch(output, *, pattern=r"step (\d+)", file=True):
        target = tmp_path / "progress"
        target.touch()
        spec = {
            "stdout": str(tmp_path / "stdout.log"),
            "stderr": str(tmp_path / "elsewhere.err"),
            "progress": pattern,
            "progress_file": str(target) if file else None,
        }
        (tmp_path / "stdout.log").write_text(output)
        (tmp_path / "elsewhere.err").write_text("step 5\nstep 7\n")
        (tmp_path / "spec.json").write_text(json.dumps(spec))
        over = subprocess.Popen(["true"])
        over.wait(TIMEOUT_S)
        command = [sys.executable, "-I", "-S", str(WATCHER), str(tmp_path), str(over.pid)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
        assert done.stderr == ""
        return target.read_text(), done.returncode

    return watch


def test_steps_of_both_outputs_are_summed(watch):
    text, code = watch("step 1\nstep 100\n")
    count, at_s = text.split()
    assert (float(count), code) == (101.0, 0)
    assert float(at_s) > 0
    assert text.endswith("\n")


@pytest.mark.parametrize("changes", [{"pattern": "("}, {"file": False}], ids=["no pattern", "no file"])
def test_a_watcher_that_fails_is_silent(watch, changes):
    assert watch("step 1\n", **changes) == ("", 1)


def processes_of(folder):
    """Processes that have the folder on their command line; zombies have none."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if os.fsencode(folder) in path.read_bytes():
                found.append(path.parent.name)
    return found


def test_the_runner_starts_a_watcher_that_ends_with_the_job(tmp_path):
    folder = tmp_path / "attempt"
    folder.mkdir()
    target = tmp_path / "progress"
    target.touch()
    fifo = tmp_path / "gate"
    os.mkfifo(fifo)
    script = (
        f"echo step 3; echo step 10; while ! grep -q . {target}; do sleep 0.05; done; echo step 12; read x < {fifo}"
    )
    spec = {
        "argv": ["sh", "-c", script],
        "cwd": "/",
        "env": {"PATH": os.environ["PATH"]},
        "progress_file": str(target),
        "grace_s": 1.0,
        "stdout": str(folder / "stdout.log"),
        "stderr": str(folder / "stderr.log"),
        "progress": r"step (\d+)",
    }
    (folder / "spec.json").write_text(json.dumps(spec))
    runner = subprocess.Popen([sys.executable, "-I", "-S", str(WATCHER.parent), str(folder)])
    with fifo.open("w") as gate:
        gate.write("\n")
    assert runner.wait(TIMEOUT_S) == 0
    assert float(target.read_text().split()[0]) >= 7.0
    assert processes_of(folder) == []
