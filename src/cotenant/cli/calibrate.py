"""`cotenant calibrate`: this machine's GPU as a device profile."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from cotenant.cli import output_files
from cotenant.cli.output import emit_json, note


def command(
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the profile here; default: stdout.")] = None,
    python: Annotated[
        str | None, typer.Option(metavar="PATH", help="Interpreter whose torch is used; default: this one.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Measure what a process takes on this GPU beside its tensors, and write a device profile.

    Five fresh processes: a bare context, one that used cuBLAS, cuBLASLt, cuDNN, and one that trained a small network.
    Takes about a minute. The GPU should be idle.

      cotenant calibrate --out h200.toml
    """
    from cotenant.gpus.gpu_sampler import open_sampler
    from cotenant.measurement.calibrate import calibrate, profile_text, report
    from cotenant.measurement.campaign import CampaignSetup, default_python
    from cotenant.measurement.preflight import check_gpu

    if out is not None:
        output_files.check(out)
    watch, reason = open_sampler(os.environ.get("CUDA_VISIBLE_DEVICES"))
    with tempfile.TemporaryDirectory(prefix="cotenant-calibrate-") as folder:
        setup = CampaignSetup(out=Path(folder), python=python or default_python(), watch=watch, no_watch=reason)
        check_gpu(setup)
        if watch is None:
            note(f"the GPU is not watched: {reason}")
        readings = calibrate(setup)
    for line in report(readings):
        note(line)
    text = profile_text(readings, nvml_total_bytes=None if watch is None else watch.gpu.memory_total_bytes)
    if out is not None:
        out.write_text(text, encoding="utf-8")
        note(f"profile written to `{out}`")
    if json:
        steps = [
            {
                "step": each.step,
                "outside_bytes": each.outside_bytes,
                "by": each.by,
                "problem": each.problem,
                **each.answer,
            }
            for each in readings
        ]
        emit_json({"profile": text, "steps": steps})
    elif out is None:
        sys.stdout.write(text)
