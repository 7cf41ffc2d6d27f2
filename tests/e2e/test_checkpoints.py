"""Jobs that save their state when they are asked to: which signal they get, who gets it, and where they go on."""

from __future__ import annotations

import json
import signal
import sys
import textwrap

import pytest

from places import until

SCRIPT = textwrap.dedent(
    """
    import itertools, os, pathlib, subprocess, sys, time

    from cotenant import checkpoint

    def save(step):
        pathlib.Path("draft").write_text(str(step))
        os.replace("draft", "saved_step")

    loader = subprocess.Popen(["sleep", "600"])  # the signal would end it
    checkpoint.install()
    state = pathlib.Path("saved_step")
    first = int(state.read_text()) if state.exists() else 0
    for step in itertools.count(first):
        with open("steps", "a") as done:
            done.write(f"{step}\\n")
        if os.path.exists("finish"):
            break
        time.sleep(0.05)
        if checkpoint.should_stop():
            assert loader.poll() is None
            save(step + 1)
            time.sleep(0.3)  # longer than a process lives that is told to end with SIGTERM
            loader.kill()
            checkpoint.exit_saved()
    loader.kill()
    """
)


@pytest.fixture
def trainer(site):
    """Submit the script under a shell, as batch scripts run it; returns the id of the job."""
    (site.root / "train.py").write_text(SCRIPT)

    def submit(**fields):
        return site.submit(f"{sys.executable} train.py; exit $?", exclusive=True, checkpoint_signal="USR1", **fields)

    return submit


def has_made_steps(site, count=1):
    until(lambda: len(steps(site)) >= count, "steps")


def steps(site):
    path = site.root / "steps"
    return path.read_text().split() if path.exists() else []


def test_a_time_slice_requests_the_state_by_the_jobs_own_signal_and_no_step_is_made_twice(site, trainer):
    site.start(simulate="1xA100-40GB")
    long = trainer(time_slice_s=0.5)
    has_made_steps(site, 3)
    short = site.submit("true", exclusive=True)
    assert site.wait(short)["state"] == "COMPLETED"
    (site.root / "finish").touch()
    view = site.wait(long)
    assert (view["state"], view["attempts"]) == ("COMPLETED", 2)
    assert [int(step) for step in steps(site)] == list(range(len(steps(site))))
    detail = site.client.job(long)
    first = detail["attempt_list"][0]
    assert (first["exit"]["exit_code"], first["saved"], first["moved"]) == (85, True, False)
    assert 0.3 <= first["stopping_s"] < 60
    assert detail["move_cost"]["saves"] == 1
    assert detail["move_cost"]["save_s"] == first["stopping_s"]
    shown = site.cli("show", str(long)).stdout
    assert "checkpointable: SIGUSR1, 2m00s to save" in shown
    assert "after the signal, state saved" in shown


def test_a_requeue_by_its_user_saves_the_state_too(site, trainer):
    site.start(simulate="1xA100-40GB")
    job = trainer()
    has_made_steps(site)
    assert site.cli("requeue", str(job)).returncode == 0
    until(lambda: site.client.job(job)["attempts"] == 2, "its state is saved")
    has_made_steps(site, len(steps(site)) + 1)
    (site.root / "finish").touch()
    view = site.wait(job)
    assert (view["state"], view["attempts"]) == ("COMPLETED", 2)
    assert [int(step) for step in steps(site)] == list(range(len(steps(site))))


def test_a_job_is_cancelled_while_it_saves(site):
    site.start(simulate="1xA100-40GB")
    script = "trap 'touch asked; sleep 600 & wait' USR1; touch ready; while :; do sleep 0.05; done"
    job = site.submit("sh", "-c", script, checkpoint_signal="USR1", checkpoint_grace_s=600.0)
    for mark, verb in (("ready", "requeue"), ("asked", "cancel")):
        until((site.root / mark).exists, mark)
        assert site.cli(verb, str(job)).returncode == 0
    assert site.wait(job)["state"] == "CANCELLED"
    assert site.client.job(job)["attempt_list"][0]["exit"]["signal"] in (signal.SIGTERM, signal.SIGKILL)


def test_the_options_of_the_command_line_and_of_the_script(site):
    site.start(simulate="1xA100-40GB")
    (site.root / "a.sh").write_text("#!/bin/sh\n#COTENANT --checkpoint-signal SIGUSR2@300\ntrue\n")
    answer = site.cli("submit", "--hold", "a.sh")
    assert answer.returncode == 0, answer.stderr
    view = site.client.job(1)
    assert (view["checkpoint_signal"], view["checkpoint_grace_s"]) == ("USR2", 300.0)
    assert site.cli("update", "1", "--checkpointable").returncode == 0
    assert site.client.job(1)["checkpoint_signal"] == "TERM"
    assert site.cli("update", "1", "--no-checkpointable").returncode == 0
    assert site.client.job(1)["checkpoint_signal"] is None
    for wrong, what in (("KILL", "`KILL` is no signal for a checkpoint"), ("USR1@7200", "beyond an hour")):
        answer = site.cli("submit", "--checkpoint-signal", wrong, "a.sh")
        assert answer.returncode == 2
        assert what in answer.stderr


def test_what_a_script_saves_is_shown_at_submit_and_later(site):
    site.start(simulate="1xA100-40GB")
    (site.root / "train.py").write_text("from transformers import Trainer\nTrainer(model).train()\n")
    submitted = json.loads(site.cli("submit", "--hold", "--json", "train.py", "--save_steps", "50").stdout)
    shown = json.loads(site.cli("show", "1", "--json").stdout)
    assert submitted["checkpoints"] == shown["checkpoints"]
    assert (shown["checkpoints"]["saves"], shown["checkpoints"]["resumes"]) == ("every 50 steps", False)
    assert shown["job"]["checkpoint_signal"] is None
    advice = (
        "  advice          saves every 50 steps (transformers.Trainer); with --checkpointable it can be moved, once"
    )
    assert advice in site.cli("show", "1").stdout
    assert site.cli("update", "1", "--checkpointable").returncode == 0
    assert "needs more, or a move loses its work: `callbacks=[" in site.cli("show", "1").stdout
    (site.root / "train.py").unlink()
    assert json.loads(site.cli("show", "1", "--json").stdout)["checkpoints"] is None
