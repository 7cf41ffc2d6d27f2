"""`cotenant estimate`: the GPU memory of a training script, without a GPU."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cotenant.cli.output import emit_json, note
from cotenant.core.errors import TraceError, UsageError
from cotenant.core.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from cotenant.core.estimate import Estimate
    from cotenant.core.trace import MemoryTrace

CONTEXT: Mapping[str, Any] = {"allow_interspersed_args": True}
_BAR = 24


def command(
    script: Annotated[
        str | None, typer.Argument(metavar="SCRIPT", help="A Python training script; it is not changed.")
    ] = None,
    args: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS]", help="Arguments of the script, after `--`.")
    ] = None,
    gpu: Annotated[
        str, typer.Option(metavar="NAME", help="Device profile, e.g. A100-40GB or A100-40GB:3g.20gb; `list` shows all.")
    ] = "A100-40GB",
    python: Annotated[
        str | None, typer.Option(metavar="PATH", help="Interpreter that runs the script; default: this one.")
    ] = None,
    estimator: Annotated[str, typer.Option(metavar="NAME", help="Registered estimator.")] = "traced",
    gpu_mem: Annotated[
        str | None, typer.Option("--gpu-mem", metavar="SIZE", help="Declared memory, for `--estimator declared`.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps to see.")] = 3,
    timeout: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="Stop the script after this long.")] = 120.0,
    show_output: Annotated[bool, typer.Option("--show-output", help="Let the script print, to stderr.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Predict the peak GPU memory of a PyTorch training script, without a GPU.

    The script runs unchanged, for a few optimizer steps, on CUDA tensors that have shapes but no data. What it does
    beside training it does for real: it reads its data, and writes its files.

      cotenant estimate train.py -- --batch-size 64
      cotenant estimate train.py --gpu H100-80GB --json
      cotenant estimate --gpu list
    """
    began_s = time.perf_counter()
    if gpu == "list":
        _list_profiles(json=json)
        return
    if script is None:
        raise UsageError("no script to estimate", hint="give one: `cotenant estimate train.py -- ARGS`")
    from cotenant.core.ports import EstimateRequest
    from cotenant.estimators import create
    from cotenant.estimators.traced import TracedEstimator

    request = EstimateRequest(
        command=(script, *(args or ())),
        workdir=str(Path.cwd()),
        env=dict(os.environ),
        gpu=gpu,
        timeout_s=timeout,
        declared_bytes=parse_bytes(gpu_mem) if gpu_mem else None,
    )
    trace = None
    if estimator == TracedEstimator.name:
        try:
            result = TracedEstimator(steps=steps, python=python, show_output=show_output).explain(request)
        except TraceError as error:
            _tell_last_words(error, json=json)
            raise
        estimate, trace = result.estimate, result.trace
    else:
        estimate = create(estimator).estimate(request)
    elapsed_s = time.perf_counter() - began_s
    if json:
        emit_json({**_as_json(estimate), "elapsed_s": round(elapsed_s, 3), "trace": _summary(trace)})
    else:
        _print(shlex.join(request.command), estimate, trace, elapsed_s)


def _list_profiles(*, json: bool) -> None:
    from cotenant.cli.output import Column, print_table
    from cotenant.estimators.profiles import profiles

    if json:
        emit_json({"profiles": [{"name": each.name, "memory_bytes": each.memory_total_bytes} for each in profiles()]})
        return
    rows = [
        {
            "name": each.name,
            "memory": format_bytes(each.memory_total_bytes),
            "capability": ".".join(map(str, each.compute_capability)),
            "context": format_bytes(each.context.typical_bytes),
            "known": "derived" if each.context.derived else "measured",
            "mig": " ".join(mig.name for mig in each.mig) or "-",
        }
        for each in profiles()
    ]
    titles = {"name": "GPU", "memory": "MEMORY", "capability": "SM", "context": "CONTEXT", "known": "", "mig": "MIG"}
    print_table(rows, [Column(key=key, title=title) for key, title in titles.items()])


def _tell_last_words(error: TraceError, *, json: bool) -> None:
    """What the script printed last, before the error itself."""
    if json or not error.log_tail.strip():
        return
    note("the script's last words:")
    for line in error.log_tail.strip().splitlines()[-12:]:
        note(f"  {line}")


def _as_json(estimate: Estimate) -> dict[str, Any]:
    from cotenant.core.codec import encode

    fields: dict[str, Any] = encode(estimate)
    del fields["type"]
    return {**fields, "device_bytes": estimate.device_bytes, "bound_bytes": estimate.bound_bytes}


def _summary(trace: MemoryTrace | None) -> dict[str, Any] | None:
    if trace is None:
        return None
    header = trace.header
    return {
        "events": len(trace.events),
        "optimizer_steps": header["steps"],
        "torch": header["torch"],
        "python": header["python"],
        "libraries": header.get("libraries", {}),
        "convolutions": sum(op.kind == "conv_forward" for op in trace.ops),
        "alloc_conf": header["alloc_conf"],
    }


def _print(command: str, estimate: Estimate, trace: MemoryTrace | None, elapsed_s: float) -> None:
    print(f"{command} on {estimate.gpu}{'  (partial: a lower bound)' if estimate.partial else ''}\n")
    context, margin = format_bytes(estimate.context_bytes), format_bytes(estimate.margin_bytes)
    lines = [
        ("peak allocated", estimate.peak_allocated_bytes, "live tensors, rounded up to blocks"),
        ("peak reserved", estimate.peak_reserved_bytes, "held by the caching allocator"),
        ("device", estimate.device_bytes, f"as nvidia-smi shows it: with {context} of CUDA context"),
        (
            "bound",
            estimate.bound_bytes,
            f"to find free: with a margin of {margin}, for {estimate.coverage:.0%} of jobs",
        ),
    ]
    for name, value, meaning in lines:
        print(f"  {name:<16}{format_bytes(value):>10}   {meaning}")
    total = sum(estimate.breakdown_bytes.values())
    if total:
        print("\n  at the peak of allocated bytes")
        for category, value in sorted(estimate.breakdown_bytes.items(), key=lambda item: -item[1]):
            bar = "#" * max(1, round(_BAR * value / total))
            print(f"  {category:<16}{format_bytes(value):>10}   {bar:<{_BAR}} {value / total:6.1%}")
    print()
    if trace is not None:
        steps = f"{trace.header['steps']} optimizer step{'s' if trace.header['steps'] != 1 else ''}"
        print(f"  {steps}, {len(trace.events):,} events, torch {trace.header['torch']}, {elapsed_s:.1f} s")
    for warning in estimate.warnings:
        note(f"warning: {warning}")
