"""`cotenant calibrate`: this machine's GPU as a GPU specification."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotenant.cli import output_files
from cotenant.cli.options import cli_command, cli_option, json_option
from cotenant.cli.output import emit_json, note
from cotenant.cli.parameter_types import PATH

if TYPE_CHECKING:
    from cotenant.measurement.calibrate import CalibrationReading


@cli_command()
@cli_option("--out", type=PATH, metavar="FILE", help="Write the specification to FILE; by default to stdout.")
@cli_option(
    "--results", type=PATH, metavar="DIR", help="Keep a row for each process in DIR/calibrate.csv, and its log."
)
@cli_option("--python", metavar="PATH", help="Interpreter whose torch is used; by default the one of cotenant.")
@json_option
def command(*, out: Path | None, results: Path | None, python: str | None, json: bool) -> None:
    """Measure what a process takes on this GPU besides its tensors, and write a GPU specification.

    Five fresh processes: a bare context; one that used cuBLAS, cuBLASLt, cuDNN; and one that trained a small network.
    It takes about a minute. The GPU should be idle.

      cotenant calibrate --out h200.toml
    """
    from cotenant.gpus.gpu_sampler import open_sampler
    from cotenant.measurement.calibrate import calibrate, profile_text, report
    from cotenant.measurement.campaign import CampaignSetup, default_python
    from cotenant.measurement.preflight import check_gpu

    if out is not None:
        output_files.check(out)
    sampler, reason = open_sampler(os.environ.get("CUDA_VISIBLE_DEVICES"))
    with tempfile.TemporaryDirectory(prefix="cotenant-calibrate-") as scratch:
        folder = results or Path(scratch)
        setup = CampaignSetup(out=folder, python=python or default_python(), watch=sampler, no_watch=reason)
        check_gpu(setup)
        if sampler is None:
            note(f"no GPU sampling: {reason}")
        readings = calibrate(setup)
    for line in report(readings):
        note(line)
    text = profile_text(readings, nvml_total_bytes=None if sampler is None else sampler.gpu.memory_total_bytes)
    if out is not None:
        out.write_text(text, encoding="utf-8")
        note(f"specification written to `{out}`")
    if json:
        emit_json({"profile": text, "steps": [step_json(reading) for reading in readings]})
    elif out is None:
        sys.stdout.write(text)


def step_json(reading: CalibrationReading) -> dict[str, Any]:
    """One process of the calibration, as `--json` prints it."""
    return {
        "step": reading.step,
        "outside_bytes": reading.outside_bytes,
        "by": reading.by,
        "problem": reading.problem,
        **reading.answer,
    }
