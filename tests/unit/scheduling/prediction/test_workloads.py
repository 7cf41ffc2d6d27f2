from __future__ import annotations

import shlex

import pytest

from builders import a_spec
from cotenant.scheduling.prediction.workloads import workload_key


def key(*command, workdir="/home/ann"):
    return workload_key(a_spec(command=command, workdir=workdir))


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        pytest.param("python train.py --batch-size 64", "python /home/ann/train.py --batch-size 64", id="plain"),
        pytest.param(
            "/opt/conda/bin/python3.11 -u ./train.py", "python -u /home/ann/train.py", id="whatever Python, wherever"
        ),
        pytest.param("python train.py --seed 3 --bs 8", "python /home/ann/train.py --bs 8", id="seed"),
        pytest.param("python train.py --seed=3", "python /home/ann/train.py", id="seed with an equals sign"),
        pytest.param("python train.py --lr -0.1 x", "python /home/ann/train.py x", id="a negative value is a value"),
        pytest.param("python t.py --seed --amp", "python /home/ann/t.py --amp", id="an option is none"),
        pytest.param(
            "python t.py --data /scratch/imagenet/ --output-dir /tmp/7", "python /home/ann/t.py --data imagenet", id="p"
        ),
        pytest.param("python t.py --data=/a/b/c", "python /home/ann/t.py --data=c", id="path with an equals sign"),
        pytest.param("python t.py --model hf://org/x", "python /home/ann/t.py --model hf://org/x", id="an address"),
        pytest.param("python -m pkg.train --bs 8", "python -m pkg.train --bs 8 in /home/ann", id="a module"),
        pytest.param("python /abs/t.py", "python /abs/t.py", id="an absolute script"),
        pytest.param("python t.py --log-interval 5", "python /home/ann/t.py --log-interval 5", id="not a log folder"),
    ],
)
def test_workload_key_normalizes_the_command(command, expected):
    assert key(*command.split()) == expected


def test_workload_key_unwraps_a_shell():
    assert key("bash", "-lc", "CUDA_X=1 python train.py --seed 1") == key("python", "train.py", "--seed", "2")
    assert key("sh", "-c", "echo 'open") == shlex.join(["sh", "-c", "echo 'open"]) + " in /home/ann"


def test_workload_key_unwraps_the_launcher_that_saves():
    bare = key("/opt/env/bin/torchrun", "--nproc-per-node", "2", "train.py", "--bs", "8")
    wrapped = "-m cotenant.checkpoint torchrun --nproc-per-node 2 train.py --bs 8"
    assert key("/opt/env/bin/python3", *wrapped.split()) == bare
    assert key("bash", "-c", f"A=1 python {wrapped}") == bare
    assert key("python", "-m", "cotenant.checkpoint", "python", "train.py") == key("python", "train.py")
    assert key("python", "-m", "other", "torchrun", "train.py") != key("torchrun", "train.py")


def test_scripts_of_the_same_name_differ_by_folder():
    assert key("python", "train.py") != key("python", "train.py", workdir="/home/bob")
    assert key("python", "/home/ann/train.py", workdir="/") == key("python", "train.py")


def test_arguments_that_change_memory_are_part_of_the_key():
    assert key("python", "t.py", "--batch", "8") != key("python", "t.py", "--batch", "16")
