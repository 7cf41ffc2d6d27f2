"""The process that traces for `tracing_labeler`: one id per line in, one record per line out.

Each trace runs in a fork of this process, which has torch loaded and never trained: torch's autograd engine stores the
number of GPUs at its first backward pass (torch/csrc/autograd/engine.cpp, `initialize_device_threads_pool`), so a fork
of a process that trained on the CPU could not trace.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time

from cotenant.core.codec import encode
from cotenant.core.errors import TraceError
from cotenant.estimators.traced import TracedEstimator, fake_gpu_of
from cotenant.estimators.traced_result import TracedResult
from cotenant.gpu_specs import gpu_spec
from cotenant.learn.data_collection.configs import Config, config_id, parse_id
from cotenant.learn.data_collection.run_log import LabelRecord, utc_now
from cotenant.learn.datasets.dataset_row import Status, layers_to_text
from cotenant.learn.networks.building import Training, layers_of
from cotenant.tracing.process.trace_function import trace_function


def main(argv: list[str]) -> int:
    """Answer until stdin ends."""
    parser = argparse.ArgumentParser(
        prog="python -m cotenant.learn.data_collection.tracing_worker", description=__doc__
    )
    parser.add_argument("--gpu", required=True, help="device profile")
    parser.add_argument("--steps", type=int, default=3, help="optimizer steps to trace")
    parser.add_argument("--limit-s", type=float, default=120.0, help="of a trace")
    args = parser.parse_args(argv)
    # Output of a network or of torch must not mix with the answers on stdout.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with contextlib.suppress(BrokenPipeError), answers:  # the parent may have exited
        for line in sys.stdin:
            run = label(parse_id(line.strip()), gpu=args.gpu, steps=args.steps, limit_s=args.limit_s)
            answers.write(json.dumps(encode(run), separators=(",", ":")) + "\n")
            answers.flush()
    return 0


def label(config: Config, *, gpu: str, steps: int, limit_s: float) -> LabelRecord:
    """The estimate of a configuration as a record, with source `traced`."""
    began_s = time.monotonic()
    device = gpu_spec(gpu)
    found: TracedResult | None = None
    status: Status = "ok"
    message = ""
    layers = layers_to_text(layers_of(config))
    try:
        recorded = trace_function(Training(config, "cuda"), gpu=fake_gpu_of(device), steps=steps, timeout_s=limit_s)
        found = TracedEstimator(steps=steps).on(recorded, device)
    except TraceError as error:
        status, message = "timeout" if error.kind == "timeout" else "crash", error.message
    if found is not None and found.fit.verdict == "no":
        status, message = "oom", found.fit.sentence
    elif found is not None and found.estimate.partial:
        status, message = "crash", "; ".join(found.estimate.warnings) or "the trace is not complete"
        found = None
    estimate = None if found is None else found.estimate
    return LabelRecord(
        config_id=config_id(config),
        status=status,
        source="traced",
        at=utc_now(),
        gpu=device.name,
        message=message,
        layers=layers,
        peak_bytes=None if estimate is None else estimate.device_bytes,
        allocated_bytes=None if estimate is None else estimate.peak_allocated_bytes,
        reserved_bytes=None if estimate is None else estimate.peak_reserved_bytes,
        context_bytes=None if estimate is None else estimate.context_bytes,
        capacity_bytes=device.memory_total_bytes,
        steps=steps,
        elapsed_s=round(time.monotonic() - began_s, 3),
        torch="" if found is None else found.trace.header.torch_version,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
