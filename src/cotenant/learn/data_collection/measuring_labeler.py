"""Labels configurations by training them on this machine's GPU, each alone in its own process."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from cotenant.engines.held_process import HeldProcess, HeldProcessResult
from cotenant.gpus.gpu_sampler import GpuSampler, MeasuredUsage, driver_version
from cotenant.learn.data_collection.configs import Config, config_id
from cotenant.learn.data_collection.run_log import LabelRecord, utc_now
from cotenant.learn.datasets.dataset_row import Status

_ANSWERED = ("layers", "allocated_bytes", "reserved_bytes", "steps", "step_s", "cpu_s", "host_peak_bytes", "torch")


class MeasuringLabeler:
    """Trains each configuration on the GPU that `watch` samples.

    A run has `steps` optimizer steps, or as many as fit into `seconds`. After `limit_s` of wall-clock time it is a
    `timeout`. `device` is `cuda`, except in tests.
    """

    def __init__(
        self,
        watch: GpuSampler,
        *,
        steps: int = 10,
        seconds: float | None = None,
        limit_s: float = 180.0,
        device: str = "cuda",
    ) -> None:
        self._watch = watch
        self._how = ["--steps", str(steps), "--device", device]
        if seconds is not None:
            self._how += ["--seconds", str(seconds)]
        self._limit_s = limit_s
        self._driver = driver_version() or ""

    def label(self, config: Config) -> LabelRecord:
        """The record, with source `measured`."""
        with tempfile.TemporaryDirectory(prefix="cotenant-learn-") as folder, self._watch:
            process = self._start(config_id(config), Path(folder))
            try:
                in_time = process.wait(self._limit_s)
                end = self._watch.read() if in_time else None
            finally:
                ended = process.release()
        answer = ended.answer or {}
        window = (answer["timed_from_s"], answer["timed_to_s"]) if "timed_from_s" in answer else None
        usage = self._watch.usage(ended.pids, end, window)
        return self._run(config_id(config), ended, usage, in_time=in_time)

    def close(self) -> None:
        """Nothing to release: no process lives between two runs."""

    def _start(self, config: str, folder: Path) -> HeldProcess:
        visible = self._watch.visible
        env = {**os.environ, **({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})}
        answer = folder / "answer.json"
        command = [
            sys.executable,
            "-m",
            "cotenant.learn.data_collection.train_one",
            config,
            "--answer",
            str(answer),
            *self._how,
        ]
        return HeldProcess(command, workdir=str(folder), env=env, log=folder / "log", answer=answer)

    def _run(self, config: str, ended: HeldProcessResult, usage: MeasuredUsage, *, in_time: bool) -> LabelRecord:
        answer: dict[str, Any] = ended.answer or {}
        status, message = _outcome(ended, in_time=in_time, limit_s=self._limit_s)
        peak = _peak_bytes(usage)
        held = usage.end_process_bytes if usage.end_process_bytes is not None else usage.end_device_bytes
        is_known = held is not None and "held_bytes" in answer
        return LabelRecord(
            config_id=config,
            status="crash" if status == "ok" and not peak else status,
            source="measured",
            at=utc_now(),
            gpu=str(answer.get("gpu", self._watch.gpu.name)),
            message="the driver reported no memory of the process" if status == "ok" and not peak else message,
            peak_bytes=peak or None,
            context_bytes=held - int(answer["held_bytes"]) if held is not None and is_known else None,
            capacity_bytes=self._watch.gpu.memory_total_bytes,
            smact=usage.smact,
            smocc=usage.smocc,
            drama=usage.drama,
            power_w=usage.power_w,
            elapsed_s=round(ended.elapsed_s, 3),
            driver=self._driver,
            **{name: answer[name] for name in _ANSWERED if name in answer},
        )


def _outcome(ended: HeldProcessResult, *, in_time: bool, limit_s: float) -> tuple[Status, str]:
    """Status of the finished process, and its message."""
    if ended.answer is not None:
        return ended.answer["status"], str(ended.answer.get("message", ""))
    return "crash" if in_time else "timeout", ended.failure(in_time=in_time, limit_s=limit_s)


def _peak_bytes(usage: MeasuredUsage) -> int | None:
    """Peak of the process where the driver reports it, else that of the GPU above its use before."""
    of_process = [nbytes for nbytes in (usage.peak_process_bytes, usage.end_process_bytes) if nbytes is not None]
    of_device = [nbytes for nbytes in (usage.peak_device_bytes, usage.end_device_bytes) if nbytes is not None]
    return max(of_process or of_device, default=None)
