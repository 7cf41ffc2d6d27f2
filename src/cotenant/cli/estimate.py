"""`cotenant estimate`: the GPU memory of a training script, without a GPU."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cotenant.cli import estimate_json, estimate_text
from cotenant.cli.output import Column, emit_json, note, print_table
from cotenant.core.errors import CotenantError, TraceError, UsageError
from cotenant.core.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from cotenant.core.ports import EstimateRequest
    from cotenant.estimators.batch import BatchSearch
    from cotenant.estimators.traced import TracedEstimator, TracedResult
    from cotenant.tracing.process.warm import WarmTracer

CONTEXT: Mapping[str, Any] = {"allow_interspersed_args": True}
_FIRST_BATCH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """What is asked of the trace beside the estimate."""

    fits_on: bool
    what_if: bool
    utilization: bool
    plot: Path | None
    snapshot: Path | None
    find_batch_size: bool
    argument: str
    limit_bytes: int | None

    def first_option(self) -> str | None:
        """The first option given that needs a trace."""
        given = {
            "--fits-on": self.fits_on,
            "--what-if": self.what_if,
            "--utilization": self.utilization,
            "--plot": self.plot,
            "--snapshot": self.snapshot,
            "--find-batch-size": self.find_batch_size,
        }
        return next((name for name, value in given.items() if value), None)


def command(
    script: Annotated[
        str | None, typer.Argument(metavar="SCRIPT", help="A Python training script; it is not changed.")
    ] = None,
    args: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS]", help="Arguments of the script, after `--`.")
    ] = None,
    gpu: Annotated[
        str, typer.Option(metavar="NAME", help="Device profile, e.g. A100-40GB or A100-40GB:3g.20gb; `list` shows all.")
    ] = "A100-40GB",
    gpus: Annotated[int, typer.Option(metavar="N", min=1, max=127, help="GPUs that the script sees.")] = 1,
    stand_in: Annotated[
        list[str] | None,
        typer.Option(metavar="SHAPE[:DTYPE[:CLASSES]]", help="Make up data that is absent, e.g. 3x224x224:uint8:1000."),
    ] = None,
    lengths: Annotated[
        str,
        typer.Option(
            metavar="WHICH",
            help="Samples to make batches of, where they vary in length: longest, growing, e.g. p95, or a file of "
            "lengths and counts, e.g. lengths.csv.",
        ),
    ] = "",
    real_writes: Annotated[
        bool, typer.Option("--real-writes", help="Let the script write, move and remove files for real.")
    ] = False,
    online: Annotated[bool, typer.Option("--online", help="Let the script use the network.")] = False,
    python: Annotated[
        str | None, typer.Option(metavar="PATH", help="Interpreter that runs the script; default: this one.")
    ] = None,
    estimator: Annotated[str, typer.Option(metavar="NAME", help="Registered estimator.")] = "traced",
    gpu_mem: Annotated[
        str | None, typer.Option("--gpu-mem", metavar="SIZE", help="Declared memory, for `--estimator declared`.")
    ] = None,
    steps: Annotated[int, typer.Option(metavar="N", min=1, help="Optimizer steps to see.")] = 3,
    coverage: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Jobs whose peak stays below the bound; 0.99, with convolutions 0.95."),
    ] = None,
    timeout: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="Stop the script after this long.")] = 120.0,
    fits_on: Annotated[
        bool, typer.Option("--fits-on", help="Show which known GPUs and MIG instances it fits.")
    ] = False,
    what_if: Annotated[
        bool, typer.Option("--what-if", help="Show what allocator settings and 8-bit states would save.")
    ] = False,
    utilization: Annotated[
        bool, typer.Option("--utilization", help="Show how busy it would keep an A100 alone; learned, not traced.")
    ] = False,
    find_batch_size: Annotated[
        bool, typer.Option("--find-batch-size", help="Find the largest batch that fits; traces several times.")
    ] = False,
    arg: Annotated[
        str, typer.Option(metavar="ARGUMENT", help="The script's argument for it; write `--arg=--batch`.")
    ] = "--batch-size",
    limit: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory the batch may need; default: the GPU's.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw memory over time (.png, .svg, .pdf); needs matplotlib.")
    ] = None,
    snapshot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a pickle for https://pytorch.org/memory_viz.")
    ] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Make a new trace, and do not keep it.")] = False,
    show_output: Annotated[bool, typer.Option("--show-output", help="Let the script print, to stderr.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Predict the peak GPU memory of a PyTorch training script, without a GPU.

    The script runs unchanged, for a few optimizer steps, on CUDA tensors that have shapes but no data. It reads its
    data; what it writes, moves or removes goes to a scratch folder that is thrown away. It has no network, unless
    --online, and data that are not on this machine can be made up with --stand-in.

    Of several processes (`cotenant estimate -- torchrun --nproc-per-node 4 train.py`) the first is traced, for one GPU.
    With --gpus 4 one process sees four, and the answer has a number for each GPU that it uses.

    A trace is kept in ~/.cache/cotenant and used again while the script, what it imports, its arguments and the files
    they name, the environment and the installed packages stay as they are. Data that the script opens by itself is not
    compared: after a change of it that matters to memory, say --no-cache. Another GPU of the same compute capability
    is computed from the same trace, and so are other settings in PYTORCH_CUDA_ALLOC_CONF.

    The bound is for a share of jobs, --coverage, by how far off we were on measured ones. Where small changes, such as
    one workspace more, lead to two states of the reserved bytes, both are told. Close to the limit the answer also
    says how often the cache must be given back.

      cotenant estimate train.py -- --batch-size 64
      cotenant estimate train.py --gpu H100-80GB --json
      cotenant estimate train.py --find-batch-size --gpu L40S-48GB
      cotenant estimate train.py --fits-on --what-if --plot memory.png
      cotenant estimate --gpu list
    """
    began_s = time.perf_counter()
    if gpu == "list":
        _list_profiles(json=json)
        return
    if script is None:
        raise UsageError("no script to estimate", hint="give one: `cotenant estimate train.py -- ARGS`")
    if limit is not None and not find_batch_size:
        raise UsageError("`--limit` needs `--find-batch-size`")
    from cotenant.core.ports import EstimateRequest

    wanted = _Wanted(
        fits_on=fits_on,
        what_if=what_if,
        utilization=utilization,
        plot=plot,
        snapshot=snapshot,
        find_batch_size=find_batch_size,
        argument=arg,
        limit_bytes=parse_bytes(limit) if limit else None,
    )
    request = EstimateRequest(
        command=(script, *(args or ())),
        workdir=str(Path.cwd()),
        env=dict(os.environ),
        gpu=gpu,
        timeout_s=timeout,
        declared_bytes=parse_bytes(gpu_mem) if gpu_mem else None,
        gpus=gpus,
        stand_ins=tuple(stand_in or ()),
        lengths=lengths,
        online=online,
        real_writes=real_writes,
    )
    if estimator == "traced":
        from cotenant.tracing.process.warm import WarmTracer

        with WarmTracer() as warm:
            traced = _new_estimator(
                steps=steps,
                python=python,
                show_output=show_output,
                keeps=not no_cache,
                coverage=coverage,
                warm=warm if find_batch_size else None,  # for one trace it would only be one process more
            )
            _answer(request, traced, wanted, began_s, json=json)
    else:
        _answer_without_trace(request, estimator, wanted, began_s, json=json)


