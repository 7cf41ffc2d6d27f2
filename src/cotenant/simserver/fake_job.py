"""A fake training job: a real process that allocates and uses GPUs of a simulated server.

    COTENANT_SIM_SERVER=<folder> CUDA_VISIBLE_DEVICES=<uuid,...> python -m cotenant.simserver.fake_job --workload NAME

Its memory grows like a job's: nothing at first, then context, weights and activations and, in some workloads, more
after 200 s. It runs at the speed that its neighbors leave it. When a GPU is full, it exits with torch's own error
message. Times are virtual; the time scale of the server says how fast they pass.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import signal
import sys
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple, NoReturn

from cotenant.core.errors import CotenantError, UsageError
from cotenant.progress import at as report_steps
from cotenant.sim.interference import PairTable, TrueActivity
from cotenant.sim.interference.sharing import slice_speed
from cotenant.sim.workloads import A100_CONTEXT_BYTES, pair_speeds, workload
from cotenant.simserver.gpu import SimulatedOutOfMemory
from cotenant.simserver.job_progress import JobProgress
from cotenant.simserver.oom_message import out_of_memory_text
from cotenant.simserver.server import Attachment, SimulatedServer

GiB = 2**30

# First GPU activity comes 8.2 s after the start in the median and 20.6 s at the 95th percentile (AEGIS, on its
# A100 runs): a log-normal through these two.
DELAY_MEDIAN_S = 8.2
DELAY_SIGMA = math.log(20.6 / 8.2) / 1.645
SECOND_GROWTH_S = 200.0  # the measured first peaks cover the first 200 s
WEIGHTS_SHARE = 0.3  # of the first peak; the rest are activations, gradients and optimizer state
STEPS_TO_PEAK = 4
REPORTS = 20
STEPS_INTERVAL_S = 0.5
"""Real seconds after which a job has written its steps again, however long it trains."""


class JobPlan(NamedTuple):
    """What the job will do, all random values drawn. Times are virtual seconds from its start."""

    name: str
    delay_s: float
    work_s: float
    context_bytes: int
    first_peak_bytes: int
    peak_bytes: int
    smact: float
    smocc: float
    drama: float
    utilization: float
    fail_after_s: float | None
    fail_code: int


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job. Exit code: 0, 1 after an OOM, 2 for wrong usage, `--fail-code`, or 143 after SIGTERM."""
    options = _parse(argv)
    signal.signal(signal.SIGTERM, _terminated)
    try:
        folder = os.environ.get("COTENANT_SIM_SERVER")
        if not folder:
            raise UsageError("COTENANT_SIM_SERVER is not set to a simulated server")
        server = SimulatedServer.open(Path(folder))
        names = [part for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part]
        if not names:
            raise UsageError("CUDA_VISIBLE_DEVICES is empty")
        gpus = [server.gpu(server.index_of(name)).uuid for name in names]
        plan = _plan(options, server.seed)
    except CotenantError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    job = SimulatedJob(server, gpus, plan)
    try:
        return job.run()
    except SimulatedOutOfMemory as error:
        sys.stdout.flush()
        sys.stderr.write(out_of_memory_text(error, Path(__file__), device=gpus.index(error.gpu_uuid)))
        return 1
    finally:
        job.leave()


