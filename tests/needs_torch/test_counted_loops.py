"""Loops over `range` with an `if` on unknown values that breaks them: power methods, fixed points."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

import torch

from cotenant.tracing.assumptions import data_dependent_loops
from cotenant.tracing.assumptions.data_dependent_loops import MAX_ENTRIES, STEADY_ITERATIONS, DataDependentLoops


class Recorder:
    """A trace to which `step` adds an allocation of some bytes, of which some are left."""

    def __init__(self) -> None:
        self.steps = 0
        self.live_bytes = {0: 0}
        self.warnings: set[str] = set()
        self.events: list[int] = []

    def step(self, nbytes: int, left: int = 0) -> None:
        self.events.append(nbytes)
        self.live_bytes[0] += left

    def position(self) -> tuple[int, int]:
        return len(self.events), 0

    def events_since(self, position: tuple[int, int], *, older: bool = False):
        return (tuple(self.events[position[0] :]), set()) if older else (None, set())

    def warn(self, sentence: str) -> None:
        self.warnings.add(sentence)


LOOP = """
def rounds_of():
    for rounds in range({limit}):
        recorder.step({step})
        if {condition}:
            break
    return rounds + 1
"""
UNKNOWN = "loops.truth(likely=error is None)"


def a_loop(tmp_path, *, condition=UNKNOWN, step="8", limit=500):
    path, recorder = tmp_path / "power.py", Recorder()
    path.write_text(LOOP.format(condition=condition, step=step, limit=limit))
    found = {"recorder": recorder, "loops": DataDependentLoops(recorder), "error": torch.ones(1)}
    exec(compile(path.read_text(), path, "exec"), found)
    return found["rounds_of"], recorder


@pytest.mark.parametrize(
    ("loop", "rounds"),
    [
        pytest.param({}, STEADY_ITERATIONS + 2, id="alike"),
        pytest.param({"condition": f"{UNKNOWN} and {UNKNOWN}"}, STEADY_ITERATIONS + 2, id="two conditions"),
        pytest.param({"condition": "not loops.truth(likely=error is not None)"}, STEADY_ITERATIONS + 2, id="negated"),
        pytest.param({"condition": "loops.number() * (error is not None) < 0.1"}, STEADY_ITERATIONS + 2, id="a number"),
        pytest.param({"condition": "loops.number() * (error is not None) > 9"}, 2 * STEADY_ITERATIONS + 2, id="large"),
        pytest.param({"step": "rounds"}, 500, id="each allocates more"),
        pytest.param({"step": "8, left=8"}, 500, id="each leaves some"),
        pytest.param({"limit": 30}, 30, id="a short one"),
    ],
)
def test_rounds_of_a_loop_over_a_range(tmp_path, loop, rounds):
    rounds_of, recorder = a_loop(tmp_path, **loop)
    assert rounds_of() == rounds
    is_cut = rounds not in (30, 500)
    sentence = "how often the loop at power.py, line 5, runs depends on values that are not known; assumed: 100 times"
    assert recorder.warnings == ({sentence} if is_cut else set())


def test_after_many_loops_later_ones_are_left_sooner_until_the_next_step_of_the_optimizer(tmp_path):
    rounds_of, recorder = a_loop(tmp_path)
    for _ in range(MAX_ENTRIES):
        recorder.step(1)  # work between two loops
        assert rounds_of() > STEADY_ITERATIONS
    recorder.step(1)
    assert rounds_of() == data_dependent_loops._STEADY_ITERATIONS_LATER + 2
    recorder.steps += 1
    assert rounds_of() > STEADY_ITERATIONS


@pytest.mark.parametrize("operator", ["and", "or"])
def test_a_second_condition_does_not_end_the_next_loop(tmp_path, operator):
    rounds_of, recorder = a_loop(tmp_path, condition=f"{UNKNOWN} {operator} {UNKNOWN}")
    assert rounds_of() == STEADY_ITERATIONS + 2
    recorder.step(1)
    assert rounds_of() == STEADY_ITERATIONS + 2


def test_loops_on_the_null_gpu_run_to_their_end(tmp_path, monkeypatch):
    monkeypatch.delattr(Recorder, "events_since")
    rounds_of, _ = a_loop(tmp_path, limit=150)
    assert rounds_of() == 150