def _new_estimator(
    *,
    steps: int,
    python: str | None,
    show_output: bool,
    keeps: bool,
    coverage: float | None,
    warm: WarmTracer | None,
) -> TracedEstimator:
    from cotenant.estimators.cache import TraceCache, default_folder
    from cotenant.estimators.traced import TracedEstimator

    folder = default_folder() if keeps else None
    return TracedEstimator(
        steps=steps,
        python=python,
        show_output=show_output,
        cache=TraceCache(folder) if folder is not None else None,
        coverage=coverage,
        warm=warm,
    )


def _answer_without_trace(
    request: EstimateRequest, estimator: str, wanted: _Wanted, began_s: float, *, json: bool
) -> None:
    from cotenant.estimators import create

    made = create(estimator)
    option = wanted.first_option()
    if option is not None:
        raise UsageError(f"`{option}` needs a trace, and `--estimator {estimator}` makes none")
    estimate = made.estimate(request)
    elapsed_s = time.perf_counter() - began_s
    if json:
        emit_json({**estimate_json.of_estimate(estimate), "elapsed_s": round(elapsed_s, 3), "trace": None})
    else:
        estimate_text.print_estimate(shlex.join(request.command), estimate, None, elapsed_s)


def _answer(
    request: EstimateRequest, estimator: TracedEstimator, wanted: _Wanted, began_s: float, *, json: bool
) -> None:
    search = None
    _check_files(wanted)
    try:
        if wanted.find_batch_size:
            request, search = _search(request, estimator, wanted, json=json)
        result = estimator.explain(request)
    except TraceError as error:
        _tell_last_words(error, json=json)
        raise
    told: dict[str, Any] = {**estimate_json.of_estimate(result.estimate), **estimate_json.of_result(result)}
    if search is not None:
        told["batch_size"] = estimate_json.of_search(search)
    elapsed_s = time.perf_counter() - began_s
    if not json:
        estimate_text.print_estimate(shlex.join(request.command), result.estimate, result, elapsed_s)
    told |= _tables(result, wanted, request.command, json=json)
    _save_files(result, wanted, title=f"{shlex.join(request.command)} on {result.estimate.gpu}")
    if json:
        emit_json({**told, "elapsed_s": round(time.perf_counter() - began_s, 3)})


