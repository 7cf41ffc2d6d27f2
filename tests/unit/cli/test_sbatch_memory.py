"""The memory of a script that `cotenant sbatch` submits to Slurm: of all of its commands, or unknown."""

from __future__ import annotations

import pytest

from builders import an_estimate
from cotenant.cli.slurm_verbs import submit
from cotenant.core.errors import TraceError
from cotenant.core.units import GiB
from cotenant.slurm.submission import BatchJob

SMALL, LARGE = (an_estimate(size * GiB) for size in (1, 3))
PARTIAL = an_estimate(2 * GiB, partial=True)
UNKNOWN = TraceError("script-error", "the script raised ImportError")
NO_TRAINING = TraceError("no-cuda", "the script ended without putting anything on a GPU")


@pytest.mark.parametrize(
    ("answers", "bound_bytes"),
    [
        pytest.param([SMALL, LARGE], LARGE.bound_bytes, id="the largest counts"),
        pytest.param([NO_TRAINING, SMALL], SMALL.bound_bytes, id="one that trains nothing needs nothing"),
        pytest.param([SMALL, UNKNOWN], None, id="the one without an estimate may need more"),
        pytest.param([LARGE, PARTIAL], None, id="a lower bound may be exceeded"),
        pytest.param([SMALL] * (submit.MAX_COMMANDS + 1), None, id="one was not estimated"),
        pytest.param([UNKNOWN], None, id="nothing is known"),
    ],
)
def test_memory_is_that_of_all_commands_or_unknown(monkeypatch, capsys, answers, bound_bytes):
    def estimate(command, *_):
        answer = answers[int(command.words[1].removesuffix(".py"))]
        if isinstance(answer, TraceError):
            raise answer
        return answer

    monkeypatch.setattr(submit, "_estimate", estimate)
    lines = "".join(f"python {number}.py\n" for number in range(len(answers)))
    job = BatchJob(words=(), name="train.sh", text=f"#!/bin/bash\n#SBATCH --gres=gpu:1\n{lines}")
    found = submit._memory(job, {})
    assert found == (bound_bytes, LARGE.estimator if bound_bytes else "")
    told = "not all that its commands need is known" in capsys.readouterr().err
    assert told == (bound_bytes is None and answers != [UNKNOWN])
