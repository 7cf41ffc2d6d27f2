"""Options of `estimate`: the script and its trace; `compare` shares them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from cotenant.cli.completion import complete_estimators, complete_gpu_names
from cotenant.cli.options import argument, flag, option
from cotenant.cli.parameter_types import Parsed, integer, number
from cotenant.core.errors import UsageError
from cotenant.core.trace import Backend, CompiledCode
from cotenant.core.units import parse_gpu_memory

if TYPE_CHECKING:
    from cotenant.core.ports import EstimateRequest

DEFAULT_GPU = "A100-40GB"
SUMMARY_ENDINGS = (".txt", ".model", ".summary")
DEFAULT_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOptions:
    """The script, and how it runs while it is traced."""

    SECTION = "Tracing"

    script: str | None = argument(
        required=False, metavar="SCRIPT", help="Python training script, notebook, or a command; it is not changed."
    )
    args: Sequence[str] = argument(
        default=(), nargs=-1, metavar="[-- ARGS]", help="Arguments of the script, after `--`."
    )
    gpus: int = option(
        "--gpus", type=integer(minimum=1, maximum=127), default=1, metavar="N", help="GPUs that the script sees."
    )
    synthetic_data: Sequence[str] = option(
        "--synthetic-data",
        default=(),
        multiple=True,
        show_default=False,
        metavar="[PATH=]SHAPE[:DTYPE[:CLASSES]]",
        help="Synthesize data that is absent, e.g. 3x224x224:uint8:1000; may be repeated, also for files whose path "
        "contains PATH alone.",
    )
    sequence_lengths: str = option(
        "--sequence-lengths",
        default="",
        show_default=False,
        metavar="WHICH",
        help="Samples to make batches of if their lengths vary: longest, growing, p95, or a file of lengths and "
        "counts. By default the first samples.",
    )
    compiled_code: CompiledCode = option(
        "--compiled-code",
        type=click.Choice(get_args(CompiledCode)),
        default="auto",
        help="What a trace runs for code of `torch.compile`: what PyTorch's compiler makes of it (inductor); the model "
        "as it is, which often needs more memory (eager); or auto: eager where the compiler fails, with a warning.",
    )
    no_sandbox: bool = flag("--no-sandbox", help="Let the script write, move and remove real files.")
    allow_network: bool = flag("--allow-network", help="Let the script use the network.")
    python: str | None = option(
        "--python", metavar="PATH", help="Interpreter that runs the script; by default the one of cotenant."
    )
    steps: int = option("--steps", type=integer(minimum=1), default=3, metavar="N", help="Optimizer steps to trace.")
    timeout_s: float | None = option(
        "--timeout",
        type=number(minimum=1),
        metavar="SECONDS",
        help="Stop the script after SECONDS.  [default: 120; on the null GPU 900]",
    )
    show_output: bool = flag("--show-output", help="Print the script's output, on stderr.")

    def request(self, gpu: str, declared_bytes: int | None = None) -> EstimateRequest:
        """The question to an estimator: this script, run here, on GPUs of the model `gpu`.

        Raises:
            UsageError: no script was given.
        """
        from cotenant.core.ports import EstimateRequest, TraceOptions

        if self.script is None:
            raise UsageError("no script to estimate", hint="give one: `cotenant estimate train.py -- ARGS`")
        return EstimateRequest(
            command=(self.script, *self.args),
            workdir=str(Path.cwd()),
            env=dict(os.environ),
            gpu=gpu,
            timeout_s=DEFAULT_TIMEOUT_S if self.timeout_s is None else self.timeout_s,
            declared_bytes=declared_bytes,
            gpus=self.gpus,
            trace=TraceOptions(
                synthetic_data=tuple(self.synthetic_data),
                sequence_lengths=self.sequence_lengths,
                sandbox=not self.no_sandbox,
                allow_network=self.allow_network,
                compiled_code=self.compiled_code,
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryOptions:
    """What a printed summary of a model leaves out."""

    SECTION = "Summary of a model"

    batch_size: int | None = option(
        "--batch-size",
        type=integer(minimum=1),
        metavar="N",
        help="SCRIPT is a summary of a model (torchsummary, torchinfo, modelsummary, Keras), in batches of N.",
    )
    tokens: int | None = option(
        "--tokens", type=integer(minimum=1), metavar="N", help="Tokens of a sample, where the summary shows none."
    )

    def is_wanted(self, script: ScriptOptions) -> bool:
        """Whether the file is a summary and not a script.

        Raises:
            UsageError: an option of a summary is given for a script, or the other way round.
        """
        given = self.batch_size is not None or self.tokens is not None
        name = script.script or ""
        if given and (script.args or name.endswith((".py", ".ipynb"))):
            shown = "--tokens" if self.batch_size is None else "--batch-size"
            raise UsageError(
                f"`{shown}` is for the summary of a model, and `{name}` is a script",
                hint=f"options of the script follow `--`: `cotenant estimate {name} -- {shown} N`",
            )
        return given or name.endswith(SUMMARY_ENDINGS)

    def request(self, script: ScriptOptions, gpu: str) -> EstimateRequest:
        """The question to an estimator that reads summaries."""
        from cotenant.core.ports import EstimateRequest

        return EstimateRequest(
            command=(script.script or "",),
            workdir=str(Path.cwd()),
            gpu=gpu,
            model_summary=script.script,
            batch_size=self.batch_size,
            tokens=self.tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatorOptions:
    """The GPU and the estimator."""

    SECTION = "Estimate"

    gpu: str = option(
        "--gpu",
        default=DEFAULT_GPU,
        metavar="NAME",
        shell_complete=complete_gpu_names,
        help="GPU model, e.g. A100-40GB, or a MIG instance, A100-40GB:3g.20gb; `list` prints all.",
    )
    estimator: str = option(
        "--estimator", default="traced", metavar="NAME", shell_complete=complete_estimators, help="Estimator to use."
    )
    backend: Backend = option(
        "--backend",
        type=click.Choice(get_args(Backend)),
        default="trace",
        help="What runs the script: the trace; PyTorch's own CUDA build on a null GPU, which also runs compiled code "
        "and CUDA extensions (experimental); or auto: the null GPU where a trace would leave these out.",
    )
    declared_bytes: int | None = option(
        "--gpu-mem",
        type=Parsed("size", parse_gpu_memory),
        metavar="SIZE",
        help="Declared memory, for `--estimator declared`: 12G, or 12000 in MiB.",
    )
    coverage: float | None = option(
        "--coverage",
        type=number(),
        metavar="RATIO",
        help="Ratio of jobs whose peak stays below the bound.  [default: 0.99]",
    )
    no_cache: bool = flag("--no-cache", help="Make a new trace, and do not save it.")
