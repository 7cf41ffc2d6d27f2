"""`cotenant demo`: what the package does, on this machine, in a few minutes."""

from __future__ import annotations

import dataclasses
import importlib.util
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from cotenant.cli.options import cli_command, cli_option, json_option
from cotenant.cli.output import emit_json
from cotenant.cli.parameter_types import PATH
from cotenant.core.units import format_bytes

if TYPE_CHECKING:
    from cotenant.demo.examples import ScriptEstimate
    from cotenant.demo.run_summary import RunSummary

GPU = "A100-40GB"
TIME_SCALE = 300.0
LIMIT_S = 150.0
POLICIES: Mapping[str, Mapping[str, object]] = {
    "exclusive": {},
    # Without the default limit on SM activity, with which memory rarely runs out.
    "most-memory": {"smact_limit": 1.0},
}


@cli_command()
@cli_option(
    "--examples", type=PATH, metavar="DIR", help="Folder of the example scripts; by default that of the checkout."
)
@cli_option("--only", type=click.Choice(["estimates", "server", "slurm"]), help="Show one part only.")
@json_option
def command(*, examples: Path | None, only: str | None, json: bool) -> None:
    """Show estimates beside published measurements, and one server shared in two ways.

    First, six unmodified training scripts: the GPU memory that each needs, estimated without a GPU, beside the peak
    that was measured on an A100 and published.

    Then, twenty jobs of a published trace on a simulated server with four A100: each alone on its GPU, and again with
    several on one GPU where memory allows. One of them declares less memory than it needs.

    It starts a daemon of its own in a temporary folder and removes both, also on Ctrl-C. In a terminal it ends with the
    address of that daemon's web page, and waits for Enter. With --json the text goes to stderr.

      cotenant demo                    both parts
      cotenant demo --only server      the shared server alone

    With `--only slurm`, which needs root and Slurm's programs, the twenty jobs run on a Slurm of its own with two nodes
    of two simulated GPUs: each on whole GPUs, and again as a pack in one allocation. Nothing of a Slurm that runs here
    is used.
    """

    def say(text: str) -> None:
        print(text, file=sys.stderr if json else sys.stdout, flush=True)

    result: dict[str, Any] = {}
    with _interrupt_on_sigterm():
        if only in (None, "estimates"):
            result["estimates"] = _estimates(examples, say)
        if only in (None, "server"):
            result["runs"] = _server(say, live=sys.stdout.isatty() and not json)
        if only == "slurm":
            result["slurm"] = _slurm(say)
    if json:
        emit_json(result)


def _estimates(examples: Path | None, say: Callable[[str], None]) -> dict[str, Any]:
    from cotenant.cli.demo_text import HEAD, columns, estimate_line, gpu_line
    from cotenant.demo.accuracy import summarize_errors
    from cotenant.demo.examples import estimate_scripts, find_examples
    from cotenant.demo.gpu import measure_mlp
    from cotenant.demo.published import demo_scripts

    folder = find_examples(examples)
    say(f"1. Estimates. Training scripts of {folder}, unmodified, on one {GPU}.\n")
    say(columns(HEAD))
    done = []
    for script in estimate_scripts(demo_scripts(), folder, gpu=GPU):
        say(estimate_line(script))
        done.append(script)
    summary = summarize_errors([script.error for script in done if script.error is not None])
    if summary is not None:
        say(f"\nAbsolute error: median {summary.median:.1%}, largest {summary.worst:.1%}.")
    say("Measured: peak of the device by nvidia-smi, and FakeTensor's estimate, both published with CARMA (2025).\n")
    real = measure_mlp(folder)
    say(gpu_line(real) + "\n")
    return {"gpu": GPU, "scripts": [script_json(script) for script in done], "real_gpu": dataclasses.asdict(real)}


def script_json(script: ScriptEstimate) -> dict[str, Any]:
    """One script of the first part, as `--json` prints it."""
    return {
        "script": script.measured.script,
        "args": list(script.measured.args),
        "source": script.measured.source,
        "measured_bytes": script.measured.measured_bytes,
        "estimated_bytes": script.estimate.device_bytes if script.estimate else None,
        "bound_bytes": script.estimate.bound_bytes if script.estimate else None,
        "faketensor_bytes": script.measured.faketensor_bytes,
        "problem": script.problem,
        "elapsed_s": script.elapsed_s,
    }


def _server(say: Callable[[str], None], *, live: bool) -> dict[str, Any]:
    from cotenant.cli.demo_text import display
    from cotenant.demo.published import demo_trace
    from cotenant.demo.run_summary import summarize_run
    from cotenant.demo.server import SERVER, demo_server

    shows_page = live and sys.stdin.isatty() and importlib.util.find_spec("jinja2") is not None
    trace = demo_trace()
    low = next(job for job in trace if job.declared_mib)
    say(f"2. One server, two ways. {len(trace)} jobs of a published trace on a simulated {SERVER},")
    say(
        f"   {TIME_SCALE:.0f} times faster than real time. {low.workload} declares {format_bytes(low.reported_bytes)} "
        f"but needs {format_bytes(low.measured_bytes)}, on purpose.\n"
        "   The jobs were selected so that memory runs out, and SM activity is not limited: this is not a benchmark.\n"
    )
    runs = {}
    for policy, options in POLICIES.items():
        showing = display(policy, say, live=live, time_scale=TIME_SCALE)
        with demo_server(policy, options=options, time_scale=TIME_SCALE) as server:
            with showing as show:
                jobs = server.run(trace, show, limit_s=LIMIT_S)
            runs[policy] = summarize_run(jobs, time_scale=TIME_SCALE)
            if len(runs) == len(POLICIES):
                _compare(runs, say)
                if shows_page:
                    show_page(server.socket, say, wait=sys.stdin.readline)
    if not shows_page:
        say("\nThe web page of such a server: cotenant daemon --simulate 4xA100-40GB, and cotenant web.")
    return {policy: dataclasses.asdict(run) for policy, run in runs.items()}


def _slurm(say: Callable[[str], None]) -> dict[str, Any]:
    from cotenant.cli.demo_slurm import TIME_SCALE, show_slurm
    from cotenant.demo.published import demo_trace

    return show_slurm(demo_trace(), say, time_scale=TIME_SCALE)


def _compare(runs: Mapping[str, RunSummary], say: Callable[[str], None]) -> None:
    from cotenant.cli.demo_text import comparison_line
    from cotenant.demo.run_summary import compare_rows

    first, second = POLICIES
    say("\n" + comparison_line("", first, second, "change"))
    for row in compare_rows(runs[first], runs[second]):
        say(comparison_line(*row))
    for policy, run in runs.items():
        for sentence in run.recoveries:
            say(f"\n{policy}: {sentence}.")
        for sentence in run.unfinished:
            say(f"\n{policy}: did not complete: {sentence}.")


def show_page(socket: Path, say: Callable[[str], None], *, wait: Callable[[], object]) -> None:
    """Serve the web page of the daemon on `socket` until `wait` returns."""
    command = [sys.executable, "-m", "cotenant", "web", "--no-browser", "--socket", str(socket)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            if address:  # else it has said why it does not serve
                say(f"\nThe web page of this server, with these jobs: {address}\nPress Enter to end the demo.")
                wait()
        finally:
            process.terminate()


@contextmanager
def _interrupt_on_sigterm() -> Iterator[None]:
    """SIGTERM acts as Ctrl-C, so that the daemon is stopped too."""

    def end(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
