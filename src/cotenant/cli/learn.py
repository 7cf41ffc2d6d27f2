"""`cotenant learn`: from random networks to rows that an estimator can learn from."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cotenant.cli import learn_models
from cotenant.cli.main import new_app
from cotenant.cli.output import Column, emit_json, note, print_table
from cotenant.core.errors import UsageError
from cotenant.core.units import format_duration

if TYPE_CHECKING:
    from cotenant.learn.data_collection.labeling import Labeler, LabelingProgress

app = new_app(no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]


@app.callback()
def learn() -> None:
    """Make training jobs, find out what they take, and learn to tell it from the network alone.

    cotenant learn generate mlp-small --count 50 --out configs.txt
    cotenant learn run configs.txt --out runs          traced, or measured where a GPU answers
    cotenant learn clean runs --out data               one table per family
    cotenant learn cross-validate data/mlp.csv --models extra-trees,simulation
    """


@app.command()
def generate(
    ranges: Annotated[
        str, typer.Argument(metavar="RANGES", help="mlp, cnn, transformer, each also -small, or a TOML file.")
    ],
    *,
    count: Annotated[int, typer.Option(min=1, metavar="N", help="How many.")] = 100,
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed gives the same networks.")] = 0,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write them here; default: stdout.")] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw how often each value came: .png, .svg, .pdf.")
    ] = None,
    json: Json = False,
) -> None:
    """Draw configurations, spread evenly.

    Each comes once, and every setting takes every part of its range as often as the others.

    A configuration is one line: an id that says all of the network and of its training, and rebuilds it.

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
        note(f"drawn in `{plot}`")
    ids = [config_id(each) for each in configs]
    if json:
        emit_json({"family": loaded.family, "seed": seed, "configurations": ids})
    elif out is None:
        print("\n".join(ids))


@app.command()
def run(
    configs: Annotated[list[Path], typer.Argument(metavar="CONFIGS...", help="Files of `learn generate`.")],
    *,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the results.")],
    trace: Annotated[bool, typer.Option("--trace", help="Estimate, even where a GPU answers.")] = False,
    gpu: Annotated[str, typer.Option(metavar="NAME", help="Device profile, for traces.")] = "A100-40GB",
    steps: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Optimizer steps.  [default: 3 traced, 10 trained]")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0.1, metavar="N", help="Train so long, in place of --steps.")
    ] = None,
    each_limit_s: Annotated[
        float, typer.Option("--each-limit-s", min=1, metavar="N", help="End one after so long.")
    ] = 180.0,
    limit_s: Annotated[
        float | None, typer.Option("--limit-s", min=1, metavar="N", help="Begin none after so long.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the results in DIR.")] = False,
    retry: Annotated[
        str, typer.Option(metavar="KIND,...", help="With --resume: run oom, crash or timeout again.")
    ] = "",
    json: Json = False,
) -> None:
    """Find out what each configuration takes.

    One after the other, each in a process of its own.

    Where a GPU answers it is trained there; elsewhere it is traced, and its rows are marked so. Every run is on the
    disk when it ends: after a break, even a kill, go on with --resume. A failure is kept as what it was.

      cotenant learn run mlp.txt cnn.txt --out runs --seconds 30
      cotenant learn run mlp.txt cnn.txt --out runs --seconds 30 --resume --retry timeout
      cotenant learn run mlp.txt --out traced --trace --gpu H100-80GB
    """
    from cotenant.learn.data_collection.generate import read_configs
    from cotenant.learn.data_collection.labeling import run_configs

    wanted = [each for path in configs for each in read_configs(path)]
    with closing(_labeler(trace=trace, gpu=gpu, steps=steps, seconds=seconds, limit_s=each_limit_s)) as labeler:
        session = run_configs(
            wanted,
            out,
            labeler,
            resume=resume,
            retry=_statuses(retry),
            limit_s=limit_s,
            on_run=_show_on(sys.stderr if json else sys.stdout),
        )
    if json:
        emit_json({"runs": session.counts, "left": session.left, "elapsed_s": round(session.elapsed_s, 3)})
        return
    told = ", ".join(f"{count} {status}" for status, count in sorted(session.counts.items())) or "nothing to do"
    left = f"; {session.left} left, go on with `--resume`" if session.left else ""
    note(f"{told} in {format_duration(session.elapsed_s)}{left}")


