"""A daemon predicts with the table that a study installed beside its configuration."""

from __future__ import annotations

import json
import math
import sys

import pytest

from builders import a_spec
from cotenant.scheduling.prediction.interference_table import (
    FittedEffects,
    InterferenceTable,
    SharingTable,
    WorkloadAlone,
)
from cotenant.scheduling.prediction.workloads import workload_key
from places import until


def a_table(site, commands):
    """Jobs that leave 70 % of the SMs idle; beside `loud`, `shy` takes six times as long, `calm` as long as alone."""
    keys = {
        name: workload_key(a_spec(command=("sh", "-c", text), workdir=str(site.root)))
        for name, text in commands.items()
    }
    numbers = {"loud": (0.0, math.log(3)), "shy": (math.log(2), 0.0), "calm": (-math.log(3), 0.0)}
    effects = {
        keys[name]: FittedEffects(victim=victim, victim_variance=0.01, aggressor=aggressor, aggressor_variance=0.01)
        for name, (victim, aggressor) in numbers.items()
    }
    way = SharingTable(effects=effects, pair_speeds={}, group_factors={}, median_error=0.0, p90_error=0.0, rows=2)
    return InterferenceTable(
        gpu="A100-40GB",
        is_simulated=True,
        provenance={"made_by": "a test"},
        workloads={key: WorkloadAlone(name=name, step_s=0.1, smact=0.3) for name, key in keys.items()},
        ways={"time-sliced": way},
    )


@pytest.fixture
def installed(site):
    path = site.root / "config" / "cotenant" / "interference.json"
    path.parent.mkdir(parents=True)
    return path


def test_jobs_that_a_study_saw_in_conflict_do_not_share(site, installed):
    gate = site.gate()
    commands = {name: f"{gate}; : {name}" for name in ("loud", "shy", "calm")}
    installed.write_text(json.dumps(a_table(site, commands).to_json()))
    site.env["COTENANT_POLICY__NAME"] = "marginal-gain"
    site.start(simulate="1xA100-40GB")
    loud = site.submit(commands["loud"])
    site.started(loud)
    shy = site.submit(commands["shy"])
    calm = site.submit(commands["calm"])
    site.started(calm)  # it came after `shy`, which waits
    explained = json.dumps(site.client.explain(shy))
    assert "max_slowdown" in explained
    assert site.client.job(shy)["state"] == "PENDING"
    site.open_gate(gate)
    for job in (loud, shy, calm):
        assert site.wait(job)["state"] == "COMPLETED"


def test_a_damaged_table_is_named_at_the_start(site, installed):
    installed.write_text("{}")
    done = site.cli("daemon", "--simulate", "1xA100-40GB")
    assert done.returncode == 2, done.stderr
    assert f"error: {installed}: no interference table of format 1" in done.stderr
    checked = site.cli("config", "check")
    assert "interference.json" in checked.stdout + checked.stderr


def has_shown_activity(view):
    """Whether a job has run for two minutes of its GPU, with 0.3 of its SMs for most of the time."""
    usage = view["usage"] or {}
    return usage.get("gpu_s", 0.0) > 120.0 and (usage["smact"] or 0.0) > 0.27


def test_advice_is_of_the_history_of_the_daemon(site):
    site.start(simulate="1xA100-40GB")
    # 60 simulated seconds pass in one: long enough to be learned from.
    gate = site.gate()
    trains = f"{sys.executable} -m cotenant.simserver.fake_job --peak-gib 8 --smact 0.3 --duration 1e6"
    job = site.submit(f"{trains} & {gate}; kill $!; wait; true", declared_bytes=10 * 2**30)
    until(lambda: has_shown_activity(site.client.job(job)), "its activity is known, after a start of any length")
    site.open_gate(gate)
    assert site.wait(job)["state"] == "COMPLETED"
    done = site.cli("advise", "--json")
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["advice"]
    assert found["verdict"] == "share"
    assert found["smact_sum"] == pytest.approx(0.6, abs=0.1)
