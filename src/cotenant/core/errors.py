"""Every error that cotenant raises on purpose.

A message says what was found and what was wanted, in lower case and without a final stop; `hint` says what to do.
`exit_code` is the exit status of the command line. A GPU that does not qualify for a job is not an error but a
`Rejection`; a job that runs out of memory is not an exception but an event.

    CotenantError                1
    |- UsageError                2   the request itself is wrong
    |  |- JobFileError           2   a job file, with file and line
    |  |- SummaryError           2   a summary of a model, with file and line
    |  `- UnknownName            2   a GPU, policy or estimator that does not exist
    |- DatasetError              2   rows to learn from, in a file that was named
    |- DaemonUnreachable         3
    |- NoSuchJob                 4
    |- NotPermitted              5
    |- DaemonRunning             1   a second daemon on the same state
    |- JournalError              1   the journal cannot be read or written
    |- PluginError               1   a plug-in of another distribution cannot be imported
    |- TraceError                1   a script could not be traced
    `- BackendError              1   GPUs, or the engine, cannot be reached
       `- DiskFullError          1   the engine's disk has no room for an attempt
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

_LAST_LINES = 12  # of a script's output, in an error


class CotenantError(Exception):
    """Base of all; `str()` is the message for `error:`, `hint` the line after it."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint is not None and sys.version_info >= (3, 11):
            self.add_note(f"hint: {hint}")  # a traceback shows it, for those who call us from Python

    def as_json(self) -> dict[str, Any]:
        """As `--json` prints it and the daemon sends it."""
        return {
            "kind": type(self).__name__,
            "message": self.message,
            "hint": self.hint,
            "exit_code": self.exit_code,
        }


class UsageError(CotenantError):
    """The request is wrong: a bad option, a bad value, a file that does not exist."""

    exit_code = 2


class JobFileError(UsageError):
    """A job file that cannot be understood; names file, line (counted from 1) and reason."""

    def __init__(self, path: str, line: int, reason: str, *, hint: str | None = None) -> None:
        super().__init__(f"{path}:{line}: {reason}", hint=hint)
        self.path = path
        self.line = line
        self.reason = reason


class SummaryError(UsageError):
    """A summary of a model that cannot be read; names file, line (counted from 1) and reason."""

    def __init__(self, path: str, line: int, reason: str, *, hint: str | None = None) -> None:
        super().__init__(f"{path}:{line}: {reason}", hint=hint)
        self.path = path
        self.line = line
        self.reason = reason


_BEGINNING = 4  # letters of a name, as in `H200`


EMPTY_HINT = "it is empty: if a shell variable stands there, that is not set"
"""For an argument that names something and is the empty text, as `"$SCRIPT"` is where `SCRIPT` is not set."""


class UnknownName(UsageError):
    """A name that is not in a registry; lists what is known and the nearest spelling, unless a `hint` is given."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, hint: str | None = None) -> None:
        import difflib  # not at import: each command and each simulated job imports this module

        names = sorted(known)
        by_lower = {candidate.lower(): candidate for candidate in names}
        begins_alike = [candidate for candidate in by_lower if candidate.startswith(name.lower()[:_BEGINNING])]
        close = difflib.get_close_matches(name.lower(), by_lower, n=1) or begins_alike[:1]
        if not name:
            hint = EMPTY_HINT
        elif hint is None and close:
            hint = f"did you mean `{by_lower[close[0]]}`?"
        super().__init__(f"no {kind} named `{name}` (known: {', '.join(names)})", hint=hint)


class DaemonUnreachable(CotenantError):
    """No daemon answers on the socket."""

    exit_code = 3


class NoSuchJob(CotenantError):
    """A job id that the daemon does not know."""

    exit_code = 4


class NotPermitted(CotenantError):
    """The user, as the kernel names it, may not do this."""

    exit_code = 5


class DaemonRunning(CotenantError):
    """Another daemon holds the same state folder."""


class JournalError(CotenantError):
    """The journal cannot be opened, read or appended to (a full disk, a newer schema)."""


class UnreadableEvent(JournalError):
    """One event of the journal cannot be read; the others can.

    Attributes:
        seq: its number.
        is_intact: its bytes are those that were written, but no event that this release knows.
    """

    def __init__(self, message: str, *, seq: int, is_intact: bool, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.seq = seq
        self.is_intact = is_intact


class TraceError(CotenantError):
    """A script could not be traced; `kind` is a stable word for programs.

    Kinds: `raised` (the script's own exception), `import` (one of its imports, or its syntax), `no-step` (was to train,
    and ended without an optimizer step), `no-cuda` (never touched CUDA), `timeout`, `unsupported` (this torch or host),
    `missing-torch`, `crashed`, `out-of-memory` (on the null GPU).
    """

    def __init__(self, kind: str, message: str, *, hint: str | None = None, log_tail: str = "") -> None:
        super().__init__(message, hint=hint)
        self.kind = kind
        self.log_tail = log_tail

    def last_output(self) -> list[str]:
        """The last lines of the script's output."""
        return self.log_tail.strip().splitlines()[-_LAST_LINES:]

    def as_json(self) -> dict[str, Any]:
        """With the kind of failure, and the script's last words."""
        return {**super().as_json(), "cause": self.kind, "last_output": self.last_output()}


class DatasetError(CotenantError):
    """Rows to learn from that cannot be what they say: a value out of range, a duplicate, a leak."""

    exit_code = 2


class BackendError(CotenantError):
    """GPUs cannot be read, or an engine cannot start or find an attempt."""


class DiskFullError(BackendError):
    """The engine's disk has no room for an attempt, which never runs. Its job is not to blame, and waits."""


class PluginError(CotenantError):
    """A plug-in that another distribution declares cannot be imported, or is not what its kind must be."""
