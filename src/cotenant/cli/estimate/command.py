"""`cotenant estimate`: the GPU memory of a training script, without a GPU."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from cotenant.cli.estimate import json_output as estimate_json
from cotenant.cli.estimate import summary as estimate_summary
from cotenant.cli.estimate import text as estimate_text
from cotenant.cli.estimate.model import ModelOptions, note_first_number, note_texts_alone, shown
from cotenant.cli.estimate.options import EstimatorOptions, ScriptOptions, SummaryOptions
from cotenant.cli.estimate.reports import EstimateReports
from cotenant.cli.options import cli_command, json_option, option_group
from cotenant.cli.output import Column, emit_json, note, print_table
from cotenant.core.errors import TraceError, UsageError
from cotenant.core.units import format_bytes

if TYPE_CHECKING:
    from cotenant.core.ports import EstimateRequest, Estimator
    from cotenant.estimators.base import ExplainingEstimator
    from cotenant.estimators.traced import TracedEstimator

CHECK_FAILED = 6
"""Exit code: there is an estimate, and it failed `--budget` or `--strict`."""


@cli_command()
@option_group("script", ScriptOptions)
@option_group("options", EstimatorOptions)
@option_group("model", ModelOptions)
@option_group("summary", SummaryOptions)
@option_group("reports", EstimateReports)
@json_option
def command(
    script: ScriptOptions,
    options: EstimatorOptions,
    model: ModelOptions,
    summary: SummaryOptions,
    reports: EstimateReports,
    *,
    json: bool,
) -> int:
    """Predict the peak GPU memory of a PyTorch training script, without a GPU.

    The script runs unchanged for a few optimizer steps, on CUDA tensors that have shapes but no data. It reads its
    data; files that it writes, moves or removes are redirected to a scratch folder, which is deleted. It has no network
    unless --allow-network is given; --synthetic-data replaces data that is not on this machine.
    A script that ends without training, such as an evaluation, is answered for all that it ran, with a warning.

    Of several processes (`cotenant estimate -- torchrun --nproc-per-node 4 train.py`) only rank 0 is traced, for one
    GPU. With --gpus 4, one process sees four GPUs, and the answer has a number for each that it uses.

    Traces are cached in ~/.cache/cotenant until the script, its imports, its arguments, files named in them, the
    environment or the installed packages change. Data that the script opens by itself is not compared: use --no-cache
    if it changed. The same trace serves other GPUs of the same compute capability and other PYTORCH_CUDA_ALLOC_CONF.

    Code of torch.compile is traced as PyTorch's compiler makes it (torch 2.10, 2.11 and 2.13 were tried), which takes 6
    to 90 s of CPU time. What the compiler does not take is traced eagerly, with a warning; --compiled-code eager traces
    all of it so. CUDA extensions are skipped. With --backend null-gpu the CUDA build of torch in the script's
    environment runs all of it, for three steps, on a GPU that computes nothing: only values of data are known, others
    are assumed. It takes torch 2.8 or newer by pip, x86-64 Linux 5.13 or newer and a C compiler. --backend auto does so
    where a trace leaves something out. `cotenant doctor` says whether it is possible in the Python that runs it.

    The bound holds for the ratio --coverage of measured jobs. If small differences, such as one more workspace, lead to
    two states of the reserved bytes, both are printed. Near the limit, the answer includes how often the allocator
    must release its cache.

    A printed summary of a model and a batch size are enough for a rougher estimate: its layers are simulated one after
    another, with Adam, in fp32, and the learned estimators read them too.

    Without a script, --model names a model of transformers. Only its configuration is needed: from a file, from the
    hub's cache on this machine, or with --allow-network from the hub. For models like Llama a first number is on stderr
    at once, the peak of the tensors by a formula; the answer follows.

      cotenant estimate train.py -- --batch-size 64
      cotenant estimate train.py --gpu H100-80GB --json
      cotenant estimate train.py --find-batch-size --gpu L40S-48GB
      cotenant estimate train.py --fits-on --what-if --plot memory.png
      cotenant estimate model.txt --batch-size 32    a printed summary of a model, without its script
      cotenant estimate --model meta-llama/Llama-3.2-1B --task lora --batch-size 4 --length 2048
      cotenant estimate train.py --budget 20G --strict 0.1    for CI: exit code 6 if more or unsure
      cotenant estimate train.py --baseline old.json    what changed since `--json > old.json`
      cotenant estimate --gpu list
    """
    began_s = time.perf_counter()
    if options.gpu == "list":
        _list_gpus(json=json)
        return 0
    reports.check_options()
    script, summary = model.script(script, summary)
    if model.model is not None:
        note_texts_alone(script)
        if not json and not reports.find_batch_size:
            note_first_number(script)
    from cotenant.estimators import create
    from cotenant.estimators.base import ExplainingEstimator

    if summary.is_wanted(script):
        wanted = reports.first_option()
        if wanted is not None:
            raise UsageError(f"`{wanted}` needs a trace, and `{script.script}` is the summary of a model")
        estimate_summary.answer(summary.request(script, options.gpu), options.estimator, json=json)
        return 0
    request = script.request(options.gpu, options.declared_bytes)
    with _tracer(script, options, traces_often=reports.find_batch_size) as traced:
        estimator = create(options.estimator, lambda: traced)
        if isinstance(estimator, ExplainingEstimator):
            return _answer(request, estimator, reports, began_s, json=json)
        _answer_without_reports(request, estimator, reports, began_s, json=json)
        return 0


@contextlib.contextmanager
def _tracer(script: ScriptOptions, options: EstimatorOptions, *, traces_often: bool) -> Iterator[TracedEstimator]:
    """The estimator that runs scripts; if it `traces_often`, with a process that has torch imported already."""
    from cotenant.estimators.null_gpu import TIMEOUT_S
    from cotenant.estimators.trace_cache import TraceCache, default_folder
    from cotenant.estimators.traced import TracedEstimator
    from cotenant.tracing.process.forkserver_client import ForkServerClient

    folder = None if options.no_cache else default_folder()
    with ForkServerClient() as forkserver:
        yield TracedEstimator(
            steps=script.steps,
            python=script.python,
            show_output=script.show_output,
            cache=None if folder is None else TraceCache(folder),
            coverage=options.coverage,
            forkserver=forkserver if traces_often else None,
            backend=options.backend,
            null_gpu_timeout_s=script.timeout_s or TIMEOUT_S,
        )


@contextlib.contextmanager
def _printing_script_output(*, json: bool) -> Iterator[None]:
    """Prints the last output of a script that failed, before its error."""
    try:
        yield
    except TraceError as error:
        if not json:
            estimate_text.print_script_output(error)
        raise


def _answer_without_reports(
    request: EstimateRequest, estimator: Estimator, reports: EstimateReports, began_s: float, *, json: bool
) -> None:
    """Print the estimate of an estimator that has no trace to make reports from."""
    option = reports.first_option()
    if option is not None:
        raise UsageError(f"`{option}` is for `--estimator traced`, not for `{estimator.name}`")
    with _printing_script_output(json=json):
        estimate = estimator.estimate(request)
    elapsed_s = time.perf_counter() - began_s
    if json:
        emit_json({**estimate_json.of_estimate(estimate), "elapsed_s": round(elapsed_s, 3), "trace": None})
    else:
        estimate_text.print_estimate(shown(request.command), estimate, None, elapsed_s)


def _answer(
    request: EstimateRequest, estimator: ExplainingEstimator, reports: EstimateReports, began_s: float, *, json: bool
) -> int:
    """Print the estimate and the reports; the exit code."""
    search = None
    reports.check_files(request.command[0])
    batch = reports.batch
    with _printing_script_output(json=json):
        if batch is not None:
            request, search = batch.search(request, estimator, json=json)
        result = estimator.explain(request)
    answer: dict[str, Any] = {**estimate_json.of_estimate(result.estimate), **estimate_json.of_result(result)}
    if search is not None:
        answer["batch_size"] = estimate_json.of_search(search)
    elapsed_s = time.perf_counter() - began_s
    if not json:
        estimate_text.print_estimate(shown(request.command), result.estimate, result, elapsed_s)
    answer |= reports.tables(result, request.command, json=json)
    reports.save_files(result, title=f"{shown(request.command)} on {result.estimate.gpu}")
    failed = reports.failed_checks(result)
    if json:
        answer["failed_checks"] = failed
        emit_json({**answer, "elapsed_s": round(time.perf_counter() - began_s, 3)})
    for text in failed:
        note(f"error: {text}")
    return CHECK_FAILED if failed else 0


def _list_gpus(*, json: bool) -> None:
    from cotenant.gpu_specs import all_gpu_specs

    specs = all_gpu_specs()
    if json:
        emit_json({"profiles": [{"name": spec.name, "memory_bytes": spec.memory_total_bytes} for spec in specs]})
        return
    rows = [
        {
            "name": spec.name,
            "memory": format_bytes(spec.memory_total_bytes),
            "capability": ".".join(map(str, spec.compute_capability)),
            "context": format_bytes(spec.context.typical_bytes),
            "known": "derived" if spec.context.derived else "measured",
            "mig": " ".join(mig.name for mig in spec.mig) or "-",
        }
        for spec in specs
    ]
    titles = {"name": "GPU", "memory": "MEMORY", "capability": "SM", "context": "CONTEXT", "known": "", "mig": "MIG"}
    print_table(rows, [Column(key=key, title=title) for key, title in titles.items()])
