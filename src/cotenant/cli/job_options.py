"""The options of `submit` and `run`, which lines in a script may hold too: see `directives`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

RadEstimate = Literal["measured", "horus", "faketensor", "gpumemnet", "none"]

Command = Annotated[
    list[str],
    typer.Argument(metavar="SCRIPT|COMMAND [ARGS]...", help="A .py or .sh script, a .rad job file, or a command."),
]
Name = Annotated[
    str | None, typer.Option("-J", "--job-name", metavar="NAME", help="Name of the job; by default the script's.")
]
Gpus = Annotated[
    str | None, typer.Option("-G", "--gpus", metavar="N", help="GPUs the job needs; TYPE:N is read as N.  [default: 1]")
]
Gres = Annotated[str | None, typer.Option("--gres", metavar="gpu:N", help="The same, as Slurm spells it.")]
GpuMem = Annotated[
    str | None,
    typer.Option("--gpu-mem", metavar="SIZE", help="Memory it needs on each GPU, e.g. 12G. Estimated if not given."),
]
Exclusive = Annotated[bool | None, typer.Option("--exclusive", help="Share its GPUs with nobody.")]
Share = Annotated[
    Literal["auto", "none", "time", "mps", "mig"] | None,
    typer.Option(
        "--sharing", help="auto: as the policy likes; none is --exclusive; time: in turns; mps; mig: an instance alone."
    ),
]
Slowdown = Annotated[
    float | None,
    typer.Option(
        "--max-slowdown", metavar="X", help="Most it may be slowed down by neighbors: 1.5 is half as long again."
    ),
]
Estimator = Annotated[str | None, typer.Option("--estimator", metavar="NAME", help="Who estimates its memory.")]
Time = Annotated[
    str | None, typer.Option("-t", "--time", metavar="TIME", help="Time limit: MM, MM:SS, HH:MM:SS, D-HH:MM.")
]
Dependency = Annotated[
    str | None,
    typer.Option(
        "-d",
        "--dependency",
        metavar="KIND:ID[:ID...],...",
        help="Start after others: afterok (completed), afterany (ended), afternotok (failed); or singleton.",
    ),
]
Array = Annotated[
    str | None,
    typer.Option("-a", "--array", metavar="1-10%2", help="A job for each number; %2: at most 2 run at once."),
]
Begin = Annotated[
    str | None, typer.Option("--begin", metavar="TIME", help="Not before: now+2hours, 16:00, 2026-11-21T16:00.")
]
Hold = Annotated[bool | None, typer.Option("-H", "--hold", help="Hold it until it is released.")]
Requeue = Annotated[
    bool | None, typer.Option("--requeue/--no-requeue", help="Run it again if the machine goes down under it.")
]
Retries = Annotated[
    int | None,
    typer.Option("--retries", metavar="N", min=0, help="Tries again after failures but for memory."),
]
TimeSlot = Annotated[
    str | None,
    typer.Option(
        "--time-slice", metavar="TIME", help="After so long, if others wait: save your state, end, and go behind them."
    ),
]
Output = Annotated[
    str | None,
    typer.Option(
        "-o", "--output", metavar="FILE", help="File for its output; %j is the id, %x the name, %A_%a array and index."
    ),
]
Error = Annotated[
    str | None, typer.Option("-e", "--error", metavar="FILE", help="File for its errors; by default with the output.")
]
Chdir = Annotated[Path | None, typer.Option("-D", "--chdir", metavar="DIR", help="Folder to run it in.")]
Nice = Annotated[
    int | None, typer.Option("--nice", metavar="N", help="Run it after (above 0) or before (below) others.")
]
Priority = Annotated[
    int | None, typer.Option("--priority", metavar="N", help="The opposite of --nice: larger is earlier.")
]
Export = Annotated[
    str | None,
    typer.Option(
        "--export", metavar="ALL|NONE|VARS", help="Environment it gets: ALL, NONE, A,B=1 or ALL,B=1.  [default: ALL]"
    ),
]
MaxAttempts = Annotated[
    int | None,
    typer.Option(
        "--max-attempts", min=1, max=100, metavar="N", help="Runs allowed if it runs out of GPU memory.  [default: 4]"
    ),
]
Notify = Annotated[
    str | None, typer.Option("--notify", metavar="COMMAND|URL", help="Run, or send to, this when it is over.")
]
Progress = Annotated[
    str | None,
    typer.Option(
        "--progress",
        metavar="PATTERN",
        help=r"How its output tells of steps: tqdm, or e.g. 'step (\d+)' or '(?P<rate>[\d.]+)it/s'.",
    ),
]
Rad = Annotated[
    RadEstimate | None,
    typer.Option("--rad-estimate", help="Memory of a .rad file to declare; none: estimate it.  [default: measured]"),
]
