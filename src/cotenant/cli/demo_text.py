"""What `cotenant demo` prints: lines, and the table that stays in its place on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cotenant.core.job import Done, Running, Starting
from cotenant.core.units import format_bytes, format_duration
from cotenant.demo.accuracy import signed_error
from cotenant.demo.examples import ScriptEstimate
from cotenant.demo.gpu import DemoMeasurement
from cotenant.demo.server import DemoStatus

HEAD = ("script", "measured", "estimated", "error", "FakeTensor", "seconds")
WIDTHS = (52, 10, 10, 7, 11, 8)
LINE_EVERY_S = 5.0
"""Wall-clock time between two lines of progress without a terminal."""

BAR_WIDTH = 20


def estimate_line(script: ScriptEstimate) -> str:
    """A row under `HEAD`."""
    measured = script.measured
    if script.estimate is None or script.error is None:
        return columns((measured.title, format_bytes(measured.measured_bytes), "-")) + f"  {script.problem}"
    fake = measured.faketensor_bytes
    return columns(
        (
            measured.title,
            format_bytes(measured.measured_bytes),
            format_bytes(script.estimate.device_bytes),
            f"{script.error:+.1%}",
            "-" if fake is None else f"{signed_error(fake, measured.measured_bytes):+.1%}",
            f"{script.elapsed_s:.1f}",
        )
    )


def columns(cells: Sequence[str]) -> str:
    """Cells in the columns of `WIDTHS`, the first to the left."""
    padded = [cell.rjust(width) for cell, width in zip(cells, WIDTHS, strict=False)]
    return " ".join([cells[0].ljust(WIDTHS[0]), *padded[1:]]).rstrip()


def gpu_line(real: DemoMeasurement) -> str:
    """The result of the run on a real GPU, as a sentence."""
    if real.gpu is None or real.measured_bytes is None or real.estimated_bytes is None:
        return f"Not run on a real GPU: {real.reason}."
    return (
        f"On the {real.gpu} of this machine, {real.script} was estimated at {format_bytes(real.estimated_bytes)} and "
        f"held {format_bytes(real.measured_bytes)} when it ran "
        f"({signed_error(real.estimated_bytes, real.measured_bytes):+.1%})."
    )


def comparison_line(what: str, first: str, second: str, change: str) -> str:
    """A row of the comparison of two runs."""
    return f"{what:<20} {first:>12} {second:>12} {change:>8}".rstrip()


@contextmanager
def display(
    policy: str, say: Callable[[str], None], *, live: bool, time_scale: float
) -> Iterator[Callable[[DemoStatus], None]]:
    """What to call with the progress of a run: `live`, it redraws a table; else it says a line now and then."""
    if live:
        from rich.live import Live

        with Live(auto_refresh=False) as place:
            yield lambda progress: place.update(progress_table(policy, progress), refresh=True)
        return
    every_s = LINE_EVERY_S * time_scale
    next_s = 0.0

    def show(progress: DemoStatus) -> None:
        nonlocal next_s
        if progress.is_over or progress.elapsed_s >= next_s:
            next_s = progress.elapsed_s + every_s
            say(progress_line(policy, progress))

    yield show


def progress_line(policy: str, progress: DemoStatus) -> str:
    """Time, jobs, and for each GPU its memory in use and, in parentheses, how many jobs it holds."""
    gpus = ", ".join(f"{format_bytes(gpu['used_bytes'])} ({len(gpu['residents'])})" for gpu in progress.gpus)
    return f"{policy:<12} {format_duration(progress.elapsed_s):>6}  {counts(progress)}  GPUs: {gpus}"


def counts(progress: DemoStatus) -> str:
    """How many jobs wait, run and are done."""
    running = sum(isinstance(job.state, (Running, Starting)) for job in progress.jobs)
    done = sum(isinstance(job.state, Done) for job in progress.jobs)
    waiting = len(progress.jobs) - running - done
    return f"{waiting:2d} waiting, {running:2d} running, {done:2d} of {progress.total} done"


def progress_table(policy: str, progress: DemoStatus) -> Any:
    """The same as a table of rich, with a bar for each GPU."""
    from rich.table import Table

    title = f"{policy}, {format_duration(progress.elapsed_s)}: {counts(progress)}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("GPU", "used", "promised", "", "jobs"):
        table.add_column(name, no_wrap=name != "jobs", justify="right" if name in ("used", "promised") else "left")
    for gpu in progress.gpus:
        table.add_row(
            str(gpu["index"]),
            format_bytes(gpu["used_bytes"]),
            format_bytes(gpu["promised_bytes"]),
            bar(gpu["used_bytes"] or 0, gpu["memory_total_bytes"]),
            ", ".join(job["name"] for job in gpu["residents"]),
        )
    return table


def bar(used_bytes: int, total_bytes: int) -> str:
    """A bar that is full at `total_bytes`."""
    full = round(BAR_WIDTH * min(1.0, used_bytes / total_bytes))
    return "█" * full + "░" * (BAR_WIDTH - full)
