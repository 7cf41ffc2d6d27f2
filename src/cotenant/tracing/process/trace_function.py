"""Traces a function of this process in a fork, so that no patch stays behind."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from cotenant.core.errors import TraceError, UsageError
from cotenant.core.ports import TraceOptions
from cotenant.core.trace import MemoryTrace
from cotenant.core.units import format_duration
from cotenant.tracing.process import serialization
from cotenant.tracing.process.forkserver import import_tracer

_CALLS_PER_STEP = 1024
_HINTS = {
    "no-cuda": "move the model and what it is given to `cuda` inside the function",
    "no-step": "does the function call `optimizer.step()`?",
}
"""In place of the hints for scripts, which name options."""


def trace_function(
    step: Callable[[], object],
    *,
    gpu: Mapping[str, Any],
    steps: int = 3,
    timeout_s: float = 120.0,
    cudnn_version: int = 91900,
) -> MemoryTrace:
    """Call `step` until it took `steps` optimizer steps, on a simulated GPU.

    Raises:
        TraceError: see its kinds.
    """
    # Here and not in the fork, which would do it again for every function; the fork has the better message.
    with contextlib.suppress(Exception):
        import_tracer()
    with tempfile.TemporaryDirectory(prefix="cotenant-trace-") as folder:
        answer = Path(folder, "answer")
        # Eagerly: Dynamo cannot be told apart from that of this process, which may have compiled the function before.
        options = TraceOptions(steps=steps, cudnn_version=cudnn_version, compiled_code="eager")
        request = {"gpu": dict(gpu), "options": asdict(options)}
        # By fork, since a closure over models and optimizers cannot be pickled, as `spawn` and `forkserver` would have
        # to.
        process = multiprocessing.get_context("fork").Process(target=_child, args=(step, request, answer))
        process.start()
        try:
            process.join(timeout_s)
            if process.is_alive():
                raise TraceError(
                    "timeout",
                    f"the function had not made {steps} optimizer steps after {format_duration(timeout_s)}",
                    hint="does it call `optimizer.step()`? if it is only slow, raise `timeout_s`",
                )
        finally:
            # Not SIGTERM: a handler that the script installed would run in the child.
            process.kill()
            process.join()
        if not answer.exists():
            raise TraceError("crashed", f"the tracing process ended with code {process.exitcode} without an answer")
        result = json.loads(answer.read_text())
    if "error" in result:
        error = result["error"]
        kind, message = error["kind"], error["message"].replace("the script", "the function", 1)
        raise TraceError(kind, message, hint=_HINTS.get(kind, error["hint"]))
    return serialization.trace_from_dict(result["trace"])


def _child(step: Callable[[], object], request: dict[str, Any], answer: Path) -> NoReturn:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from cotenant.tracing.process import session as tracing_session

    try:
        import torch

        # The threads of libgomp's pool do not survive fork(2), and a parallel region waits for them (GCC bug 60035).
        torch.set_num_threads(1)
        session = tracing_session.TracingSession(request, answer)
    except TraceError as error:
        tracing_session.answer_error(answer, error)
    except UsageError as error:
        tracing_session.answer_error(answer, tracing_session.as_trace_error(error))

    def body() -> None:
        for _ in range(session.options.steps * _CALLS_PER_STEP):
            step()

    session.run(body)
