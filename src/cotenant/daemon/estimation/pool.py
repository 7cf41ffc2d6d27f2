"""Estimates jobs in worker processes: a few at a time, each with a time limit."""

from __future__ import annotations

import itertools
import json
import logging
import os
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from cotenant.core.codec import encode
from cotenant.core.errors import CotenantError
from cotenant.core.estimate import Estimate
from cotenant.core.events import EstimateReady
from cotenant.core.job import JobSpec
from cotenant.core.ports import EstimateRequest
from cotenant.daemon.config.paths import private_folder
from cotenant.daemon.config.schema import EstimatesSection
from cotenant.daemon.estimation.answer import EstimateOrError, parse_answer
from cotenant.daemon.estimation.worker import MAX_ANSWER_BYTES, AnswerTooLongError, EstimatorWorker, WorkerExited
from cotenant.estimators.declared import DeclaredEstimator

logger = logging.getLogger(__name__)

WORKER_COMMAND = (sys.executable, "-m", "cotenant.estimators")
DECLARED = DeclaredEstimator.name
STARTUP_S = 30.0
"""Added to the estimator's own time limit: time for its process to start, and to report a timeout."""


@dataclass(frozen=True, slots=True)
class _Task:
    """An estimate to make. `key`: id of the job; negative for a dry run."""

    key: int
    spec: JobSpec
    deliver: Callable[[Estimate | None, str | None], None]


class EstimatePool:
    """Answers requests with `EstimateReady` through `emit`, from `settings.concurrency` threads.

    The stderr of the estimator is saved as `<folder>/<job id>.log`. Each thread reuses its worker process for the next
    estimate, and ends it after `settings.idle_timeout_s` without one.
    """

    def __init__(
        self,
        settings: EstimatesSection,
        *,
        gpu: str,
        folder: Path,
        now: Callable[[], float],
        emit: Callable[[EstimateReady], None],
        command: Sequence[str] = WORKER_COMMAND,
    ) -> None:
        self._settings = settings
        self._gpu = settings.gpu or gpu
        self._folder = private_folder(folder)
        self._now = now
        self._emit = emit
        self._command = tuple(command)
        self._queue: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._trials = itertools.count(1)
        self._lock = threading.Lock()
        self._wanted: set[int] = set()
        self._running: dict[int, EstimatorWorker] = {}
        # Only this process holds the writing end, so it closes when the daemon dies, and the watchdogs end all workers.
        self._lifeline, self._life = os.pipe()
        self._threads = [
            threading.Thread(target=self._work, args=(i,), name=f"estimates-{i}", daemon=True)
            for i in range(settings.concurrency)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def request(self, job_id: int, spec: JobSpec) -> None:
        """Begin to estimate `spec`. Declared memory is the estimate, without a process."""
        if self.estimator_for(spec) == DECLARED:
            self._emit(self._ready(job_id, *self._declared(spec)))
            return
        self._put(_Task(job_id, spec, lambda *answer: self._emit(self._ready(job_id, *answer))))

    def estimate_spec(self, spec: JobSpec) -> EstimateOrError:
        """Estimate a job that is not submitted; blocks until a worker is free."""
        if self.estimator_for(spec) == DECLARED:
            return self._declared(spec)
        result: Future[EstimateOrError] = Future()
        key = -next(self._trials)
        self._put(_Task(key, spec, lambda *answer: result.set_result(answer)))
        try:
            return result.result()
        finally:
            self.log_path(key).unlink(missing_ok=True)

    def _put(self, task: _Task) -> None:
        with self._lock:
            self._wanted.add(task.key)
        self._queue.put(task)

    def estimator_for(self, spec: JobSpec) -> str:
        """The estimator that `spec` gets: the one it names, `declared` if it declares, else the configured one."""
        if spec.estimator is not None:
            return spec.estimator
        return self._settings.estimator if spec.declared_bytes is None else DECLARED

    def cancel(self, job_id: int) -> None:
        """Stop the estimate of a job; nothing is delivered for it."""
        with self._lock:
            self._wanted.discard(job_id)
            process = self._running.get(job_id)
            if process is not None:
                process.stop()

    def log_path(self, job_id: int) -> Path:
        """The file with the stderr of the estimator."""
        return self._folder / f"{job_id}.log"

    def close(self) -> None:
        """End all workers."""
        with self._lock:
            self._wanted.clear()
            for process in self._running.values():
                process.stop()
            os.close(self._life)
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        os.close(self._lifeline)

    def _work(self, number: int) -> None:
        log = self._folder / f"estimator-{number}.log"
        process = EstimatorWorker(self._command, lifeline=self._lifeline, log=log)
        try:
            while (task := self._next_task(process)) is not None:
                with self._lock:
                    wanted = task.key in self._wanted
                    if wanted:
                        process.allow()
                        self._running[task.key] = process
                if not wanted:
                    continue
                answer = self._estimate(process, task.key, task.spec)
                with self._lock:
                    del self._running[task.key]
                    wanted = task.key in self._wanted
                    self._wanted.discard(task.key)
                if wanted:
                    task.deliver(*answer)
        finally:
            process.close()
            log.unlink(missing_ok=True)

    def _next_task(self, process: EstimatorWorker) -> _Task | None:
        """Wait for a task; ends the idle worker after the timeout."""
        try:
            return self._queue.get(timeout=self._settings.idle_timeout_s)
        except queue.Empty:
            process.close()
            return self._queue.get()

    def _ready(self, job_id: int, estimate: Estimate | None, error: str | None) -> EstimateReady:
        name = "estimator" if estimate is None else f"estimator {estimate.estimator}"
        return EstimateReady(at_s=self._now(), cause=name, job_id=job_id, estimate=estimate, error=error)

    def _estimate(self, process: EstimatorWorker, job_id: int, spec: JobSpec) -> EstimateOrError:
        """The estimate, or why there is none."""
        request = json.dumps({**encode(self._request(spec)), "estimator": self.estimator_for(spec)}).encode()
        try:
            answer = process.exchange(request, uid=spec.uid, timeout_s=self._settings.timeout_s + STARTUP_S)
        except TimeoutError:
            return None, f"the estimator did not answer within {self._settings.timeout_s:g} s"
        except WorkerExited as end:
            process.copy_log(self.log_path(job_id))
            return None, f"the estimator ended with exit code {end.code}{_last_log_line(self.log_path(job_id))}"
        except AnswerTooLongError:
            return None, f"the estimator's answer is refused: it is longer than {MAX_ANSWER_BYTES} bytes"
        except OSError as error:
            return None, f"the estimator could not be started: {error.strerror}"
        except KeyError:
            return None, f"the estimator could not be started: this machine has no user with uid {spec.uid}"
        process.copy_log(self.log_path(job_id))
        return parse_answer(answer)

    def _request(self, spec: JobSpec) -> EstimateRequest:
        return EstimateRequest(
            command=spec.command,
            workdir=spec.workdir,
            env=spec.env,
            gpu=self._gpu,
            timeout_s=self._settings.timeout_s,
            declared_bytes=spec.declared_bytes,
            gpus=spec.gpus,
        )

    def _declared(self, spec: JobSpec) -> EstimateOrError:
        """The estimate of declared memory."""
        try:
            return DeclaredEstimator().estimate(self._request(spec)), None
        except CotenantError as error:
            return None, error.message


def _last_log_line(log: Path) -> str:
    try:
        lines = log.read_bytes()[-4096:].decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return f": {lines[-1].strip()[:200]}" if lines else ""
