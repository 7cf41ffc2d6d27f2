"""The screen of `cotenant top`. Needs textual."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.widgets import DataTable, Footer, Static

from cotenant.cli.common import gpu_names
from cotenant.cli.sparkline import UNICODE_BLOCKS, sparkline, time_buckets
from cotenant.core.errors import CotenantError
from cotenant.core.text import printable
from cotenant.core.units import format_bytes, format_duration
from cotenant.daemon.client import Client

BAR_CELLS = 24
PAST_S = 300.0
LINE_CELLS = 20
SHOWN = 100
"""Waiting jobs on the screen."""

GPU_COLUMNS = ("GPU", "NAME", "MEMORY", "USED", "PROMISED", "TOTAL", "SMACT", "LAST 5 MIN", "POWER", "JOBS")
JOB_COLUMNS = ("JOB", "NAME", "USER", "ST", "GPU", "PROMISED", "PEAK", "TIME", "REASON")
STYLES = {"RUNNING": "green", "STARTING": "cyan", "PENDING": "yellow", "HELD": "magenta"}


class Top(App[None]):
    """GPUs above, jobs below; looks again every `interval_s`."""

    TITLE = "cotenant"
    CSS = """
    #title { height: 1; background: $primary; color: $text; padding: 0 1; }
    #gpus { height: auto; max-height: 50%; margin-bottom: 1; }
    #jobs { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [("q", "quit", "Quit"), ("e", "explain", "Why this job waits")]

    def __init__(self, client: Client, *, interval_s: float = 1.0) -> None:
        super().__init__()
        self._client = client
        self._interval_s = interval_s
        self._ids: list[int] = []

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        yield DataTable(id="gpus", cursor_type="none", zebra_stripes=True)
        yield DataTable(id="jobs", cursor_type="row")
        yield Footer()

    async def on_mount(self) -> None:
        """Draw what is known at once, then follow."""
        self.query_one("#gpus", DataTable).add_columns(*GPU_COLUMNS)
        jobs = self.query_one("#jobs", DataTable)
        jobs.add_columns(*JOB_COLUMNS)
        jobs.focus()
        await self.refresh_data()
        self.set_interval(self._interval_s, self.refresh_data)

    async def refresh_data(self) -> None:
        """Query the daemon and draw its answers; without them, report the error over the last ones."""
        try:
            status, gpus, overview, histories = await asyncio.gather(
                asyncio.to_thread(self._client.status),
                asyncio.to_thread(self._client.gpus),
                asyncio.to_thread(self._client.overview, active=True, max_waiting=SHOWN),
                asyncio.to_thread(self._client.gpu_history, PAST_S),
            )
        except CotenantError as error:
            self.query_one("#title", Static).update(Text(f"{error.message}; the screen is stale", style="bold red"))
            return
        lines = {history["uuid"]: activity_line(history["points"]) for history in histories}
        self._draw(status, [{**gpu, "line": lines.get(gpu["uuid"], "")} for gpu in gpus], overview)

    def _draw(self, status: Mapping[str, Any], gpus: Sequence[Mapping[str, Any]], overview: Mapping[str, Any]) -> None:
        counts = ", ".join(f"{count} {name.lower()}" for name, count in overview["counts"].items()) or "no jobs"
        trouble = f"  NOTHING STARTS: {status['journal_error']}" if status["journal_error"] else ""
        self.query_one("#title", Static).update(
            Text(f"cotenant {status['version']}  {status['policy']}  {counts}{trouble}")
        )
        table = self.query_one("#gpus", DataTable)
        table.clear()
        for gpu in gpus:
            table.add_row(*gpu_row(gpu))
        jobs = self.query_one("#jobs", DataTable)
        row = jobs.cursor_row
        jobs.clear()
        order = sorted(overview["jobs"], key=lambda job: (job["state"] not in ("RUNNING", "STARTING"), job["id"]))
        self._ids = [job["id"] for job in order]
        for job in order:
            jobs.add_row(*job_row(job))
        jobs.move_cursor(row=min(row, max(0, len(order) - 1)))

    async def action_explain(self) -> None:
        """Show why the job under the cursor waits or runs there."""
        row = self.query_one("#jobs", DataTable).cursor_row
        if not 0 <= row < len(self._ids):
            return
        try:
            explanation = await asyncio.to_thread(self._client.explain, self._ids[row])
        except CotenantError as error:
            self.notify(error.message, severity="error", markup=False)
            return
        lines = [f"GPU {row['gpu']}: {row['reason']}" for row in explanation["rejections"]]
        self.notify("\n".join([explanation["reason"], *lines]), title=f"job {self._ids[row]}", timeout=15, markup=False)


def gpu_row(gpu: Mapping[str, Any]) -> tuple[Text | str, ...]:
    """The cells of a GPU."""
    jobs = " ".join(f"{job['job_id'] or '?'}:{printable(job['name'] or 'another user')}" for job in gpu["residents"])
    return (
        str(gpu["index"]),
        gpu["name"] + (f" {gpu['mig_profile']}" if gpu["mig_profile"] else ""),
        memory_bar(gpu),
        format_bytes(gpu["used_bytes"]),
        format_bytes(gpu["promised_bytes"]),
        format_bytes(gpu["memory_total_bytes"]),
        "-" if gpu["smact"] is None else f"{gpu['smact']:.2f}",
        gpu.get("line", ""),
        "-" if gpu["power_w"] is None else f"{gpu['power_w']:.0f} W",
        Text(jobs or "-"),
    )


def activity_line(points: Sequence[Mapping[str, Any]]) -> str:
    """SM activity over the last minutes, the newest at the right."""
    until_s = max((point["at_s"] + point["seconds"] for point in points), default=0.0)
    values = time_buckets(points, "smact", since_s=until_s - PAST_S, until_s=until_s, count=LINE_CELLS)
    return sparkline(values, 1.0, blocks=UNICODE_BLOCKS)


def memory_bar(gpu: Mapping[str, Any]) -> Text:
    """In use, promised beyond that, and free: `#`, `=`, `.`; question marks where it is unknown."""
    used, total = gpu["used_bytes"], gpu["memory_total_bytes"]
    if used is None or gpu["available_bytes"] is None:
        return Text("?" * BAR_CELLS, style="red")
    full = min(BAR_CELLS, round(BAR_CELLS * used / total))
    promised = min(BAR_CELLS - full, max(0, round(BAR_CELLS * (total - gpu["available_bytes"]) / total) - full))
    bar = Text("#" * full, style="green")
    bar.append("=" * promised, style="yellow")
    return bar.append("." * (BAR_CELLS - full - promised), style="dim")


def job_row(job: Mapping[str, Any]) -> tuple[Text | str, ...]:
    """The cells of a job."""
    return (
        job["label"],
        Text(printable(job["name"])),
        job["user"],
        Text(job["state_short"], style=STYLES.get(job["state"], "")),
        gpu_names(job),
        format_bytes(job["promised_bytes"] or job["need_bytes"]),
        format_bytes(job["observed_bytes"]),
        format_duration(job["running_s"]),
        Text(job["reason"]),
    )