def _tables(result: TracedResult, wanted: _Wanted, command: Sequence[str], *, json: bool) -> dict[str, Any]:
    """The tables asked for: printed, or given for the JSON value."""
    told: dict[str, Any] = {}
    if wanted.fits_on:
        from cotenant.estimators.fits import capability_of, fits_on

        fits = fits_on(result.trace, result.scene.stack, result.spread_bytes, result.coverage)
        told["fits_on"] = [estimate_json.of_fit(each) for each in fits]
        if not json:
            estimate_text.print_fits(fits, capability_of(result.trace))
    if wanted.what_if:
        from cotenant.estimators.whatif import NOT_COMPUTED, what_if

        changes = what_if(result)
        told["what_if"] = [estimate_json.of_change(each) for each in changes]
        if not json:
            estimate_text.print_changes(changes, result.fit, NOT_COMPUTED)
    if wanted.utilization:
        told["utilization"] = _utilization(result, command, json=json)
    return told


def _utilization(result: TracedResult, command: Sequence[str], *, json: bool) -> dict[str, Any] | None:
    """SMACT and SMOCC, printed or given; None, with a note, where nothing was learned of such a network."""
    from cotenant.estimators.learned.utilization import utilization_of
    from cotenant.estimators.published.features import features_of

    try:
        found = utilization_of(result.trace, features_of(result.trace, command))
    except UsageError as error:
        note(f"no utilization: {error.message}")
        return None
    if not json:
        print(f"\n  {estimate_text.busy_line(found.smact, found.smocc)}")
    for warning in found.warnings:
        note(f"warning: {warning}")
    return {"smact": found.smact, "smocc": found.smocc, "gpu": found.gpu, "warnings": list(found.warnings)}


def _check_files(wanted: _Wanted) -> None:
    """Refuse what could not be written, before the script is run for it."""
    for path in (wanted.plot, wanted.snapshot):
        if path is not None and not path.absolute().parent.is_dir():
            raise UsageError(f"no folder `{path.parent}` to write `{path.name}` to")
    if wanted.plot is not None:
        from cotenant.estimators.plot import new_figure

        new_figure(wanted.plot)


def _save_files(result: TracedResult, wanted: _Wanted, *, title: str) -> None:
    if wanted.plot is None and wanted.snapshot is None:
        return
    from cotenant.estimators.memory_viz import save_snapshot
    from cotenant.estimators.plot import save_plot
    from cotenant.estimators.timeline import history_of

    history = history_of(result.scene, result.capacity_bytes)
    if wanted.plot is not None:
        save_plot(wanted.plot, history, title=title, usable_bytes=result.fit.usable_bytes)
        note(f"drawn in `{wanted.plot}`")
    if wanted.snapshot is not None:
        save_snapshot(wanted.snapshot, history, result.scene.stack)
        note(f"snapshot in `{wanted.snapshot}`: open it at https://pytorch.org/memory_viz")


def _search(
    request: EstimateRequest, estimator: TracedEstimator, wanted: _Wanted, *, json: bool
) -> tuple[EstimateRequest, BatchSearch]:
    """The request with the largest batch, and how it was found."""
    from cotenant.estimators.batch import Trial, find_batch_size, value_of, with_value
    from cotenant.estimators.profiles import profile
    from cotenant.estimators.replays import usable_bytes

    script, *args = request.command
    limit = wanted.limit_bytes or usable_bytes(profile(request.gpu))

    def with_batch(size: int) -> EstimateRequest:
        return replace(request, command=(script, *with_value(args, wanted.argument, size)))

    def show(trial: Trial) -> None:
        if not json:
            estimate_text.print_trial(wanted.argument, trial)

    if not json:
        print(f"largest {wanted.argument} with a bound of {format_bytes(limit)} at most")
    search = find_batch_size(
        lambda size: estimator.explain(with_batch(size)).fit.bound_bytes,
        argument=wanted.argument,
        start=value_of(args, wanted.argument) or _FIRST_BATCH,
        limit_bytes=limit,
        on_trial=show,
    )
    if search.largest is None:
        least = min(search.trials, key=lambda each: each.batch_size)
        raise CotenantError(
            f"no batch fits in {format_bytes(limit)}: with {least.batch_size} the bound is "
            f"{format_bytes(least.bound_bytes)}",
            hint="try `--what-if`, or a larger GPU: `--fits-on`",
        )
    if not json:
        print()
    return with_batch(search.largest), search


def _list_profiles(*, json: bool) -> None:
    from cotenant.estimators.profiles import profiles

    if json:
        emit_json({"profiles": [{"name": each.name, "memory_bytes": each.memory_total_bytes} for each in profiles()]})
        return
    rows = [
        {
            "name": each.name,
            "memory": format_bytes(each.memory_total_bytes),
            "capability": ".".join(map(str, each.compute_capability)),
            "context": format_bytes(each.context.typical_bytes),
            "known": "derived" if each.context.derived else "measured",
            "mig": " ".join(mig.name for mig in each.mig) or "-",
        }
        for each in profiles()
    ]
    titles = {"name": "GPU", "memory": "MEMORY", "capability": "SM", "context": "CONTEXT", "known": "", "mig": "MIG"}
    print_table(rows, [Column(key=key, title=title) for key, title in titles.items()])


def _tell_last_words(error: TraceError, *, json: bool) -> None:
    """What the script printed last, before the error itself."""
    if json or not error.log_tail.strip():
        return
    note("the script's last words:")
    for line in error.log_tail.strip().splitlines()[-12:]:
        note(f"  {line}")
