"""Runs a list of jobs on the GPUs of one allocation, or of this machine, until all are done or the time is over."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from cotenant.core.errors import BackendError, CotenantError, DaemonUnreachable, UsageError
from cotenant.hosts.attempt_ends import UNORDERED_STOP
from cotenant.slurm.installation import SlurmInstallation
from cotenant.slurm.pack_progress import PackLine, PackProgress
from cotenant.slurm.private_daemon import PackSettings, PrivateDaemon, private_daemon

POLL_S = 0.5
LIMIT_EVERY_S = 60.0
RECORD_TIMEOUT_S = 600.0
"""How long a pack whose jobs have all ended waits for room to record it."""
CANCELLED = "CANCELLED"
COMPLETED = "COMPLETED"
EXIT_LEFT = 75
"""Exit code if jobs are left: EX_TEMPFAIL of sysexits.h."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackJob:
    """A line of the list, and the jobs that it stands for, as bodies of a submission.

    Attributes:
        tasks: indices of its array; (None,) for a single job.
    """

    line: PackLine
    body: dict[str, Any]
    tasks: tuple[int | None, ...] = (None,)


@dataclass(slots=True)
class PackResult:
    """How a pack ended.

    Attributes:
        done: entries of the jobs that ended for good, in this run.
        before: how many had ended before; `failed_before`: how many of these did not complete.
        left: how many are left.
        why: why it stopped before all were done; empty otherwise.
        is_time_over: the allocation's time limit is near.
    """

    done: list[dict[str, Any]] = field(default_factory=list)
    before: int = 0
    failed_before: int = 0
    left: int = 0
    why: str = ""
    is_time_over: bool = False

    @property
    def exit_code(self) -> int:
        """0 if all jobs completed, 1 if one failed, `EXIT_LEFT` if some are left."""
        if self.left:
            return EXIT_LEFT
        return int(self.failed_before > 0 or any(entry["state"] != COMPLETED for entry in self.done))


