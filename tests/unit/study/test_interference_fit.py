"""Fits to rows of a study, their installation for the daemon, and checks of what ships."""

import json
import os
import random
import stat
import subprocess
import sys
from dataclasses import replace

import pytest

from builders import a_job
from cotenant.core.errors import CotenantError, UsageError
from cotenant.daemon.config.interference_file import interference_files, read_interference, read_table
from cotenant.daemon.config.schema import Config, SchedulingSection
from cotenant.measurement.collocation import COLUMNS
from cotenant.scheduling.prediction.history import WorkloadHistory
from cotenant.scheduling.prediction.interference import GpuActivity, LearnedInterference, PriorInterference
from cotenant.scheduling.prediction.interference_table import parse_table
from cotenant.sim.interference import TrueActivity
from cotenant.sim.interference.sharing import slice_speed
from cotenant.sim.workloads import pair_speeds, workloads
from cotenant.study.interference_fit import fit_table, groups_by_way
from cotenant.study.interference_install import default_path, install_table
from cotenant.study.table_check import check_assumptions
from placers import decided, gpu, placer

GPU_BYTES = 40 * 2**30


def a_row(job, sharing, group, position, **cells):
    values = {
        "group": "+".join(group), "sharing": sharing, "until": "seconds", "repeat": 1, "position": position, "job": job,
        "workload": f"python /x/{job}.py", "outcome": "ok", "gpu": "A100-40GB", "at": "2026-01-01T00:00:00Z", **cells,
    }  # fmt: skip
    return {name: "" if values.get(name) is None else str(values[name]) for name in COLUMNS}


def alone(job, **cells):
    figures = {"step_s": 0.1, "smact": 0.5, "peak_device_bytes": 8 * 2**30, "gpu_memory_bytes": GPU_BYTES}
    return a_row(job, "alone", [job], 1, **{**figures, **cells})


def together(sharing, **slowdowns):
    return [
        a_row(job, sharing, list(slowdowns), i, step_s=0.1 * slowdown, slowdown=slowdown)
        for i, (job, slowdown) in enumerate(slowdowns.items(), start=1)
    ]


def key(job):
    return f"python /x/{job}.py"


@pytest.fixture
def fit(tmp_path):
    source = tmp_path / "collocation.csv"
    source.write_text("rows\n")
    return lambda rows: fit_table(rows, source)


def test_a_loud_and_a_quiet_job_are_distinguished(fit):
    rows = [alone("loud"), alone("quiet"), alone("other")]
    rows += together("time-sliced", loud=1.05, quiet=3.0) + together("time-sliced", loud=1.05, other=3.0)
    rows += together("time-sliced", quiet=1.1, other=1.1)
    effects = fit(rows).ways["time-sliced"].effects
    assert effects[key("loud")].aggressor > 0.3 > effects[key("quiet")].aggressor
    assert effects[key("loud")].victim < effects[key("quiet")].victim
    assert effects[key("loud")].aggressor_variance < 0.2**2


def test_ways_to_share_have_tables_of_their_own(fit):
    rows = [alone("a"), alone("b"), *together("time-sliced", a=2.5, b=2.5), *together("mps", a=1.2, b=1.2)]
    table = fit(rows)
    activities = [
        GpuActivity(key(name), 0.5, memory_bytes=8 * 2**30, gpu_memory_bytes=GPU_BYTES) for name in ("a", "b")
    ]
    sliced, mps = (LearnedInterference(table).slowdowns(activities, way)[0] for way in ("time-sliced", "mps"))
    assert (round(sliced, 1), round(mps, 1)) == (2.3, 1.2), "pulled a little to the prior by its weight"
    assert table.ways["mps"].pair_speeds[key("a"), key("b")] == pytest.approx(1 / 1.2)


def test_three_jobs_say_how_costs_add_up(fit):
    rows = [alone("a"), alone("b"), alone("c")]
    rows += together("time-sliced", a=1.5, b=1.5) + together("time-sliced", a=1.5, c=1.5)
    rows += together("time-sliced", b=1.5, c=1.5)
    slow, fast = (
        fit([*rows, *together("time-sliced", a=s, b=s, c=s)]).ways["time-sliced"].group_factors[3] for s in (4.0, 1.6)
    )
    assert slow > 1.0 > fast
    assert slow / fast == pytest.approx(4.0 / 1.6)


