"""Numbers on the command line that are none, or far too large: a message, whatever the command."""

from __future__ import annotations

import pytest

from cotenant.cli import COMMANDS, main

HUGE = "9" * 5000


def options():
    """All options of commands that take a number with a fraction."""
    for name in COMMANDS:
        found = main.load(name)
        for each in (found, *getattr(found, "commands", {}).values()):
            words = [name] if each is found else [name, each.name]
            for option in each.params:
                if option.type.name in ("float", "float range"):
                    yield pytest.param([*words, option.opts[-1]], id=" ".join([*words, option.opts[-1]]))


def test_there_are_such_options():
    assert len(list(options())) >= 8


@pytest.mark.parametrize("words", list(options()))
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "x"])
def test_a_number_that_counts_nothing_is_refused(words, value, capsys):
    assert main.main([*words, value]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert value in told
    assert words[-1] in told


@pytest.mark.parametrize("value", ["0", "-1", "3601"])
def test_nobody_looks_so_often(value, capsys):
    assert main.main(["top", "--interval", value]) == 2
    assert "is not in the range 0.1<=x<=3600" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["submit", "-t", HUGE, "true"],
        ["submit", "-t", f"1-{HUGE}", "true"],
        ["submit", "--gpu-mem", f"{HUGE}G", "true"],
        ["submit", "--gpu-mem", f"{'9' * 300}G", "true"],
        ["submit", "--gpus", HUGE, "true"],
        ["submit", "--gres", f"gpu:{HUGE}", "true"],
        ["submit", "--begin", f"now+{HUGE}", "true"],
        ["submit", "-a", f"1-{HUGE}", "true"],
        ["submit", "--retries", HUGE, "true"],
        ["submit", "--max-slowdown", HUGE, "true"],
        ["gpus", "--history", HUGE],
        ["update", "1", "--time-slice", HUGE],
        ["history", "-n", HUGE],
    ],
)
def test_a_number_without_measure_is_refused(words, capsys):
    assert main.main(words) == 2
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize(
    ("option", "told"),
    [
        pytest.param("--gpus", "error: invalid value for `--gpus`: `x` is no whole number", id="whole"),
        pytest.param("--timeout", "error: invalid value for `--timeout`: `x` is no number", id="with a fraction"),
    ],
)
def test_what_is_no_number_is_told_in_plain_words(option, told, capsys):
    assert main.main(["estimate", option, "x"]) == 2
    assert capsys.readouterr().err.splitlines()[0] == told


def test_options_of_the_script_have_their_place(capsys):
    assert main.main(["estimate", "train.py", "--batch-size", "64"]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error == "error: no such option: --batch-size (near: --find-batch-size)"
    assert hint.endswith("options of the script follow `--`: `cotenant estimate train.py -- --batch-size`")
