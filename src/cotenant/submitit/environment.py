"""Inside a job: who it is, and what it does on signals."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from submitit.core import job_environment, logger
from submitit.core.utils import DelayedSubmission, JobPaths

from cotenant.core.errors import DaemonUnreachable
from cotenant.daemon.client import Client

JOB_ID_VARIABLE = "COTENANT_JOB_ID"
SIGNAL_DELAY_VARIABLE = "SUBMITIT_COTENANT_SIGNAL_DELAY_S"
"""Seconds before the time limit at which the job makes its checkpoint."""
RETRY_S = 1.0


class CotenantJobEnvironment(job_environment.JobEnvironment):
    """A job of the daemon; `submitit.JobEnvironment()` returns one inside it.

    It has one task on one node: the variables that would say otherwise are never set.
    """

    _env = {  # noqa: RUF012 (declared by submitit)
        "job_id": JOB_ID_VARIABLE,
        "num_tasks": "SUBMITIT_COTENANT_NTASKS",
        "num_nodes": "SUBMITIT_COTENANT_JOB_NUM_NODES",
        "node": "SUBMITIT_COTENANT_NODEID",
        "global_rank": "SUBMITIT_COTENANT_GLOBALID",
        "local_rank": "SUBMITIT_COTENANT_LOCALID",
    }

    def _handle_signals(self, paths: JobPaths, submission: DelayedSubmission) -> None:
        """Make a checkpoint when the daemon stops the job, and requeue it when its time limit is near.

        SIGTERM ends a time slice, a requeued or a cancelled attempt: the daemon knows what follows. Nobody sends
        submitit's own signal here, so a thread of the job does, before the limit.
        """
        handler = job_environment.SignalHandler(self, paths, submission)
        requeue_signal = self._usr_sig()
        numbers = (signal.SIGTERM, requeue_signal)
        signal.signal(requeue_signal, _first_of(numbers, handler.checkpoint_and_try_requeue))
        signal.signal(signal.SIGTERM, _first_of(numbers, handler.checkpoint_and_exit))
        limit_s = submission._timeout_min * 60
        if limit_s < threading.TIMEOUT_MAX:
            delay_s = float(os.environ.get(SIGNAL_DELAY_VARIABLE, "0"))
            timer = threading.Timer(max(limit_s - delay_s, limit_s / 2), os.kill, (os.getpid(), requeue_signal))
            timer.daemon = True
            timer.start()

    def _requeue(self, countdown: int) -> None:
        """Requeue this job; tried again while the daemon restarts."""
        while True:
            try:
                Client().requeue(int(self.raw_job_id))
                break
            except DaemonUnreachable as error:
                logger.get_logger().warning(f"Cannot requeue yet: {error}")
                time.sleep(RETRY_S)
        logger.get_logger().info(f"Requeued job {self.raw_job_id} ({countdown} remaining timeouts)")


def _first_of(
    numbers: tuple[int, ...], action: Callable[[int, FrameType | None], Any]
) -> Callable[[int, FrameType | None], None]:
    """`action`, once: a second signal would make a second checkpoint in the middle of the first."""

    def handle(number: int, frame: FrameType | None) -> None:
        for other in numbers:
            signal.signal(other, signal.SIG_IGN)
        action(number, frame)

    return handle
