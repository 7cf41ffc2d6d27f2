"""`cotenant estimate`: the GPU memory of a training script, without a GPU."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotenant.cli import estimate_json, estimate_text
from cotenant.cli import estimate_options as options
from cotenant.cli.estimate_batch import BatchSizeQuery
from cotenant.cli.estimate_reports import EstimateReports
from cotenant.cli.output import Column, emit_json, print_table
from cotenant.cli.slurm_options import parse_option
from cotenant.core.errors import TraceError, UsageError
from cotenant.core.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from cotenant.core.ports import EstimateRequest, Estimator
    from cotenant.estimators.base import ExplainingEstimator
    from cotenant.estimators.traced import TracedEstimator

CONTEXT: Mapping[str, Any] = {"allow_interspersed_args": True}


def command(
    script: options.Script = None,
    args: options.Args = None,
    gpu: options.GpuOrList = "A100-40GB",
    gpus: options.Gpus = 1,
    synthetic_data: options.StandIn = None,
    sequence_lengths: options.Lengths = "",
    no_sandbox: options.RealWrites = False,
    allow_network: options.Online = False,
    python: options.Python = None,
    estimator: options.Estimator = "traced",
    gpu_mem: options.GpuMem = None,
    steps: options.Steps = 3,
    coverage: options.Coverage = None,
    timeout: options.Timeout = 120.0,
    fits_on: options.FitsOn = False,
    what_if: options.WhatIf = False,
    utilization: options.Utilization = False,
    find_batch_size: options.FindBatchSize = False,
    batch_arg: options.Arg = "--batch-size",
    memory_limit: options.Limit = None,
    plot: options.Plot = None,
    snapshot: options.Snapshot = None,
    no_cache: options.NoCache = False,
    show_output: options.ShowOutput = False,
    json: options.Json = False,
) -> None:
    """Predict the peak GPU memory of a PyTorch training script, without a GPU.

    The script runs unchanged, for a few optimizer steps, on CUDA tensors that have shapes but no data. It reads its
    data; what it writes, moves or removes goes to a scratch folder that is thrown away. It has no network, unless
    --allow-network, and data that are not on this machine can be made up with --synthetic-data.

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
    if memory_limit is not None and not find_batch_size:
        raise UsageError("`--memory-limit` needs `--find-batch-size`")
    from cotenant.core.ports import EstimateRequest
    from cotenant.estimators import create
    from cotenant.estimators.base import ExplainingEstimator

    batch = (
        BatchSizeQuery(argument=batch_arg, limit_bytes=parse_option("--memory-limit", memory_limit, parse_bytes))
        if find_batch_size
        else None
    )
    extras = EstimateReports(
        fits_on=fits_on, what_if=what_if, utilization=utilization, plot=plot, snapshot=snapshot, batch=batch
    )
    request = EstimateRequest(
        command=(script, *(args or ())),
        workdir=str(Path.cwd()),
        env=dict(os.environ),
        gpu=gpu,
        timeout_s=timeout,
        declared_bytes=parse_option("--gpu-mem", gpu_mem, parse_bytes),
        gpus=gpus,
        synthetic_data=tuple(synthetic_data or ()),
        sequence_lengths=sequence_lengths,
        allow_network=allow_network,
        no_sandbox=no_sandbox,
    )
    with _tracing(
        steps=steps,
        python=python,
        show_output=show_output,
        coverage=coverage,
        keeps=not no_cache,
        often=find_batch_size,
    ) as traced:
        made = create(estimator, lambda: traced)
        if isinstance(made, ExplainingEstimator):
            _answer(request, made, extras, began_s, json=json)
        else:
            _answer_without_reports(request, made, extras, began_s, json=json)


@contextlib.contextmanager
def _tracing(
    *, steps: int, python: str | None, show_output: bool, coverage: float | None, keeps: bool, often: bool
) -> Iterator[TracedEstimator]:
    """The estimator, for as long as it is wanted; `keeps`: its traces, `often`: it will run more than one script."""
    from cotenant.estimators.trace_cache import TraceCache, default_folder
    from cotenant.estimators.traced import TracedEstimator
    from cotenant.tracing.process.forkserver_client import ForkServerClient

    folder = default_folder() if keeps else None
    with ForkServerClient() as forkserver:
        yield TracedEstimator(
            steps=steps,
            python=python,
            show_output=show_output,
            cache=TraceCache(folder) if folder is not None else None,
            coverage=coverage,
            forkserver=forkserver if often else None,  # for one trace it would only be one process more
        )


def _answer_without_reports(
    request: EstimateRequest, estimator: Estimator, extras: EstimateReports, began_s: float, *, json: bool
) -> None:
    """The estimate of an estimator that gives nothing but the estimate."""
    option = extras.first_option()
    if option is not None:
        raise UsageError(f"`{option}` is for `--estimator traced`, not for `{estimator.name}`")
    try:
        estimate = estimator.estimate(request)
    except TraceError as error:
        if not json:
            estimate_text.print_script_output(error)
        raise
    elapsed_s = time.perf_counter() - began_s
    if json:
        emit_json({**estimate_json.of_estimate(estimate), "elapsed_s": round(elapsed_s, 3), "trace": None})
    else:
        estimate_text.print_estimate(shlex.join(request.command), estimate, None, elapsed_s)


def _answer(
    request: EstimateRequest, estimator: ExplainingEstimator, extras: EstimateReports, began_s: float, *, json: bool
) -> None:
    search = None
    extras.check_files(request.command[0])
    try:
        if extras.batch is not None:
            request, search = extras.batch.search(request, estimator, json=json)
        result = estimator.explain(request)
    except TraceError as error:
        if not json:
            estimate_text.print_script_output(error)
        raise
    told: dict[str, Any] = {**estimate_json.of_estimate(result.estimate), **estimate_json.of_result(result)}
    if search is not None:
        told["batch_size"] = estimate_json.of_search(search)
    elapsed_s = time.perf_counter() - began_s
    if not json:
        estimate_text.print_estimate(shlex.join(request.command), result.estimate, result, elapsed_s)
    told |= extras.tables(result, request.command, json=json)
    extras.save_files(result, title=f"{shlex.join(request.command)} on {result.estimate.gpu}")
    if json:
        emit_json({**told, "elapsed_s": round(time.perf_counter() - began_s, 3)})


def _list_profiles(*, json: bool) -> None:
    from cotenant.gpu_specs import all_gpu_specs

    if json:
        emit_json(
            {"profiles": [{"name": each.name, "memory_bytes": each.memory_total_bytes} for each in all_gpu_specs()]}
        )
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
        for each in all_gpu_specs()
    ]
    titles = {"name": "GPU", "memory": "MEMORY", "capability": "SM", "context": "CONTEXT", "known": "", "mig": "MIG"}
    print_table(rows, [Column(key=key, title=title) for key, title in titles.items()])
