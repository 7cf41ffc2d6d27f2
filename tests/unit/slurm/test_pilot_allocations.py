"""What a pilot sees of allocations of Slurm, by an answer of squeue and by what their keepers show."""

from __future__ import annotations

import json
import os
import shlex

import pytest

from cotenant.cli.main import main
from cotenant.hosts.keeper import end_of, mark_of
from cotenant.slurm import pilot_allocations
from cotenant.slurm.installation import SlurmInstallation
from cotenant.slurm.pilot_allocations import SILENT_S, SlurmAllocations

NAME = "cotenant-ab-1"
COLUMNS = {"%A": "17", "%j": NAME, "%T": "", "%N": "n1", "%r": "None", "%l": "1:00:00", "%e": "N/A"}


@pytest.fixture
def seen(tmp_path, monkeypatch):
    """Gives the report while squeue has a state for `NAME`, or None for nothing, at a time.

    `seen.mark` and `seen.end` are the files of its keeper.
    """
    clock = [0.0]
    monkeypatch.setattr(pilot_allocations.time, "monotonic", lambda: clock[0])
    squeue = tmp_path / "squeue"
    squeue.write_text(f"#!/bin/sh\ncat {tmp_path}/answer\n")
    squeue.chmod(0o755)
    source = SlurmAllocations(SlurmInstallation(folder=tmp_path, version=""), [], tmp_path)

    def report(state, at_s=0.0):
        clock[0] = at_s
        row = "|".join({**COLUMNS, "%T": str(state)}[column] for column in pilot_allocations.FORMAT.split("|"))
        (tmp_path / "answer").write_text("" if state is None else f"{row}\n")
        return source.report([NAME]).get(NAME)

    report.mark, report.end = mark_of(tmp_path / f"{NAME}.json"), end_of(tmp_path / f"{NAME}.json")
    return report


def test_a_running_allocation_has_its_node_once_its_keeper_runs(seen):
    assert (seen("RUNNING").state, seen("RUNNING").node) == ("running", "")
    seen.mark.write_text("17")
    assert (seen("RUNNING").state, seen("RUNNING").node) == ("running", "n1")


def test_an_allocation_that_is_not_listed_and_has_no_keeper_is_unknown(seen):
    assert seen(None) is None


def test_one_answer_without_an_allocation_ends_nothing(seen):
    seen.mark.write_text("17")
    report = seen(None)
    assert (report.state, report.job_id, seen.end.exists()) == ("ending", "17", False)
    assert seen("RUNNING").state == "running"
    assert (seen(None).state, seen.end.exists()) == ("ending", False)


def test_the_keeper_of_a_forgotten_allocation_is_ended_and_waited_for(seen):
    seen.mark.write_text("17")
    seen(None)
    report = seen(None, at_s=1.0)
    assert (report.state, report.job_id, report.word) == ("stopping", "17", "it is no longer listed")
    assert seen.end.exists()
    seen.mark.unlink()
    assert seen(None, at_s=2.0) is None
    assert not seen.end.exists()


def test_the_keeper_of_an_allocation_that_slurm_gave_up_is_ended_and_waited_for(seen):
    seen.mark.write_text("17")
    assert (seen("NODE_FAIL").state, seen.end.exists()) == ("stopping", False)  # the pilot closes the host meanwhile
    assert (seen("NODE_FAIL").state, seen.end.exists()) == ("stopping", True)
    seen.mark.unlink()
    report = seen("NODE_FAIL")
    assert (report.state, report.word, seen.end.exists()) == ("ended", "NODE_FAIL", False)


def test_a_keeper_that_is_silent_is_gone_and_one_that_is_not_is_waited_for(seen):
    seen.mark.write_text("17")
    for number in range(1, 10):
        os.utime(seen.mark, ns=(number, number))
        assert seen("NODE_FAIL", at_s=number * SILENT_S).state == "stopping"
    assert seen("NODE_FAIL", at_s=9 * SILENT_S + SILENT_S).state == "stopping"
    assert seen("NODE_FAIL", at_s=9 * SILENT_S + SILENT_S + 0.1).state == "ended"
    assert not seen.mark.exists()


@pytest.mark.parametrize(
    ("name", "pattern"),
    [("a b", "a b"), ("100%j", "100%%j"), ("a\\b", "a\\\\b"), ("100%\\j", "100%\\\\j")],
)
def test_the_log_of_an_allocation_is_a_path_and_no_pattern(tmp_path, name, pattern):
    """Below `100%j` Slurm opened a file in `10054`, and the allocation failed before it gave a GPU."""
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" >{tmp_path}/words\necho 17\n")
    sbatch.chmod(0o755)
    source = SlurmAllocations(SlurmInstallation(folder=tmp_path, version=""), [], tmp_path)
    assert source.request(NAME, ["true"], tmp_path / name / "x.log") == "17"
    words = (tmp_path / "words").read_text().splitlines()
    for option in ("-o", "-e"):
        assert words[words.index(option) + 1] == f"{tmp_path}/{pattern}/x.log"


def test_the_folder_of_a_pack_is_a_path_and_no_pattern(tmp_path, monkeypatch, capsys):
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho slurm 22\n")
    (tmp_path / "sbatch").chmod(0o755)
    (tmp_path / "jobs.txt").write_text("--gpu-mem 1G --wrap true\n")
    monkeypatch.setenv("COTENANT_SLURM_BIN", str(tmp_path))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    words = ["pack", "--to", "slurm", "--dry-run", "--json", f"--folder={tmp_path}/100%\\j", str(tmp_path / "jobs.txt")]
    assert main(words) == 0
    line = shlex.split(json.loads(capsys.readouterr().out)["line"])
    assert f"--output={tmp_path}/100%\\\\j/slurm-%j.out" in line
