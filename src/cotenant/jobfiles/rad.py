"""Job files of RAD-RM and CARMA (`.rad`), read strictly. Pure: text in, `RadJobFile` or `JobFileError` out.

Both formats begin with a line that enters the environment (`conda activate NAME`, `source PATH`), which may be absent,
and the command. `#` begins a comment where a shell would begin one: at the start of a word, outside of quotes.

RAD-RM names the rest, in any order, before or after these two lines (source: the thesis, listing 6.1):

    model: resnet.txt       file with a summary of the model, beside the job file
    batch_size: 128
    policy: collocation     or `exclusive`

CARMA has one value a line, by position (source: README and the job files in its repository):

    3   file with a summary of the model; only read by the estimators of CARMA
    4   data set
    5   batch size
    6   policy; not used, as in CARMA
    7   number of GPUs
    8   measured peak, MiB per GPU
    9   peak as Horus estimates it
    10  peak as FakeTensor estimates it
    11  peak as GPUMemNet estimates it

An estimate of 40000 means that CARMA has none. The four memory lines may be absent together.
"""

from __future__ import annotations

import difflib
import math
import re
import shlex
from dataclasses import dataclass, field
from typing import Literal

from cotenant.core.errors import JobFileError
from cotenant.core.units import MiB

MemorySource = Literal["measured", "horus", "faketensor", "gpumemnet"]

UNKNOWN_MIB = 40000.0
MAX_MIB = 2.0**40
MAX_GPUS = 1024
MAX_BATCH = 2**40

POLICIES = ("exclusive", "collocation")
"""What RAD-RM's `policy` may be."""

