"""`cotenant study metrics`: what GPU metrics say of a kernel."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cotenant.cli.options import cli_command, cli_option, json_option
from cotenant.cli.output import emit_json, note, print_line
from cotenant.cli.parameter_types import number
from cotenant.cli.studies.options import out_option, python_option, resume_option, simulated_study_gpu
from cotenant.core.errors import UsageError
from cotenant.measurement.result_table import read_rows

if TYPE_CHECKING:
    from cotenant.study.metrics import MetricsStudy, Shape


@cli_command("metrics")
@out_option
@cli_option("--published", is_flag=True, help="Only draw the published figure; needs no GPU.")
@cli_option(
    "--kernels", default="square", metavar="NAMES", help="Of square, stream, fp32, tensor; separated by commas."
)
@cli_option("--blocks", metavar="N,N,...", help="Blocks per launch; by default those of the figure, 1 to 131072.")
@cli_option("--threads", metavar="N,N,...", help="Threads per block; by default those of the figure, 1 to 1024.")
@cli_option("--duty", default="1", metavar="X,X,...", help="Shares of the time in which the kernel runs, 0..1.")
@cli_option("--seconds", type=number(minimum=0.5), default=6.0, metavar="S", help="Duration of each shape.")
@cli_option("--simulate", "simulated", metavar="GPU", help="Use a simulated GPU, e.g. A100-40GB; rows say so.")
@resume_option
@python_option
@json_option
def metrics(
    *,
    out: Path,
    published: bool,
    kernels: str,
    blocks: str | None,
    threads: str | None,
    duty: str,
    seconds: float,
    simulated: str | None,
    resume: bool,
    python: str | None,
    json: bool,
) -> None:
    """Measure what GPU metrics say of a kernel with a chosen number of blocks and threads.

    Utilization (nvidia-smi), NVML GPM and DCGM are read side by side, with how often they are renewed and how late they
    are. The published figure is drawn beside.

      cotenant study metrics --out metrics
      cotenant study metrics --out metrics --kernels square,stream,fp32,tensor --duty 0.25,0.5,1
      cotenant study metrics --out metrics --published
    """
    from cotenant.study.metrics import BLOCKS, KERNELS, THREADS, run_metrics, sweep
    from cotenant.study.metrics_report import published_rows, verdicts, write_report

    out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, str]] = []
    if not published:
        names = [name.strip() for name in kernels.split(",")]
        unknown = next((name for name in names if name not in KERNELS), None)
        if unknown is not None:
            raise UsageError(f"`--kernels`: no kernel `{unknown}`", hint=f"there are {', '.join(KERNELS)}")
        shapes = sweep(
            names,
            _numbers("--blocks", blocks, BLOCKS, 2**31 - 1),
            _numbers("--threads", threads, THREADS, 1024),
            _shares("--duty", duty),
        )
        with _metrics_study(out, shapes, seconds=seconds, simulated=simulated, python=python) as study:
            for row in run_metrics(study, resume=resume, say=note):
                values = " ".join(f"{name} {row[name]}" for name in ("utilization", "smact", "smocc"))
                note(f"{row['kernel']} {row['blocks']} x {row['threads']} {row['source']}: {row['message'] or values}")
        rows = read_rows(out / "metrics.csv")
    page = write_report(rows, out / "metrics.html")
    judged = [*published_rows(), *(row for row in rows if row["outcome"] == "ok")]
    sources = dict.fromkeys(row["source"] for row in judged)
    found = {source: verdicts([row for row in judged if row["source"] == source]) for source in sources}
    if json:
        texts = {source: [verdict._asdict() for verdict in of] for source, of in found.items()}
        emit_json({"rows": rows, "verdicts": texts, "report": str(page)})
        return
    for source, of_source in found.items():
        for verdict in of_source:
            print_line(f"{source}: {verdict.text}")
    note(f"report: {page}")


@contextmanager
def _metrics_study(
    out: Path, shapes: Sequence[Shape], *, seconds: float, simulated: str | None, python: str | None
) -> Iterator[MetricsStudy]:
    from cotenant.measurement.campaign import default_python
    from cotenant.study.metrics import BackendSource, MetricsStudy, nvml_sources
    from cotenant.study.overhead import JOBS_FOLDER

    if simulated is None:
        gpu, sources = nvml_sources()
        load = (python or default_python(), str(JOBS_FOLDER / "kernel_load.py"))
        env = {"CUDA_VISIBLE_DEVICES": gpu.uuid}
        yield MetricsStudy(
            out=out, load=load, env=env, sources=sources, shapes=tuple(shapes), seconds=seconds, gpu=gpu.name
        )
        return
    with simulated_study_gpu(simulated) as (backend, gpu, env):
        yield MetricsStudy(
            out=out,
            load=(sys.executable, "-m", "cotenant.study.simulated_load"),
            env=env,
            sources=(BackendSource("simulated", backend, gpu),),
            shapes=tuple(shapes),
            seconds=seconds,
            gpu=f"simulated {gpu.name}",
        )


def _numbers(option: str, text: str | None, default: Sequence[int], maximum: int) -> list[int]:
    """The numbers of a list.

    Raises:
        UsageError: it is no list of integers from 1 to `maximum`.
    """
    if text is None:
        return list(default)
    found = [int(part) if part.strip().isdecimal() and len(part) < 12 else 0 for part in text.split(",")]
    if not all(1 <= number <= maximum for number in found):
        raise UsageError(f"`{option}` is `{text}`", hint=f"give integers from 1 to {maximum}, separated by commas")
    return found


def _shares(option: str, text: str) -> list[float]:
    """The shares of a list.

    Raises:
        UsageError: it is no list of numbers above 0, at most 1.
    """
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [0.0]
    if not all(0.0 < share <= 1.0 for share in found):
        raise UsageError(f"`{option}` is `{text}`", hint="give numbers above 0 and at most 1, separated by commas")
    return found
