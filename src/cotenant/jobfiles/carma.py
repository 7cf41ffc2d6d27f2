"""Job files of CARMA (`.rad`), read strictly. Pure: text in, `CarmaJobFile` or `JobFileError` out.

The format is by position, one value a line (source: CARMA, README and the job files in its repository):

    1   a comment, `#`; there may be several, or none
    2   command that enters the environment: `conda activate NAME`, `source PATH`; may be absent
    3   the command
    4   file with a summary of the model; only read by the estimators of CARMA
    5   data set
    6   batch size
    7   policy; not used, as in CARMA
    8   number of GPUs
    9   measured peak, MiB per GPU
    10  peak as Horus estimates it
    11  peak as FakeTensor estimates it
    12  peak as GPUMemNet estimates it

An estimate of 40000 means that CARMA has none.
"""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import dataclass
from typing import Literal

from cotenant.core.errors import JobFileError
from cotenant.core.units import MiB

MemorySource = Literal["measured", "horus", "faketensor", "gpumemnet"]

UNKNOWN_MIB = 40000.0
MAX_MIB = 2.0**40
MAX_GPUS = 1024

_ACTIVATION = re.compile(r"(?:(?:conda|mamba|micromamba)\s+activate|source|\.)(?:\s|$)")
_LABELS = ("the model file", "the data set", "the batch size", "the policy", "the number of GPUs")
_MEMORY_LABELS: tuple[tuple[MemorySource, str], ...] = (
    ("measured", "the measured memory"),
    ("horus", "the estimate of Horus"),
    ("faketensor", "the estimate of FakeTensor"),
    ("gpumemnet", "the estimate of GPUMemNet"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CarmaJobFile:
    """The content of a `.rad` file.

    Attributes:
        activation: the line that enters the environment, or None.
        command: argv of the job.
        memory_bytes: per GPU, by source; None where CARMA has no estimate.
        model_line: number of the line that names the model file, for messages.
    """

    path: str
    activation: str | None
    command: tuple[str, ...]
    model_file: str
    model_line: int
    dataset: str
    batch_size: int
    policy: str
    gpus: int
    memory_bytes: dict[MemorySource, int | None]

    @property
    def argv(self) -> tuple[str, ...]:
        """The command, run by a login shell that enters the environment first if the file names one."""
        if self.activation is None:
            return self.command
        steps = [self.activation, f"exec {shlex.join(self.command)}"]
        tool = self.activation.split()[0]
        if tool in ("conda", "mamba"):
            steps.insert(0, f'eval "$({tool} shell.bash hook)"')
        elif tool == "micromamba":
            steps.insert(0, 'eval "$(micromamba shell hook --shell bash)"')
        return ("bash", "-lc", " && ".join(steps))


class _Lines:
    """The lines of a file, read one after another, with their numbers for messages."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        # Not `splitlines`: it also splits at form feeds and the like, and line numbers would differ from an editor's.
        self._lines = [line.rstrip("\r") for line in text.split("\n")]
        if self._lines[-1] == "":
            self._lines.pop()
        self.line = 0

    def peek(self) -> str | None:
        """The next line, stripped; None at the end."""
        return self._lines[self.line].strip() if self.line < len(self._lines) else None

    def take(self, what: str) -> str:
        """The next line, stripped; an error if there is none, or nothing on it."""
        found = self.peek()
        self.line += 1
        if found is None:
            raise self.error(f"the file ends here, wanted {what}")
        if not found:
            raise self.error(f"the line is empty, wanted {what}")
        return found

    def error(self, reason: str, *, hint: str | None = None) -> JobFileError:
        """`reason` at the line taken last."""
        return JobFileError(self.path, max(self.line, 1), reason, hint=hint)


def parse(text: str, path: str) -> CarmaJobFile:
    """The job that a `.rad` file describes; `path` is for messages.

    Raises:
        JobFileError: names the line and what was wanted there.
    """
    if "\0" in text:
        raise JobFileError(path, text[: text.index("\0")].count("\n") + 1, "holds a NUL byte: not a job file")
    lines = _Lines(path, text)
    while (found := lines.peek()) is not None and (not found or found.startswith("#")):
        lines.line += 1
    activation = lines.take("a way to enter the environment") if _ACTIVATION.match(lines.peek() or "") else None
    if activation is not None:
        _shell_words(lines, activation)
    command = _shell_words(lines, lines.take("the command"))
    model_file = lines.take(_LABELS[0])
    model_line = lines.line
    dataset = lines.take(_LABELS[1])
    batch_size = _parse_count(lines, _LABELS[2], most=2**40)
    policy = lines.take(_LABELS[3])
    gpus = _parse_count(lines, _LABELS[4], most=MAX_GPUS)
    memory = {source: _parse_memory_bytes(lines, source, label) for source, label in _MEMORY_LABELS}
    _require_end(lines)
    return CarmaJobFile(
        path=path,
        activation=activation,
        command=command,
        model_file=model_file,
        model_line=model_line,
        dataset=dataset,
        batch_size=batch_size,
        policy=policy,
        gpus=gpus,
        memory_bytes=memory,
    )


def _shell_words(lines: _Lines, text: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise lines.error(f"`{_short(text)}` cannot be split into words: {str(error).lower()}") from error
    if not words or not words[0]:
        raise lines.error(f"`{_short(text)}` is not a command")
    return words


def _parse_count(lines: _Lines, what: str, *, most: int) -> int:
    text = lines.take(what)
    # `isdigit` alone would take other scripts' digits, and `int` a number of any length.
    if not (text.isascii() and text.isdigit() and len(text) <= 15 and 1 <= int(text) <= most):
        raise lines.error(f"{what} is `{_short(text)}`, wanted a whole number from 1 to {most}")
    return int(text)


def _parse_memory_bytes(lines: _Lines, source: MemorySource, what: str) -> int | None:
    text = lines.take(f"{what}, in MiB")
    try:
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if not 0 < value <= MAX_MIB:
        raise lines.error(f"{what} is `{_short(text)}`, wanted a number of MiB above zero")
    if source != "measured" and value == UNKNOWN_MIB:
        return None
    return max(1, int(value * MiB))


def _require_end(lines: _Lines) -> None:
    while (found := lines.peek()) is not None:
        lines.line += 1
        if found and not found.startswith("#"):
            raise lines.error(f"`{_short(found)}` was not expected after the four memory lines")


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
