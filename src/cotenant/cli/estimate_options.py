"""The options of `cotenant estimate`; `compare` shares those of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# What is run, and how.
Script = Annotated[str | None, typer.Argument(metavar="SCRIPT", help="A Python training script; it is not changed.")]
Args = Annotated[list[str] | None, typer.Argument(metavar="[-- ARGS]", help="Arguments of the script, after `--`.")]
StandIn = Annotated[
    list[str] | None,
    typer.Option(metavar="SHAPE[:DTYPE[:CLASSES]]", help="Make up data that is absent, e.g. 3x224x224:uint8:1000."),
]
Lengths = Annotated[
    str,
    typer.Option(
        metavar="WHICH",
        help="Samples to make batches of, where they vary in length: longest, growing, e.g. p95, or a file of "
        "lengths and counts, e.g. lengths.csv.",
    ),
]
RealWrites = Annotated[bool, typer.Option("--no-sandbox", help="Let the script write, move and remove files for real.")]
Online = Annotated[bool, typer.Option("--allow-network", help="Let the script use the network.")]
Python = Annotated[
    str | None, typer.Option(metavar="PATH", help="Interpreter that runs the script; default: this one.")
]
Steps = Annotated[int, typer.Option(metavar="N", min=1, help="Optimizer steps to see.")]
Timeout = Annotated[float, typer.Option(min=1, metavar="SECONDS", help="Stop the script after this long.")]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Make a new trace, and do not keep it.")]
ShowOutput = Annotated[bool, typer.Option("--show-output", help="Let the script print, to stderr.")]

# For which GPU, and by whom.
GpuOrList = Annotated[
    str, typer.Option(metavar="NAME", help="Device profile, e.g. A100-40GB or A100-40GB:3g.20gb; `list` shows all.")
]
Gpus = Annotated[int, typer.Option(metavar="N", min=1, max=127, help="GPUs that the script sees.")]
Estimator = Annotated[str, typer.Option(metavar="NAME", help="Registered estimator.")]
GpuMem = Annotated[
    str | None, typer.Option("--gpu-mem", metavar="SIZE", help="Declared memory, for `--estimator declared`.")
]
Coverage = Annotated[
    float | None,
    typer.Option(metavar="SHARE", help="Jobs whose peak stays below the bound; 0.99, with convolutions 0.95."),
]

# What is told beside the estimate.
FitsOn = Annotated[bool, typer.Option("--fits-on", help="Show which known GPUs and MIG instances it fits.")]
WhatIf = Annotated[bool, typer.Option("--what-if", help="Show what allocator settings and 8-bit states would save.")]
Utilization = Annotated[
    bool, typer.Option("--utilization", help="Show how busy it would keep an A100 alone; learned, not traced.")
]
FindBatchSize = Annotated[
    bool, typer.Option("--find-batch-size", help="Find the largest batch that fits, to 1 %; traces several times.")
]
Arg = Annotated[
    str, typer.Option(metavar="ARGUMENT", help="The script's argument for it; write `--batch-arg=--batch`.")
]
Limit = Annotated[str | None, typer.Option(metavar="SIZE", help="Memory the batch may need; default: the GPU's.")]
Plot = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw memory over time (.png, .svg, .pdf); needs matplotlib.")
]
Snapshot = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write a pickle for https://pytorch.org/memory_viz.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value.")]
