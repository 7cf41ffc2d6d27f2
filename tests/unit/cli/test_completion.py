"""Shell completion: what is offered, and the scripts of the shells."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time

import pytest

from cotenant.cli.completion import COMPLETE_VARIABLE
from cotenant.cli.main import main


def offered(monkeypatch, capsys, line):
    """What zsh is offered at the end of `line`: values, and their descriptions."""
    words = line.split(" ")
    monkeypatch.setenv(COMPLETE_VARIABLE, "zsh_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    main([])
    lines = capsys.readouterr().out.splitlines()
    return dict(zip(lines[1::3], lines[2::3], strict=True))


@pytest.mark.parametrize(
    ("line", "value", "text"),
    [
        pytest.param("cotenant ev", "events", "Show what happened to a job, transition by transition", id="verb"),
        pytest.param("cotenant submit --max-s", "--max-slowdown", None, id="option"),
        pytest.param("cotenant submit --sharing m", "mps", "_", id="choice"),
        pytest.param("cotenant estimate --gpu H100", "H100-80GB", "79.6GiB", id="GPU"),
        pytest.param("cotenant daemon --simulate 8xH100", "8xH100-80GB", "79.6GiB", id="server"),
        pytest.param("cotenant daemon --policy mos", "most-memory", "_", id="policy"),
        pytest.param("cotenant simulate --policies carma,best", "carma,best-fit", "_", id="last of several policies"),
        pytest.param("cotenant submit --estimator hor", "horus", "_", id="estimator"),
        pytest.param("cotenant ls -s PEND", "PENDING", "_", id="state"),
        pytest.param("cotenant learn cross", "cross-validate", None, id="subcommand"),
    ],
)
def test_completion_offers_values_with_their_descriptions(monkeypatch, capsys, line, value, text):
    found = offered(monkeypatch, capsys, line)
    assert value in found
    assert text is None or found[value] == text


def test_completion_of_verbs_imports_no_verb(monkeypatch, capsys):
    monkeypatch.setattr("cotenant.cli.root.load", lambda name: pytest.fail(f"{name} was imported"))
    assert len(offered(monkeypatch, capsys, "cotenant ")) >= 30


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_parses(shell, capsys, tmp_path, monkeypatch):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert COMPLETE_VARIABLE in script
    assert "cotenant" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True, timeout=60)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert main(["completion", shell, "--install"]) == 0
    (installed,) = [path for path in tmp_path.rglob("*cotenant*") if path.is_file()]
    assert installed.read_text() == script


@pytest.fixture
def program(tmp_path):
    """A folder with `cotenant` to put on the PATH of a shell."""
    path = tmp_path / "cotenant"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -m cotenant "$@"\n')
    path.chmod(0o755)
    return tmp_path


def test_bash_completes_a_verb_with_the_script_sourced(program):
    """The script is sourced, and its function called as bash does at TAB."""
    code = f"""
        PATH="{program}:$PATH"
        eval "$(cotenant completion bash)"
        COMP_WORDS=(cotenant subm); COMP_CWORD=1
        _cotenant_completion cotenant
        echo "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "submit\n", done.stderr


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_a_verb_and_its_options(program):
    """`complete -C` gives what TAB would offer."""
    code = f'set -x PATH {program} $PATH; cotenant completion fish | source; complete -C "cotenant submi"'
    code += '; complete -C "cotenant submit --gpu-m"'
    env = {**os.environ, "HOME": str(program), "XDG_CONFIG_HOME": str(program)}
    done = subprocess.run(["fish", "-c", code], env=env, capture_output=True, text=True, check=True, timeout=60)
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["submit", "--gpu-mem"], done.stderr


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_completes_a_verb_at_tab(program):
    """In a terminal, since zsh has no completions without its line editor."""
    parent, child = pty.openpty()
    env = {**os.environ, "HOME": str(program), "ZDOTDIR": str(program), "TERM": "dumb"}
    shell = subprocess.Popen(
        ["zsh", "-f", "-i"], stdin=child, stdout=child, stderr=child, env=env, start_new_session=True
    )
    os.close(child)
    try:
        os.write(parent, f"PATH={program}:$PATH; autoload -U compinit; compinit -u -D\n".encode())
        os.write(parent, b'eval "$(cotenant completion zsh)"; print rea""dy\n')
        _read_until(parent, b"ready")
        os.write(parent, b"cotenant submi\t")
        _read_until(parent, b"cotenant submit")
    finally:
        shell.kill()
        shell.wait()
        os.close(parent)


def _read_until(terminal, wanted):
    seen, end_s = b"", time.monotonic() + 60
    while wanted not in seen:
        assert select.select([terminal], [], [], max(0.0, end_s - time.monotonic()))[0], seen
        seen += os.read(terminal, 4096)
