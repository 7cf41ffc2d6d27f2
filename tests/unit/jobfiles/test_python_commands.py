"""Python commands in batch scripts."""

from __future__ import annotations

import pytest

from cotenant.jobfiles.python_commands import find_python_commands, place_of_script


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
        ("mpirun -np 2 --bind-to none python train.py", "mpirun -np 2 --bind-to none python train.py"),
        ("conda run -n torch python train.py", "python train.py"),
        ("uv run --with torch python train.py", "python train.py"),
        ("if true; then ./train.py; fi", "./train.py"),
        ("(cd x && python train.py)", "python train.py"),
        ("python train.py --a=1 \\\n  --b 2", "python train.py --a=1 --b 2"),
        ("python -um pkg.train -c x", "python -um pkg.train -c x"),
        ("python -W ignore -Xdev train.py", "python -W ignore -Xdev train.py"),
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
        "python -um pip install torch",
        "python -mvenv env",
        "python -uc 'import torch' train.py",
        "python -m",
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


def test_an_array_of_what_a_loop_prints_is_known():
    script = """
    names=('screw' 'metal nut')
    flags=($(for name in "${names[@]}"; do echo '-d '"${name}"; done))
    flags+=($(for n in 1 $last; do echo -n --n=$n-$last; done))  # as options
    own=($(for name in "${names[@]}"; do echo $other; done))
    python main.py "${flags[@]}" mvtec
    python main.py "${own[@]}"
    """
    known, unknown = find_python_commands(script, {"last": "7"})
    assert " ".join(known.words) == "python main.py -d screw -d metal nut --n=1-7 --n=7-7 mvtec"
    assert (len(known.words), known.unknown, unknown.unknown) == (10, (), ("${own[@]}",))


def test_values_are_appended():
    script = """
    OPTS="--lr 1"
    OPTS+=" --depth ${DEPTH}"
    OPTS+=" --name "a
    export OPTS+="b"
    LATE+=c
    python run.py ${OPTS} $LATE
    LATE+=d python own.py --late=$LATE
    """
    run, own = find_python_commands(script, {"DEPTH": "2"})
    assert run.words == ("python", "run.py", "--lr", "1", "--depth", "2", "--name", "ab", "c")
    assert (run.unknown, own.words[-1], own.env["LATE"]) == ((), "--late=c", "cd")


def test_what_is_appended_to_an_unknown_value_leaves_it_unknown():
    script = """
    NAME=$(whatever)
    NAME+=_1
    python run.py --name $NAME
    NAME=known
    NAME+=_2
    python run.py --name $NAME
    """
    first, second = find_python_commands(script, {})
    assert (first.unknown, second.unknown, second.words[-1]) == (("$NAME",), (), "known_2")


def test_gpus_are_counted_and_random_numbers_known():
    script = """gpus="2,3,5"
    list=(${gpus//,/ } $more)
    python run.py --n ${#list[@]} --port $((RANDOM % 1000 + 20000)) --seed $RANDOM
    """
    assert words(script, {"more": "7"}) == ["python run.py --n 4 --port 20345 --seed 12345"]
    assert not any(command.unknown for command in find_python_commands(script, {"more": "7"}))


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        pytest.param("$[$tokens*$length]", "672", id="brackets of old scripts"),
        pytest.param("$[(tokens + 1) * 2]", "16", id="brackets inside brackets"),
        pytest.param("$[tokens-2]$((tokens-1))", "56", id="both kinds"),
    ],
)
def test_both_kinds_of_arithmetic_are_evaluated(expression, value):
    script = f"tokens=7\nlength=96\nsum={expression}\npython run.py $sum {expression}\n"
    assert words(script) == [f"python run.py {value} {value}"]


def test_no_script_takes_long():
    hostile = [
        "$(" * 20_000,
        "$[" * 20_000,
        "${" * 20_000,
        "`" * 20_001,
        "'" * 9_999,
        "\\\n" * 20_000,
        "<<A " * 5_000,
        "((" * 20_000,
    ]
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


def test_a_redirection_takes_no_value_of_an_option():
    script = "python train.py --seed 42 > log 2>&1\npython train.py -n 3 > >(tee -a out) 2> >(tee err >&2)\n"
    assert words(script) == ["python train.py --seed 42", "python train.py -n 3"]


def test_a_backslash_may_end_the_script():
    assert words("python train.py \\\n--bs 8 \\\n") == ["python train.py --bs 8"]


