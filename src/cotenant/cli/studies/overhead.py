"""`cotenant study overhead`: what monitoring tools cost a training job."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cotenant.cli.options import cli_argument, cli_command, cli_option, json_option
from cotenant.cli.output import Column, emit_json, note, print_table
from cotenant.cli.parameter_types import PATH, integer, number
from cotenant.cli.studies.options import out_option, python_option, resume_option
from cotenant.core.errors import UsageError
from cotenant.measurement.result_table import read_rows

if TYPE_CHECKING:
    from cotenant.gpus.gpu_sampler import GpuSampler
    from cotenant.study.overhead_report import ToolCost


@cli_command("overhead", context_settings={"allow_interspersed_args": False})
@cli_argument(
    "script", nargs=-1, type=click.UNPROCESSED, metavar="[SCRIPT [ARGS]...]",
    help="A training script of yours and its arguments; without it `light` and `heavy`.",
)  # fmt: skip
@out_option
@cli_option("--job", "names", multiple=True, metavar="light|heavy", show_default=False, help="Only this shipped job.")
@cli_option("--tools", metavar="NAMES", help="Monitoring tools, separated by commas; by default those of the study.")
@cli_option("--repeats", type=integer(minimum=1), default=5, metavar="N", help="Runs of each job under each tool.")
@cli_option("--epochs", type=integer(minimum=1), default=3, metavar="N", help="Epochs of `light` and `heavy`.")
@cli_option(
    "--stop-after", "limit_s", type=number(minimum=1), metavar="SECONDS", help="Begin no more runs after SECONDS."
)
@cli_option("--device", metavar="cpu|cuda", help="Where `light` and `heavy` train; by default a GPU if there is one.")
@cli_option("--page", type=PATH, metavar="FILE.md", help="Write the results as a Markdown page, too.")
@resume_option
@python_option
@json_option
def overhead(
    *,
    script: Sequence[str],
    names: Sequence[str],
    out: Path,
    tools: str | None,
    repeats: int,
    epochs: int,
    limit_s: float | None,
    device: str | None,
    page: Path | None,
    resume: bool,
    python: str | None,
    json: bool,
) -> None:
    """Measure what monitoring tools cost a training job: time, CPU, memory, output.

    Tools: none, top, ps, iostat, nvidia-smi, dcgmi, nsys, torch-profiler, monitor (our daemon beside the job) and probe
    (`cotenant measure`). One that is not on this machine gets a row that says so. Runs without a GPU too.

      cotenant study overhead --out overhead
      cotenant study overhead --out overhead --job light --tools top,monitor --repeats 10
      cotenant study overhead --out overhead train.py --epochs 2
    """
    from cotenant.measurement.campaign import default_python
    from cotenant.study.overhead import OverheadStudy, resolve_jobs, run_overhead
    from cotenant.study.overhead_page import write_page
    from cotenant.study.overhead_report import tool_costs, write_report
    from cotenant.study.tools import default_names

    device, watch = _device(device)
    study = OverheadStudy(
        out=out,
        python=python or default_python(),
        jobs=resolve_jobs(names, script, device=device, epochs=epochs),
        tools=default_names() if tools is None else tuple(name.strip() for name in tools.split(",") if name.strip()),
        repeats=repeats,
        device=device if watch is None else watch.gpu.name,
        watch=watch,
        limit_s=limit_s,
    )
    for row in run_overhead(study, resume=resume, say=note):
        note(f"{row['job']} {row['tool']} {row['repeat']}: {_result(row)}")
    rows = read_rows(out / "overhead.csv")
    report = write_report(rows, out)
    if page is not None:
        write_page(rows, page, shlex.join(["cotenant", *sys.argv[1:]]))
        note(f"page: {page}")
    if json:
        emit_json({"rows": rows, "report": str(report)})
        return
    _print_costs(tool_costs(rows))
    note(f"report: {report}")


def _result(row: Mapping[str, object]) -> str:
    if row["outcome"] != "ok":
        return f"{row['outcome']}: {row['message']}"
    return f"{row['epoch_s']:.3f} s per epoch"


def _print_costs(costs: Sequence[ToolCost]) -> None:
    from cotenant.study.overhead_report import HEAD, table_cells

    columns = [Column(key="job", title="JOB")]
    columns += [
        Column(key=name, title=name.upper(), right=0 < index < len(HEAD) - 1) for index, name in enumerate(HEAD)
    ]
    rows = [{"job": cost.job, **dict(zip(HEAD, table_cells(cost), strict=True))} for cost in costs]
    print_table(rows, columns)


def _device(device: str | None) -> tuple[str, GpuSampler | None]:
    """(`cpu` or `cuda`, the sampler of the GPU; None for a CPU).

    Raises:
        UsageError: the option is neither.
    """
    from cotenant.gpus.gpu_sampler import open_sampler
    from cotenant.study.overhead import GPU_INTERVAL_S

    if device not in (None, "cpu", "cuda"):
        raise UsageError(f"`--device` is `{device}`", hint="give `cpu` or `cuda`")
    sampler, reason = open_sampler(os.environ.get("CUDA_VISIBLE_DEVICES"), every_s=GPU_INTERVAL_S)
    if device == "cuda" and sampler is None:
        raise UsageError(f"`--device cuda`: {reason}", hint="leave it out to run on the CPU")
    if device == "cpu" or sampler is None:
        return "cpu", None
    return "cuda", sampler
