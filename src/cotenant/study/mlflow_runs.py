"""Runs of a study in MLflow: afterwards (`to_mlflow`), or while they go on (`LiveMlflow`).

Each job of a run is an MLflow run. Texts become parameters, numbers metrics, and samples of the GPU metrics over time
named `gpu.NAME`, as radT logs them.
"""

from __future__ import annotations

import importlib.util
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal

from cotenant.core.errors import UsageError
from cotenant.core.gpu import GpuSample
from cotenant.gpus.gpu_sampler import GpuSampler
from cotenant.measurement.campaign import Say
from cotenant.measurement.job_list import JobGroup
from cotenant.measurement.result_table import SAMPLE_COLUMNS
from cotenant.study.export import StudyRun, Value

MAX_BATCH = 1000
"""Metrics of one `log_batch` (MLflow REST API, "Log batch": at most 1,000)."""
MAX_PARAM_LENGTH = 500
SEND_INTERVAL_S = 2.0
SAMPLE_INTERVAL_S = 1.0
"""Between two samples that are logged while a job runs; the folder of the run has all of them."""

Status = Literal["FINISHED", "FAILED", "KILLED"]


class MlflowRuns:
    """Writes runs to an experiment of an MLflow server or folder; `client` is an `MlflowClient`."""

    def __init__(self, client: Any, experiment_id: str) -> None:
        self._client = client
        self._experiment_id = experiment_id

    @classmethod
    def open(cls, uri: str, *, experiment: str) -> MlflowRuns:
        """The experiment at `uri`, created if missing.

        Raises:
            UsageError: mlflow is not installed, or does not reach `uri`.
        """
        if importlib.util.find_spec("mlflow") is None:
            raise UsageError("MLflow needs the package `mlflow` or `mlflow-skinny`", hint="install one of them")
        # By default a request is repeated for minutes (mlflow.environment_variables): a study would wait for them.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        from mlflow.tracking import MlflowClient

        try:
            client = MlflowClient(tracking_uri=uri)
            known = client.get_experiment_by_name(experiment)
            found = client.create_experiment(experiment) if known is None else known.experiment_id
        except Exception as error:
            # MlflowException, or whatever the store of the URI's scheme raises.
            raise UsageError(f"MLflow at `{uri}`: {_first_line(error)}", hint="is the server running?") from error
        return cls(client, found)

    def begin(self, name: str, params: Mapping[str, str]) -> str:
        """Create a run with parameters; its id."""
        created: str = self._client.create_run(self._experiment_id, run_name=name).info.run_id
        self._client.log_batch(created, params=_params(params))
        return created

    def log_samples(self, run_id: str, samples: Sequence[Mapping[str, Value]], *, first_step: int = 0) -> None:
        """Log samples of the GPU as metrics over time."""
        from mlflow.entities import Metric

        metrics = [
            Metric(f"gpu.{name}", float(value), round(1000 * float(str(sample["at_s"]))), first_step + step)
            for step, sample in enumerate(samples)
            for name, value in sample.items()
            if name != "at_s" and isinstance(value, (int, float))
        ]
        for first in range(0, len(metrics), MAX_BATCH):
            self._client.log_batch(run_id, metrics=metrics[first : first + MAX_BATCH])

    def end(self, run_id: str, fields: Mapping[str, object], status: Status) -> None:
        """Log a row, and end the run. MLflow accepts a parameter again that has the same value."""
        from mlflow.entities import Metric

        now_ms = round(1000 * time.time())
        numbers = [
            Metric(name, float(value), now_ms, 0) for name, value in fields.items() if isinstance(value, (int, float))
        ]
        self._client.log_batch(run_id, metrics=numbers, params=_params(fields))
        self._client.set_terminated(run_id, status)