class SimulatedJob:
    """One run of a plan."""

    def __init__(self, server: SimulatedServer, gpus: Sequence[str], plan: JobPlan) -> None:
        self.server = server
        self.gpus = gpus
        self.plan = plan
        self.attachments: list[Attachment] = []
        self.started_s = server.now_s()
        self.held_bytes = 0
        self.shown_speed: float | None = None
        # Reading the GPU files costs about 0.1 ms; a late read changes no result.
        self.look_s = min(1.0, max(0.2, 1.0 / server.time_scale))

    def run(self) -> int:
        """Run all phases; gives the exit code."""
        plan = self.plan
        print(f"{plan.name}: loading data", flush=True)
        self._sleep_until(0.4 * plan.delay_s)
        for gpu in self.gpus:
            self.attachments.append(self.server.attach(gpu, context_bytes=plan.context_bytes, label=plan.name))
        self.held_bytes = plan.context_bytes
        self._sleep_until(0.6 * plan.delay_s)
        self._grow_to(plan.context_bytes + int(WEIGHTS_SHARE * (plan.first_peak_bytes - plan.context_bytes)))
        for step in range(1, STEPS_TO_PEAK + 1):
            self._sleep_until((0.6 + 0.4 * step / STEPS_TO_PEAK) * plan.delay_s)
            missing = plan.first_peak_bytes - self.held_bytes
            self._grow_to(self.held_bytes + missing // (STEPS_TO_PEAK + 1 - step))
        return self._train()

    def leave(self) -> None:
        """Detach from all GPUs."""
        for attachment in self.attachments:
            attachment.detach()
        self.attachments.clear()

    def _solo_speed(self) -> float:
        """Its speed alone, on the slowest of its GPUs; below 1 on a MIG instance."""
        activity = TrueActivity(self.plan.name, self.plan.smact, drama=self.plan.drama)
        models = [self.server.gpu(attachment.index).model for attachment in self.attachments]
        return min((slice_speed(activity, model) for model in models if "/" in model), default=1.0)

    def _train(self) -> int:
        plan = self.plan
        since_s = max(self.server.now_s(), self.started_s + plan.delay_s)
        for attachment in self.attachments:
            attachment.set_activity(**self._activity(1.0))
        progress = JobProgress(
            PairTable(pair_speeds()),
            [attachment.key for attachment in self.attachments],
            since_s=since_s,
            solo_speed=self._solo_speed(),
        )
        second_growth_s = min(SECOND_GROWTH_S, 0.5 * plan.work_s)
        fails_s = math.inf if plan.fail_after_s is None else max(0.0, plan.fail_after_s - plan.delay_s)
        reported = 0
        while True:
            stamps = self._stamps()  # before reading the changes, so that a later change ends the sleep below
            progress.advance([attachment.changes() for attachment in self.attachments], self.server.now_s())
            self._show_speed(progress.speed)
            report_steps(progress.done_s)  # a step is one second of work alone
            if progress.done_s >= second_growth_s:
                self._grow_to(plan.peak_bytes)
            reported = self._report(progress, reported)
            if progress.done_s >= fails_s:
                sys.stderr.write(_failure_text(Path(__file__)))
                return plan.fail_code
            if progress.done_s >= plan.work_s:
                over_s = (progress.done_s - plan.work_s) / progress.speed
                print(f"{plan.name}: done in {progress.at_s - over_s - self.started_s:.1f} s", flush=True)
                return 0
            goals_s = [plan.work_s, fails_s, plan.work_s * (reported + 1) / REPORTS]
            goals_s += [second_growth_s] if self.held_bytes < plan.peak_bytes else []
            ahead_s = min(goals_s) - progress.done_s
            left_s = max(0.0, ahead_s) / progress.speed / self.server.time_scale
            self._sleep(min(left_s, STEPS_INTERVAL_S), stamps)

    def _show_speed(self, speed: float) -> None:
        if self.shown_speed is None or abs(speed - self.shown_speed) > 1e-6:
            self.shown_speed = speed
            for attachment in self.attachments:
                attachment.set_activity(**self._activity(speed))

    def _activity(self, speed: float) -> dict[str, float]:
        plan = self.plan
        activity = {"smact": plan.smact, "smocc": plan.smocc, "drama": plan.drama}
        return {**activity, "utilization": plan.utilization, "speed": speed}

    def _grow_to(self, size_bytes: int) -> None:
        if size_bytes > self.held_bytes:
            for attachment in self.attachments:
                attachment.allocate(size_bytes - self.held_bytes)
            self.held_bytes = size_bytes

    def _report(self, progress: JobProgress, reported: int) -> int:
        due = min(REPORTS, int(REPORTS * progress.done_s / self.plan.work_s + 1e-9))
        if due > reported:
            print(f"{self.plan.name}: {100 * due // REPORTS} %, speed {progress.speed:.2f}", flush=True)
        return due

    def _sleep_until(self, virtual_s: float) -> None:
        left_s = (self.started_s + virtual_s - self.server.now_s()) / self.server.time_scale
        if left_s > 0:
            time.sleep(left_s)

    def _stamps(self) -> list[tuple[int, int]]:
        return [self.server.stamp(attachment.index) for attachment in self.attachments]

    def _sleep(self, at_most_s: float, stamps: list[tuple[int, int]]) -> None:
        """Sleep for `at_most_s` real seconds, or until a GPU has changed since it had these `stamps`."""
        wake_s = time.monotonic() + at_most_s
        while self._stamps() == stamps and (left_s := wake_s - time.monotonic()) > 0:
            time.sleep(min(left_s, self.look_s))
            for attachment in self.attachments:
                self.server.gpu(attachment.index)  # reading removes killed processes, which changes the stamp


def _plan(options: argparse.Namespace, server_seed: int) -> JobPlan:
    """The plan for these options; the same seeds give the same plan."""
    known = workload(options.workload)
    rng = random.Random(zlib.crc32(f"{server_seed} {options.seed} {known.name}".encode()))  # noqa: S311 - no secret
    delay_s = DELAY_MEDIAN_S * math.exp(DELAY_SIGMA * rng.gauss(0.0, 1.0))
    total_s = known.solo_s if options.duration is None else options.duration
    delay_s = min(delay_s if options.delay is None else options.delay, 0.3 * total_s)
    peak_bytes = known.peak_bytes if options.peak_gib is None else int(options.peak_gib * GiB)
    first_peak_bytes = known.first_peak_bytes if options.peak_gib is None else peak_bytes
    context_bytes = min(A100_CONTEXT_BYTES, first_peak_bytes)
    return JobPlan(
        name=known.name,
        delay_s=delay_s,
        work_s=total_s - delay_s,
        context_bytes=context_bytes,
        first_peak_bytes=first_peak_bytes,
        peak_bytes=peak_bytes,
        smact=known.smact if options.smact is None else options.smact,
        smocc=known.smocc,
        drama=known.drama,
        utilization=known.utilization,
        fail_after_s=options.fail_after,
        fail_code=options.fail_code,
    )


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m cotenant.simserver.fake_job", description="a job on a simulated GPU server"
    )
    parser.add_argument("--workload", default="resnet50_imagenet_bs32", help="name of a measured workload")
    parser.add_argument("--duration", type=_positive, help="run time alone in virtual seconds; default: as measured")
    parser.add_argument("--delay", type=_positive, help="virtual seconds before training; default: drawn")
    parser.add_argument("--peak-gib", type=_positive, help="peak memory on each GPU, context included")
    parser.add_argument("--smact", type=_ratio, help="SM activity alone, 0..1")
    parser.add_argument("--seed", type=int, default=0, help="random seed, combined with the server's")
    parser.add_argument("--fail-after", type=float, help="fail after this many virtual seconds of work alone")
    parser.add_argument("--fail-code", type=int, default=1)
    return parser.parse_args(argv)


def _positive(text: str) -> float:
    value = float(text)
    if value <= 0 or not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"must be > 0, got `{text}`")
    return value


def _ratio(text: str) -> float:
    value = float(text)
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"must be from 0 to 1, got `{text}`")
    return value


def _failure_text(script: Path) -> str:
    return (
        "Traceback (most recent call last):\n"
        f'  File "{script}", line 1, in train\n'
        "    loss.backward()\n"
        "RuntimeError: failed because of --fail-after\n"
    )


def _terminated(_number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