def test_speeds_on_instances_of_ones_own_are_the_mig_table(fit):
    rows = [alone("a"), alone("b"), *together("time-sliced", a=1.5, b=1.5)]
    rows += together("mig:3g.20gb,2g.10gb", a=2.0, b=4.0) + together("mig:3g.20gb", a=5.0, b=5.0)
    table = fit(rows)
    assert table.workloads[key("a")].slice_speeds == {"3g.20gb": 0.5}
    assert table.workloads[key("b")].slice_speeds == {"2g.10gb": 0.25}
    assert "mig:3g.20gb" not in table.ways, "two jobs that share an instance are no measure of it"


def test_the_shipped_pairs_are_fitted_better_than_the_prior_predicts(fit):
    """On the 210 published pairs, as the study would measure them on that GPU."""
    known, speeds = workloads(), pair_speeds()
    names = sorted({name for pair in speeds for name in pair} & known.keys())
    rows = [
        alone(
            name, step_s=known[name].solo_s, smact=known[name].smact, smocc=known[name].smocc, drama=known[name].drama,
            peak_device_bytes=known[name].peak_bytes,
        )
        for name in names
    ]  # fmt: skip
    for (first, second), speed in speeds.items():
        if first < second and {first, second} <= known.keys():
            rows += together("time-sliced", **{first: 1 / speed, second: 1 / speeds[second, first]})
    table = fit(rows)
    checks = {check.assumption: check for check in check_assumptions(table, groups_by_way(rows))}
    shipped = checks["Shipped pairs of A100, time-sliced"]
    assert (shipped.cases, shipped.median_error) == (2 * (len(rows) - len(names)) // 2, 0.0)
    prior, fitted = checks["Daemon's prior, time-sliced"], checks["Fitted table, time-sliced"]
    assert fitted.median_error < 0.6 * prior.median_error
    assert fitted.p90_error < 0.6 * prior.p90_error


def test_measured_instances_are_compared_with_the_rule_of_the_simulator(fit):
    speed = slice_speed(TrueActivity("a", 0.5), "GPU/2g.10gb")
    table = fit([alone("a"), *together("mig:2g.10gb", a=1.25 / speed)])
    checked = {check.assumption: check for check in check_assumptions(table, {})}["Simulator, MIG instances"]
    assert (checked.cases, round(checked.bias, 3)) == (1, -0.2), "it was a quarter slower than assumed"
    assert checked.worst.startswith("a on 2g.10gb: ")


def test_a_table_survives_json(fit):
    rows = [alone("a", power_w=200), alone("b"), *together("mps:30", a=1.2, b=1.4)]
    table = fit(rows)
    again = parse_table(json.dumps(table.to_json()), "x")
    assert again == table
    assert again.digest == table.digest
    assert again.way("mps") is again.ways["mps:30"], "the only one with MPS"


def test_rows_of_two_gpus_or_without_a_group_are_refused(fit):
    with pytest.raises(UsageError, match="rows of 2 GPUs: A100-40GB, H100"):
        fit([alone("a"), alone("b", gpu="H100")])
    with pytest.raises(UsageError, match="no group in which all jobs were timed"):
        fit([alone("a"), together("mps", a=1.0, b=1.0)[0], a_row("b", "mps", ["a", "b"], 2)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.update(format=9), "no interference table of format 1, found 9"),
        (lambda data: data.pop("ways"), "KeyError: 'ways'"),
        (lambda data: data["workloads"]["python /x/a.py"].update(smact=7), "7 is no ratio from 0 to 1"),
        (
            lambda data: data["ways"]["mps"]["effects"]["python /x/a.py"].__setitem__(0, float("nan")),
            "nan is not finite",
        ),
        (lambda data: data["ways"]["mps"]["group_factors"].update({"3": 0}), "0 is not above 0"),
        (lambda data: data.update(workloads=[]), "AttributeError"),
    ],
)
def test_a_damaged_table_is_refused(fit, change, message):
    data = fit([alone("a"), alone("b"), *together("mps", a=1.2, b=1.4)]).to_json()
    change(data)
    with pytest.raises(UsageError, match=message):
        parse_table(json.dumps(data), "interference.json")
    with pytest.raises(UsageError, match="no JSON"):
        parse_table("{", "interference.json")