def to_mlflow(runs: Sequence[StudyRun], uri: str, *, experiment: str) -> int:
    """Log every run to the MLflow server or folder at `uri`; returns how many.

    Raises:
        UsageError: mlflow is not installed, or does not reach `uri`.
    """
    log = MlflowRuns.open(uri, experiment=experiment)
    for run in runs:
        run_id = log.begin(f"{run.study}-{run.number}", {})
        log.log_samples(run_id, run.samples)
        log.end(run_id, run.fields, _status(run.fields))
    return len(runs)


class LiveMlflow:
    """Logs the runs of a collocation study while they go on; a `RunTracker`.

    A server that fails costs no measurement: the study says so once and goes on without it.
    """

    def __init__(self, log: MlflowRuns, say: Say) -> None:
        self._log: MlflowRuns | None = log
        self._say = say

    @contextmanager
    def tracking(self, group: JobGroup, repeat: int, watch: GpuSampler | None) -> Iterator[list[dict[str, object]]]:
        """Log samples during a `with` block, and the rows that the block puts into the list at its end."""
        rows: list[dict[str, object]] = []
        ids = self._begin(group, repeat)
        sender = _SampleSender(self, ids, watch)
        status: Status | None = "KILLED"
        try:
            with sender:
                yield rows
            status = None
        finally:
            for run_id, row in zip(ids, rows or [{}] * len(ids), strict=False):
                with self.guarded() as log:
                    if log is not None:
                        log.end(run_id, row, status or _status(row))

    def _begin(self, group: JobGroup, repeat: int) -> list[str]:
        ids: list[str] = []
        with self.guarded() as log:
            for position, job in enumerate(group.jobs, start=1):
                if log is None:
                    break
                params = {
                    "group": group.name, "sharing": group.sharing, "until": group.until, "repeat": str(repeat),
                    "position": str(position), "job": job,
                }  # fmt: skip
                ids.append(log.begin(f"{job} {position} of {group.name}, {group.sharing}, {repeat}", params))
        return ids

    @contextmanager
    def guarded(self) -> Iterator[MlflowRuns | None]:
        """The log, or None after a failure; an error within the block ends the logging, not the study."""
        try:
            yield self._log
        except Exception as error:  # noqa: BLE001 (MlflowException, requests' errors, and those of any store)
            if self._log is not None:
                self._log = None
                self._say(
                    f"MLflow: {_first_line(error)}; measuring goes on without it, log the runs later with "
                    "`cotenant study export --mlflow`"
                )


class _SampleSender:
    """Sends the new samples of a GPU every `SEND_INTERVAL_S`, from a thread of its own, for the duration of a block."""

    def __init__(self, live: LiveMlflow, run_ids: Sequence[str], watch: GpuSampler | None) -> None:
        self._live = live
        self._run_ids = run_ids
        self._watch = watch
        self._last_s = time.time()
        self._step = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        if self._watch is not None and self._run_ids:
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        with suppress(RuntimeError):  # it was not started
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(SEND_INTERVAL_S):
            self._send()
        self._send()

    def _send(self) -> None:
        found = self._new_samples(() if self._watch is None else self._watch.samples)
        for run_id in self._run_ids if found else ():
            with self._live.guarded() as log:
                if log is not None:
                    log.log_samples(run_id, found, first_step=self._step)
        self._step += len(found)

    def _new_samples(self, samples: Sequence[GpuSample]) -> list[dict[str, Value]]:
        found = []
        for sample in samples:
            if sample.at_s >= self._last_s + SAMPLE_INTERVAL_S:
                self._last_s = sample.at_s
                found.append({name: getattr(sample, name) for name in SAMPLE_COLUMNS})
        return found


def _params(fields: Mapping[str, object]) -> list[Any]:
    """The texts among `fields`."""
    from mlflow.entities import Param

    return [Param(name, text[:MAX_PARAM_LENGTH]) for name, text in fields.items() if isinstance(text, str) and text]


def _status(fields: Mapping[str, object]) -> Status:
    return "FINISHED" if fields.get("outcome") == "ok" else "FAILED"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
