"""The screen of `cotenant top`. Needs textual."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.widgets import DataTable, Footer, Input, Static

from cotenant.cli.common import gpu_names
from cotenant.cli.sparkline import UNICODE_BLOCKS, sparkline, time_buckets
from cotenant.cli.top_dialogs import Confirm, Keys, Output
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
KEYS = (
    ("q", "quit"),
    ("?", "these keys"),
    ("up, down", "choose a job"),
    ("e", "why the job waits, GPU by GPU"),
    ("l", "its output; e there: stderr, g and G: start and end"),
    ("c", "cancel it"),
    ("h", "hold it, or release it"),
    ("s", "sort by the next of: queue, memory, time, user, name"),
    ("/", "filter by id, name, user or state"),
    ("Escape", "show all jobs again"),
)
ORDERS: tuple[tuple[str, Callable[[Mapping[str, Any]], Any]], ...] = (
    ("queue", lambda job: (job["state"] not in ("RUNNING", "STARTING"), job["id"])),
    ("memory", lambda job: (-(job["promised_bytes"] or job["need_bytes"] or 0), job["id"])),
    ("time", lambda job: (-(job["running_s"] or 0.0), job["id"])),
    ("user", lambda job: (job["user"], job["id"])),
    ("name", lambda job: (job["name"], job["id"])),
)
"""What jobs may be sorted by."""
STYLES = {"RUNNING": "green", "STARTING": "cyan", "PENDING": "yellow", "HELD": "magenta"}


class Top(App[None]):
    """GPUs above, jobs below; refreshed every `interval_s`."""

    TITLE = "cotenant"
    CSS = """
    #title { height: 1; background: $primary; color: $text; padding: 0 1; }
    #gpus { height: auto; max-height: 50%; margin-bottom: 1; }
    #jobs { height: 1fr; }
    #filter { display: none; height: 3; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("q", "quit", "Quit"),
        ("question_mark", "keys", "Keys"),
        ("e", "explain", "Why this job waits"),
        ("l", "output", "Output"),
        ("c", "cancel", "Cancel"),
        ("h", "hold", "Hold, release"),
        ("s", "sort", "Sort"),
        ("slash", "filter", "Filter"),
        ("escape", "clear_filter", "Show all"),
    ]

    def __init__(self, client: Client, *, interval_s: float = 1.0, terminal: int | None = None) -> None:
        super().__init__()
        self._client = client
        self._interval_s = interval_s
        self._terminal = terminal
        self._jobs: Mapping[int, Mapping[str, Any]] = {}
        self._ids: list[int] = []
        self._order = 0
        self._filter = ""
        self._headline = "cotenant"

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        yield DataTable(id="gpus", cursor_type="none", zebra_stripes=True)
        yield DataTable(id="jobs", cursor_type="row")
        yield Input(id="filter", placeholder="id, name, user or state")
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
        if self._terminal is not None and not os.isatty(self._terminal):
            # The terminal is gone. A process that it does not control gets no SIGHUP, and textual's input thread would
            # poll for ever (linux_driver.py, `run_input_thread`) while the interpreter waits for it at exit.
            os._exit(128 + signal.SIGHUP)
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
        self._headline = f"cotenant {status['version']}  {status['policy']}  {counts}{trouble}"
        table = self.query_one("#gpus", DataTable)
        table.clear()
        for gpu in gpus:
            table.add_row(*gpu_row(gpu))
        self._jobs = {job["id"]: job for job in overview["jobs"]}
        self._draw_jobs()

    def _draw_jobs(self) -> None:
        """The jobs that pass the filter, in order; the cursor stays on its job."""
        table = self.query_one("#jobs", DataTable)
        chosen, row = self._job_id, table.cursor_row
        shown = sorted(filter(self._passes, self._jobs.values()), key=ORDERS[self._order][1])
        self._ids = [job["id"] for job in shown]
        table.clear()
        for job in shown:
            table.add_row(*job_row(job))
        row = self._ids.index(chosen) if chosen in self._ids else min(row, max(0, len(shown) - 1))
        table.move_cursor(row=row)
        filtered = f"  only `{self._filter}`: {len(shown)} of {len(self._jobs)}" if self._filter else ""
        self.sub_title = f"by {ORDERS[self._order][0]}{filtered}"
        self.query_one("#title", Static).update(Text(f"{self._headline}  {self.sub_title}"))

    def _passes(self, job: Mapping[str, Any]) -> bool:
        texts = (job["label"], job["name"], job["user"], job["state"], job["state_short"])
        return any(self._filter.lower() in text.lower() for text in texts)

    @property
    def _job_id(self) -> int | None:
        """The job under the cursor."""
        row = self.query_one("#jobs", DataTable).cursor_row
        return self._ids[row] if 0 <= row < len(self._ids) else None

    async def _call(self, call: Callable[[int], Any]) -> Any:
        """The daemon's answer to `call` for the job under the cursor; None without a job, or after an error."""
        if self._job_id is None:
            return None
        try:
            return await asyncio.to_thread(call, self._job_id)
        except CotenantError as error:
            self.notify(error.message, severity="error", markup=False)
            return None

    def action_sort(self) -> None:
        """Sort by the next column."""
        self._order = (self._order + 1) % len(ORDERS)
        self._draw_jobs()

    def action_filter(self) -> None:
        """Type what the jobs must contain; Enter goes back to them, Escape shows all."""
        field = self.query_one("#filter", Input)
        field.styles.display = "block"
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while it is typed."""
        self._filter = event.value.strip()
        self._draw_jobs()

    def on_input_submitted(self) -> None:
        """Back to the jobs that are left."""
        self.query_one("#filter", Input).styles.display = "none"
        self.query_one("#jobs", DataTable).focus()

    def action_clear_filter(self) -> None:
        """Show all jobs again."""
        self.query_one("#filter", Input).value = ""
        self.on_input_submitted()

    def action_keys(self) -> None:
        """Show all keys."""
        self.push_screen(Keys(KEYS))

    def action_output(self) -> None:
        """Show the output of the job under the cursor."""
        if self._job_id is not None:
            label = str(self._jobs[self._job_id]["label"])
            self.push_screen(Output(self._client, self._job_id, label, interval_s=self._interval_s))

    @work
    async def action_cancel(self) -> None:
        """Cancel the job under the cursor, after a question."""
        job_id = self._job_id
        if job_id is None:
            return
        job = self._jobs[job_id]
        if not await self.push_screen_wait(Confirm(f"Cancel job {job['label']}, {printable(job['name'])}?")):
            return
        try:
            view = await asyncio.to_thread(self._client.cancel, job_id)
        except CotenantError as error:
            self.notify(error.message, severity="error", markup=False)
            return
        self.notify(f"job {view['label']}: {view['reason']}", markup=False)
        await self.refresh_data()

    async def action_hold(self) -> None:
        """Hold the pending job under the cursor, or release the held one."""
        is_held = self._job_id is not None and self._jobs[self._job_id]["state"] == "HELD"
        view = await self._call(self._client.release if is_held else self._client.hold)
        if view is not None:
            self.notify(f"job {view['label']}: {view['reason']}", markup=False)
            await self.refresh_data()

    async def action_explain(self) -> None:
        """Show why the job under the cursor waits or runs there."""
        job_id = self._job_id
        explanation = await self._call(self._client.explain)
        if explanation is not None:
            lines = [f"GPU {row['gpu']}: {row['reason']}" for row in explanation["rejections"]]
            self.notify("\n".join([explanation["reason"], *lines]), title=f"job {job_id}", timeout=15, markup=False)


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
