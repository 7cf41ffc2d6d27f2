"""`cotenant study`: experiments of the literature, repeated on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from cotenant.cli.options import cli_argument, cli_group, cli_option, json_option
from cotenant.cli.output import Column, emit_json, note, print_line, print_table
from cotenant.cli.parameter_types import PATH, integer, number
from cotenant.core.errors import UsageError
from cotenant.measurement.result_table import read_rows

if TYPE_CHECKING:
    from cotenant.measurement.campaign import CampaignSetup
    from cotenant.study.metrics import MetricsStudy, Shape
    from cotenant.study.overhead_report import ToolCost

out_option = cli_option("--out", type=PATH, required=True, metavar="DIR", help="Folder of the results.")
resume_option = cli_option("--resume", is_flag=True, help="Continue with the results in DIR.")
python_option = cli_option(
    "--python", metavar="PATH", help="Interpreter that runs the jobs; by default the one of cotenant."
)


@cli_group(no_args_is_help=True)
def command() -> None:
    """Repeat studies of GPU monitoring and collocation on this machine.

    Every run is a row on the disk when it ends; after an interruption, continue with --resume. Each study draws the
    published figure beside its own.

      cotenant study overhead --out overhead
      cotenant study metrics --out metrics
      cotenant study collocate --out groups
    """


@command.command("overhead", context_settings={"allow_interspersed_args": False})
@cli_argument(
    "script", nargs=-1, type=click.UNPROCESSED, metavar="[SCRIPT [ARGS]...]",
    help="A training script of yours and its arguments; without it `light` and `heavy`.",
)  # fmt: skip
@out_option
@cli_option("--job", "names", multiple=True, metavar="light|heavy", show_default=False, help="Only this shipped job.")
@cli_option("--tools", metavar="NAMES", help="Monitoring tools, separated by commas; by default those of the study.")
@cli_option("--repeats", type=integer(minimum=1), default=5, metavar="N", help="Runs of each job under each tool.")
@cli_option("--epochs", type=integer(minimum=1), default=3, metavar="N", help="Epochs of `light` and `heavy`.")
@cli_option("--device", metavar="cpu|cuda", help="Where `light` and `heavy` train; by default a GPU if there is one.")
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
    device: str | None,
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
    from cotenant.study.overhead_report import tool_costs, write_report
    from cotenant.study.tools import default_names

    device, device_name = _device(device)
    study = OverheadStudy(
        out=out,
        python=python or default_python(),
        jobs=resolve_jobs(names, script, device=device, epochs=epochs),
        tools=default_names() if tools is None else tuple(name.strip() for name in tools.split(",") if name.strip()),
        repeats=repeats,
        device=device_name,
    )
    for row in run_overhead(study, resume=resume, say=note):
        spent = row["message"] if row["epoch_s"] is None else f"{row['epoch_s']:.3f} s per epoch"
        note(f"{row['job']} {row['tool']} {row['repeat']}: {row['outcome']} {spent}")
    rows = read_rows(out / "overhead.csv")
    page = write_report(rows, out)
    if json:
        emit_json({"rows": rows, "report": str(page)})
        return
    _print_costs(tool_costs(rows))
    note(f"report: {page}")


def _print_costs(costs: Sequence[ToolCost]) -> None:
    from cotenant.study.overhead_report import HEAD, table_cells

    columns = [Column(key="job", title="JOB")]
    columns += [
        Column(key=name, title=name.upper(), right=0 < index < len(HEAD) - 1) for index, name in enumerate(HEAD)
    ]
    rows = [{"job": cost.job, **dict(zip(HEAD, table_cells(cost), strict=True))} for cost in costs]
    print_table(rows, columns)


def _device(device: str | None) -> tuple[str, str]:
    """(`cpu` or `cuda`, its name in the rows).

    Raises:
        UsageError: the option is neither.
    """
    from cotenant.gpus.gpu_sampler import open_sampler

    if device not in (None, "cpu", "cuda"):
        raise UsageError(f"`--device` is `{device}`", hint="give `cpu` or `cuda`")
    sampler, reason = open_sampler()
    if device == "cuda" and sampler is None:
        raise UsageError(f"`--device cuda`: {reason}", hint="leave it out to run on the CPU")
    if device == "cpu" or sampler is None:
        return "cpu", "cpu"
    return "cuda", sampler.gpu.name


@command.command("metrics")
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


@command.command("collocate")
@cli_argument("path", required=False, type=PATH, metavar="[JOBS.toml]", help="Jobs and groups; by default the shipped.")
@out_option
@cli_option("--only", metavar="GLOB", help="Only groups all of whose jobs have a name or a tag that matches.")
@cli_option("--repeats", type=integer(minimum=1), default=1, metavar="N", help="Runs of each job and group.")
@cli_option("--stop-after", "limit_s", type=number(minimum=1), metavar="SECONDS", help="Begin no more after SECONDS.")
@cli_option("--simulate", "simulated", metavar="GPU", help="Use a simulated GPU, e.g. A100-40GB; rows say so.")
@resume_option
@python_option
@json_option
def collocate(
    *,
    path: Path | None,
    out: Path,
    only: str | None,
    repeats: int,
    limit_s: float | None,
    simulated: str | None,
    resume: bool,
    python: str | None,
    json: bool,
) -> None:
    """Measure jobs alone and in groups on one GPU: time-sliced, under MPS and on MIG instances.

    Each job runs unchanged. The jobs of a group warm up, wait for each other and train for the same time. The GPU's
    mode is put back after each group. A busy GPU is refused. JOBS.toml is a job list with groups:

    $ cat groups.toml
      [[job]]
      name = "small"
      script = "train.py"

      [[group]]
      jobs = ["small", "small", "small"]
      sharing = ["time-sliced", "mps", "mps:30", "mig:2g.10gb,2g.10gb,2g.10gb"]

    $ cotenant study collocate groups.toml --out groups --repeats 3
    """
    from cotenant.measurement.collocation import group_line, run_groups
    from cotenant.measurement.job_list import read_jobs
    from cotenant.study.collocation_report import HEAD, results_of, table_cells, write_pairs, write_report
    from cotenant.study.overhead import JOBS_FOLDER

    jobs = read_jobs(path or JOBS_FOLDER / "collocation.toml").only(only)
    with _collocation_setup(out, simulated=simulated, python=python, limit_s=limit_s) as setup:
        for row in run_groups(jobs, setup, table="collocation.csv", repeats=repeats, resume=resume, say=note):
            note(group_line(row))
    rows = read_rows(out / "collocation.csv")
    results = results_of(rows)
    page = write_report(rows, out / "collocation.html")
    pairs = write_pairs(results, out / "pairs.csv")
    if json:
        emit_json({"rows": rows, "results": [found._asdict() for found in results], "report": str(page)})
        return
    columns = [Column(key=name, title=name.upper(), right=index > 1) for index, name in enumerate(HEAD)]
    measured = [found for found in results if not found.problem]
    print_table([dict(zip(HEAD, table_cells(found), strict=True)) for found in measured], columns)
    for found in results:
        if found.problem:
            note(f"not measured: {' + '.join(found.jobs)}, {found.sharing}: {found.problem}")
    note(f"report: {page}" + ("" if pairs is None else f"; pairs for `cotenant simulate`: {pairs}"))


@command.command("export")
@cli_argument("folder", type=PATH, metavar="DIR", help="Folder of the results of a study.")
@cli_option("--sqlite", type=PATH, metavar="FILE", help="Write one database.")
@cli_option("--parquet", type=PATH, metavar="DIR", help="Write a file for each table.")
@cli_option("--mlflow", metavar="URI", help="Log every run to this MLflow server or folder.")
@cli_option("--experiment", default="cotenant", metavar="NAME", help="MLflow experiment.")
@json_option
def export(
    *, folder: Path, sqlite: Path | None, parquet: Path | None, mlflow: str | None, experiment: str, json: bool
) -> None:
    """Hand the runs of a study, with the GPU's metrics over time, to other tools.

    cotenant study export groups --sqlite groups.sqlite
    cotenant study export groups --mlflow http://localhost:5000
    """
    from cotenant.study.export import runs_of, to_mlflow, to_parquet, to_sqlite

    if sqlite is None and parquet is None and mlflow is None:
        raise UsageError("nowhere to export to", hint="give `--sqlite FILE`, `--parquet DIR` or `--mlflow URI`")
    runs = runs_of(folder)
    written: list[str] = []
    if sqlite is not None:
        to_sqlite(runs, sqlite)
        written.append(str(sqlite))
    if parquet is not None:
        written += map(str, to_parquet(runs, parquet))
    if mlflow is not None:
        to_mlflow(runs, mlflow, experiment=experiment)
        written.append(mlflow)
    samples = sum(len(run.samples) for run in runs)
    if json:
        emit_json({"runs": len(runs), "samples": samples, "written": written})
        return
    print_line(f"{len(runs)} runs, {samples} samples: {', '.join(written)}")


@contextmanager
def _collocation_setup(
    out: Path, *, simulated: str | None, python: str | None, limit_s: float | None
) -> Iterator[CampaignSetup]:
    from cotenant.measurement.campaign import CampaignSetup, default_python
    from cotenant.measurement.preflight import check_gpu
    from cotenant.measurement.sharing import check_idle

    if simulated is None:
        from cotenant.gpus.gpu_sampler import open_sampler

        sampler, reason = open_sampler(os.environ.get("CUDA_VISIBLE_DEVICES"))
        name = "" if sampler is None else sampler.gpu.name
        chosen = python or default_python()
        setup = CampaignSetup(out=out, python=chosen, watch=sampler, no_watch=reason, limit_s=limit_s, gpu_name=name)
        check_gpu(setup)
        check_idle(setup)
        yield setup
        return
    from cotenant.gpus.gpu_sampler import GpuSampler
    from cotenant.simserver.backend import SimulatedBackend, SimulatedServer
    from cotenant.study import simulated_job

    with TemporaryDirectory(prefix="cotenant-study-") as folder:
        SimulatedServer.create(Path(folder), f"1x{simulated}")
        backend = SimulatedBackend(Path(folder))
        (gpu,) = backend.inventory()
        yield CampaignSetup(
            out=out,
            python=sys.executable,
            watch=GpuSampler(backend, gpu),
            limit_s=limit_s,
            gpu_name=f"simulated {gpu.name}",
            probe=Path(simulated_job.__file__),
            env={"COTENANT_SIM_SERVER": folder},
        )


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
    from cotenant.simserver.backend import SimulatedBackend, SimulatedServer

    with TemporaryDirectory(prefix="cotenant-study-") as folder:
        SimulatedServer.create(Path(folder), f"1x{simulated}")
        backend = SimulatedBackend(Path(folder))
        (gpu,) = backend.inventory()
        yield MetricsStudy(
            out=out,
            load=(sys.executable, "-m", "cotenant.study.simulated_load"),
            env={"COTENANT_SIM_SERVER": folder},
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
