"""`cotenant mig` over answers of a daemon."""

from __future__ import annotations

import json

import pytest

from cotenant.cli import mig
from cotenant.cli.common import Connection, LocalConnection
from cotenant.cli.main import main
from cotenant.core.units import GiB


def gpu(**fields):
    return {
        "index": 0,
        "name": "NVIDIA A100-SXM4-40GB",
        "mig_parent": None,
        "memory_total_bytes": 40 * GiB,
        "residents": [],
        "foreign_bytes": 0,
        **fields,
    }


class Daemon:
    """What a client of a daemon would say."""

    is_remote = False

    def __init__(self, gpus, jobs=()):
        self._gpus, self._jobs = gpus, jobs

    def gpus(self):
        return self._gpus

    def jobs(self, *, active):
        assert active
        return [{"state": "PENDING", "gpus": 1, **job} for job in self._jobs]


@pytest.fixture
def daemon(monkeypatch):
    def make(*gpus, jobs=()):
        for connection in (Connection, LocalConnection):
            monkeypatch.setattr(connection, "client", lambda _: Daemon(gpus, jobs))

    return make


JOBS = (
    {"id": 3, "need_bytes": 15 * GiB},
    {"id": 4, "need_bytes": 12 * GiB},
    {"id": 5, "need_bytes": None},
    {"id": 6, "need_bytes": 1 * GiB, "gpus": 2},
    {"id": 7, "need_bytes": 1 * GiB, "state": "RUNNING"},
)


def test_mig_plan_prints_instances_with_job_and_speed(daemon, capsys):
    daemon(gpu(), jobs=JOBS)
    assert main(["mig", "plan", "0"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "4g.20gb     19.6 GiB  job 3: 15.0 GiB, 100% of its speed",
        "3g.20gb     19.6 GiB  job 4: 12.0 GiB, 86% of its speed",
        "2 of 2 pending jobs would run at once; the memory of 1 more is unknown",
        "to create it: sudo cotenant mig apply 0 4g.20gb 3g.20gb --yes",
    ]


def test_mig_plan_as_json_has_the_layout(daemon, capsys):
    daemon(gpu(), jobs=JOBS)
    assert main(["mig", "plan", "0", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert [(instance["profile"], instance["start"], instance["job_id"]) for instance in output["instances"]] == [
        ("4g.20gb", 0, 3),
        ("3g.20gb", 4, 4),
    ]
    assert (output["placed"], output["waiting"]) == (2, 3)


def test_mig_apply_without_yes_prints_the_commands(daemon, capsys):
    daemon(gpu())
    assert main(["mig", "apply", "0", "7g.40gb"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "nvidia-smi mig -i 0 -cgi 7g.40gb:0 -C",
        "nothing was changed; add --yes to do it",
    ]


def test_mig_apply_removes_existing_instances(daemon, capsys):
    instance = gpu(name="NVIDIA A100-SXM4-40GB MIG 3g.20gb", mig_parent="GPU-a")
    daemon(instance, instance)
    assert main(["mig", "apply", "0", "7g.40gb"]) == 0
    assert "-dci" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (gpu(residents=[{"job_id": 8}]), "jobs run on GPU 0: 8"),
        (gpu(foreign_bytes=None), "GPU 0 cannot be read, so a process may be using it"),
        (gpu(index=1), "no GPU 0 (known: 1)"),
        (gpu(name="Tesla T4"), "this GPU has no MIG profiles"),
    ],
)
def test_mig_apply_refuses_busy_unreadable_and_unsupported_gpus(daemon, capsys, found, message):
    daemon(found)
    assert main(["mig", "apply", "0", "7g.40gb", "--yes"]) == 2
    assert capsys.readouterr().err.splitlines()[0] == f"error: {message}"


def test_mig_apply_requires_root(daemon, monkeypatch, capsys):
    daemon(gpu())
    monkeypatch.setattr(mig.os, "geteuid", lambda: 1000)
    assert main(["mig", "apply", "0", "7g.40gb", "--yes"]) == 5
    assert "only root can change" in capsys.readouterr().err


def test_mig_apply_is_refused_for_a_remote_daemon(daemon, monkeypatch, capsys):
    daemon(gpu())
    monkeypatch.setattr(Daemon, "is_remote", True)
    assert main(["mig", "apply", "0", "7g.40gb", "--yes"]) == 2
    assert "created on the machine itself" in capsys.readouterr().err