def test_what_well_known_commands_print_is_known():
    script = """
    here="$( cd "$( dirname "${BASH_SOURCE[0]}" )" && pwd )"
    there=$(cd $(dirname $0)/..; pwd)
    run=`basename $1 .py`-$(date +%Y)
    PYTHONPATH="$(dirname $0)/..":$PYTHONPATH \\
    torchrun --nproc_per_node=$2 $(dirname "$0")/train.py $1 `# a comment` --out $here/$run \\
    --at $there ${@:3} $EXTRA_ARGS
    for seed in $(seq 3 5); do python eval.py --seed $seed --port $(shuf -i 29500-29999 -n 1); done
    """
    found = find_python_commands(script, {}, ["conf/a.py", "8", "--x", "1"], name="tools/dist.sh", workdir="/w")
    assert [" ".join(command.words) for command in found] == [
        "torchrun --nproc_per_node=8 tools/train.py conf/a.py --out /w/tools/a-2026 --at /w --x 1",
        "python eval.py --seed 3 --port 29500",
    ]
    assert found[0].env["PYTHONPATH"] == "tools/..:"
    assert not any(command.unknown for command in found)


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("${A}", "conf/big.tar.gz"),
        ("${A##*/}", "big.tar.gz"),
        ("${A#*/}", "big.tar.gz"),
        ("${A%.*}", "conf/big.tar"),
        ("${A%%.*}", "conf/big"),
        ("${A/big/small}", "conf/small.tar.gz"),
        ("${A:5:3}", "big"),
        ("${A^^}", "CONF/BIG.TAR.GZ"),
        ("${#B}", "1"),
        ("${GONE:-${B}}", "x"),
        ("${GONE:-$(basename $A)}", "big.tar.gz"),
        ("a${B:+yes}", "ayes"),
        ("a${GONE:+yes}", "a"),
        ("a${GONE:?gone}", None),
        ("a${A@Q}", None),
    ],
)
def test_parts_of_a_variable(parameter, value):
    (found,) = find_python_commands(f"A=conf/big.tar.gz; B=x\npython t.py --a {parameter}\n", {})
    assert (found.words[-1] if not found.unknown else None) == value


def test_scripts_that_a_script_runs_are_read():
    files = {
        "settings.sh": "LR=0.5\n",
        "few/run.sh": 'cd sub\nfor i in 1; do python run.py --task $TASK --lr $LR "$@"; done\nbash ../few/run.sh\n',
    }
    script = '. ./settings.sh\ncd few\nTASK=sst bash run.sh --seed 1\neval "python a.py --lr $LR"\n'
    found = find_python_commands(script, {}, read=lambda path: files.get(path.replace("./", "")))
    first, last = found[0], found[-1]
    assert (" ".join(first.words), first.folder, first.line) == (
        "python run.py --task sst --lr 0.5 --seed 1",
        "few/sub",
        3,
    )
    assert last.words == ("python", "a.py", "--lr", "0.5")


@pytest.mark.parametrize(
    ("word", "words"),
    [
        pytest.param('"$A"', ("",), id="empty, in quotes"),
        pytest.param("$A", (), id="empty"),
        pytest.param('"${B}"', ("two words",), id="two words in quotes"),
        pytest.param("$B", ("two", "words"), id="two words"),
        pytest.param('"$1"', ("an argument",), id="an argument in quotes"),
    ],
)
def test_a_variable_in_quotes_is_one_word(word, words):
    text = (
        f'A=""\nB="two words"\nif [ -z "$A" ] && [ "$B" = "two words" ]; then\npython t.py --from {word} --to 1\nfi\n'
    )
    (found,) = find_python_commands(text, {}, ["an argument"])
    assert found.words == ("python", "t.py", "--from", *words, "--to", "1")
    assert not found.unknown


@pytest.mark.parametrize(
    ("command", "place"),
    [
        ("bash train.sh 8", 1),
        ("/bin/sh -e train.sh -c x", 2),
        ("bash -euo pipefail train.sh", 3),
        ("bash +O extglob train.sh", 3),
        ("bash --norc --rcfile rc train.sh", 4),
        ("bash -e -- -train", 3),
        ("bash -c train.sh", None),
        ("bash -lc 'train.sh'", None),
        ("bash -e", None),
        ("bash", None),
        ("scripts/train.sh 8", 0),
        ("python train.py", None),
        ("", None),
    ],
)
def test_the_script_of_a_shell_stands_behind_its_options(command, place):
    assert place_of_script(command.split()) == place


def test_a_script_that_another_one_runs_with_options_is_read():
    found = find_python_commands("bash -o pipefail inner.sh", {}, read={"inner.sh": "python train.py"}.get)
    assert [command.words for command in found] == [("python", "train.py")]


@pytest.mark.parametrize(
    ("word", "value", "unknown"),
    [
        pytest.param("ETTh1_$model'_'$layers'_'$length", "ETTh1_GPT__336", (), id="a label"),
        pytest.param("${model}_${layers}", "GPT_", (), id="braces"),
        pytest.param("runs_$layers", "runs_", ("$layers",), id="of one variable"),
        pytest.param("$layers-$heads", "-", ("$layers", "$heads"), id="of none that is set"),
        pytest.param("data/$model/$layers", "data/GPT/", ("$layers",), id="a path"),
        pytest.param("${model}_$started", "GPT_", ("$started",), id="set, and not known"),
    ],
)
def test_a_variable_in_a_label_that_is_not_set_is_empty(word, value, unknown):
    script = f"model=GPT\nlength=336\nstarted=$(sinfo -h)\npython main.py --model_id {word}"
    (found,) = find_python_commands(script, {})
    assert (found.words[-1], found.unknown) == (value, unknown)
