"""What a pilot needs of a workload manager, and the durable notes by which it knows its allocations.

A note is written before an allocation is requested, and removed after the workload manager has said that it is over. An
allocation without a note ends itself (`keeper`), so one that was submitted by a daemon that was killed, and was not yet
listed when the next one looked, does not stay.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from cotenant.core import codec
from cotenant.core.errors import BackendError
from cotenant.osutil import atomic

AllocationState = Literal["pending", "running", "ending", "stopping", "ended"]
ALLOCATION_ID = "{allocation}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationReport:
    """What the workload manager says of an allocation.

    Attributes:
        job_id: its number there.
        state: `ending`: processes of it may still live. `stopping`: it is over, and its keeper ends what still lives.
        word: the workload manager's own word for it, e.g. `TIMEOUT`.
        reason: why it is pending.
        node: where it runs; empty before.
        length_s: for how long it runs in all; None: without an end, or not known.
        ends_at_s: when that is over; None before it runs.
    """

    job_id: str
    state: AllocationState
    word: str
    reason: str = ""
    node: str = ""
    length_s: float | None = None
    ends_at_s: float | None = None


class AllocationSource(Protocol):
    """A workload manager that has allocations to give.

    Attributes:
        manager: its name, for people. noun: what it calls an allocation, e.g. `job`.
    """

    manager: str
    noun: str

    def request(self, name: str, command: list[str], log: Path) -> str:
        """Ask for an allocation that runs `command` and writes to `log`; returns its number.

        `ALLOCATION_ID` in a word of the command stands for that number.

        Raises:
            BackendError: it is refused, or it is not known whether it was accepted: `report` says.
        """
        ...

    def report(self, names: Iterable[str]) -> Mapping[str, AllocationReport]:
        """What is known of allocations, by name; one that was never accepted, or ended long ago, is absent.

        Raises:
            BackendError: it does not answer; nothing is known.
        """
        ...

    def cancel(self, note: AllocationNote) -> None:
        """End an allocation, also one that has not started.

        Raises:
            BackendError: it does not answer.
        """
        ...

    def launcher(self, note: AllocationNote) -> list[str]:
        """The words that start a program in a running allocation."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationNote:
    """What is durably known of an allocation.

    Attributes:
        job_id: its number at the workload manager; empty while it may not have been accepted.
        host: the host that its agent is, once it has run; empty before.
        is_usable: its agent has answered once. is_used: an attempt has run there.
        is_returned: it was given back.
        ends_at_s: as in `AllocationReport`.
    """

    name: str
    requested_at_s: float
    job_id: str = ""
    host: str = ""
    is_usable: bool = False
    is_used: bool = False
    is_returned: bool = False
    ends_at_s: float | None = None


class AllocationNotes:
    """The notes in one folder: a file for each allocation, and one that says whether any has ever given GPUs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._identity = folder / "identity"
        self._tried = folder / "tried"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            atomic.create_once(self._identity, secrets.token_hex(4).encode())
            self._prefix = f"cotenant-{self._identity.read_text()}-"
        except OSError as error:
            raise BackendError(f"cannot use `{folder}`: {error.strerror}") from error
        self._numbers = max((self._number(path) for path in folder.glob("*.json")), default=0)

    def new(self, at_s: float) -> AllocationNote:
        """A durable note of an allocation that will be requested, with a name that no other has.

        Raises:
            BackendError: it cannot be written.
        """
        # The time too: the number begins again when all notes are gone, and an old allocation may still be listed.
        self._numbers += 1
        note = AllocationNote(name=f"{self._prefix}{int(at_s * 1000):x}-{self._numbers}", requested_at_s=at_s)
        return self.write(note)

    def write(self, note: AllocationNote, **changes: object) -> AllocationNote:
        """Write a note, changed; returns it.

        Raises:
            BackendError: it cannot be written.
        """
        note = replace(note, **changes)  # type: ignore[arg-type]
        path = self.path(note.name)
        try:
            atomic.write_bytes(str(path), codec.to_json(codec.encode(note)).encode(), durable=True)
        except OSError as error:
            raise BackendError(f"cannot write `{path}`: {error.strerror}") from error
        return note

    def remove(self, name: str) -> None:
        """Forget an allocation. Its processes, should there be any, end."""
        self.path(name).unlink(missing_ok=True)

    def read(self) -> list[AllocationNote]:
        """All notes, oldest first.

        Raises:
            BackendError: one cannot be read: it may be of an allocation that runs.
        """
        found = [self._note(path) for path in self.folder.glob(f"{self._prefix}*.json")]
        return sorted(found, key=lambda note: (note.requested_at_s, note.name))

    def path(self, name: str) -> Path:
        """The file of a note."""
        return self.folder / f"{name}.json"

    @property
    def is_tried(self) -> bool:
        """Whether an allocation has ever given GPUs."""
        return self._tried.exists()

    def set_tried(self) -> None:
        """An allocation has given GPUs.

        Raises:
            OSError: it cannot be noted.
        """
        self._tried.touch()

    def _note(self, path: Path) -> AllocationNote:
        try:
            note: AllocationNote = codec.decode(AllocationNote, json.loads(atomic.read_bytes(os.fspath(path))))
        except (OSError, ValueError, codec.CodecError) as error:
            raise BackendError(
                f"cannot read `{path}`: {error}", hint="cancel its job at Slurm by the name of the file, then remove it"
            ) from error
        return note

    @staticmethod
    def _number(path: Path) -> int:
        number = path.stem.rpartition("-")[2]
        return int(number) if number.isdecimal() else 0
