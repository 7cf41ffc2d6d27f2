"""Slurm's own verbs, with what is known of the jobs."""

from __future__ import annotations

import json

import pytest

from cotenant.cli.slurm_verbs.cluster import run_verb
from cotenant.core.errors import BackendError
from cotenant.slurm.installation import SlurmInstallation

LISTED = """\
5|5|5|gpu|ann|RUNNING|R|0:01|1||n1|one|
26_3|26|26|gpu|ann|RUNNING|R|0:01|1||n1|last of an array|
26_2|28|26|gpu|ann|RUNNING|R|0:01|1||n1|of an array|
7|7|7|gpu|eve|PENDING|PD|0:00|1||(Priority)|FORGED|
"""


class WithoutAccounting(SlurmInstallation):
    def output(self, name, *words, env=None):
        if name == "sacct":
            raise BackendError("Slurm: accounting storage is disabled")
        mark = words[-1].partition("JobArrayID:")[2].partition(",")[0]
        return LISTED.replace("|", mark).replace("FORGED", FORGED)


FORGED = "x\n99|99|99|gpu|bob|RUNNING|R|0:00|1||n1|forged|"


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        ([], ["5", "26_3", "26_2", "7"]),
        (["-X", "-j", "5"], ["5"]),
        (["-j5,28.batch"], ["5", "26_2"]),
        (["--jobs=26"], ["26_3", "26_2"]),
        (["--jobs", "26_2", "-n"], ["26_2"]),
        (["-j", "99"], []),
    ],
)
def test_sacct_lists_the_named_jobs_without_accounting_too(tmp_path, monkeypatch, capsys, words, ids):
    slurm = WithoutAccounting(folder=tmp_path, version="slurm 22")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "c")
    assert run_verb("sacct", slurm, ["--json", *words]) == 0
    assert [row["job_id"] for row in json.loads(capsys.readouterr().out)["jobs"]] == ids


def test_a_name_forges_no_row_of_another_job(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "c")
    slurm = WithoutAccounting(folder=tmp_path, version="slurm 22")
    assert run_verb("squeue", slurm, ["--json"]) == 0
    rows = {row["job_id"]: row for row in json.loads(capsys.readouterr().out)["jobs"]}
    assert list(rows) == ["5", "26_3", "26_2", "7"]
    assert (rows["7"]["user"], rows["7"]["name"]) == ("eve", FORGED)
    assert run_verb("squeue", slurm, []) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5
