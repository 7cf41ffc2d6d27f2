"""Tables and messages."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest

from cotenant.cli import output
from cotenant.cli.main import main
from cotenant.core.errors import CotenantError, UnknownName

COLUMNS = (output.Column(key="id", title="JOB", right=True), output.Column(key="name", title="NAME"))
ROWS = [{"id": "7", "name": "bert"}, {"id": "1024", "name": "x"}]


def test_tables_are_aligned(capsys):
    output.print_table(ROWS, COLUMNS)
    assert capsys.readouterr().out == " JOB  NAME\n   7  bert\n1024  x\n"


def test_columns_can_be_chosen(capsys):
    output.print_table(ROWS, COLUMNS, only="name, id", header=False)
    assert capsys.readouterr().out == "bert     7\nx     1024\n"


def test_a_long_table_on_a_terminal_is_only_aligned(capsys, monkeypatch):
    rows = ROWS * output.MAX_DRAWN
    output.print_table(rows, COLUMNS)
    aligned = capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(output, "_draw", None)
    output.print_table(rows, COLUMNS)
    assert capsys.readouterr().out == aligned


def test_an_unknown_column_is_refused(capsys):
    with pytest.raises(UnknownName, match="no column named `nmae`"):
        output.print_table(ROWS, COLUMNS, only="nmae")


def test_control_characters_in_names_are_escaped(capsys):
    strange = "a\x1b[2J\nb\x9b"
    output.print_table([{"id": "7", "name": strange}], COLUMNS, header=False)
    output.print_line(strange)
    output.report_error(CotenantError(strange))
    shown = r"a\x1b[2J\nb\x9b"
    assert capsys.readouterr() == (f"7  {shown}\n{shown}\n", "error: a\\x1b[2J\nb\\x9b\n")


def test_an_empty_table_prints_nothing(capsys):
    output.print_table([], COLUMNS, header=False)
    assert capsys.readouterr().out == ""


def test_a_terminal_table_does_not_interpret_markup():
    """Names with brackets must not be taken for markup."""
    code = (
        "from cotenant.cli.output import Column, print_table\n"
        "print_table([{'name': '[red]x[/red]'}], [Column(key='name', title='NAME')])"
    )
    parent, child = pty.openpty()
    subprocess.run([sys.executable, "-c", code], stdout=child, check=True, env={**os.environ, "TERM": "xterm"})
    os.close(child)
    text = os.read(parent, 4096).decode()
    os.close(parent)
    assert "[red]x[/red]" in text
    assert "\x1b[1m" in text  # the bold header: it was rich


def test_error_and_hint_go_to_stderr(capsys):
    output.report_error(CotenantError("it broke", hint="mend it"))
    assert capsys.readouterr() == ("", "error: it broke\nhint: mend it\n")


def test_error_as_json_is_one_value_on_stdout(capsys):
    output.report_error(CotenantError("it broke"), json=True)
    out, err = capsys.readouterr()
    assert json.loads(out)["error"] == {"kind": "CotenantError", "message": "it broke", "hint": None, "exit_code": 1}
    assert err == "error: it broke\n"


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        (["ls", "--json"], True),
        (["submit", "--json", "--", "x"], True),
        (["submit", "--", "x", "--json"], False),
        (["ls"], False),
    ],
)
def test_json_is_recognized_among_the_arguments(argv, wanted):
    assert output.wants_json(argv) is wanted


def test_misspelled_command_is_named(capsys):
    assert main(["sbumit"]) == 2
    assert capsys.readouterr().err.endswith("hint: did you mean `submit`?\n")


@pytest.mark.parametrize(
    ("written", "hint"),
    [("--gpu-mme", "hint: did you mean `--gpu-mem`?"), ("--polcy", "hint: see `cotenant submit --help`")],
)
def test_misspelled_option_is_corrected_only_if_one_is_near(capsys, written, hint):
    assert main(["submit", written, "x", "--", "sleep", "1"]) == 2
    assert capsys.readouterr().err.splitlines()[1].startswith(hint)


@pytest.mark.parametrize(
    "lines",
    [
        ("    $ cat groups.toml", "    [[group]]", '    jobs = ["small", "small", "small"]'),
        ('    $ eval "$(cotenant completion bash)"', "    $ cotenant completion zsh > ~/.zfunc/_cotenant"),
        ("    --margin TIME                   before", "    --part I/N                      run"),
    ],
)
def test_examples_and_lists_of_a_help_text_keep_their_lines(capsys, lines):
    for words in (["study", "collocate"], ["completion"], ["pack"]):
        main([*words, "--help"])
    printed = capsys.readouterr().out.splitlines()
    for line in lines:
        assert any(found.startswith(line) for found in printed), line


def test_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("cotenant ")


def test_a_closed_stdout_is_no_traceback():
    """`cotenant ... >&-`: Python sets `sys.stdout` to None."""
    call = [sys.executable, "-c", "from cotenant.cli.main import run; run()", "simulate", "--list"]
    done = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *call], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
