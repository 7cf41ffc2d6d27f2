"""Options of sbatch on the command line of `submit`: used, or taken with a warning that says why not."""

from __future__ import annotations

import os

import pytest

from cotenant.cli.jobs.job_options import JobRequest, LaunchOptions
from cotenant.cli.main import main
from cotenant.cli.options import parameters_of
from cotenant.cli.slurm_verbs.sbatch_options import BEHAVIORS, FIELDS, UNUSED
from cotenant.engines.slurm_environment import submitted_environment
from cotenant.jobfiles.sbatch import OPTIONS


@pytest.fixture(autouse=True)
def no_daemon(tmp_path, monkeypatch):
    monkeypatch.setenv("COTENANT_SOCKET", str(tmp_path / "sock"))


def stderr_of(capsys, *words):
    code = main(["submit", *words])
    assert code == 3, capsys.readouterr().err  # the options were read, and there is no daemon
    return capsys.readouterr().err.splitlines()[:-2]


def test_the_table_has_names_of_sbatch_and_of_our_fields():
    assert {*FIELDS, *BEHAVIORS, *UNUSED} <= OPTIONS.keys()
    fields = parameters_of(JobRequest).keys() | parameters_of(LaunchOptions).keys()
    assert set(FIELDS.values()) <= fields
    assert not FIELDS.keys() & UNUSED.keys()


def test_options_without_effect_are_taken_with_a_warning(capsys):
    assert stderr_of(capsys, "-p", "gpu", "--mem=4G", "-A", "lab", "--no-kill", "--contiguous", "-N2", "true") == [
        "warning: `--partition=gpu` is ignored: there is one queue",
        "warning: `--mem=4G` is ignored: only GPU memory is reserved, see --gpu-mem",
        "warning: `--account=lab` is ignored: there are no accounts",
        "warning: `--no-kill` is ignored: this machine is the only node",
        "warning: `--contiguous` is ignored: this machine is the only node",
        "warning: `--nodes=2` is ignored: this machine is the only node",
    ]


def test_what_is_the_case_anyway_needs_no_warning(capsys):
    assert stderr_of(capsys, "-N", "1", "-n", "1", "-b", "now", "-t", "UNLIMITED", "true") == []


def test_tasks_and_cpus_warn_unless_their_variables_are_set(capsys):
    assert stderr_of(capsys, "-n", "4", "-c", "8", "true") == [
        "warning: `--ntasks=4` only sets a variable, with --slurm-env all: CPUs are not reserved",
        "warning: `--cpus-per-task=8` only sets a variable, with --slurm-env all: CPUs are not reserved",
    ]
    assert stderr_of(capsys, "-n", "4", "--slurm-env", "all", "true") == []


def test_options_after_the_script_are_the_scripts(capsys):
    assert stderr_of(capsys, "true", "-p", "gpu") == []


def test_wrap_and_a_script_exclude_each_other(capsys):
    assert main(["submit", "--wrap", "echo", "true"]) == 2
    assert main(["submit"]) == 2
    capsys.readouterr()
    assert stderr_of(capsys, "--wrap", "echo hi") == []


def test_an_inherited_allocation_does_not_reach_the_job():
    inherited = {"SLURM_NTASKS": "8", "SLURMD_NODENAME": "n1", "SLURM_CONF": "/etc/s", "HOME": "/home/a"}
    found = submitted_environment(inherited, "job", folder="/data", tasks=4, cpus_per_task=2)
    submitted = {"SLURM_SUBMIT_DIR": "/data", "SLURM_SUBMIT_HOST": os.uname().nodename}
    assert found == {"SLURM_CONF": "/etc/s", "HOME": "/home/a", **submitted}
    for_all = submitted_environment(inherited, "all", folder="/data", tasks=4, cpus_per_task=2)
    assert for_all == {**found, "SLURM_NTASKS": "4", "SLURM_CPUS_PER_TASK": "2"}
    assert submitted_environment(inherited, "none", folder="/", tasks=1, cpus_per_task=1) == inherited
