"""The demo on a Slurm of its own: both ways to run its jobs, what it prints, and that it leaves nothing."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import pytest

from cotenant.cli import demo_slurm
from cotenant.core.errors import UsageError
from cotenant.demo import slurm_cluster
from cotenant.demo.published import demo_trace
from cotenant.demo.slurm_runs import slurm_demo

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "use-with-slurm.md"
ALL = "COTENANT_ALL_GOLDENS" in os.environ  # `make nightly`


@pytest.fixture
def folder(monkeypatch):
    reason = slurm_cluster.why_no_cluster()
    if reason is not None:
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="ct-", dir="/tmp") as name:
        monkeypatch.setattr(tempfile, "tempdir", name)
        Path(name).chmod(0o755)  # munge's user goes through it
        yield Path(name)


def daemons_of(folder):
    """Daemons of Slurm and munge whose files are in `folder`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if str(folder).encode() in path.read_bytes():
                found.append(path.parent.joinpath("comm").read_text().strip())
        except OSError:
            continue
    return [name for name in found if name in slurm_cluster.PROGRAMS]


def words_of(text):
    """Lines without progress and blank ones; `#` for numbers."""
    lines = [re.sub(r"[-+]?\d[\d.hms]*", "#", " ".join(line.split())) for line in text.splitlines() if line.strip()]
    return [line for line in lines if not line.endswith("ended")]


def test_the_demo_prints_what_the_page_shows(folder):
    block = re.search(r"^```text\n\$ make demo-slurm\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    short = [job for job in demo_trace() if job.workload == "mnist_bs32" or job.declared_mib]
    trace = demo_trace() if ALL else short
    said = []
    result = demo_slurm.show_slurm(trace, said.append, time_scale=demo_slurm.TIME_SCALE if ALL else 1500)
    assert daemons_of(folder) == []
    assert list(folder.iterdir()) == []
    shown = [line for line in words_of(block[1]) if ALL or not line.startswith("pack: ")]
    assert words_of("\n".join(said)) == shown
    assert [(run["failed"], run["jobs"]) for run in result.values()] == [([], len(trace))] * 2
    longest_s = 3981  # alone, as measured: workloads_a100.csv
    assert all(run["makespan_s"] >= max(longest_s, run["mean_jct_s"]) for run in result.values())


def test_without_slurm_the_demo_says_what_to_install(monkeypatch):
    monkeypatch.setattr(slurm_cluster, "PROGRAMS", ("no-such-program",))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(UsageError, match="no-such-program not installed") as caught, slurm_demo(time_scale=1):
        pass
    assert "apt-get install slurmctld" in caught.value.hint
