"""`cotenant compare`: what every estimator says of one training script."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cotenant.cli import estimate_options as options
from cotenant.cli import estimate_text
from cotenant.cli.output import Column, emit_json, note, print_table
from cotenant.core.errors import TraceError
from cotenant.core.units import format_bytes

if TYPE_CHECKING:
    from cotenant.estimators.compare import EstimatorResult

CONTEXT: Mapping[str, Any] = {"allow_interspersed_args": True}

Script = Annotated[str, typer.Argument(metavar="SCRIPT", help="A Python training script; it is not changed.")]
Gpu = Annotated[str, typer.Option(metavar="NAME", help="Device profile, e.g. A100-40GB.")]


def command(
    script: Script,
    args: options.Args = None,
    gpu: Gpu = "A100-40GB",
    gpus: options.Gpus = 1,
    synthetic_data: options.StandIn = None,
    sequence_lengths: options.Lengths = "",
    allow_network: options.Online = False,
    python: options.Python = None,
    steps: options.Steps = 3,
    timeout: options.Timeout = 120.0,
    json: options.Json = False,
) -> None:
    """Ask every estimator about one PyTorch training script, without a GPU.

    The script is traced once. `traced` is ours; the others are estimators and rules that were published, computed from
    the same trace. RATIO is their device memory by ours, a `>` marks what is only a lower bound.

      cotenant compare train.py -- --batch-size 64
    """
    from cotenant.core.ports import EstimateRequest
    from cotenant.estimators.compare import compare_estimators
    from cotenant.estimators.traced import TracedEstimator
    from cotenant.gpu_specs import gpu_spec

    began_s = time.perf_counter()
    request = EstimateRequest(
        command=(script, *(args or ())),
        workdir=str(Path.cwd()),
        env=dict(os.environ),
        gpu=gpu,
        timeout_s=timeout,
        gpus=gpus,
        synthetic_data=tuple(synthetic_data or ()),
        sequence_lengths=sequence_lengths,
        allow_network=allow_network,
    )
    try:
        result = TracedEstimator(steps=steps, python=python).explain(request)
    except TraceError as error:
        if not json:
            estimate_text.print_script_output(error)
        raise
    found = compare_estimators(result, gpu_spec(gpu), request.command)
    elapsed_s = time.perf_counter() - began_s
    if json:
        body = {"gpu": result.estimate.gpu, "estimators": [_as_json(each, found) for each in found]}
        emit_json({**body, "elapsed_s": round(elapsed_s, 3)})
        return
    print(f"{shlex.join(request.command)} on {result.estimate.gpu}, traced in {elapsed_s:.1f} s\n")
    columns = [
        Column(key="name", title="ESTIMATOR"),
        Column(key="device", title="DEVICE", right=True),
        Column(key="bound", title="BOUND", right=True),
        Column(key="ratio", title="RATIO", right=True),
        Column(key="leaves_out", title="LEAVES OUT"),
    ]
    print_table([_row(each, found) for each in found], columns)
    for warning in _warnings(found):
        note(f"warning: {warning}")


def _ratio(opinion: EstimatorResult, found: Sequence[EstimatorResult]) -> float | None:
    """Device bytes as a multiple of those of `traced`, the first of `found`."""
    traced = found[0].estimate
    if opinion.estimate is None or traced is None:
        return None
    return opinion.estimate.device_bytes / traced.device_bytes


def _row(opinion: EstimatorResult, found: Sequence[EstimatorResult]) -> dict[str, str]:
    estimate, ratio = opinion.estimate, _ratio(opinion, found)
    if estimate is None or ratio is None:
        problem = (opinion.problem or "").removeprefix(f"{opinion.name}: ")
        return {"name": opinion.name, "device": "-", "bound": "-", "ratio": "-", "leaves_out": problem}
    return {
        "name": opinion.name,
        "device": (">" if estimate.partial else "") + format_bytes(estimate.device_bytes),
        "bound": format_bytes(estimate.bound_bytes),
        "ratio": f"{ratio:.2f}",
        "leaves_out": opinion.leaves_out,
    }


def _as_json(opinion: EstimatorResult, found: Sequence[EstimatorResult]) -> dict[str, Any]:
    estimate, ratio = opinion.estimate, _ratio(opinion, found)
    return {
        "name": opinion.name,
        "device_bytes": None if estimate is None else estimate.device_bytes,
        "bound_bytes": None if estimate is None else estimate.bound_bytes,
        "peak_reserved_bytes": None if estimate is None else estimate.peak_reserved_bytes,
        "ratio_to_traced": None if ratio is None else round(ratio, 4),
        "partial": estimate is not None and estimate.partial,
        "leaves_out": opinion.leaves_out,
        "problem": opinion.problem,
        "warnings": [] if estimate is None else list(estimate.warnings),
    }


def _warnings(found: Sequence[EstimatorResult]) -> list[str]:
    """Of all estimates, each once."""
    return list(dict.fromkeys(each for one in found if one.estimate is not None for each in one.estimate.warnings))
