"""The job that `cotenant pack` is given by its options, and not by a list."""

from __future__ import annotations

import pytest

from cotenant.cli.main import main


@pytest.fixture
def packed(tmp_path, monkeypatch):
    """Packs `words` on a Slurm of a stand-in: the exit code, the list of jobs and the options of sbatch."""
    (tmp_path / "sbatch").write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" >{tmp_path}/words\necho 17\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("COTENANT_SLURM_BIN", str(tmp_path))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.chdir(tmp_path)

    def pack(*words):
        code = main(["pack", "--to", "slurm", *words])
        lists = [path.read_text() for path in tmp_path.glob("*.pack/jobs.txt")]
        return code, lists, (tmp_path / "words").read_text().splitlines() if lists else []

    return pack


@pytest.mark.parametrize(
    ("words", "listed"),
    [
        pytest.param(["--wrap", "echo 'a b'; exit 3"], "--wrap 'echo '\"'\"'a b'\"'\"'; exit 3'\n", id="one job"),
        pytest.param(["-a", "1-2", "--wrap=train"], "--array 1-2 --wrap train\n", id="an array"),
    ],
)
def test_a_command_for_the_shell_is_a_list_of_one_job(packed, words, listed):
    code, lists, given = packed(*words)
    assert (code, lists) == (0, [listed])
    assert len([word for word in given if word.startswith("--wrap")]) == 1  # the pack itself
    assert not [word for word in given if word.startswith("--array")]


def test_it_takes_no_script_besides(packed, capsys):
    assert packed("--wrap", "train", "train.sh") == (2, [], [])
    assert capsys.readouterr().err == "error: script arguments are not permitted with --wrap\n"
