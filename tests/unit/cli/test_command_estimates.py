"""The memory of a script that goes to Slurm or Kubernetes: of all of its commands, or unknown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import an_estimate
from cotenant.cli import kubernetes
from cotenant.cli.command_estimates import MAX_COMMANDS
from cotenant.cli.slurm_verbs import submit
from cotenant.core.errors import TraceError
from cotenant.core.units import GiB
from cotenant.estimators.traced import TracedEstimator
from cotenant.kubernetes.manifest import ContainerCommand
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
        pytest.param([SMALL] * (MAX_COMMANDS + 1), None, id="one was not estimated"),
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


@pytest.mark.parametrize(
    ("body", "is_known"),
    [
        pytest.param("python 0.py && python 1.py > log 2>&1\necho 'a & b'  # &\n", True, id="one after the other"),
        pytest.param("python 0.py &\nwait\n", True, id="one that gets signals"),
        pytest.param("python 0.py &\npython 1.py &> log &\nwait\n", False, id="two at once"),
        pytest.param("for s in 1 2; do\n  python 0.py --seed $s &\ndone\nwait\n", False, id="a loop"),
        pytest.param("for s in 1 2; do python 0.py --seed $s & done; wait\n", False, id="a loop in a line"),
        pytest.param("if true; then for s in 1 2; do python 0.py & done; fi\n", False, id="a loop in a branch"),
        pytest.param("for s in 1 2; do python 0.py; done\n", True, id="a loop of one after the other"),
    ],
)
def test_the_memory_of_commands_that_run_at_once_is_unknown(monkeypatch, capsys, body, is_known):
    """Two trainings in the background got the shards of the larger one."""
    monkeypatch.setattr(submit, "_estimate", lambda *_: SMALL)
    job = BatchJob(words=(), name="train.sh", text=f"#!/bin/bash\n#SBATCH --gres=gpu:1\n{body}")
    assert submit._memory(job, {})[0] == (SMALL.bound_bytes if is_known else None)
    assert ("several may need memory at once" in capsys.readouterr().err) == (not is_known)


def test_a_container_needs_what_the_largest_of_its_commands_needs(monkeypatch, tmp_path):
    """Only the first one counted, and HAMi holds a container to that."""
    sizes = {"prepare.py": SMALL, "/here/train.py": LARGE}
    monkeypatch.setattr(
        TracedEstimator, "estimate", lambda _, request: sizes[request.command[1].replace(str(tmp_path), "/here")]
    )
    text = "python prepare.py && python /app/train.py"
    container = ContainerCommand(name="main", text=text, arguments=(), workdir="/app", env={}, gpus=1)
    assert kubernetes._estimate(container, "A100-40GB", tmp_path) == LARGE.bound_bytes
    at_once = replace(container, text=text.replace("&&", "&"))
    assert kubernetes._estimate(at_once, "A100-40GB", tmp_path) is None
