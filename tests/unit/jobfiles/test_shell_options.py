"""Options of shell scripts: loops over the arguments, `getopts`, Kaldi's `parse_options.sh` and runners of jobs."""

from __future__ import annotations

import pytest

from cotenant.jobfiles.python_commands import find_python_commands


def words(script, *arguments, **env):
    return [" ".join(command.words) for command in find_python_commands(script, env, arguments)]


LOOP = """
LR=0.1
while %s; do
  case "$1" in
    --lr) LR=$2; shift 2 ;;
    -b|--batch)
      BATCH="$2"
      shift
      shift
      ;;
    --fast) FAST=1; shift ;;
    *) break ;;
  esac
done
python train.py --lr $LR --bs ${BATCH:-8} ${FAST:+--fast yes} "$@"
"""


@pytest.mark.parametrize("condition", ["[ $# -gt 0 ]", '[[ -n "$1" ]]', "true", "[[ $# -ge 1 ]]"])
def test_a_loop_over_the_arguments_runs_as_often_as_it_would(condition):
    found = words(LOOP % condition, "--batch", "64", "--fast", "--lr", "0.5", "data", "--x")
    assert found == ["python train.py --lr 0.5 --bs 64 --fast yes data --x"]
    assert words(LOOP % condition, "data") == ["python train.py --lr 0.1 --bs 8 data"]


def test_a_for_loop_over_the_arguments_reads_them_all():
    script = """
    for arg in "$@"; do
      case $arg in
        --lr=*) LR="${arg#*=}" ;;
        --size=*) SIZE="${arg#*=}" ;;
      esac
    done
    python train.py $LR $SIZE
    """
    assert words(script, "--lr=0.5", "--size=big") == ["python train.py 0.5 big"]


def test_other_loops_are_read_once():
    script = "i=0\nwhile [ $i -lt 9 ]; do\n  python train.py --seed $i\n  i=$((i + 1))\ndone\npython eval.py\n"
    assert words(script) == ["python train.py --seed 0", "python eval.py"]


def test_a_loop_that_never_ends_is_left():
    assert words('while true; do\n  case "$1" in\n    a) x=1 ;;\n  esac\ndone\npython train.py\n', "b") == [
        "python train.py"
    ]


def test_getopts_reads_letters_and_their_values():
    script = """
    while getopts "n:vg:" opt; do
      case $opt in
        n) NAME=$OPTARG ;;
        g) GPUS=$OPTARG ;;
        v) VERBOSE=--verbose ;;
      esac
    done
    shift $((OPTIND-1))
    python train.py --name $NAME --gpus $GPUS $VERBOSE $1
    """
    assert words(script, "-vn", "run1", "-g2", "data") == ["python train.py --name run1 --gpus 2 --verbose data"]


def test_kaldis_options_set_variables_though_the_toolkit_is_not_there():
    script = """
    stage=0
    batch_size=16
    . utils/parse_options.sh || exit 1;
    if [ $stage -le 1 ] && [ $stop -ge 1 ]; then
      python prepare.py
    fi
    if [ ${stage} -le 2 ] && [ ${stop} -ge 2 ]; then
      ${cmd} --gpu 1 --mem 4G JOB=1:$nj exp/train.log train.py --bs $batch_size $1
    fi
    """
    env = {"cmd": "utils/queue.pl", "nj": "4"}
    found = words(script, "--stage", "2", "--stop", "2", "--batch-size", "32", "data", **env)
    assert found == ["train.py --bs 32 data"]


def test_a_comment_may_have_an_apostrophe():
    script = """
    A=1  # it's one
    # don't
    echo "it's $A"
    python train.py --a $A --b 'x # y'  # the model's
    python eval.py "#2"
    """
    assert words(script) == ["python train.py --a 1 --b x # y", "python eval.py #2"]


def test_a_string_of_several_lines_may_have_continued_ones():
    script = 'ARGS="\\\n  --a 1 \\\n  --b 2 \n  --c 3"\npython train.py $ARGS\n'
    assert words(script) == ["python train.py --a 1 --b 2 --c 3"]


def test_an_alternative_of_several_words_is_empty_where_the_variable_is():
    script = 'empty=\nfull=a\npython t.py ${empty:+--resume $empty} ${full:+--name $full x} ${gone:-"1 2"}\n'
    (found,) = find_python_commands(script, {})
    assert found.words == ("python", "t.py", "--name", "a", "x", "1", "2")


def test_what_pipes_print_is_known():
    script = """
    GPUS=$(nvidia-smi -L | wc -l)
    LIST=0,2,5
    N=$(echo $LIST | awk -F "," '{print NF}')
    M=`echo "$LIST" | tr ',' ' ' | wc -w`
    LAST=$(echo $LIST | cut -d, -f3)
    NAME=$(basename a/b.yaml | sed 's/.yaml$//')
    SUM=$(expr $N + 4)
    WIDTH=$(echo "scale=2; 8/3" | bc -l)
    LR=$(awk "BEGIN {print 1e-3/4}")
    ROOT=$(cd -- "$(dirname "$0")/.." &> /dev/null && pwd)
    FIRST=$(echo "$LIST 7" | awk '{print $2}')
    python train.py $GPUS $N $M $LAST $NAME $SUM $WIDTH $LR $ROOT $FIRST
    """
    (found,) = find_python_commands(script, {}, gpus=4, name="sub/run.sh", workdir="/w")
    assert (found.words[2:], found.unknown) == (("4", "3", "3", "5", "b", "7", "2.66", "0.00025", "/w", "7"), ())


@pytest.mark.parametrize(("devices", "command"), [("0", "python train.py 0"), ("0,1,3", "torchrun train.py 2")])
def test_a_script_that_counts_commas_and_chooses_by_awk(devices, command):
    script = """
    commas=$(echo $1 | grep -o "," | wc -l)
    is_distributed=`echo ${commas} | awk '{if($e > 0) print "True"; else print "False";}'`
    if [ ${is_distributed} == "True" ]
    then
        torchrun train.py $commas
    else
        python train.py $commas
    fi
    """
    assert words(script, devices) == [command]


def test_what_an_unknown_command_prints_stays_unknown_in_a_variable():
    script = "SIZE=$(my_tool)\nPORT=$(free_port)\nMASTER_ADDR=$(scontrol show)\npython t.py $PORT $MASTER_ADDR $SIZE\n"
    (found,) = find_python_commands(script, {})
    assert (found.words[2:4], found.unknown) == (("29500", "localhost"), ("$SIZE",))


def test_a_command_runs_only_where_the_one_before_it_lets_it():
    script = '[ -z "$1" ] && python usage.py\n[ -n "$1" ] || python usage.py\n[[ $1 > b ]] && python train.py\n'
    assert words(script, "c") == ["python train.py"]


def test_the_folder_of_a_script_follows_cd():
    (found,) = find_python_commands("cd sub\nD=$PWD/data\npython t.py $D\n", {"PWD": "/elsewhere"}, workdir="/w")
    assert found.words[-1] == "/w/sub/data"
