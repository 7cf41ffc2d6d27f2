"""Numbers on the command line that are none, or far too large: a message, whatever the verb."""

from __future__ import annotations

import pytest

from cotenant.cli import COMMANDS, main
from cotenant.cli.root import load

HUGE = "9" * 5000


def options():
    """All options that take a number with a fraction, and the verb's words before them."""
    for name in COMMANDS:
        command = load(name)
        for words, verb in (
            ([name], command),
            *(([name, sub], subcommand) for sub, subcommand in getattr(command, "commands", {}).items()),
        ):
            for option in verb.params:
                if option.type.name in ("float", "float range"):
                    yield pytest.param([*words, option.opts[-1]], id=" ".join([*words, option.opts[-1]]))


def test_the_search_finds_numeric_options():
    assert len(list(options())) >= 8


@pytest.mark.parametrize("words", list(options()))
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "x"])
def test_nan_inf_and_non_numbers_are_refused(words, value, capsys):
    assert main.main([*words, value]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert value in err
    assert words[-1] in err


@pytest.mark.parametrize("value", ["0", "-1", "3601"])
def test_a_number_out_of_range_is_refused(value, capsys):
    assert main.main(["top", "--interval", value]) == 2
    assert f"`--interval`: must be >= 0.1 and <= 3600, got `{value}`" in capsys.readouterr().err


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
def test_a_huge_number_is_refused(words, capsys):
    assert main.main(words) == 2
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        pytest.param("--gpus", "error: `--gpus`: must be a whole number, got `x`", id="whole"),
        pytest.param("--timeout", "error: `--timeout`: must be a number, got `x`", id="with a fraction"),
    ],
)
def test_a_non_number_is_refused_with_the_wanted_type(option, message, capsys):
    assert main.main(["estimate", option, "x"]) == 2
    assert capsys.readouterr().err.splitlines()[0] == message


def test_an_option_of_the_script_without_dashes_has_a_hint(capsys):
    assert main.main(["estimate", "train.py", "--lr", "64"]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error == "error: no such option: `--lr`"
    assert hint.startswith("hint: options of the script follow `--`: `cotenant estimate train.py -- --lr`")


def test_a_module_without_its_launcher_has_a_hint(capsys):
    assert main.main(["estimate", "-m", "package.train"]) == 2
    hint = capsys.readouterr().err.splitlines()[1]
    assert hint == "hint: a module follows its launcher: `cotenant estimate -- python -m package.train`"


def test_an_option_of_summaries_is_refused_for_a_script(capsys):
    assert main.main(["estimate", "train.py", "--batch-size", "64"]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error == "error: `--batch-size` is for the summary of a model, and `train.py` is a script"
    assert hint.startswith("hint: options of the script follow `--`: `cotenant estimate train.py -- --batch-size")
