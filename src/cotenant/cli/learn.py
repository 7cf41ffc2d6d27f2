"""`cotenant learn`: from random networks to a data set that an estimator can learn from; see also `learn_models`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotenant.cli import learn_models
from cotenant.cli.completion import complete_gpu_names
from cotenant.cli.options import cli_argument, cli_group, cli_option, json_option
from cotenant.cli.output import Column, emit_json, note, print_table
from cotenant.cli.parameter_types import PATH, integer, number
from cotenant.core.errors import UsageError
from cotenant.core.units import format_duration

if TYPE_CHECKING:
    from cotenant.learn.data_collection.labeling import Labeler, LabelingProgress


@cli_group(no_args_is_help=True)
def command() -> None:
    """Generate training jobs, label them, and train models that predict memory from the network alone.

    cotenant learn generate mlp-small --count 50 --out configs.txt
    cotenant learn run configs.txt --out runs          measured if there is a GPU, else traced
    cotenant learn clean runs --out data               one table per family
    cotenant learn cross-validate data/mlp.csv --models extra-trees,simulation
    """


@command.command("generate")
@cli_argument(
    "ranges",
    metavar="RANGES",
    help="mlp, cnn, transformer, each also -small or -thesis, mlp-thesis-deep, or a TOML file.",
)
@cli_option("--count", type=integer(minimum=1), default=100, metavar="N", help="Number of configurations.")
@cli_option("--seed", type=integer(), default=0, metavar="N", help="Random seed.")
@cli_option("--out", type=PATH, metavar="FILE", help="Write them to FILE; by default to stdout.")
@cli_option("--plot", type=PATH, metavar="FILE", help="Plot how often each value was drawn: .png, .svg, .pdf.")
@json_option
def generate(ranges: str, *, count: int, seed: int, out: Path | None, plot: Path | None, json: bool) -> None:
    """Draw configurations of networks, evenly spread over the ranges of every setting, without duplicates.

    A configuration is one line: an id that describes the network and its training, and rebuilds it.

      cotenant learn generate mlp --count 3000 --out mlp.txt --plot mlp.png
      cotenant learn generate my-ranges.toml --count 200 --seed 7
    """
    from cotenant.learn.data_collection.configs import config_id
    from cotenant.learn.data_collection.generate import generate as draw
    from cotenant.learn.data_collection.generate import write_configs
    from cotenant.learn.data_collection.ranges import load_ranges

    loaded = load_ranges(ranges)
    configs = draw(loaded, count, seed)
    if out is not None:
        write_configs(out, configs, loaded, seed)
        note(f"{len(configs)} configurations in `{out}`")
    if plot is not None:
        from cotenant.learn.reports.spread_plot import save_spread

        save_spread(plot, configs, loaded)
        note(f"plot in `{plot}`")
    ids = [config_id(config) for config in configs]
    if json:
        emit_json({"family": loaded.family, "seed": seed, "configurations": ids})
    elif out is None:
        print("\n".join(ids))


@command.command("run")
@cli_argument("configs", nargs=-1, required=True, type=PATH, metavar="CONFIGS...", help="Files of `learn generate`.")
@cli_option("--out", type=PATH, required=True, metavar="DIR", help="Folder of the results.")
@cli_option("--trace", is_flag=True, help="Trace, even if there is a GPU.")
@cli_option("--simulate", is_flag=True, help="Simulate the layers: twenty times as fast, Adam in fp32 only.")
@cli_option(
    "--gpu", default="A100-40GB", metavar="NAME", shell_complete=complete_gpu_names, help="GPU model, for traces."
)
@cli_option("--steps", type=integer(minimum=1), metavar="N", help="Optimizer steps.  [default: 3 traced, 10 measured]")
@cli_option("--seconds", type=number(minimum=0.1), metavar="N", help="Train for N seconds, in place of --steps.")
@cli_option(
    "--timeout",
    "timeout_s",
    type=number(minimum=1),
    default=180.0,
    metavar="SECONDS",
    help="Stop a network after this.",
)
@cli_option("--stop-after", "stop_after_s", type=number(minimum=1), metavar="SECONDS", help="Begin no more after this.")
@cli_option("--resume", is_flag=True, help="Continue with the results in DIR.")
@cli_option(
    "--retry",
    default="",
    show_default=False,
    metavar="KIND,...",
    help="With --resume: run oom, crash or timeout again.",
)
@json_option
def run(
    configs: Sequence[Path],
    *,
    out: Path,
    trace: bool,
    simulate: bool,
    gpu: str,
    steps: int | None,
    seconds: float | None,
    timeout_s: float,
    stop_after_s: float | None,
    resume: bool,
    retry: str,
    json: bool,
) -> None:
    """Measure or trace each configuration, one after the other, each in a process of its own.

    If there is a GPU, the network is trained on it; else it is traced, and its row is marked so. Every run is on the
    disk when it ends: after an interruption, even a kill, continue with --resume. Failures are recorded as such.

      cotenant learn run mlp.txt cnn.txt --out runs --seconds 30
      cotenant learn run mlp.txt cnn.txt --out runs --seconds 30 --resume --retry timeout
      cotenant learn run mlp.txt --out traced --trace --gpu H100-80GB
      cotenant learn run transformer.txt --out simulated --simulate
    """
    from cotenant.learn.data_collection.generate import read_configs
    from cotenant.learn.data_collection.labeling import run_configs

    wanted = [config for path in configs for config in read_configs(path)]
    stream = sys.stderr if json else sys.stdout

    def show(progress: LabelingProgress) -> None:
        print(progress.line, file=stream, flush=True)

    made = (
        _simulating_labeler(gpu, trace=trace, steps=steps, seconds=seconds)
        if simulate
        else _labeler(trace=trace, gpu=gpu, steps=steps, seconds=seconds, limit_s=timeout_s)
    )
    with closing(made) as labeler:
        session = run_configs(
            wanted, out, labeler, resume=resume, retry=_statuses(retry), limit_s=stop_after_s, on_run=show
        )
    if json:
        emit_json({"runs": session.counts, "left": session.left, "elapsed_s": round(session.elapsed_s, 3)})
        return
    counts = ", ".join(f"{count} {status}" for status, count in sorted(session.counts.items())) or "nothing to do"
    left = f"; {session.left} left, continue with `--resume`" if session.left else ""
    note(f"{counts} in {format_duration(session.elapsed_s)}{left}")


@command.command("clean")
@cli_argument("runs", nargs=-1, required=True, type=PATH, metavar="DIR...", help="Folders of `learn run`.")
@cli_option("--out", type=PATH, required=True, metavar="DIR", help="Folder of the tables.")
@cli_option(
    "--allow",
    default="",
    show_default=False,
    metavar="RULE,...",
    help="Accept these problems: duplicate, twin, leak, saturated.",
)
@json_option
def clean(runs: Sequence[Path], *, out: Path, allow: str, json: bool) -> None:
    """Make one table for each family, with a schema beside it. Problems of the data are refused.

    cotenant learn clean runs --out data
    cotenant learn clean monday tuesday --out data --allow duplicate,saturated
    """
    from cotenant.learn.datasets.checks import RULES
    from cotenant.learn.datasets.clean import clean as make_tables

    rules = _words(allow, RULES, "--allow")
    cleaned = make_tables(runs, out, allow=[rule for rule in RULES if rule in rules])
    if json:
        emit_json(
            {
                "runs": cleaned.runs,
                "superseded": cleaned.superseded,
                "rows": cleaned.rows,
                "findings": [{"rule": problem.rule, "message": problem.message} for problem in cleaned.findings],
                "files": [str(path) for path in cleaned.files],
            }
        )
        return
    for problem in cleaned.findings:
        note(f"{problem.rule}: {problem.message}")
    for family, count in cleaned.rows.items():
        print(f"{family}: {count} rows")
    for path in cleaned.files:
        print(path)


@command.command("summary")
@cli_argument("file", type=PATH, metavar="FILE", help="Output of torchsummary, torchinfo, modelsummary or Keras.")
@cli_option("--sequence", type=integer(minimum=1), metavar="N", help="Tokens of a sample, for modelsummary.")
@json_option
def summary(file: Path, *, sequence: int | None, json: bool) -> None:
    """Read the summary of a model: its layers, the shapes of their outputs, their parameters.

    cotenant learn summary gpt2.txt --sequence 512
    """
    from cotenant.learn.model_summaries.summary import parse_summary

    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"`{file}` is not UTF-8 text: {error}") from error
    parsed = parse_summary(text, str(file), sequence=sequence)
    layers = [
        {
            "kind": layer.kind,
            "name": layer.name,
            "output_shape": list(layer.output_shape),
            "parameters": layer.parameters,
        }
        for layer in parsed.layers
    ]
    if json:
        emit_json({"format": parsed.format, "batch": parsed.batch, "parameters": parsed.parameters, "layers": layers})
        return
    rows = [
        {
            "kind": layer.kind,
            "name": layer.name,
            "shape": " x ".join(map(str, layer.output_shape)) or "-",
            "parameters": f"{layer.parameters:,}",
        }
        for layer in parsed.layers
    ]
    columns = [Column(key="kind", title="KIND"), Column(key="name", title="NAME"), Column(key="shape", title="OUTPUT")]
    print_table(rows, [*columns, Column(key="parameters", title="PARAMETERS", right=True)])
    note(f"{len(layers)} layers, {parsed.parameters:,} parameters, batch {parsed.batch or 'unknown'} ({parsed.format})")


for _verb in learn_models.COMMANDS:
    command.add_command(_verb)


def _labeler(*, trace: bool, gpu: str, steps: int | None, seconds: float | None, limit_s: float) -> Labeler:
    """The labeler that trains on the GPU if there is one, else the one that traces."""
    if not trace:
        from cotenant.gpus.gpu_sampler import open_sampler

        sampler, reason = open_sampler(os.environ.get("CUDA_VISIBLE_DEVICES"))
        if sampler is not None:
            from cotenant.learn.data_collection.measuring_labeler import MeasuringLabeler

            return MeasuringLabeler(sampler, steps=steps or 10, seconds=seconds, limit_s=limit_s)
        note(f"no measurement ({reason}): networks are traced for {gpu}")
    if seconds is not None:
        raise UsageError("`--seconds` needs a GPU to train on", hint="limit a trace by steps: `--steps 3`")
    from cotenant.learn.data_collection.tracing_labeler import TracingLabeler

    return TracingLabeler(gpu, steps=steps or 3, limit_s=limit_s)


def _simulating_labeler(gpu: str, *, trace: bool, steps: int | None, seconds: float | None) -> Labeler:
    if trace or steps is not None or seconds is not None:
        raise UsageError(
            "`--simulate` has no steps and traces nothing", hint="leave out --trace, --steps and --seconds"
        )
    try:
        from cotenant.learn.data_collection.simulating_labeler import SimulatingLabeler
    except ImportError as error:
        raise UsageError("simulating needs torch and numpy", hint="pip install 'cotenant[learn,torch]'") from error
    return SimulatingLabeler(gpu)


def _statuses(text: str) -> list[Any]:
    from cotenant.learn.datasets.dataset_row import STATUSES

    words = _words(text, [status for status in STATUSES if status != "ok"], "--retry")
    return [status for status in STATUSES if status in words]


def _words(text: str, known: Iterable[str], option: str) -> list[str]:
    """The words of a list with commas, each one of `known`."""
    words = [word for part in text.split(",") if (word := part.strip())]
    for word in words:
        if word not in known:
            raise UsageError(f"`{option}`: must be of {', '.join(known)}, got `{word}`")
    return words
