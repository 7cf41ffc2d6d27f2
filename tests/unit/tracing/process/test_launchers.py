"""One process of a launched job is traced; the launcher's options become its environment."""

from __future__ import annotations

import sys

import pytest

from cotenant.core.errors import UsageError
from cotenant.tracing.process.launchers import plan_launch, split
from cotenant.tracing.process.program import find_program


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text("")
    return tmp_path


def find(folder, command):
    return find_program(command.split(), workdir=str(folder), env={"PATH": "/usr/bin:/bin"}, python="/the/python")


@pytest.mark.parametrize(
    ("command", "launcher", "args"),
    [
        pytest.param("torchrun train.py -x 1", ("torchrun",), ("-x", "1"), id="no options"),
        pytest.param(
            "torchrun --nproc-per-node 4 --standalone train.py",
            ("torchrun", "--nproc-per-node", "4", "--standalone"),
            (),
            id="a value and a flag",
        ),
        pytest.param("torchrun --nproc_per_node=2 train.py", ("torchrun", "--nproc_per_node=2"), (), id="equals"),
        pytest.param(
            f"{sys.executable} -m torch.distributed.launch --nnodes 2 train.py",
            ("torch.distributed.launch", "--nnodes", "2"),
            (),
            id="as a module",
        ),
        pytest.param(
            "accelerate launch --multi_gpu --num_processes 2 --mixed_precision bf16 train.py --lr 1",
            ("accelerate", "--multi_gpu", "--num_processes", "2", "--mixed_precision", "bf16"),
            ("--lr", "1"),
            id="accelerate",
        ),
        pytest.param(
            "deepspeed --num_gpus 8 train.py --deepspeed ds.json",
            ("deepspeed", "--num_gpus", "8"),
            ("--deepspeed", "ds.json"),
            id="deepspeed",
        ),
        pytest.param(
            "mpiexec -n 8 -genv A b --oversubscribe train.py --lr 1",
            ("mpiexec", "-n", "8", "-genv", "A", "b", "--oversubscribe"),
            ("--lr", "1"),
            id="mpiexec",
        ),
        pytest.param(
            f"mpirun --mca btl self -np 2 {sys.executable} -u train.py",
            ("mpirun", "--mca", "btl", "self", "-np", "2"),
            (),
            id="mpirun of Python",
        ),
    ],
)
def test_the_script_behind_a_launcher_is_found(folder, command, launcher, args):
    found = find(folder, command)
    assert (found.kind, found.target, found.args, found.launcher) == ("script", "train.py", args, launcher)


def test_a_module_behind_a_launcher_is_found(folder):
    found = find(folder, "torchrun --nproc-per-node 2 -m pkg.train --lr 1")
    assert (found.kind, found.target, found.args) == ("module", "pkg.train", ("--lr", "1"))


@pytest.mark.parametrize(
    ("command", "words"),
    [
        pytest.param("torchrun --nproc-per-node 2", "names no script", id="no script"),
        pytest.param("torchrun --no-python prog", "another program than Python", id="another program"),
        pytest.param("accelerate config", "starts no script", id="no launch"),
        pytest.param("torchrun gone.py", "no script `gone.py`", id="no such file"),
    ],
)
def test_a_launcher_without_a_script_is_refused(folder, command, words):
    with pytest.raises(UsageError, match=words):
        find(folder, command)


@pytest.mark.parametrize(
    ("name", "options", "local", "total"),
    [
        pytest.param("torchrun", "", 1, 1, id="one process by default"),
        pytest.param("torchrun", "--nproc-per-node gpu", 4, 4, id="as many as there are GPUs"),
        pytest.param("torchrun", "--nproc_per_node=2 --nnodes=1:3", 2, 6, id="on several machines"),
        pytest.param("accelerate", "--num_processes 8 --num_machines 2", 4, 8, id="accelerate counts all of them"),
        pytest.param("accelerate", "--cpu", 4, 4, id="accelerate takes every GPU"),
        pytest.param("deepspeed", "--include localhost:0,1,5 --num_nodes 2", 3, 6, id="deepspeed names them"),
        pytest.param("deepspeed", "", 4, 4, id="deepspeed takes every GPU"),
    ],
)
def test_the_number_of_processes_is_read_from_the_launcher(name, options, local, total):
    made = plan_launch(name, options.split(), gpus=4)
    assert (made.local, made.total) == (local, total)
    if total > 1:
        assert (made.env["RANK"], made.env["WORLD_SIZE"], made.env["LOCAL_WORLD_SIZE"]) == ("0", str(total), str(local))


def test_launch_gives_the_local_rank_as_an_option():
    made = plan_launch("torch.distributed.launch", ["--nproc_per_node=2", "--use_env"], 1)
    assert (made.local, made.gives_local_rank) == (2, False)
    assert plan_launch("torch.distributed.launch", ["--nproc_per_node=2"], 1).gives_local_rank
    assert not plan_launch("torchrun", ["--nproc_per_node=2"], 1).gives_local_rank


def test_launcher_options_become_environment_variables():
    assert plan_launch("deepspeed", [], 2).more_args == ("--local_rank=0",)
    assert plan_launch("deepspeed", ["--no_local_rank"], 2).more_args == ()
    env = plan_launch("accelerate", ["--mixed_precision", "bf16"], 1).env
    assert env["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert "WORLD_SIZE" not in env


@pytest.mark.parametrize("options", ["--mca btl self -np 8", "-n 8 --oversubscribe", "-genv A 2 -n 8"])
def test_mpi_tells_a_process_its_rank(options):
    made = plan_launch("mpirun", options.split(), gpus=1)
    assert (made.local, made.total) == (8, 8)
    assert (made.env["OMPI_COMM_WORLD_SIZE"], made.env["OMPI_COMM_WORLD_LOCAL_RANK"]) == ("8", "0")


def test_an_invalid_process_count_is_refused():
    with pytest.raises(UsageError, match="expected a whole number from 1 to 65536"):
        plan_launch("torchrun", ["--nproc-per-node", "many"], 1)


def test_launcher_flags_take_no_value():
    assert split("torchrun", ["--standalone", "train.py"]) == (("--standalone",), False, ("train.py",))


@pytest.mark.parametrize(
    ("words", "target", "args"),
    [
        pytest.param(["--nproc-per-node=2", "--", "train.py", "-x"], "train.py", ("-x",), id="before the script"),
        pytest.param(["-m", "pkg", "--", "-x", "--", "y"], "pkg", ("-x", "--", "y"), id="behind the module"),
        pytest.param(["train.py", "x", "--", "y"], "train.py", ("x", "--", "y"), id="the script's own"),
    ],
)
def test_two_dashes_around_the_script_are_of_the_launcher(words, target, args):
    """As `torch.distributed.run` parses them, checked with PyTorch 2.13."""
    _, _, program = split("torchrun", words)
    assert program == (target, *args)