_KEYS = ("model", "batch_size", "policy")
_KEY = re.compile(r"([A-Za-z_][\w-]*)[ \t]*:(.*)")
_ACTIVATION = re.compile(r"(?:(?:conda|mamba|micromamba)\s+activate|source|\.)(?:\s|$)")
_LABELS = ("the model file", "the data set", "the batch size", "the policy", "the number of GPUs")
_MEMORY_LABELS: tuple[tuple[MemorySource, str], ...] = (
    ("measured", "the measured memory"),
    ("horus", "the estimate of Horus"),
    ("faketensor", "the estimate of FakeTensor"),
    ("gpumemnet", "the estimate of GPUMemNet"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RadJobFile:
    """The content of a `.rad` file.

    Attributes:
        activation: the line that enters the environment, or None.
        command: argv of the job.
        model_line: number of the line that names the model file, for messages.
        dataset: None in RAD-RM's format, which does not name it.
        exclusive: what `policy` requests; None in CARMA's format, where it has no effect.
        memory_bytes: per GPU, by source, None where CARMA has no estimate; empty in RAD-RM's format.
    """

    path: str
    activation: str | None
    command: tuple[str, ...]
    model_file: str
    model_line: int
    batch_size: int
    policy: str
    dataset: str | None = None
    exclusive: bool | None = None
    gpus: int = 1
    memory_bytes: dict[MemorySource, int | None] = field(default_factory=dict)

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
        self._lines = [line.rstrip("\r").strip() for line in text.split("\n")]
        if self._lines[-1] == "":
            self._lines.pop()
        self.line = 0

    def has_keys(self) -> bool:
        """Whether a line is `NAME: VALUE`, as in RAD-RM's format only."""
        return any(_KEY.fullmatch(_without_comment(line)) for line in self._lines)

    def skip(self, *, blank: bool) -> None:
        """Pass over lines with a comment only, and `blank` ones."""
        while self.line < len(self._lines):
            line = self._lines[self.line]
            if not (line.startswith("#") or (blank and not line)):
                return
            self.line += 1

    def peek(self) -> str | None:
        """The next line, without its comment; None at the end."""
        self.skip(blank=False)
        return _without_comment(self._lines[self.line]) if self.line < len(self._lines) else None

    def take(self, what: str) -> str:
        """The next line, without its comment; an error if there is none, or nothing on it."""
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


def parse_rad(text: str, path: str) -> RadJobFile:
    """The job that a `.rad` file describes; `path` is for messages.

    Raises:
        JobFileError: names the line and what was wanted there.
    """
    if "\0" in text:
        raise JobFileError(path, text[: text.index("\0")].count("\n") + 1, "holds a NUL byte: not a job file")
    lines = _Lines(path, text)
    return _parse_keys(lines) if lines.has_keys() else _parse_positions(lines)


def _parse_keys(lines: _Lines) -> RadJobFile:
    """RAD-RM's format."""
    activation: str | None = None
    command: tuple[str, ...] = ()
    command_line = 0
    values: dict[str, tuple[str, int]] = {}
    lines.skip(blank=True)
    while (line := lines.peek()) is not None:
        lines.line += 1
        match = _KEY.fullmatch(line)
        if match is not None:
            _take_key(lines, match.group(1), match.group(2).strip(), values)
        elif command:
            raise lines.error(f"`{_short(line)}` was not expected: line {command_line} is the command")
        elif activation is None and _ACTIVATION.match(line):
            _shell_words(lines, line)
            activation = line
        else:
            command, command_line = _shell_words(lines, line), lines.line
        lines.skip(blank=True)
    for name in _KEYS:
        if name not in values:
            raise lines.error(f"the file ends here, wanted `{name}:`")
    if not command:
        raise lines.error("the file ends here, wanted the command")
    (model_file, model_line), (batch, _), (policy, _) = (values[name] for name in _KEYS)
    return RadJobFile(
        path=lines.path,
        activation=activation,
        command=command,
        model_file=model_file,
        model_line=model_line,
        batch_size=int(batch),
        policy=policy,
        exclusive=policy == "exclusive",
    )


def _take_key(lines: _Lines, name: str, value: str, values: dict[str, tuple[str, int]]) -> None:
    """Check a line `name: value` and add it to `values`, with its number."""
    if name not in _KEYS:
        close = difflib.get_close_matches(name, _KEYS, n=1)
        raise lines.error(
            f"unknown key `{_short(name)}`, wanted {', '.join(_KEYS)}",
            hint=f"did you mean `{close[0]}`?" if close else None,
        )
    if name in values:
        raise lines.error(f"`{name}` stands on line {values[name][1]} already")
    if not value:
        raise lines.error(f"`{name}` has no value")
    if name == "batch_size":
        _checked_count(lines, value, "the batch size", most=MAX_BATCH)
    if name == "policy" and value not in POLICIES:
        raise lines.error(f"`policy` is `{_short(value)}`, wanted {' or '.join(POLICIES)}")
    values[name] = (value, lines.line)


def _parse_positions(lines: _Lines) -> RadJobFile:
    """CARMA's format."""
    lines.skip(blank=True)
    activation = lines.take("a way to enter the environment") if _ACTIVATION.match(lines.peek() or "") else None
    if activation is not None:
        _shell_words(lines, activation)
    command = _shell_words(lines, lines.take("the command"))
    model_file = lines.take(_LABELS[0])
    model_line = lines.line
    dataset = lines.take(_LABELS[1])
    batch_size = _parse_count(lines, _LABELS[2], most=MAX_BATCH)
    policy = lines.take(_LABELS[3])
    gpus = _parse_count(lines, _LABELS[4], most=MAX_GPUS)
    memory = _parse_memory(lines)
    _require_end(lines)
    return RadJobFile(
        path=lines.path,
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


def _without_comment(line: str) -> str:
    """`line` up to a `#` at the start of a word outside of quotes, where a shell begins a comment."""
    quote, before = "", " "
    at = 0
    while at < len(line):
        char = line[at]
        if char == "\\" and quote != "'":
            at += 1
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "#" and before.isspace():
            return line[:at].rstrip()
        before = char
        at += 1
    return line


def _shell_words(lines: _Lines, text: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise lines.error(f"`{_short(text)}` cannot be split into words: {str(error).lower()}") from error
    if not words or not words[0]:
        raise lines.error(f"`{_short(text)}` is not a command")
    return words


def _parse_count(lines: _Lines, what: str, *, most: int) -> int:
    return _checked_count(lines, lines.take(what), what, most=most)


def _parse_memory(lines: _Lines) -> dict[MemorySource, int | None]:
    """The four memory lines; empty if the file ends before them, as one of CARMA's own does."""
    lines.skip(blank=True)
    if lines.peek() is None:
        return {}
    return {source: _parse_memory_bytes(lines, source, label) for source, label in _MEMORY_LABELS}


def _checked_count(lines: _Lines, text: str, what: str, *, most: int) -> int:
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
        if found:
            raise lines.error(f"`{_short(found)}` was not expected after the four memory lines")


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