def test_it_is_installed_whole_and_the_daemon_reads_it(fit, tmp_path):
    table = fit([alone("a"), alone("b"), *together("mps", a=1.2, b=1.4)])
    env = {"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)}
    path = interference_files(env)[1]
    install_table(table, path, allow_simulated=False)
    assert read_interference(Config(), env) == table
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [found.name for found in path.parent.iterdir()] == ["interference.json"]
    assert table.provenance["rows"] == str(tmp_path / "collocation.csv")
    assert default_path(env) == interference_files(env)[0 if os.geteuid() == 0 else 1]
    named = tmp_path / "named.json"
    with pytest.raises(UsageError, match=r"cannot read .*named.json.*no such file"):
        read_interference(Config(scheduling=SchedulingSection(interference=str(named))), env)


@pytest.mark.parametrize(("job", "taken"), [("thrifty", ("GPU-1",)), ("hungry", ("GPU-0",))])
def test_the_daemons_policy_chooses_instances_by_what_was_measured_on_them(fit, tmp_path, job, taken):
    rows = [alone("thrifty"), alone("hungry")]
    rows += together("mig:3g.20gb,1g.5gb", thrifty=1.0, hungry=4.0)
    rows += together("mig:1g.5gb,3g.20gb", thrifty=1.02, hungry=1.3)
    path = install_table(fit(rows), tmp_path / "interference.json", allow_simulated=False)
    history = WorkloadHistory(table=read_table(path))
    instances = [
        replace(snapshot, gpu=replace(snapshot.gpu, mig_profile=profile, mig_parent="GPU"))
        for snapshot, profile in zip((gpu(0), gpu(1)), ("3g.20gb", "1g.5gb"), strict=True)
    ]
    work = placer("marginal-gain", *instances, facts=history)
    assert decided(work, a_job(1, gib=2, command=("python", f"/x/{job}.py"))) == {1: taken}


def test_a_failed_installation_leaves_the_old_table(fit, tmp_path):
    table = fit([alone("a"), alone("b"), *together("mps", a=1.2, b=1.4)])
    blocked = tmp_path / "collocation.csv" / "interference.json"
    with pytest.raises(CotenantError, match="cannot write"):
        install_table(table, blocked, allow_simulated=False)


def test_rows_of_a_simulated_gpu_are_installed_only_on_request(fit, tmp_path):
    rows = [alone("a"), alone("b"), *together("mps", a=1.2, b=1.4)]
    table = fit([{**row, "gpu": "simulated A100-40GB"} for row in rows])
    with pytest.raises(UsageError, match="simulated A100-40GB"):
        install_table(table, tmp_path / "t.json", allow_simulated=False)
    assert not (tmp_path / "t.json").exists()
    install_table(table, tmp_path / "t.json", allow_simulated=True)
    assert read_table(tmp_path / "t.json").is_simulated


def test_what_was_learned_on_another_table_is_forgotten(fit):
    table = fit([alone("a"), alone("b"), *together("mps", a=1.2, b=1.4)])
    learned = LearnedInterference()
    activities = [GpuActivity(key("a"), 0.5), GpuActivity("python /x/new.py", 0.5)]
    learned.learn(activities, [3.0, 3.0], spread=0.1)
    again = LearnedInterference.restored(learned.state(), table)
    assert again.effects(key("a")) == (None, None), "it would count twice"
    assert again.effects("python /x/new.py") == learned.effects("python /x/new.py")
    same = LearnedInterference.restored(learned.state(), table, learned_with=table.digest)
    assert same.effects(key("a")) == learned.effects(key("a"))
    assert LearnedInterference.restored(learned.state(), None, learned_with=table.digest).state() == {}


def test_observations_move_predictions_away_from_the_table(fit):
    random.seed(0)
    table = fit([alone("a"), alone("b"), *together("time-sliced", a=1.2, b=1.2)])
    predictor = LearnedInterference(table)
    activities = [GpuActivity(key(name), 0.3) for name in ("a", "b")]
    before = predictor.slowdowns(activities)[0]
    for _ in range(20):
        predictor.learn(activities, [2.5, None], spread=0.1)
    assert before < 1.4
    assert predictor.slowdowns(activities)[0] == pytest.approx(2.5, rel=0.1)
    assert PriorInterference().slowdowns(activities)[0] < 1.4


def test_the_command_fits_existing_rows_without_measuring(tmp_path):
    rows = [alone("a"), alone("b"), *together("time-sliced", a=1.2, b=1.4)]
    out = tmp_path / "out"
    out.mkdir()
    lines = [",".join(COLUMNS), *(",".join(row[name] for name in COLUMNS) for row in rows)]
    (out / "collocation.csv").write_text("\n".join(lines) + "\n")
    table = tmp_path / "table.json"
    command = [sys.executable, "-m", "cotenant", "study", "collocate", "--out", str(out)]
    options = ["--install", "--check", "--table", str(table), "--json"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["table"] == str(table)
    assert {check["assumption"] for check in printed["checks"]} >= {"Daemon's prior, time-sliced"}
    assert read_table(table).gpu == "A100-40GB"
