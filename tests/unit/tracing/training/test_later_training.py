"""Training that comes after the traced part: methods that share a name with the script's function that trains."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

import torch

from cotenant.tracing.training.later_training import TrainedLines, warn_later_training


class Log:
    def __init__(self):
        self.warnings = []

    def warn(self, sentence):
        self.warnings.append(sentence)


class Agent:
    def step(self, log=None):
        warn_later_training(log or Log(), TrainedLines(), by_calls=False)


class Environment:
    def __init__(self, stepper):
        self.stepper = stepper


@pytest.mark.parametrize(
    ("stepper", "warns"),
    [
        pytest.param(torch.optim.SGD([torch.zeros(1)], lr=1.0), False, id="an optimizer"),
        pytest.param(Agent(), True, id="the script's own class"),
        pytest.param(None, True, id="not known"),
    ],
)
def test_a_step_of_an_optimizer_is_not_the_function_of_the_script_that_trains(stepper, warns):
    log, environment = Log(), Environment(stepper)
    Agent().step(log)
    if stepper is not None:
        environment.stepper.step()
    assert [warning.split(",")[0] for warning in log.warnings] == ["the training at test_later_training.py"] * warns
