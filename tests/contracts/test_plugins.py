"""A plug-in of every kind from another distribution: it passes the contract of its kind, and the CLI uses it.

The distribution is made of the files in tests/plugins. A plug-in is one file there, `acme_KIND.py`, which names its
entry points in `ENTRY_POINTS`; contract tests that take their names from a registry find it without an edit.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from distributions import declare

TESTS = Path(__file__).parents[1]
CONTRACTS = (
    "test_cli",
    "test_engine",
    "test_engine_restart",
    "test_estimator",
    "test_gpu_backend",
    "test_policy",
    "test_trace_reader",
)
TIMEOUT_S = 240


@pytest.fixture(scope="module")
def acme(tmp_path_factory):
    """The environment of a process that has the distribution installed."""
    folder = tmp_path_factory.mktemp("acme")
    entry_points = {}
    for path in sorted((TESTS / "plugins").glob("*.py")):
        shutil.copy(path, folder)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and node.targets[0].id == "ENTRY_POINTS":
                for group, targets in ast.literal_eval(node.value).items():
                    entry_points.setdefault(group, {}).update(targets)
    declare(folder, entry_points)
    path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def test_the_contracts_find_the_plugins_and_these_pass(acme):
    files = [str(TESTS / "contracts" / f"{name}.py") for name in CONTRACTS]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-k", "acme", "-rA", *files]
    done = subprocess.run(
        command, env=acme, cwd=TESTS.parent, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name in CONTRACTS:
        assert f"{name}.py::" in done.stdout, f"{name} found no plug-in"
    assert "skipped" not in done.stdout.splitlines()[-1]


def test_a_daemon_runs_jobs_by_an_engine_on_gpus_of_a_backend_of_others(acme, tmp_path):
    from cotenant.daemon.client import Client

    env = {
        **acme,
        "COTENANT_SOCKET": str(tmp_path / "sock"),
        "COTENANT_ENGINE__NAME": "acme",
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }
    cotenant = [sys.executable, "-m", "cotenant"]
    read_end, write_end = os.pipe()
    daemon = subprocess.Popen(
        [*cotenant, "daemon", "--backend", "acme", "--tick", "0.1", "--ready-fd", str(write_end)],
        env=env,
        pass_fds=(write_end,),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        os.close(write_end)
        with os.fdopen(read_end) as ready:
            assert ready.read(), daemon.communicate(timeout=60)[1]

        def cli(*words):
            command = [*cotenant, *words]
            return subprocess.run(
                command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
            )

        assert "Acme 8GB" in cli("gpus").stdout
        cli("submit", "--gpu-mem", "1G", "--", "sh", "-c", "echo $STARTED_BY on $CUDA_VISIBLE_DEVICES")
        client = Client(tmp_path / "sock", timeout_s=60)
        assert client.wait(1, timeout_s=60)["state"] == "COMPLETED"
        assert cli("logs", "1").stdout.strip() in ("acme on ACME-0", "acme on ACME-1")
        assert cli("acme-users").stdout.split() == [client.job(1)["user"], "1"]
        assert cli("acme-users", "--least", "2").stdout == ""
    finally:
        daemon.terminate()
        daemon.communicate(timeout=60)


def test_the_simulator_replays_a_trace_in_a_format_of_others(acme, tmp_path):
    path = tmp_path / "jobs.acme"
    path.write_text("acme jobs\n0 60 1\n30 90 2\n")
    command = [sys.executable, "-m", "cotenant", "simulate", "--trace", str(path), "--policies", "exclusive", "--json"]
    done = subprocess.run(command, env=acme, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    trace = json.loads(done.stdout)["trace"]
    assert (trace["trace"], trace["jobs"]) == ("jobs", 2)


def test_the_simulator_compares_a_policy_of_others(acme, tmp_path):
    """Two jobs of 600 s that fit the GPU together run one after the other: the policy shares no GPU."""
    path = tmp_path / "jobs.csv"
    path.write_text("submit_s,duration_s,n_gpus\n0,600,1\n0,600,1\n")
    command = [sys.executable, "-m", "cotenant", "simulate", "--trace", str(path), "--gpus", "1xA100-40GB", "--json"]
    command += ["--policies", "acme,most-memory"]
    done = subprocess.run(command, env=acme, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    acme_run, shared_run = json.loads(done.stdout)["policies"]
    assert (acme_run["policy"], acme_run["metrics"]["makespan_s"], acme_run["metrics"]["shared"]) == (
        "acme",
        1200.0,
        0.0,
    )
    assert shared_run["metrics"]["makespan_s"] < 1200.0


def test_help_lists_a_verb_of_another_distribution_with_its_origin(acme):
    command = [sys.executable, "-m", "cotenant", "--help"]
    done = subprocess.run(command, env=acme, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    assert "  acme-users  From acme-plugins 1.0\n" in done.stdout


def test_an_estimate_by_an_estimator_of_others(acme, tmp_path):
    (tmp_path / "train.py").write_text("")
    command = [sys.executable, "-m", "cotenant", "estimate", "train.py", "--estimator", "acme-constant", "--json"]
    done = subprocess.run(
        command, env=acme, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    assert json.loads(done.stdout)["bound_bytes"] == 2**30


def test_a_study_runs_a_monitoring_tool_of_others(acme, tmp_path):
    (tmp_path / "train.py").write_text("import time; time.sleep(0.2)")
    command = [sys.executable, "-m", "cotenant", "study", "overhead", "--out", str(tmp_path / "out"), "--json"]
    command += ["--tools", "acme-clock", "--repeats", "1", str(tmp_path / "train.py")]
    done = subprocess.run(command, env=acme, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    rows = {row["tool"]: row for row in json.loads(done.stdout)["rows"]}
    assert {name: row["outcome"] for name, row in rows.items()} == {"none": "ok", "acme-clock": "ok"}
    assert int(rows["acme-clock"]["output_bytes"]) > 0
