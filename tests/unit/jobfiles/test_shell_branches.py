"""Arithmetic and conditions of shell scripts, as far as variables tell."""

from __future__ import annotations

import pytest

from cotenant.jobfiles import shell_arithmetic, shell_conditions
from cotenant.jobfiles.python_commands import find_python_commands


def words(script, **env):
    return [" ".join(command.words) for command in find_python_commands(script, env)]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("128 / (4 * GPUS)", 4),
        ("$A+${B}-1", 10),
        ("-7 / 2", -3),
        ("-7 % 2", -1),
        ("A * GONE", None),
        ("TEXT + 1", None),
        ("1 / 0", None),
        ("2 ** 3", None),
        ("010 + 1", None),
        ("9" * 30, None),
        ("(" * 190 + "1", None),
        ("1+" * 500 + "1", None),
        ("__import__('os').getpid()", None),
        ("", None),
    ],
)
def test_an_expression_is_an_integer_or_not_known(expression, value):
    known = {"GPUS": "8", "A": "5", "B": "6", "TEXT": "a b"}
    assert shell_arithmetic.evaluate(expression, known.get) == value


def test_expressions_are_evaluated_when_their_command_runs():
    script = "N=2\nN=4; BATCH=$((64 / (N * 2)))\npython train.py --bs $BATCH --steps=$((N*10))x --n ${N}\n"
    assert words(script) == ["python train.py --bs 8 --steps=40x --n 4"]


def test_what_depends_on_an_unknown_expression_is_not_known_either():
    (found,) = find_python_commands("A=$((GONE * 2))\nB=1\npython train.py --bs $A $((GONE)) $B\n", {})
    assert found.unknown == ("$A", "$((GONE))")
    (found,) = find_python_commands("A=$((GONE * 2))\nA=3\npython train.py --bs $A\n", {})
    assert (found.unknown, found.words[-1]) == ((), "3")


def test_a_variable_with_the_name_of_a_placeholder_is_a_variable():
    (found,) = find_python_commands("python train.py ${cotenant_arithmetic_7}\n", {})
    assert found.unknown == ("${cotenant_arithmetic_7}",)


@pytest.mark.parametrize(
    ("test", "truth"),
    [
        ("[[ imagenet_pretrain =~ pretrain ]]", True),
        ("[[ imagenet_pretrain =~ ^pretrain ]]", False),
        ("[[ a =~ (a) ]]", None),
        ("true", True),
        ("false", False),
        ("[ -n x ]", True),
        ("[ -z x ]", False),
        ("test a = b", False),
        ("[[ a == a ]]", True),
        ("[[ a == b* ]]", None),
        ("[ a != b ]", True),
        ("[ 2 -lt 10 ]", True),
        ("[ 2 -ge x ]", None),
        ("[ ! a = b ]", True),
        ("[ -f train.py ]", None),
        ("[ a = a -a b = c ]", None),
        ("[ a = a", None),
        ("grep -q x y", None),
        ("[ x ]", True),
    ],
)
def test_a_condition_is_true_false_or_not_known(test, truth):
    assert shell_conditions.truth(test.split()) is truth


SCRIPT = """
MODE=${MODE:-"train"}
if %s; then
  python first.py
%s
  python second.py
fi
python last.py
"""


@pytest.mark.parametrize(
    ("condition", "other", "found"),
    [
        pytest.param('[ "$MODE" == train ]', "else", "first last", id="taken"),
        pytest.param('[ -z "$MODE" ]', "else", "second last", id="not taken"),
        pytest.param("[ $MODE = a ]", "elif [ $MODE = train ]; then", "second last", id="elif"),
        pytest.param("[ $MODE = train ]", "elif [ -d data ]; then", "first last", id="elif after a taken one"),
        pytest.param("[ -d data ]", "elif [ $MODE = a ]; then", "first last", id="elif that is false"),
        pytest.param("[ -d data ]", "else", "first second last", id="a file"),
        pytest.param('[ "$GONE" = a ]', "else", "first second last", id="a variable that is not known"),
        pytest.param("[ $MODE = a ] || [ -d data ]", "else", "first second last", id="two commands"),
        pytest.param("[ $MODE = train ] || [ -d data ]", "else", "first last", id="one of two"),
        pytest.param("[ $MODE = train ] && [ -d data ]", "else", "first second last", id="both of two"),
        pytest.param("[[ $MODE = a && $MODE != b ]]", "else", "second last", id="two in one test"),
        pytest.param("[ $MODE = a ] || [ 1 = 2 ] || [[ $MODE =~ x ]]", "else", "second last", id="none of three"),
        pytest.param("[ $MODE = a ]; true", "else", "first last", id="the last of two"),
        pytest.param("[ $MODE = train ] | grep x", "else", "first second last", id="a pipe"),
        pytest.param("! [ $MODE = a ]", "else", "first last", id="negated"),
        pytest.param("! [ -d data ]", "else", "first second last", id="negated and not known"),
        pytest.param("[ $MODE = a ] || [ $MODE = train ]", "else", "first last", id="the second of two"),
        pytest.param("[ $MODE = train ] && [ $MODE = a ]", "else", "second last", id="one of two that are needed"),
        pytest.param("[ $MODE = a ] && [ -d data ]", "else", "second last", id="false and a file"),
        pytest.param("[[ $MODE = a || $MODE = train ]]", "else", "first last", id="in the same brackets"),
        pytest.param("[[ 1 > 1 ]]", "else", "second last", id="no redirection"),
        pytest.param("command -v nvidia-smi &> /dev/null", "else", "first last", id="a machine with GPUs"),
        pytest.param("[ $MODE = a ]", "  if [ -d data ]; then echo; fi", "last", id="an if within"),
    ],
)
def test_commands_of_a_branch_that_is_not_taken_are_not_found(condition, other, found):
    assert words(SCRIPT % (condition, other)) == [f"python {name}.py" for name in found.split()]


def test_variables_of_a_branch_that_is_not_taken_are_not_set():
    assert words("A=1\nif [ $A = 2 ]; then A=3; else B=4; fi\npython train.py $A $B\n") == ["python train.py 1 4"]


def test_a_counting_loop_has_its_first_value():
    assert words("for ((fold=1;fold<=5;fold++)); do\n  python train.py --fold $fold\ndone\n") == [
        "python train.py --fold 1"
    ]


def test_the_arm_of_a_case_that_fits_is_taken():
    script = """case $MODEL in
  # by size
  small|tiny) LR=1; BS=8 ;;
  "large")
    LR=2
    if [ -n "$MODEL" ]; then BS=16; fi
    ;;
  *) LR=3; BS=1
esac
case $GONE in a) MORE=1;; *) MORE=2;; esac
python train.py --lr $LR --bs $BS --more $MORE
case "$1" in --resume) python resume.py ;; esac
"""
    assert words(script, MODEL="tiny") == ["python train.py --lr 1 --bs 8 --more 2"]
    assert words(script, MODEL="large") == ["python train.py --lr 2 --bs 16 --more 2"]
    assert words(script, MODEL="huge") == ["python train.py --lr 3 --bs 1 --more 2"]