@app.command()
def clean(
    runs: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of `learn run`.")],
    *,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the tables.")],
    allow: Annotated[
        str, typer.Option(metavar="RULE,...", help="Go on in spite of: duplicate, twin, leak, saturated.")
    ] = "",
    json: Json = False,
) -> None:
    """Make one table for each family.

    With a schema beside it. What would spoil what is learned from it is refused.

    cotenant learn clean runs --out data
    cotenant learn clean monday tuesday --out data --allow duplicate,saturated
    """
    from cotenant.learn.datasets.checks import RULES
    from cotenant.learn.datasets.clean import clean as tidy

    rules = _words(allow, RULES, "--allow")
    found = tidy(runs, out, allow=[rule for rule in RULES if rule in rules])
    if json:
        emit_json(
            {
                "runs": found.runs,
                "superseded": found.superseded,
                "rows": found.rows,
                "findings": [{"rule": each.rule, "message": each.message} for each in found.findings],
                "files": [str(each) for each in found.files],
            }
        )
        return
    for each in found.findings:
        note(f"{each.rule}: {each.message}")
    for family, count in found.rows.items():
        print(f"{family}: {count} rows")
    for path in found.files:
        print(path)


@app.command()
def summary(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What torchsummary, torchinfo or modelsummary printed.")],
    *,
    sequence: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Tokens of a sample, for modelsummary.")
    ] = None,
    json: Json = False,
) -> None:
    """Read a summary of a model.

    Its layers, the shapes of their outputs, their parameters.

    cotenant learn summary gpt2.txt --sequence 512
    """
    from cotenant.learn.model_summaries.summary import parse_summary

    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"`{file}` is no text: {error}") from error
    found = parse_summary(text, str(file), sequence=sequence)
    layers = [
        {"kind": each.kind, "name": each.name, "output_shape": list(each.output_shape), "parameters": each.parameters}
        for each in found.layers
    ]
    if json:
        emit_json({"format": found.format, "batch": found.batch, "parameters": found.parameters, "layers": layers})
        return
    rows = [
        {
            "kind": each.kind,
            "name": each.name,
            "shape": " x ".join(map(str, each.output_shape)) or "-",
            "parameters": f"{each.parameters:,}",
        }
        for each in found.layers
    ]
    columns = [Column(key="kind", title="KIND"), Column(key="name", title="NAME"), Column(key="shape", title="OUTPUT")]
    print_table(rows, [*columns, Column(key="parameters", title="PARAMETERS", right=True)])
    note(f"{len(layers)} layers, {found.parameters:,} parameters, batch {found.batch or 'not told'} ({found.format})")


for _name, _command in learn_models.COMMANDS.items():
    app.command(_name)(_command)


def _labeler(*, trace: bool, gpu: str, steps: int | None, seconds: float | None, limit_s: float) -> Labeler:
    """By training where a GPU answers, else by tracing."""
    if not trace:
        from cotenant.gpus.gpu_sampler import open_sampler

        watch, reason = open_sampler(os.environ.get("CUDA_VISIBLE_DEVICES"))
        if watch is not None:
            from cotenant.learn.data_collection.measuring_labeler import MeasuringLabeler

            return MeasuringLabeler(watch, steps=steps or 10, seconds=seconds, limit_s=limit_s)
        note(f"nothing is measured, all is traced for {gpu}: {reason}")
    if seconds is not None:
        raise UsageError("`--seconds` is for training on a GPU", hint="a trace is of some steps: `--steps 3`")
    from cotenant.learn.data_collection.tracing_labeler import TracingLabeler

    return TracingLabeler(gpu, steps=steps or 3, limit_s=limit_s)


def _show_on(stream: Any) -> Any:
    def show(progress: LabelingProgress) -> None:
        print(progress.line, file=stream, flush=True)

    return show


def _statuses(text: str) -> Any:
    from cotenant.learn.datasets.dataset_row import STATUSES

    words = _words(text, [each for each in STATUSES if each != "ok"], "--retry")
    return [each for each in STATUSES if each in words]


def _words(text: str, known: Any, option: str) -> list[str]:
    """The words of a list with commas, each one of `known`."""
    words = [each.strip() for each in text.split(",") if each.strip()]
    for each in words:
        if each not in known:
            raise UsageError(f"`{option}` has `{each}`, wanted {', '.join(known)}")
    return words
