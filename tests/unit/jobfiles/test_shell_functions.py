"""Python commands in functions of shell scripts."""

from __future__ import annotations

import pytest

from cotenant.jobfiles.python_commands import find_python_commands
from cotenant.jobfiles.shell_functions import function_at


def found(text, *arguments):
    return [" ".join(command.words) for command in find_python_commands(text, {}, arguments)]


@pytest.mark.parametrize(
    "definition",
    [
        pytest.param('run() {\n  python train.py --size $SIZE "$@"\n}', id="usual"),
        pytest.param('function run {\n  python train.py --size $SIZE "$@"\n}', id="a keyword"),
        pytest.param('function run() { python train.py --size $SIZE "$@"; }', id="one line"),
        pytest.param('run ()\n{\n  python train.py --size $SIZE "$@"\n}', id="a brace in its own line"),
        pytest.param('run() {\n  { echo; }\n  python train.py --size ${SIZE} "$@"\n}', id="braces within"),
    ],
)
def test_function_is_read_where_it_is_called(definition):
    text = f"{definition}\nSIZE=3\nrun --lr 1\nSIZE=4\npython last.py $1\n"
    assert found(text, "own") == ["python train.py --size 3 --lr 1", "python last.py own"]


def test_function_calls_another_and_returns():
    text = """
inner() {
  if [ "$1" = small ]; then
    python small.py
    return
  fi
  python large.py $1
}
outer() { inner $1; }
outer small
outer big
"""
    assert found(text) == ["python small.py", "python large.py big"]


def test_case_chooses_a_function():
    functions = "train() {\n python train.py\n}\ntest() {\n python test.py\n}\n"
    text = functions + "case $1 in\n train)\n train\n ;;\n test)\n test\n ;;\nesac"
    assert found(text, "train") == ["python train.py"]


def test_functions_without_a_known_call_are_read_where_nothing_else_is_found():
    definition = "run() {\n python train.py\n}\n"
    assert found(definition) == ["python train.py"]
    assert found(definition + "python other.py") == ["python other.py"]


def test_function_that_calls_itself_ends():
    assert found("run() {\n run\n}\nrun\npython train.py") == ["python train.py"]


def test_variables_before_a_call_are_set_in_it():
    assert found("run() { python train.py $SIZE; }\nSIZE=5 run") == ["python train.py 5"]


def test_body_has_the_lines_between_its_braces():
    one_line = function_at([(1, "run() { python a.py; }")], 0)
    assert [(number, text.strip()) for number, text in one_line.body] == [(1, "python a.py;")]
    lines = [(1, "run()"), (2, "{ first"), (3, "second"), (4, "third }"), (5, "}"), (6, "}")]
    several = function_at(lines, 0)
    assert [(number, text.strip()) for number, text in several.body] == [
        (2, "first"),
        (3, "second"),
        (4, "third }"),
        (5, ""),
    ]
    assert several.end == 4


def test_calls_are_limited():
    calls = "".join(f"f{place}() {{\n f{place + 1}\n f{place + 1}\n}}\n" for place in range(10))
    assert 1 < len(found(f"{calls}f10() {{ python train.py; }}\nf0\n")) <= 256


@pytest.mark.parametrize(
    "text", ["run() (\n python a.py\n)", "run()\necho\n{\n echo\n}", "run() {\n python a.py", "python run.py", "run()"]
)
def test_other_lines_define_no_function(text):
    assert function_at(list(enumerate(text.split("\n"), start=1)), 0) is None
