"""What `cotenant top` shows over its screen: a question, a job's output, the keys. Needs textual."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Footer, RichLog, Static

from cotenant.core.errors import CotenantError
from cotenant.core.text import printable
from cotenant.daemon.client import Client

MAX_LOG_BYTES = 256 * 1024
"""The end of a job's output that is shown."""


class Confirm(ModalScreen[bool]):
    """A question, answered by y, or by n and Escape."""

    CSS = """
    Confirm { align: center middle; }
    Confirm Static { width: auto; max-width: 80%; padding: 1 2; background: $panel; border: solid $warning; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("y", "answer(True)", "Yes"),
        ("n", "answer(False)", "No"),
        ("escape", "answer(False)", "No"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        yield Static(Text(f"{self._question} (y/n)"))

    def action_answer(self, answer: bool) -> None:
        """Close with the answer."""
        self.dismiss(answer)


class Output(ModalScreen[None]):
    """The output of a job, read again every `interval_s`."""

    CSS = """
    Output Vertical { background: $surface; border: solid $primary; }
    Output Static { height: 1; background: $primary; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape,l,q", "dismiss", "Back"),
        ("e", "switch", "stdout or stderr"),
        ("g", "top", "Start"),
        ("G", "end", "End"),
    ]

    def __init__(self, client: Client, job_id: int, label: str, *, interval_s: float) -> None:
        super().__init__()
        self._client = client
        self._job_id = job_id
        self._label = label
        self._interval_s = interval_s
        self._stream = "stdout"
        self._shown = b""

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(id="output-title")
            yield RichLog(id="output", wrap=False, max_lines=10_000)
        yield Footer()

    async def on_mount(self) -> None:
        """Show what there is, then follow."""
        self.query_one(RichLog).focus()
        await self.refresh_output()
        self.set_interval(self._interval_s, self.refresh_output)

    async def refresh_output(self) -> None:
        """Read the end of the output, and draw it if it has changed."""
        title = self.query_one("#output-title", Static)
        try:
            text = await asyncio.to_thread(self._read)
        except CotenantError as error:
            title.update(Text(f"job {self._label}: {error.message}", style="bold red"))
            return
        title.update(Text(f"job {self._label}  {self._stream}"))
        if text != self._shown:
            log = self.query_one(RichLog)
            log.clear()
            for line in text.decode(errors="replace").split("\n"):
                log.write(Text(printable(line.rpartition("\r")[2])))  # a progress bar overwrites its line
            self._shown = text

    def _read(self) -> bytes:
        end = b""
        for piece in self._client.logs(self._job_id, stream=self._stream):
            end = (end + piece)[-MAX_LOG_BYTES:]
        return end.rstrip(b"\r\n")

    async def action_switch(self) -> None:
        """Show the other stream."""
        self._stream = "stderr" if self._stream == "stdout" else "stdout"
        self.query_one(RichLog).clear()
        self._shown = b""
        await self.refresh_output()

    def action_top(self) -> None:
        """Scroll to the start."""
        self.query_one(RichLog).scroll_home(animate=False)

    def action_end(self) -> None:
        """Scroll to the end."""
        self.query_one(RichLog).scroll_end(animate=False)


class Keys(ModalScreen[None]):
    """The keys and what they do."""

    CSS = """
    Keys { align: center middle; }
    Keys Static { width: auto; padding: 1 2; background: $panel; border: solid $primary; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,question_mark", "dismiss", "Back")]

    def __init__(self, keys: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._keys = keys

    def compose(self) -> ComposeResult:
        yield Static(Text("\n".join(f"{key:>8}  {what}" for key, what in self._keys)))