class Pack:
    """One run over a list of jobs.

    `remaining_s`: gives the seconds that are left to the allocation; None without a limit. The jobs are stopped when
    these are fewer than `margin_s`. `report` is called with each entry that is added to the progress, `warn` with what
    goes wrong meanwhile.
    """

    def __init__(
        self,
        jobs: Sequence[PackJob],
        progress: PackProgress,
        settings: PackSettings,
        *,
        remaining_s: Callable[[], float | None],
        margin_s: float,
        report: Callable[[dict[str, Any]], None],
        warn: Callable[[str], None],
    ) -> None:
        self._jobs = jobs
        self._progress = progress
        self._settings = settings
        self._remaining_s = remaining_s
        self._margin_s = margin_s
        self._report = report
        self._warn = warn
        self._unrecorded: list[dict[str, Any]] = []
        self._signal: int | None = None

    def run(self, on_start: Callable[[PrivateDaemon], None] = lambda _: None) -> PackResult:
        """Run all jobs that are not done; `on_start` is called once the daemon serves.

        Raises:
            BackendError: the daemon does not start. CotenantError: it refuses a job.
        """
        done = self._progress.done()
        wanted = [(job, task) for job in self._jobs for task in job.tasks]
        todo = [(job, task) for job, task in wanted if (job.line.key, task) not in done]
        before = [done[job.line.key, task] for job, task in wanted if (job.line.key, task) in done]
        failed_before = sum(entry.get("state") != COMPLETED for entry in before)
        result = PackResult(before=len(before), failed_before=failed_before, left=len(todo))
        if not todo:
            return result
        rest_s = self._remaining_s()
        if rest_s is not None and rest_s <= self._margin_s:  # it would be requeued for ever
            raise UsageError(
                f"the time limit leaves {rest_s:.0f} s, and jobs are stopped {self._margin_s:.0f} s before it",
                hint="give more --time, or less --margin",
            )
        previous = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            with private_daemon(self._settings) as daemon:
                on_start(daemon)
                ids = self._submit(daemon, todo)
                self._wait(daemon, ids, result)
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        result.left = len(todo) - len(result.done)
        return result

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._signal = number

    def _submit(
        self, daemon: PrivateDaemon, todo: Sequence[tuple[PackJob, int | None]]
    ) -> dict[int, tuple[PackLine, int | None]]:
        """Queue the jobs: their line and index by id."""
        by_line: dict[str, tuple[PackJob, list[int | None]]] = {}
        for job, task in todo:
            by_line.setdefault(job.line.key, (job, []))[1].append(task)
        ids: dict[int, tuple[PackLine, int | None]] = {}
        for job, tasks in by_line.values():
            body = {**job.body, "env": {**job.body["env"], **daemon.env}}
            if tasks != [None]:
                body["array"] = {**body["array"], "tasks": tasks}
            views = daemon.client.submit([body])
            ids |= {view["id"]: (job.line, task) for view, task in zip(views, tasks, strict=True)}
        return ids

    def _wait(self, daemon: PrivateDaemon, ids: dict[int, tuple[PackLine, int | None]], result: PackResult) -> None:
        """Record what ends, until all has ended, or what goes on has been stopped."""
        open_ids = set(ids)
        limit_due_s, give_up_s = 0.0, time.monotonic() + RECORD_TIMEOUT_S
        while open_ids or (self._unrecorded and not result.why):
            try:
                active = {view["id"] for view in daemon.client.jobs(active=True)}
                ended = [daemon.client.job(job_id) for job_id in sorted(open_ids - active)]
            except DaemonUnreachable as error:
                if self._signal is None and not daemon.is_alive:
                    raise BackendError("the daemon of this pack ended", hint=f"see {daemon.log}") from error
                if self._signal is None:
                    raise
                result.why = result.why or f"signal {self._signal}"
                return
            open_ids &= active
            self._record(ended, ids, result)
            now_s = time.monotonic()
            if open_ids:
                give_up_s = now_s + RECORD_TIMEOUT_S
            elif self._unrecorded and now_s >= give_up_s:
                result.why = "what has ended could not be recorded"
            if not result.why and (open_ids or self._unrecorded):
                if self._signal is not None:
                    result.why = f"signal {self._signal}"
                elif now_s >= limit_due_s:
                    rest_s = self._remaining_s()
                    result.is_time_over = rest_s is not None and rest_s <= self._margin_s
                    result.why = "the time of the allocation is over" if result.is_time_over else ""
                    limit_due_s = now_s + (
                        LIMIT_EVERY_S if rest_s is None else min(LIMIT_EVERY_S, max(POLL_S, rest_s - self._margin_s))
                    )
                if result.why and open_ids:
                    self._stop(daemon)
            if open_ids or self._unrecorded:
                time.sleep(POLL_S)  # a signal does not end it early, and is noticed after it (PEP 475)

    def _stop(self, daemon: PrivateDaemon) -> None:
        """Stop everything: jobs get SIGTERM, and time to write a checkpoint."""
        refs = [view["label"] for view in daemon.client.jobs(active=True)]
        daemon.client.change_many("cancel", refs, reason="the pack ends")

    def _record(
        self, views: Sequence[dict[str, Any]], ids: dict[int, tuple[PackLine, int | None]], result: PackResult
    ) -> None:
        """Add jobs that ended to the progress; those that were stopped are left."""
        entries = []
        for view in views:
            # Slurm signals all processes of an allocation at once: a runner may be stopped before this process is.
            is_stopping = bool(result.why) or self._signal is not None or UNORDERED_STOP in view["reason"]
            if is_stopping and view["state"] == CANCELLED:
                continue
            line, task = ids[view["id"]]
            usage = view["usage"]
            entries.append(
                {
                    "key": line.key,
                    "line": line.number,
                    "index": task,
                    "command": line.text,
                    "state": view["state"],
                    "exit_code": view["exit_code"],
                    "attempts": len(view["attempts"]) if isinstance(view["attempts"], list) else view["attempts"],
                    "promised_bytes": view["promised_bytes"],
                    "seen_bytes": view["observed_bytes"],
                    "energy_j": None if usage is None else usage["energy_j"],
                    "running_s": view["running_s"],
                }
            )
        self._save(entries, result)

    def _save(self, entries: Sequence[dict[str, Any]], result: PackResult) -> None:
        """Add entries to the progress, or all of them later: a full disk ends no job."""
        waiting = [*self._unrecorded, *entries]
        if not waiting:
            return
        try:
            self._progress.record(waiting)
        except OSError as error:
            if not self._unrecorded:
                self._warn(f"cannot record what has ended: {(error.strerror or str(error)).lower()}; trying again")
            self._unrecorded = waiting
            return
        self._unrecorded = []
        result.done += waiting
        for entry in waiting:
            self._report(entry)


def visible_gpus(env: dict[str, str] | None = None) -> str | None:
    """The GPUs of this allocation, as CUDA_VISIBLE_DEVICES names them; None outside of one: all of the machine.

    Raises:
        UsageError: there is an allocation, and it has none.
    """
    env = dict(os.environ) if env is None else env
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is None and "SLURM_JOB_ID" not in env:
        return None
    if not visible or visible == "NoDevFiles":  # what Slurm sets for a job without GPUs
        raise UsageError(
            "this allocation has no GPU: CUDA_VISIBLE_DEVICES is empty", hint="request one: --gres=gpu:1, or -G 1"
        )
    return visible


def allocation_rest(slurm: SlurmInstallation, job_id: str) -> float | None:
    """Seconds until the time limit of a job of Slurm; None without a limit, or if it cannot be known now."""
    try:
        return parse_time_left(slurm.output("squeue", "-h", "-j", job_id, "-o", "%L"))
    except CotenantError:
        return None


def parse_time_left(text: str) -> float | None:
    """Seconds in `1-02:03:04`, `2:03:04` or `3:04`, as squeue prints them; 0 once it is over, None for other words."""
    if text.strip() == "INVALID":
        return 0.0
    match = re.fullmatch(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)", text.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
