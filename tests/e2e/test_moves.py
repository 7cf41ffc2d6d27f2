"""Moves on a live server: real processes that save and restart, and a daemon that is killed meanwhile."""

from __future__ import annotations

import re
import sys
import textwrap
import time

import pytest

from benchmarks.daemon import kills_in_moves

FLAGS = ("--policy", "marginal-gain", "--time-scale", "3000")
"""A minute of GPU time is 20 ms: the rule of moves is in GPU time."""

SCRIPT = textwrap.dedent(
    """
    import os, pathlib, sys, time

    from cotenant import checkpoint

    checkpoint.install()
    name = sys.argv[1]
    state = pathlib.Path(f"{name}.step")
    first = int(state.read_text()) if state.exists() else 0
    for step in range(first, 10**6):
        with open(f"{name}.steps", "a") as done:
            done.write(f"{step}\\n")
        time.sleep(0.02)
        if os.path.exists(f"finish-{name}"):
            break
        if checkpoint.should_stop():
            draft = pathlib.Path(f"{name}.draft")
            draft.write_text(str(step + 1))
            os.replace(draft, state)
            checkpoint.exit_saved()
    """
)


def a_gang_waits(site, *, gpus=1):
    """Two jobs that can be moved, alone on `gpus` GPUs each, and a job that needs all of these; returns their ids."""
    site.start(*FLAGS, simulate=f"{2 * gpus}xA100-40GB")
    (site.root / "train.py").write_text(SCRIPT)
    first, second = (
        site.submit(sys.executable, "train.py", name, name=name, gpus=gpus, exclusive=True, checkpoint_signal="USR1")
        for name in ("first", "second")
    )
    for job in (first, second):
        site.started(job)
    gang = site.submit("sleep 0.3; echo gang >> gang", name="gang", gpus=2 * gpus, exclusive=True)
    return first, second, gang


def steps(site, name):
    path = site.root / f"{name}.steps"
    return [int(step) for step in path.read_text().split()] if path.exists() else []


def wait_until(condition, site):
    give_up_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up_s, site.log.read_text()
        time.sleep(0.02)


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_job_is_moved_to_make_room_for_a_gang_and_goes_on_behind_it(site, gpus):
    first, second, gang = a_gang_waits(site, gpus=gpus)
    wait_until(lambda: len(steps(site, "first")) > 20, site)
    (site.root / "finish-second").touch()  # one GPU is idle now, and the gang lacks the other
    assert site.wait(second)["state"] == "COMPLETED"
    assert site.wait(gang)["state"] == "COMPLETED"
    seen = len(steps(site, "first"))
    wait_until(lambda: len(steps(site, "first")) > seen, site)
    (site.root / "finish-first").touch()
    view = site.wait(first)
    assert (view["state"], view["attempts"]) == ("COMPLETED", 2)
    found = steps(site, "first")
    assert found == list(range(len(found))), "no step is lost or made twice"
    attempt = site.client.job(first)["attempt_list"][0]
    assert (attempt["moved"], attempt["saved"]) == (True, True)
    assert f"moved: room for job {gang}, +{gpus}.00 of speed" in site.cli("events", str(first)).stdout
    (shown,) = [line for line in site.cli("show", str(first)).stdout.splitlines() if line.startswith("  moved ")]
    before, after = re.search(r": GPU ([\d, ]+) -> GPU ([\d, ]+), ", shown).groups()
    assert len(before.split(",")) == len(after.split(",")) == gpus
    assert shown.endswith(f"s to save: room for job {gang}, +{gpus}.00 of speed")  # no sample shows it on a GPU


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_daemon_killed_during_a_move_loses_nothing_and_runs_nothing_twice(site, gpus):
    first, second, gang = a_gang_waits(site, gpus=gpus)
    wait_until(lambda: len(steps(site, "first")) > 20, site)
    (site.root / "finish-second").touch()
    for wait_s in (0.05, 0.2):
        time.sleep(wait_s)
        site.kill()
        site.start(*FLAGS, simulate=f"{2 * gpus}xA100-40GB")
    assert site.wait(gang)["state"] == "COMPLETED"
    assert site.wait(second)["state"] == "COMPLETED"
    seen = len(steps(site, "first"))
    wait_until(lambda: len(steps(site, "first")) > seen, site)
    (site.root / "finish-first").touch()
    assert site.wait(first)["state"] == "COMPLETED"
    found = steps(site, "first")
    assert found == list(range(len(found)))
    assert (site.root / "gang").read_text() == "gang\n"


def test_a_daemon_that_dies_before_it_journals_the_end_of_a_moved_job_finds_it_in_its_folder():
    with kills_in_moves.moving_server("1xA100-40GB") as found:
        moves = kills_in_moves.Moves(found, jobs=2, seed=1)
        kills_in_moves.run(moves, 1, ("ended",))
        assert moves.at == {"ended": 1}
        assert moves.faults() == []
        assert all(attempt["saved"] for attempts in moves.moves() for attempt in attempts)
        assert any(moves.moves())
