"""`cotenant estimate model.txt --batch-size 32`: GPU memory from a printed summary of a model."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from cotenant.cli.estimate import json_output as estimate_json
from cotenant.cli.estimate.text import print_estimate
from cotenant.cli.output import Column, emit_json, note, print_table
from cotenant.core.errors import UsageError
from cotenant.core.units import format_bytes

if TYPE_CHECKING:
    from cotenant.core.estimate import Estimate
    from cotenant.core.ports import EstimateRequest
    from cotenant.estimators.compare import EstimatorResult

DEFAULT = ("traced", "summary")
"""Estimators for which the simulation of the layers answers."""

COLUMNS = (
    Column(key="name", title="ESTIMATOR"),
    Column(key="device", title="DEVICE", right=True),
    Column(key="ratio", title="RATIO", right=True),
    Column(key="note", title=""),
)


def answer(request: EstimateRequest, estimator: str, *, json: bool) -> None:
    """Print the estimate by simulation, or by `estimator`, and those of the learned estimators.

    Raises:
        UsageError: `estimator` reads no summaries, or the file cannot be read.
        SummaryError: the file is no summary; names the line.
    """
    began_s = time.perf_counter()
    from cotenant.gpu_specs import gpu_spec
    from cotenant.learn.model_summaries.estimator import learned, read_model, simulated

    gpu = gpu_spec(request.gpu)
    model = read_model(request)
    others = learned(model, gpu)
    estimate = simulated(model, gpu) if estimator in DEFAULT else _of(estimator, others)
    elapsed_s = time.perf_counter() - began_s
    described = {
        "format": model.summary.format,
        "layers": len(model.summary.layers),
        "parameters": model.summary.parameters,
        "batch_size": model.batch,
        "tokens": model.tokens,
    }
    if json:
        rows = [_row_json(result, estimate) for result in others]
        fields = {**estimate_json.of_estimate(estimate), "elapsed_s": round(elapsed_s, 3), "trace": None}
        emit_json({**fields, "summary": described, "learned": rows})
        return
    shown = f"{request.model_summary}, batches of {model.batch}"
    print_estimate(shown, estimate, None, elapsed_s)
    print(
        f"  from a summary alone: {len(model.summary.layers)} layers, {model.summary.parameters:,} parameters"
        f" ({model.summary.format}); a trace of the script knows more\n"
    )
    print_table([_row(result, estimate) for result in others], COLUMNS)
    for result in others:
        for warning in result.estimate.warnings if result.estimate else ():
            note(f"warning: {warning}")


def _of(name: str, others: tuple[EstimatorResult, ...]) -> Estimate:
    result = next((result for result in others if result.name == name), None)
    if result is None:
        known = ", ".join(("summary", *(result.name for result in others)))
        raise UsageError(f"`{name}` reads no summary of a model", hint=f"these do: {known}")
    if result.estimate is None:
        raise UsageError(result.problem or f"`{name}` has no answer")
    return result.estimate


def _row(result: EstimatorResult, ours: Estimate) -> dict[str, Any]:
    estimate = result.estimate
    if estimate is None:
        return {"name": result.name, "device": "-", "ratio": "-", "note": result.problem}
    return {
        "name": result.name,
        "device": f"{'>' if estimate.partial else ''}{format_bytes(estimate.device_bytes)}",
        "ratio": f"{estimate.device_bytes / ours.device_bytes:.2f}",
        "note": f"leaves out {result.leaves_out}",
    }


def _row_json(result: EstimatorResult, ours: Estimate) -> dict[str, Any]:
    estimate = result.estimate
    return {
        "name": result.name,
        "device_bytes": None if estimate is None else estimate.device_bytes,
        "ratio": None if estimate is None else round(estimate.device_bytes / ours.device_bytes, 4),
        "partial": bool(estimate and estimate.partial),
        "warnings": [] if estimate is None else list(estimate.warnings),
        "problem": result.problem,
    }
