"""Labels configurations by tracing them, without a GPU, in the process of `tracing_worker`."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

from cotenant.core.codec import decode
from cotenant.core.errors import UsageError
from cotenant.gpu_specs import gpu_spec
from cotenant.learn.data_collection.configs import Config, config_id
from cotenant.learn.data_collection.run_log import LabelRecord, utc_now


class TracingLabeler:
    """Estimates each configuration for `gpu`, a name in `cotenant.gpu_specs`; `limit_s`: limit of one trace.

    Raises:
        UsageError: no such GPU, or torch is not installed.
    """

    def __init__(self, gpu: str, *, steps: int = 3, limit_s: float = 120.0) -> None:
        if importlib.util.find_spec("torch") is None:
            raise UsageError("tracing needs torch", hint="install it: pip install 'cotenant[torch]'")
        self._gpu = gpu_spec(gpu).name
        how = ["--gpu", self._gpu, "--steps", str(steps), "--limit-s", str(limit_s)]
        self._command = [sys.executable, "-m", "cotenant.learn.data_collection.tracing_worker", *how]
        self._worker: subprocess.Popen[str] | None = None

    def label(self, config: Config) -> LabelRecord:
        """The record, with source `traced`; a `crash` if the tracing process died."""
        worker = self._running()
        assert worker.stdin is not None and worker.stdout is not None  # noqa: PT018 (for mypy: both are pipes)
        answer = ""
        try:
            worker.stdin.write(config_id(config) + "\n")
            worker.stdin.flush()
            answer = worker.stdout.readline()
        except BrokenPipeError:
            pass
        if answer.endswith("\n"):
            return decode(LabelRecord, json.loads(answer))
        self.close()
        message = f"the tracing process ended with code {worker.returncode} without an answer"
        return LabelRecord(
            config_id=config_id(config), status="crash", source="traced", at=utc_now(), gpu=self._gpu, message=message
        )

    def close(self) -> None:
        """End the tracing process; the next label starts another."""
        if self._worker is not None:
            with self._worker as worker:  # closes its pipes, and waits
                worker.kill()
            self._worker = None

    def _running(self) -> subprocess.Popen[str]:
        if self._worker is None or self._worker.poll() is not None:
            self.close()
            # In its own session: Ctrl-C reaches only this process, and the worker ends with its stdin.
            self._worker = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                start_new_session=True,
            )
        return self._worker
