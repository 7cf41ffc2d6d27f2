"""What every verb honors, ours and those of other distributions, by its entry in the registry."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import click
import pytest

from cotenant.cli import ALIASES, VERBS
from cotenant.cli.main import main
from cotenant.cli.root import load

HEAVY = ("torch", "numpy", "starlette", "uvicorn", "pynvml", "rich", "sqlite3")
VERB_NAMES = VERBS.names()
NAMES = [*VERB_NAMES, *ALIASES]

WITHOUT_DAEMON = {"doctor", "simulate"}
"""Verbs with --socket that do something useful if no daemon listens there."""

ARGUMENTS = {
    "submit": ["true"],
    "run": ["true"],
    "update": ["--priority=3", "1"],
    "cancel": ["1"],
    "prune": ["--older-than", "30-0"],
    "sbatch": ["--wrap", "true"],
    "scancel": ["1"],
}
"""Command lines that reach the daemon, where one placeholder for each required argument would not."""


def verbs():
    """Every verb that does something: the words that call it, and its command."""
    for name in VERB_NAMES:
        command = load(name)
        subcommands = getattr(command, "commands", {})
        if subcommands:
            yield from ((f"{name} {sub}", subcommand) for sub, subcommand in subcommands.items())
        if not subcommands or getattr(command, "invoke_without_command", False):
            yield name, command


def options_of(command):
    return [param for param in command.params if isinstance(param, click.Option) and not param.hidden]


def daemon_calls():
    """Command lines that need a daemon: the verb's words, and arguments."""
    for words, command in verbs():
        takes_socket = any("--socket" in param.opts for param in command.params)
        if takes_socket and not isinstance(command, click.Group) and words not in WITHOUT_DAEMON:
            required = [param for param in command.params if isinstance(param, click.Argument) and param.required]
            yield words.split(), ARGUMENTS.get(words, ["0"] * len(required))


DAEMON_CALLS = [pytest.param(words, arguments, id=" ".join(words)) for words, arguments in daemon_calls()]
COMMANDS = [pytest.param(command, id=words) for words, command in verbs()]


@pytest.fixture(autouse=True)
def no_daemon(tmp_path, monkeypatch):
    monkeypatch.setenv("COTENANT_SOCKET", str(tmp_path / "sock"))


def test_verbs_that_need_a_daemon_are_found():
    called = {call.values[0][0] for call in DAEMON_CALLS}
    assert {"ls", "submit", "cancel", "daemon", "token", "mig", "top"} <= called
    assert {"estimate", "learn", "simulate"} & called == set()


@pytest.mark.parametrize("name", NAMES)
def test_help_has_an_example(name, capsys):
    assert main([name, "--help"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith(f"Usage: cotenant {name}")
    shown = ALIASES.get(name, name)
    assert any(f"{mark} cotenant {shown}" in out or f'{mark} eval "$(cotenant {shown}' in out for mark in (" ", "$"))
    assert max(map(len, out.splitlines())) <= 100
    assert "\\b" not in out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_begins_with_a_sentence(command):
    first = (command.help or "").split("\n\n")[0]
    assert first[:1].isupper()
    assert first.rstrip().endswith(".")


@pytest.mark.parametrize("command", COMMANDS)
def test_verbs_have_a_json_option(command):
    assert any("--json" in option.opts for option in options_of(command))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_parameter_has_a_help_text(command):
    visible = [param for param in command.params if not getattr(param, "hidden", False)]
    assert [param.name for param in visible if not getattr(param, "help", None)] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_value_has_a_name(command):
    """`--gpu-mem SIZE`, not `--gpu-mem TEXT`; flags and lists of choices need none."""
    valued = [
        option for option in options_of(command) if not option.is_flag and not isinstance(option.type, click.Choice)
    ]
    assert [option.name for option in valued if option.metavar is None] == []


@pytest.mark.parametrize(("words", "arguments"), DAEMON_CALLS)
def test_exit_code_3_without_a_daemon(words, arguments, capsys):
    assert main([*words, *arguments]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[0] == f"error: no daemon listens on `{os.environ['COTENANT_SOCKET']}`"
    assert err.splitlines()[1] == "hint: start one with: cotenant daemon"


@pytest.mark.parametrize(("words", "arguments"), DAEMON_CALLS)
def test_error_object_without_a_daemon(words, arguments, capsys):
    assert main([*words, "--json", *arguments]) == 3
    body = json.loads(capsys.readouterr().out)
    assert (body["schema"], body["error"]["kind"], body["error"]["exit_code"]) == (1, "DaemonUnreachable", 3)


@pytest.mark.parametrize("name", VERB_NAMES)
def test_unknown_option_is_exit_code_2(name, capsys):
    assert main([name, "--no-such-option", "--json"]) == 2
    out, err = capsys.readouterr()
    assert json.loads(out)["error"]["kind"] == "UsageError"
    assert err.startswith("error: no such option: `--no-such-option`")
    assert f"see `cotenant {name} --help`" in err


def test_no_call_of_the_daemon_imports_anything_heavy():
    code = f"""
        import sys
        from cotenant.cli.main import main
        for call in {[words + arguments for words, arguments in daemon_calls()]!r}:
            assert main(call) == 3
            loaded = sorted(set({HEAVY!r}) & set(sys.modules))
            assert not loaded, (call, loaded)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
