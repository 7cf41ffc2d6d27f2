"""What text may be where it enters, and how it is written where it leaves.

Names of jobs, reasons and paths are other people's text: they appear in the terminals of admins, in `/metrics`, in logs
and in environments of processes. One rule for each kind of field, and one way to write what an older journal holds:

| kind | fields | refused |
| --- | --- | --- |
| label | names of jobs and tokens, reasons | control characters, line separators, bidirectional controls, surrogates, |
| | | invisible characters |
| lines | `notify`, `progress` | the same, except newlines, tabs and invisible characters |
| path | `workdir`, `stdout_path`, `stderr_path` | control characters, surrogates that stand for no byte |
| bytes | words of the command, names and values of the environment | NUL, surrogates that stand for no byte |

Paths, commands and environments are bytes to Linux. A byte that is not UTF-8 arrives as one of the surrogates U+DC80 to
U+DCFF (PEP 383) and becomes that byte again; the other surrogates stand for nothing, and no file can hold them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from cotenant.core.errors import UsageError

TextKind = Literal["label", "lines", "path", "bytes"]

_SEPARATORS = "\u2028\u2029"
_BIDIRECTIONAL = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""They reorder what surrounds them on a terminal. Source: Unicode Standard Annex #9, 2."""
_INVISIBLE = (
    "\u00ad\u115f\u1160\u17b4\u17b5\u180e\u200b\u2060-\u2065\u206a-\u206f\u3164\ufeff\uffa0\U000e0000-\U000e007f"
)
"""Two labels that differ in one of these look alike, and a label of these alone looks empty.

Source: Unicode 15.1, DerivedCoreProperties.txt, `Default_Ignorable_Code_Point`, without joiners and variation
selectors, which words and emoji need.
"""

_REFUSED: dict[TextKind, re.Pattern[str]] = {
    "label": re.compile(rf"[\x00-\x1f\x7f-\x9f{_SEPARATORS}{_BIDIRECTIONAL}{_INVISIBLE}\ud800-\udfff]"),
    "lines": re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{_SEPARATORS}{_BIDIRECTIONAL}\ud800-\udfff]"),
    "path": re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udc7f\udd00-\udfff]"),
    "bytes": re.compile(r"[\x00\ud800-\udc7f\udd00-\udfff]"),
}


def check_text(what: str, text: str, kind: TextKind) -> None:
    """Check text of a client; `what` names it, e.g. `the name of the job`.

    Raises:
        UsageError: names the first character that a `kind` may not have.
    """
    found = None if is_printable(text) else _REFUSED[kind].search(text)
    if found is not None:
        raise UsageError(
            f"{what} has the character U+{ord(found[0]):04X} at {found.start()}, which it may not have",
            hint=_HINTS[kind],
        )


_HINTS: dict[TextKind, str] = {
    "label": "write one line of UTF-8 without control and invisible characters",
    "lines": "write UTF-8 without control characters other than newlines and tabs",
    "path": "name a path without control characters",
    "bytes": "leave out NUL; bytes that are not UTF-8 are U+DC80 to U+DCFF",
}


def check_bytes(what: str, texts: Iterable[str]) -> None:
    """Check many texts of the kind `bytes` at once: an environment has a hundred.

    Raises:
        UsageError: as `check_text`.
    """
    joined = "".join(texts)
    if not (joined.isascii() and "\0" not in joined):
        check_text(what, joined, "bytes")


def is_printable(text: str) -> bool:
    """Whether `text` is ASCII without control characters, as most text is."""
    return text.isascii() and text.isprintable()


def printable(text: str) -> str:
    """`text` for a terminal, a log or a label: what `label` refuses is escaped, so that it neither acts nor hides."""
    if is_printable(text):
        return text
    return _REFUSED["label"].sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def encodable(text: str) -> str:
    """`text` as UTF-8 can hold it: surrogates are escaped, all else stays, for formats with escapes of their own."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()
