"""Options in the script itself: lines `#COTENANT --gpus 2` and, as far as they have a meaning here, `#SBATCH` ones.

They stand at the top, before the first command, as for sbatch. The command line wins over them, and `#COTENANT` over
`#SBATCH`. An option of `#SBATCH` without a meaning here is ignored with a warning; a wrong `#COTENANT` is an error.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from cotenant.cli.options import parameters_of
from cotenant.core.errors import JobFileError, UsageError

MAX_HEADER_BYTES = 64 * 1024
COTENANT_MARK, SBATCH_MARK = "#COTENANT", "#SBATCH"

_SBATCH_SUPPORTED = frozenset(
    (
        "--job-name",
        "--time",
        "--dependency",
        "--array",
        "--gpus",
        "--gres",
        "--nice",
        "--begin",
        "--output",
        "--error",
        "--chdir",
        "--export",
        "--requeue",
        "--hold",
        "--exclusive",
    )
)
_SBATCH_SYNONYMS = {"--gpus-per-node": "--gpus", "--gpus-per-task": "--gpus", "--workdir": "--chdir"}

Options = Mapping[str, "tuple[str, click.Option]"]
"""By spelling: the field that an option sets, and the option."""


@dataclass(frozen=True, slots=True)
class ParsedDirectives:
    """Values by field, and a sentence for everything that is ignored."""

    values: Mapping[str, Any]
    warnings: tuple[str, ...]


def parse_directives(path: Path, *groups: type) -> ParsedDirectives:
    """What lines at the top of the script `path` ask for, as values of the fields of `groups`.

    Raises:
        JobFileError: a `#COTENANT` line cannot be understood; the message names the line.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_HEADER_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return ParsedDirectives({}, ())  # whoever runs the script reports what is wrong with it
    lines = list(_header(text))
    if not any(_has_mark(line, mark) for _, line in lines for mark in (COTENANT_MARK, SBATCH_MARK)):
        return ParsedDirectives({}, ())
    options = _options_by_spelling(groups)
    ours: dict[str, Any] = {}
    slurms: dict[str, Any] = {}
    warnings: list[str] = []
    for number, line in lines:
        if _has_mark(line, COTENANT_MARK):
            ours |= _cotenant_line(str(path), number, line, options)
        elif _has_mark(line, SBATCH_MARK):
            values, ignored = _sbatch_line(str(path), number, line, options)
            slurms |= values
            warnings += ignored
    return ParsedDirectives({**slurms, **ours}, tuple(warnings))


def _options_by_spelling(groups: tuple[type, ...]) -> Options:
    found = {}
    for group in groups:
        for field, parameter in parameters_of(group).items():
            if isinstance(parameter, click.Option):
                found.update(dict.fromkeys([*parameter.opts, *parameter.secondary_opts], (field, parameter)))
    return found


def _header(text: str) -> Iterator[tuple[int, str]]:
    """The lines before the first command, with their numbers."""
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            return
        yield number, line.rstrip("\r")


def _has_mark(line: str, mark: str) -> bool:
    return line.startswith(mark) and line[len(mark) : len(mark) + 1].isspace()


def _words(path: str, number: int, line: str, mark: str) -> list[str]:
    try:
        return shlex.split(line[len(mark) :], comments=True)
    except ValueError as error:
        raise JobFileError(path, number, f"{mark} cannot be split into words: {str(error).lower()}") from error


def _cotenant_line(path: str, number: int, line: str, options: Options) -> dict[str, Any]:
    values = {}
    for spelling, text in _pairs(_words(path, number, line, COTENANT_MARK), options):
        if spelling not in options:
            raise JobFileError(path, number, f"no option `{spelling}`", hint="see `cotenant submit --help`")
        field, option = options[spelling]
        values[field] = _value(path, number, spelling, text, option)
    return values


def _sbatch_line(path: str, number: int, line: str, options: Options) -> tuple[dict[str, Any], list[str]]:
    values: dict[str, Any] = {}
    ignored = []
    try:
        words = _words(path, number, line, SBATCH_MARK)
    except JobFileError as error:
        return {}, [f"{error.message}; the line is ignored"]
    for spelling, text in _pairs(words, options):
        field, option = options.get(_SBATCH_SYNONYMS.get(spelling, spelling), ("", None))
        shown = spelling if text is None else f"{spelling}={text}"
        if option is None or _SBATCH_SUPPORTED.isdisjoint(option.opts):
            ignored.append(f"{path}:{number}: {SBATCH_MARK} `{shown}` is ignored: it has no meaning here")
            continue
        try:
            values[field] = _value(path, number, spelling, text, option)
        except JobFileError as error:
            ignored.append(f"{error.message}; it is ignored")
    return values, ignored


def _pairs(words: list[str], options: Options) -> Iterator[tuple[str, str | None]]:
    """Option and value, as getopt splits them: `--a=1`, `--a 1`, `-a1`, `-a 1`; a value is None where none follows."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            given = value if equals else None
        elif word.startswith("-") and len(word) > 1:
            name, given = word[:2], word[2:] or None
        else:
            yield word, None
            continue
        _, option = options.get(_SBATCH_SYNONYMS.get(name, name), ("", None))
        takes_value = option is None or not option.is_flag
        if given is None and takes_value and rest and not rest[0].startswith("-"):
            given = rest.pop(0)
        yield name, given


def _value(path: str, number: int, spelling: str, text: str | None, option: click.Option) -> Any:
    if option.is_flag:
        if text is not None:
            raise JobFileError(path, number, f"`{spelling}` takes no value, found `{text}`")
        return spelling not in option.secondary_opts
    if text is None:
        raise JobFileError(path, number, f"`{spelling}` has no value")
    try:
        return option.type.convert(text, None, None)
    except click.BadParameter as error:
        message = error.message.rstrip(".").replace("'", "`")
        raise JobFileError(path, number, f"`{spelling}`: {message}") from error
    except UsageError as error:
        raise JobFileError(path, number, f"`{spelling}`: {error.message}", hint=error.hint) from error
