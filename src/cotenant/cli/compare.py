"""`cotenant compare`: all estimators on one training script."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cotenant.cli.completion import complete_gpu_names
from cotenant.cli.estimate import text as estimate_text
from cotenant.cli.estimate.options import DEFAULT_GPU, ScriptOptions
from cotenant.cli.options import cli_command, cli_option, json_option, option_group
from cotenant.cli.output import Column, emit_json, note, print_table
from cotenant.core.errors import TraceError
from cotenant.core.units import format_bytes

if TYPE_CHECKING:
    from cotenant.estimators.compare import EstimatorResult

COLUMNS = (
    Column(key="name", title="ESTIMATOR"),
    Column(key="device", title="DEVICE", right=True),
    Column(key="bound", title="BOUND", right=True),
    Column(key="ratio", title="RATIO", right=True),
    Column(key="leaves_out", title="LEAVES OUT"),
)


@cli_command()
@option_group("script", ScriptOptions)
@cli_option(
    "--gpu", default=DEFAULT_GPU, metavar="NAME", shell_complete=complete_gpu_names, help="GPU model, e.g. A100-40GB."
)
@json_option
def command(script: ScriptOptions, *, gpu: str, json: bool) -> None:
    """Compare all estimators on one PyTorch training script, without a GPU.

    The script is traced once. `traced` is the estimator of this package; the others are published estimators and rules,
    computed from the same trace. RATIO is their device memory divided by that of `traced`; `>` marks a lower bound.

      cotenant compare train.py -- --batch-size 64
    """
    from cotenant.estimators.compare import compare_estimators
    from cotenant.estimators.traced import TracedEstimator
    from cotenant.gpu_specs import gpu_spec

    began_s = time.perf_counter()
    request = script.request(gpu)
    tracer = TracedEstimator(steps=script.steps, python=script.python, show_output=script.show_output)
    try:
        result = tracer.explain(request)
    except TraceError as error:
        if not json:
            estimate_text.print_script_output(error)
        raise
    estimates = compare_estimators(result, gpu_spec(gpu), request.command)
    elapsed_s = time.perf_counter() - began_s
    if json:
        rows = [_as_json(estimate, estimates) for estimate in estimates]
        emit_json({"gpu": result.estimate.gpu, "estimators": rows, "elapsed_s": round(elapsed_s, 3)})
        return
    print(f"{shlex.join(request.command)} on {result.estimate.gpu}, traced in {elapsed_s:.1f} s\n")
    print_table([_row(estimate, estimates) for estimate in estimates], COLUMNS)
    for warning in _warnings(estimates):
        note(f"warning: {warning}")


def _ratio(result: EstimatorResult, results: Sequence[EstimatorResult]) -> float | None:
    """Device bytes divided by those of `traced`, the first of `results`; None if either is unknown."""
    traced = results[0].estimate
    if result.estimate is None or traced is None:
        return None
    return result.estimate.device_bytes / traced.device_bytes


def _row(result: EstimatorResult, results: Sequence[EstimatorResult]) -> dict[str, str]:
    estimate, ratio = result.estimate, _ratio(result, results)
    if estimate is None or ratio is None:
        problem = (result.problem or "").removeprefix(f"{result.name}: ")
        return {"name": result.name, "device": "-", "bound": "-", "ratio": "-", "leaves_out": problem}
    return {
        "name": result.name,
        "device": (">" if estimate.partial else "") + format_bytes(estimate.device_bytes),
        "bound": format_bytes(estimate.bound_bytes),
        "ratio": f"{ratio:.2f}",
        "leaves_out": result.leaves_out,
    }


def _as_json(result: EstimatorResult, results: Sequence[EstimatorResult]) -> dict[str, Any]:
    estimate, ratio = result.estimate, _ratio(result, results)
    return {
        "name": result.name,
        "device_bytes": None if estimate is None else estimate.device_bytes,
        "bound_bytes": None if estimate is None else estimate.bound_bytes,
        "peak_reserved_bytes": None if estimate is None else estimate.peak_reserved_bytes,
        "ratio_to_traced": None if ratio is None else round(ratio, 4),
        "partial": estimate is not None and estimate.partial,
        "leaves_out": result.leaves_out,
        "problem": result.problem,
        "warnings": [] if estimate is None else list(estimate.warnings),
    }


def _warnings(results: Sequence[EstimatorResult]) -> list[str]:
    """Warnings of all estimates, without duplicates."""
    return list(
        dict.fromkeys(text for result in results if result.estimate is not None for text in result.estimate.warnings)
    )
