"""`cotenant demo`: what the package does, on this machine, in a few minutes."""

from __future__ import annotations

import dataclasses
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from cotenant.cli.output import emit_json
from cotenant.core.units import format_bytes

if TYPE_CHECKING:
    from cotenant.demo.examples import ScriptEstimate

GPU = "A100-40GB"
TIME_SCALE = 300.0
LIMIT_S = 150.0
POLICIES: Mapping[str, Mapping[str, object]] = {
    "exclusive": {},
    # By memory alone: with the limit on SM activity that is usual, cards are rarely full enough to show a failure.
    "most-memory": {"smact_limit": 1.0},
}


class Part(str, Enum):
    """What can be asked for alone."""

    ESTIMATES = "estimates"
    SERVER = "server"


def command(
    examples: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the example scripts; found by itself in a checkout.")
    ] = None,
    only: Annotated[Part | None, typer.Option(help="One part of the demo.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON value on stdout; the text goes to stderr.")] = False,
) -> None:
    """Show estimates beside published measurements, and one server shared in two ways.

    First, six unmodified training scripts: the GPU memory each will need, estimated here without a GPU, beside the
    peak that was measured on an A100 and published.

    Then, twenty jobs of a published trace on a simulated server with four A100: each alone on its GPU, and again with
    several on one GPU wherever memory allows. One of them declares less memory than it needs.

    It starts its own daemon in a temporary folder and removes both, also on Ctrl-C.

      cotenant demo                    both parts
      cotenant demo --only server      the shared server alone
    """

    def say(text: str) -> None:
        print(text, file=sys.stderr if json else sys.stdout, flush=True)

    result: dict[str, Any] = {}
    with _end_on_sigterm():
        if only is not Part.SERVER:
            result["estimates"] = _estimates(examples, say)
        if only is not Part.ESTIMATES:
            result["runs"] = _server(say, live=sys.stdout.isatty() and not json)
    if json:
        emit_json(result)


def _estimates(examples: Path | None, say: Callable[[str], None]) -> dict[str, Any]:
    from cotenant.cli.demo_text import HEAD, columns, estimate_line, gpu_line
    from cotenant.demo.accuracy import summarize_errors
    from cotenant.demo.examples import estimate_scripts, find_examples
    from cotenant.demo.gpu import measure_mlp
    from cotenant.demo.published import demo_scripts

    folder = find_examples(examples)
    say(f"1. What will it need? Training scripts of {folder}, unmodified, on one {GPU}.\n")
    say(columns(HEAD))
    done = []
    for each in estimate_scripts(demo_scripts(), folder, gpu=GPU):
        say(estimate_line(each))
        done.append(each)
    summary = summarize_errors([each.error for each in done if each.error is not None])
    if summary is not None:
        say(f"\nAbsolute error: median {summary.median:.1%}, largest {summary.worst:.1%}.")
    say("Measured: peak of the whole device by nvidia-smi, published with CARMA (2025); FakeTensor: as told there.\n")
    real = measure_mlp(folder)
    say(gpu_line(real) + "\n")
    return {"gpu": GPU, "scripts": [_estimate_json(each) for each in done], "real_gpu": dataclasses.asdict(real)}


def _estimate_json(each: ScriptEstimate) -> dict[str, Any]:
    return {
        "script": each.measured.script,
        "args": list(each.measured.args),
        "source": each.measured.source,
        "measured_bytes": each.measured.measured_bytes,
        "estimated_bytes": each.estimate.device_bytes if each.estimate else None,
        "bound_bytes": each.estimate.bound_bytes if each.estimate else None,
        "faketensor_bytes": each.measured.faketensor_bytes,
        "problem": each.problem,
        "elapsed_s": each.elapsed_s,
    }


def _server(say: Callable[[str], None], *, live: bool) -> dict[str, Any]:
    from cotenant.cli.demo_text import comparison_line, display
    from cotenant.demo.published import demo_trace
    from cotenant.demo.run_summary import compare_rows, summarize_run
    from cotenant.demo.server import SERVER, demo_server

    trace = demo_trace()
    low = next(job for job in trace if job.declared_mib)
    say(f"2. One server, two ways. {len(trace)} jobs of a published trace on a simulated {SERVER},")
    say(
        f"   {TIME_SCALE:.0f} times faster than life. {low.workload} declares {format_bytes(low.reported_bytes)} and needs "
        f"{format_bytes(low.measured_bytes)}, on purpose.\n"
        "   These jobs, without a limit on SM activity, were chosen because memory runs out: no benchmark.\n"
    )
    runs = {}
    for policy, options in POLICIES.items():
        showing = display(policy, say, live=live, time_scale=TIME_SCALE)
        with demo_server(policy, options=options, time_scale=TIME_SCALE) as server, showing as show:
            jobs = server.run(trace, show, limit_s=LIMIT_S)
        runs[policy] = summarize_run(jobs, time_scale=TIME_SCALE)
    first, second = POLICIES
    say("\n" + comparison_line("", first, second, "change"))
    for row in compare_rows(runs[first], runs[second]):
        say(comparison_line(*row))
    for policy, run in runs.items():
        for sentence in run.recoveries:
            say(f"\n{policy}: {sentence}.")
        for sentence in run.unfinished:
            say(f"\n{policy}: did not complete: {sentence}.")
    return {policy: dataclasses.asdict(run) for policy, run in runs.items()}


@contextmanager
def _end_on_sigterm() -> Iterator[None]:
    """Make SIGTERM end us as Ctrl-C does, so that what was started is stopped."""

    def end(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
