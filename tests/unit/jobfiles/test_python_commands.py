"""Python commands in batch scripts."""

from __future__ import annotations

import pytest

from cotenant.jobfiles.python_commands import find_python_commands


def words(script, env=None, arguments=()):
    return [" ".join(command.words) for command in find_python_commands(script, env or {}, arguments)]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("python train.py --lr 0.1", "python train.py --lr 0.1"),
        ("srun python -u train.py", "python -u train.py"),
        ("srun -n1 --gres gpu:1 -l --mpi=pmix python train.py -n 2", "python train.py -n 2"),
        ("srun --newest-option python train.py", "python train.py"),
        ("exec env A=1 -u B python3.11 -m pkg.train", "python3.11 -m pkg.train"),
        ("A=1 B='x y' timeout -k 5 2h nohup /opt/py/bin/python train.py &", "/opt/py/bin/python train.py"),
        ("time numactl -N 0 --localalloc python train.py > log 2>&1", "python train.py"),
        ("python train.py 2> err.txt | tee out.txt", "python train.py"),
        ("torchrun --nproc-per-node=2 train.py a", "torchrun --nproc-per-node=2 train.py a"),
        ("accelerate launch train.py", "accelerate launch train.py"),
        ("papermill train.ipynb out.ipynb -p lr 1", "papermill train.ipynb out.ipynb -p lr 1"),
        ("jupyter lab; srun jupyter execute train.ipynb", "jupyter execute train.ipynb"),
        ("mpirun -np 2 --bind-to none python train.py", "python train.py"),
        ("conda run -n torch python train.py", "python train.py"),
        ("uv run --with torch python train.py", "python train.py"),
        ("if true; then ./train.py; fi", "./train.py"),
        ("(cd x && python train.py)", "python train.py"),
        ("python train.py --a=1 \\\n  --b 2", "python train.py --a=1 --b 2"),
        ('python train.py "two words"  # why', "python train.py two words"),
    ],
)
def test_a_command_is_found(line, wanted):
    assert words(f"#!/bin/bash\n#SBATCH -G 1\n{line}\n") == [wanted]


@pytest.mark.parametrize(
    "line",
    [
        "python -c 'import torch'",
        "python -m pip install torch",
        "pip install torch",
        "python --version",
        "# python train.py",
        "echo 'python train.py",
        "cat <<EOF\npython train.py\nEOF",
        "module load python",
        "accelerate config",
        "python < train.py",
        "",
    ],
)
def test_other_commands_are_not(line):
    assert words(f"#!/bin/bash\n{line}\n") == []


def test_what_the_script_sets_is_known():
    script = """#!/bin/bash
source ~/venv/bin/activate
cd $SLURM_SUBMIT_DIR/exp
cd run
export LR=0.1
ARGS="--a 1 --b 2"
for seed in 3 4; do
  python train.py --lr $LR $ARGS --seed ${seed} --name ${NAME:-base} --out $OUT "$@" $1
done
conda activate torch
X=1 python eval.py
"""
    train, evaluate = find_python_commands(script, {"SLURM_SUBMIT_DIR": "/home/ann"}, ["p q", "r"])
    assert train.words[:8] == ("python", "train.py", "--lr", "0.1", "--a", "1", "--b", "2")
    assert train.words[8:] == ("--seed", "3", "--name", "base", "--out", "p q", "r", "p", "q")
    assert (train.folder, train.bin_folders, train.line) == ("/home/ann/exp/run", ("~/venv/bin",), 8)
    assert train.unknown == ("$OUT",)
    assert (evaluate.conda_env, evaluate.env["X"], evaluate.env["LR"]) == ("torch", "1", "0.1")


def test_a_quote_ends_the_name_of_a_variable():
    script = """model=ETTh1\npython run.py --id $model'_'$length"_x" '--by='$model"""
    assert words(script, {"length": "96"}) == ["python run.py --id ETTh1_96_x --by=ETTh1"]


def test_elements_of_arrays_are_known():
    script = """
    lengths=(96 192 336)
    envs=(
        "hopper v2"   # the first
        "walker"
    )
    envs+=('ant')
    for length in ${lengths[@]}; do python run.py --length $length; done
    for env in "${envs[@]}"; do
        python main.py --env "$env" --of ${#envs[@]}
    done
    for ((i=1;i<3;i++)); do
        python one.py ${lengths[$i]} ${lengths[i]} ${envs[2]} ${unknown[0]}
    done
    """
    wanted = ["python run.py --length 96", "python main.py --env hopper v2 --of 3", "python one.py 192 192 ant "]
    assert words(script) == wanted


def test_gpus_are_counted_and_random_numbers_known():
    script = """gpus="2,3,5"
    list=(${gpus//,/ } $more)
    python run.py --n ${#list[@]} --port $((RANDOM % 1000 + 20000)) --seed $RANDOM
    """
    assert words(script, {"more": "7"}) == ["python run.py --n 4 --port 20345 --seed 12345"]
    assert not any(command.unknown for command in find_python_commands(script, {"more": "7"}))


def test_no_script_takes_long():
    hostile = ["$(" * 20_000, "${" * 20_000, "`" * 20_001, "'" * 9_999, "\\\n" * 20_000, "<<A " * 5_000, "((" * 20_000]
    for text in hostile:
        find_python_commands(f"#!/bin/sh\npython a.py {text}\n", {})


def test_shifted_arguments_are_gone():
    script = 'N=$1\nshift\ntorchrun --nproc-per-node $N train.py "$@"\nshift 2\npython train.py $1\n'
    assert words(script, arguments=("8", "/data", "-v", "x")) == [
        "torchrun --nproc-per-node 8 train.py /data -v x",
        "python train.py x",
    ]


def test_the_output_of_a_command_is_unknown():
    (found,) = find_python_commands("python train.py --port $(free_port) --name run-$(date)\n", {})
    assert found.unknown == ("$(...)",)


def test_an_environment_is_below_the_folder_where_it_is_activated():
    (found,) = find_python_commands("cd a\nsource env/bin/activate\ncd b\npython train.py\n", {})
    assert (found.bin_folders, found.folder) == (("a/env/bin",), "a/b")
