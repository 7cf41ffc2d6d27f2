"""Runs in MLflow, during a study and after it: a real file store where mlflow is installed."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time

import pytest

from cotenant.core.errors import UsageError
from cotenant.core.gpu import GpuSample
from cotenant.measurement.job_list import JobGroup
from cotenant.study.export import StudyRun
from cotenant.study.mlflow_runs import LiveMlflow, MlflowRuns, to_mlflow

HAS_MLFLOW = importlib.util.find_spec("mlflow") is not None
needs_mlflow = pytest.mark.skipif(not HAS_MLFLOW, reason="neither mlflow nor mlflow-skinny is installed")
DEADLINE_S = 300.0
GROUP = JobGroup(jobs=("a", "b"), sharing="mps")


@pytest.fixture
def store(tmp_path, monkeypatch):
    """URI of a file store."""
    # Since 3.8 it asks for this consent; the database store needs sqlalchemy, which mlflow-skinny lacks.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return (tmp_path / "mlruns").as_uri()


def runs_in(uri, experiment):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    found = client.get_experiment_by_name(experiment)
    runs = [] if found is None else client.search_runs([found.experiment_id])
    return client, {run.info.run_name: run for run in runs}


@needs_mlflow
def test_an_export_has_parameters_metrics_and_metrics_over_time(store):
    samples = tuple({"at_s": 100.0 + i, "smact": i / 10, "used_bytes": None} for i in range(3))
    runs = [
        StudyRun(study="rows", number=1, fields={"job": "a", "step_s": 0.25, "outcome": "ok"}, samples=samples),
        StudyRun(study="rows", number=2, fields={"job": "b", "step_s": "nan", "message": "x" * 900, "outcome": "oom"}),
    ]
    assert to_mlflow(runs, store, experiment="study") == 2
    client, found = runs_in(store, "study")
    first, second = found["rows-1"], found["rows-2"]
    assert (first.data.params["job"], first.data.metrics["step_s"], first.info.status) == ("a", 0.25, "FINISHED")
    assert (second.info.status, len(second.data.params["message"])) == ("FAILED", 500)
    history = client.get_metric_history(first.info.run_id, "gpu.smact")
    assert [(point.timestamp, point.value) for point in history] == [(100_000, 0.0), (101_000, 0.1), (102_000, 0.2)]


@needs_mlflow
def test_a_study_logs_while_it_goes_on_and_ends_its_runs_when_it_is_stopped(store, tmp_path):
    (tmp_path / "train.py").touch()
    jobs = [
        f'[[job]]\nname = "{name}"\nscript = "train.py"\nargs = ["--workload", "resnet50_imagenet_bs64"]\n{seconds}'
        for name, seconds in (("a", "seconds = 0.3"), ("c", "seconds = 600"))
    ]
    text = "\n".join([*jobs, '[[group]]\njobs = ["a", "c"]'])
    (tmp_path / "groups.toml").write_text(text + "\n")
    words = ["study", "collocate", "groups.toml", "--out", "out", "--simulate", "A100-40GB", "--mlflow", store]
    passed = {name: os.environ[name] for name in ("PYTHONPATH", "MLFLOW_ALLOW_FILE_STORE") if name in os.environ}
    study = subprocess.Popen(
        [sys.executable, "-m", "cotenant", *words, "--experiment", "live"],
        cwd=tmp_path, env={"PATH": "/nonexistent", "HOME": str(tmp_path), **passed}, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    name = "c 1 of c, alone, 1"
    try:
        end_s = time.monotonic() + DEADLINE_S
        points = []
        while len(points) < 2 and time.monotonic() < end_s and study.poll() is None:
            time.sleep(0.2)
            client, runs = runs_in(store, "live")
            if name in runs:
                points = client.get_metric_history(runs[name].info.run_id, "gpu.smact")
        assert len(points) >= 2, study.stderr.read() if study.poll() is not None else "no metric in time"
        assert runs[name].info.status == "RUNNING"
        assert runs[name].data.params["job"] == "c"
        study.send_signal(signal.SIGINT)
        _, errors = study.communicate(timeout=DEADLINE_S)
    finally:
        study.kill()
        study.communicate()
    _, runs = runs_in(store, "live")
    assert runs[name].info.status == "KILLED", errors
    done = runs["a 1 of a, alone, 1"]
    assert (done.info.status, done.data.params["outcome"]) == ("FINISHED", "ok")
    assert done.data.metrics["step_s"] > 0


@needs_mlflow
def test_a_server_that_is_not_there_is_named_before_anything_runs(tmp_path):
    with pytest.raises(UsageError, match=r"MLflow at `http://127\.0\.0\.1:1`"):
        MlflowRuns.open("http://127.0.0.1:1", experiment="x")


@pytest.mark.skipif(HAS_MLFLOW, reason="mlflow is installed")
def test_without_the_package_it_is_refused():
    with pytest.raises(UsageError, match="needs the package `mlflow`"):
        MlflowRuns.open("mlruns", experiment="x")


class Log:
    """Stands for `MlflowRuns`: notes what it gets; fails from the call number `fails_at` on."""

    def __init__(self, fails_at=10**9):
        self.calls = []
        self.fails_at = fails_at

    def _note(self, *call):
        self.calls.append(call)
        if len(self.calls) > self.fails_at:
            raise ConnectionError("no route to host\nmore")

    def begin(self, name, params):
        self._note("begin", name, params["job"])
        return name[0]

    def log_samples(self, run_id, samples, *, first_step=0):
        self._note("samples", run_id, [sample["smact"] for sample in samples], first_step)

    def end(self, run_id, fields, status):
        self._note("end", run_id, fields.get("step_s"), status)


class Watch:
    """Stands for a `GpuSampler`: a sample that was there before the run, and three of the run."""

    def __init__(self):
        begun_s = time.time()
        self.samples = [GpuSample(at_s=begun_s + at_s, smact=smact) for at_s, smact in
                        ((-50.0, 0.9), (1000.0, 0.1), (1000.5, 0.2), (1002.0, 0.3))]  # fmt: skip


ROWS = [{"outcome": "ok", "step_s": 0.1}, {"outcome": "oom", "step_s": None}]


def test_each_job_of_a_run_gets_the_samples_of_the_run_and_its_row():
    log, said = Log(), []
    with LiveMlflow(log, said.append).tracking(GROUP, 1, Watch()) as rows:
        rows.extend(ROWS)
    assert log.calls == [
        ("begin", "a 1 of a+b, mps, 1", "a"),
        ("begin", "b 2 of a+b, mps, 1", "b"),
        ("samples", "a", [0.1, 0.3], 0),  # one a second, none of the run before
        ("samples", "b", [0.1, 0.3], 0),
        ("end", "a", 0.1, "FINISHED"),
        ("end", "b", None, "FAILED"),
    ]
    assert said == []


@pytest.mark.parametrize("fails_at", range(6))
def test_a_server_that_fails_costs_one_message_and_no_run(fails_at):
    log, said = Log(fails_at), []
    live = LiveMlflow(log, said.append)
    for _ in range(2):
        with live.tracking(GROUP, 1, Watch()) as rows:
            rows.extend(ROWS)
    assert len(log.calls) == fails_at + 1, "nothing more is sent"
    (message,) = said
    assert message.startswith("MLflow: no route to host; measuring goes on without it")


def test_runs_of_a_group_that_is_interrupted_are_killed():
    log = Log()
    with pytest.raises(KeyboardInterrupt), LiveMlflow(log, print).tracking(GROUP, 1, None):
        raise KeyboardInterrupt
    assert log.calls[2:] == [("end", "a", None, "KILLED"), ("end", "b", None, "KILLED")]
