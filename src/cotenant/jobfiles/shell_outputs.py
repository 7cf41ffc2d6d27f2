"""What well-known commands print, for `$(...)` in a shell script: paths, dates, sequences. Pure, and nothing is run.

A date is always the same one: it names a folder or a run. What other commands print is not known.
"""

from __future__ import annotations

import datetime
import posixpath
import re
from collections.abc import Iterator

from cotenant.jobfiles import shell_arithmetic, shell_arrays, shell_filters, shell_lines

_MAX_CHARS = 400
_MAX_NUMBERS = 1_000
_NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
_NUMBER = re.compile(r"-?\d{1,9}", re.ASCII)
_FOLDER = re.compile(r"cd\s+(?:--\s+)?(\S+|\"[^\"]+\")\s*(?:&?>+\s*/dev/null(?:\s+2>&1)?\s*)?(?:&&|;)\s*pwd(?:\s+-P)?")
_RANGE = re.compile(r"(\d{1,9})-\d{1,9}")


def parts(line: str) -> Iterator[tuple[str, bool]]:
    """The line in parts, in their order: text (False), and what stands in `$(...)` or backquotes (True)."""
    while True:
        start = min((place for place in (line.find("$("), line.find("`")) if place >= 0), default=None)
        end = None if start is None else _end(line, start)
        if start is None or end is None:
            yield line, False
            return
        yield line[:start], False
        yield line[start + (2 if line[start] == "$" else 1) : end], True
        line = line[end + 1 :]


def _end(line: str, start: int) -> int | None:
    """Where a substitution ends that begins at `start`."""
    if line[start] == "`":
        end = line.find("`", start + 1)
        return end if end >= 0 else None
    depth = 0
    for place in range(start + 1, min(len(line), start + _MAX_CHARS)):
        depth += {"(": 1, ")": -1}.get(line[place], 0)
        if depth == 0:
            return place
    return None


def printed(command: str, folder: str, gpus: int = 1) -> str | None:
    """What a command prints whose variables have their values; None: not known.

    Args:
        command: as it stands in the brackets.
        folder: where it runs.
        gpus: how many GPUs `nvidia-smi` lists.
    """
    if command.lstrip().startswith("#"):  # a comment between the lines of a command
        return ""
    if match := _FOLDER.fullmatch(command.strip()):
        return posixpath.normpath(posixpath.join(folder, match[1].strip("\"'"))) if folder else None
    parts = list(shell_lines.listed_commands(command))
    if not parts or any(before not in ("", "|") for before, _ in parts):
        return None
    words = [word for word in parts[0][1] if word not in ("2>/dev/null", "--")]
    if not words:
        return None
    text = _printed(words[0].rpartition("/")[2], words[1:], folder, gpus)
    for _, filter_words in parts[1:]:
        text = None if text is None else shell_filters.filtered(text, filter_words)
    return text


def _printed(name: str, words: list[str], folder: str, gpus: int) -> str | None:
    last = words[-1] if words else ""
    if name == "pwd":
        return folder or None
    if name == "echo":
        return shell_arrays.echoed(words)
    if name == "dirname" and len(words) == 1:
        return posixpath.dirname(last.rstrip("/")) or "."
    if name == "basename" and words:
        base = posixpath.basename(words[0].rstrip("/"))
        return base.removesuffix(words[1]) if len(words) == 2 else base
    if name in ("realpath", "readlink") and words:
        return posixpath.normpath(posixpath.join(folder, last)) if folder else None
    if name == "date":
        form = next((word[1:] for word in words if word.startswith("+")), "%a %b %d %H:%M:%S %Y")
        return _NOW.strftime(form)
    if name in ("which", "command", "type") and last:
        return last
    if name == "seq" and words and all(_NUMBER.fullmatch(word) for word in words):
        return _sequence([int(word) for word in words])
    if name == "expr" and len(words) == 3:
        number = shell_arithmetic.evaluate(" ".join(words).replace("\\", ""), lambda _: None)
        return None if number is None else str(number)
    if name == "awk" and len(words) == 1:
        return shell_filters.computed(words[0])
    if name == "nvidia-smi" and (words[:1] in (["-L"], ["--list-gpus"]) or "noheader" in last):
        return "\n".join(f"GPU {place}" for place in range(gpus))
    if name == "shuf":
        match = next((found for word in words if (found := _RANGE.search(word))), None)
        return match[1] if match else None
    return {"hostname": "localhost", "whoami": "user", "nproc": "8"}.get(name)


def _sequence(numbers: list[int]) -> str | None:
    first = numbers[0] if len(numbers) > 1 else 1
    step = numbers[1] if len(numbers) == 3 else 1
    if step == 0 or abs(numbers[-1] - first) // abs(step) > _MAX_NUMBERS:
        return None
    return " ".join(map(str, range(first, numbers[-1] + (1 if step > 0 else -1), step)))
