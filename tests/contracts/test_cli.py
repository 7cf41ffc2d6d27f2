"""What every command honors, by its entry in the registry."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

from cotenant.cli import ALIASES, COMMANDS
from cotenant.cli.main import load, main

HEAVY = ("torch", "numpy", "starlette", "uvicorn", "pynvml", "rich", "sqlite3")

# A call of each command that needs a daemon; the others are not about one.
NEEDS_DAEMON = {
    "submit": ["true"],
    "run": ["true"],
    "ls": [],
    "show": ["1"],
    "explain": ["1"],
    "logs": ["1"],
    "wait": ["1"],
    "cancel": ["1"],
    "hold": ["1"],
    "release": ["1"],
    "attach": ["1"],
    "events": ["1"],
    "history": [],
    "update": ["--priority=3", "1"],
    "requeue": ["1"],
    "top": [],
    "gpus": [],
    "mig": ["plan", "0"],
    "token": ["revoke", "0123abcd"],
}
ALONE = {"config", "doctor", "estimate", "compare", "demo", "daemon", "measure", "simulate", "calibrate", "learn"}
EVERY = [*COMMANDS, *ALIASES]


@pytest.fixture(autouse=True)
def no_daemon(tmp_path, monkeypatch):
    monkeypatch.setenv("COTENANT_SOCKET", str(tmp_path / "sock"))


def test_every_command_is_covered_here():
    assert set(COMMANDS) == NEEDS_DAEMON.keys() | ALONE


@pytest.mark.parametrize("name", EVERY)
def test_help_says_what_it_does_with_an_example(name, capsys):
    assert main([name, "--help"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith(f"Usage: cotenant {name}")
    assert f"  cotenant {ALIASES.get(name, name)}" in out or f"$ cotenant {ALIASES.get(name, name)}" in out
    assert max(map(len, out.splitlines())) <= 100
    assert "\\b" not in out


@pytest.mark.parametrize("name", EVERY)
def test_every_command_has_json(name):
    command = load(ALIASES.get(name, name))
    for runs in getattr(command, "commands", {}).values() or (command,):
        assert any("--json" in getattr(each, "opts", ()) for each in runs.params), runs.name


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_help_text(name):
    command = load(name)
    subcommands = getattr(command, "commands", {}).values()
    for each in (command, *subcommands):
        hidden = [option for option in each.params if not getattr(option, "hidden", False)]
        assert [option.name for option in hidden if not getattr(option, "help", "x")] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_values_of_options_are_called_by_what_they_are(name):
    command = load(name)
    for each in (command, *getattr(command, "commands", {}).values()):
        shown = [option for option in each.params if not getattr(option, "hidden", False)]
        assert [option.name for option in shown if option.metavar is None and not is_plain(option)] == []


def is_plain(option) -> bool:
    """Whether it is a flag, or its help shows the words to choose from."""
    return option.type.name == "boolean" or hasattr(option.type, "choices")


@pytest.mark.parametrize("name", NEEDS_DAEMON)
def test_without_a_daemon(name, capsys):
    assert main([name, *NEEDS_DAEMON[name]]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[0] == f"error: no daemon listens on `{os.environ['COTENANT_SOCKET']}`"
    assert err.splitlines()[1] == "hint: start one with: cotenant daemon"


@pytest.mark.parametrize("name", NEEDS_DAEMON)
def test_without_a_daemon_as_json(name, capsys):
    assert main([name, *NEEDS_DAEMON[name][:-1], "--json", *NEEDS_DAEMON[name][-1:]]) == 3
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["error"]["kind"], told["error"]["exit_code"]) == (1, "DaemonUnreachable", 3)


@pytest.mark.parametrize("name", COMMANDS)
def test_unknown_option_is_exit_code_2(name, capsys):
    assert main([name, "--no-such-option", "--json"]) == 2
    out, err = capsys.readouterr()
    assert json.loads(out)["error"]["kind"] == "UsageError"
    assert err.startswith("error: no such option: --no-such-option")
    assert f"hint: see `cotenant {name} --help`" in err


@pytest.mark.parametrize("name", NEEDS_DAEMON)
def test_a_client_imports_nothing_heavy(name):
    code = f"""
        import sys
        from cotenant.cli.main import main
        assert main({[name, *NEEDS_DAEMON[name]]!r}) == 3
        print(*sorted(set({HEAVY!r}) & set(sys.modules)))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr
