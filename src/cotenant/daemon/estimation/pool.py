"""Estimates jobs in worker processes: a few at a time, each with a time limit."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from cotenant.core.codec import CodecError, decode, encode, to_json
from cotenant.core.errors import CotenantError
from cotenant.core.estimate import Estimate, MemoryProfile
from cotenant.core.events import EstimateReady
from cotenant.core.job import JobSpec
from cotenant.core.ports import EstimateRequest
from cotenant.daemon.config.paths import private_folder
from cotenant.daemon.config.schema import EstimatesSection
from cotenant.daemon.estimation.answer import REFUSED, EstimateAnswer, parse_answer
from cotenant.daemon.estimation.exchange import WorkerOutputError
from cotenant.daemon.estimation.worker import TAG, EstimatorWorker, Submitter, WorkerExited
from cotenant.daemon.fair_queue import FairQueue
from cotenant.estimators.declared import DeclaredEstimator

WORKER_COMMAND = (sys.executable, "-m", "cotenant.estimators")
DECLARED = DeclaredEstimator.name
DAEMON_ENDS = "the daemon ends"
STARTUP_S = 30.0
"""Added to the estimator's own time limit: time for its process to start, and to report a timeout."""


@dataclass(frozen=True, slots=True)
class _Task:
    """An estimate to make. `key`: id of the job; negative for a dry run."""

    key: int
    spec: JobSpec
    deliver: Callable[[EstimateAnswer], None]


class EstimatePool:
    """Answers requests with `EstimateReady` through `emit`, from `settings.concurrency` threads.

    Users take turns; where there are several, no user's jobs occupy all threads. The estimator's stderr is saved as
    `<folder>/<job id>.log`. A worker process is reused for the next estimate of the same user, and ended after
    `settings.idle_timeout_s` without one.
    """

    def __init__(
        self,
        settings: EstimatesSection,
        *,
        gpu: str,
        folder: Path,
        now: Callable[[], float],
        emit: Callable[[EstimateReady], None],
        many_users: bool = False,
        command: Sequence[str] = WORKER_COMMAND,
    ) -> None:
        self._settings = settings
        self._gpu = settings.gpu or gpu
        self._folder = private_folder(folder)
        self._now = now
        self._emit = emit
        concurrency = settings.concurrency or default_concurrency(os.cpu_count() or 1)
        self._queue: FairQueue[_Task] = FairQueue(max_in_flight=max(1, concurrency - 1) if many_users else concurrency)
        self._trial_numbers = itertools.count(1)
        self._trials: dict[int, Future[EstimateAnswer]] = {}  # unanswered dry runs, by key
        self._is_ending = False
        self._lock = threading.Lock()
        self._wanted: set[int] = set()
        self._running: dict[int, EstimatorWorker] = {}
        # Only this process holds the writing end, so it closes when the daemon dies, and the watchdogs end all workers.
        self._lifeline, self._life = os.pipe()
        self._idle = [self._new_worker(tuple(command), number) for number in range(concurrency)]  # the last: the newest
        self._threads = [
            threading.Thread(target=self._work, name=f"estimates-{i}", daemon=True) for i in range(concurrency)
        ]

    def _new_worker(self, command: tuple[str, ...], number: int) -> EstimatorWorker:
        name = f"{self._folder.resolve()}#{number}"
        return EstimatorWorker(
            command,
            lifeline=self._lifeline,
            folder=self._folder,
            name=name,
            cgroup=f"cotenant-estimator-{hashlib.sha256(name.encode()).hexdigest()[:12]}",
        )

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def request(self, job_id: int, spec: JobSpec) -> None:
        """Begin to estimate `spec`. Declared memory is the estimate, without a process."""
        if self.estimator_for(spec) == DECLARED:
            self._emit(self._ready(job_id, self._declared(spec)))
            return
        self._put(_Task(job_id, spec, lambda answer: self._emit(self._ready(job_id, answer))))

    def estimate_spec(self, spec: JobSpec) -> tuple[Estimate | None, str | None]:
        """The estimate of a job that is not submitted, or why there is none; blocks until it is made."""
        if self.estimator_for(spec) == DECLARED:
            return self._declared(spec)[:2]
        result: Future[EstimateAnswer] = Future()
        key = -next(self._trial_numbers)
        with self._lock:
            if self._is_ending:
                return None, DAEMON_ENDS
            self._trials[key] = result
        self._put(_Task(key, spec, lambda answer: self._answer_trial(key, answer)))
        try:
            return result.result()[:2]
        finally:
            self.log_path(key).unlink(missing_ok=True)

    def _answer_trial(self, key: int, answer: EstimateAnswer) -> None:
        with self._lock:
            result = self._trials.pop(key, None)
        if result is not None:
            result.set_result(answer)

    def end_trials(self) -> None:
        """Answer all calls of `estimate_spec`, and later ones, without an estimate: the daemon ends."""
        with self._lock:
            self._is_ending = True
            keys = list(self._trials)
        for key in keys:
            self._answer_trial(key, EstimateAnswer(None, DAEMON_ENDS))

    def _put(self, task: _Task) -> None:
        with self._lock:
            self._wanted.add(task.key)
        self._queue.put(task.spec.uid, task)

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
        self.end_trials()
        with self._lock:
            self._wanted.clear()
            for process in self._running.values():
                process.stop()
            os.close(self._life)
        self._queue.close()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        for worker in self._idle:
            worker.dispose()
        os.close(self._lifeline)

    def _work(self) -> None:
        while (task := self._next_task()) is not None:
            worker = self._begin(task)
            if worker is not None:
                answer = self._estimate(worker, task.key, task.spec)
                if self._finish(task, worker):
                    if task.key > 0:
                        self._save_profile(task.key, answer.profile)
                    task.deliver(answer)
            self._queue.task_done(task.spec.uid)

    def _next_task(self) -> _Task | None:
        """Wait for a task, and end workers that are idle for too long; None once the pool is closed."""
        while True:
            due_s = self._end_idle()
            with contextlib.suppress(TimeoutError):
                item = self._queue.get(due_s)
                return None if item is None else item[1]

    def _end_idle(self) -> float | None:
        """End the workers whose time is up; seconds until the next one's is, None without idle processes."""
        while True:
            with self._lock:
                used_s = [(worker.used_at_s, i) for i, worker in enumerate(self._idle) if worker.submitter is not None]
                if not used_s:
                    return None
                oldest_s, number = min(used_s)
                left_s = oldest_s + self._settings.idle_timeout_s - time.monotonic()
                if left_s > 0:
                    return left_s
                # One at a time: this thread has no task, so that those which have find a worker in the list.
                worker = self._idle.pop(number)
            worker.close()
            with self._lock:
                self._idle.insert(0, worker)

    def _begin(self, task: _Task) -> EstimatorWorker | None:
        """A worker for the task, of the same user if one is idle; None if the task was cancelled."""
        submitter = _submitter(task.spec)
        with self._lock:
            if task.key not in self._wanted:
                return None
            # Else one without a process, else the one that was used least recently.
            number = next(
                (i for i, worker in enumerate(self._idle) if worker.submitter == submitter),
                next((i for i, worker in enumerate(self._idle) if worker.submitter is None), 0),
            )
            worker = self._running[task.key] = self._idle.pop(number)
            worker.allow()
            return worker

    def _finish(self, task: _Task, worker: EstimatorWorker) -> bool:
        """Return the worker; whether the answer is still wanted."""
        with self._lock:
            del self._running[task.key]
            worker.used_at_s = time.monotonic()
            self._idle.append(worker)
            is_wanted = task.key in self._wanted
            self._wanted.discard(task.key)
            return is_wanted

    def _ready(self, job_id: int, answer: EstimateAnswer) -> EstimateReady:
        name = "estimator" if answer.estimate is None else f"estimator {answer.estimate.estimator}"
        return EstimateReady(
            at_s=self._now(),
            cause=name,
            job_id=job_id,
            estimate=answer.estimate,
            error=answer.error,
            is_fatal=answer.is_fatal,
        )

    def _save_profile(self, job_id: int, profile: MemoryProfile | None) -> None:
        """Write it beside the log; skipped on a full disk. The journal has no room for what only people look at."""
        path = self._profile_path(job_id)
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            if profile is not None:
                path.write_text(to_json(profile))

    def profile(self, job_id: int) -> MemoryProfile | None:
        """Memory of a job over the steps that were traced for its estimate; None if that is not known."""
        try:
            found: MemoryProfile = decode(MemoryProfile, json.loads(self._profile_path(job_id).read_text()))
            return found
        except (OSError, ValueError, CodecError):  # of another version, or cut off
            return None

    def _profile_path(self, job_id: int) -> Path:
        return self._folder / f"{job_id}.profile.json"

    def _estimate(self, worker: EstimatorWorker, job_id: int, spec: JobSpec) -> EstimateAnswer:
        """The estimate, or why there is none."""
        fields = encode(self._request(spec))
        if spec.env:  # the processes of the script have this environment, and not the worker's
            fields["env"] = {**spec.env, TAG: worker.name}
        request = json.dumps({**fields, "estimator": self.estimator_for(spec)}).encode()
        timeout_s = self._settings.timeout_s + STARTUP_S
        try:
            answer = worker.exchange(request, submitter=_submitter(spec), timeout_s=timeout_s)
        except TimeoutError:
            return EstimateAnswer(None, f"the estimator did not answer within {self._settings.timeout_s:g} s")
        except WorkerExited as end:
            return EstimateAnswer(None, f"the estimator ended with exit code {end.code}{_last_line(worker.log)}")
        except WorkerOutputError as error:
            return EstimateAnswer(None, f"{REFUSED}{error}")
        except OSError as error:
            return EstimateAnswer(None, f"the estimator could not be started: {error.strerror}")
        except KeyError:
            why = f"the estimator could not be started: this machine has no user with uid {spec.uid}"
            return EstimateAnswer(None, why)
        finally:
            worker.save_log(self.log_path(job_id))
        found = parse_answer(answer)
        if found.error is not None and found.error.startswith(REFUSED):
            worker.close()  # it may still be busy, and would answer the next request with this one's answer
        if found.is_fatal and spec.command[0].endswith(".py"):
            return found._replace(is_fatal=False)  # its first line names a Python that may have what ours lacks
        return found

    def _request(self, spec: JobSpec) -> EstimateRequest:
        return EstimateRequest(
            command=spec.command,
            workdir=spec.workdir,
            env=spec.env,
            gpu=self._gpu,
            timeout_s=self._settings.timeout_s,
            declared_bytes=spec.declared_bytes,
            gpus=spec.gpus,
            model_summary=spec.model_summary,
            batch_size=spec.batch_size,
        )

    def _declared(self, spec: JobSpec) -> EstimateAnswer:
        """The estimate of declared memory."""
        try:
            return EstimateAnswer(DeclaredEstimator().estimate(self._request(spec)))
        except CotenantError as error:
            return EstimateAnswer(None, error.message)


def default_concurrency(cores: int) -> int:
    """Estimates at the same time where the configuration names no number: one for 8 cores, at least 2, at most 8."""
    return min(8, max(2, cores // 8))


def _submitter(spec: JobSpec) -> Submitter:
    return Submitter(spec.uid, spec.limits)


def _last_line(log: bytes) -> str:
    lines = log[-4096:].decode(errors="replace").strip().splitlines()
    return f": {lines[-1].strip()[:200]}" if lines else ""
