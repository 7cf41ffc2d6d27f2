"""Options in the script itself: lines `#COTENANT --gpus 2` and, as far as they have a meaning here, `#SBATCH` ones.

They stand at the top, before the first command, as for sbatch. The command line wins over them, and `#COTENANT` over
`#SBATCH`. An option of `#SBATCH` without effect here is ignored with a warning; a wrong `#COTENANT` is an error.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from cotenant.cli.options import parameters_of
from cotenant.cli.slurm_verbs.sbatch_options import SbatchRequest, read_settings
from cotenant.core.errors import JobFileError, UsageError
from cotenant.jobfiles.sbatch import MARK, InvalidWord, Setting, header_words, split_options

MAX_HEADER_BYTES = 64 * 1024
COTENANT_MARK = "#COTENANT"

Options = Mapping[str, "tuple[str, click.Option]"]
"""By spelling: the field that an option sets, and the option."""


@dataclass(frozen=True, slots=True)
class ParsedDirectives:
    """Values by field, a sentence for everything that is ignored, and options of sbatch about the command itself."""

    values: Mapping[str, Any]
    warnings: tuple[str, ...]
    behaviors: frozenset[str] = frozenset()


def parse_directives(path: Path, *groups: type) -> ParsedDirectives:
    """What lines at the top of the script `path` ask for, as values of the fields of `groups`.

    Raises:
        JobFileError: a `#COTENANT` line cannot be understood; the message names the line.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_HEADER_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return ParsedDirectives({}, ())  # the error is reported when the script runs
    return parse_directive_text(str(path), text, *groups)


def parse_directive_text(path: str, text: str, *groups: type) -> ParsedDirectives:
    """As `parse_directives`, for a script that was read already; `path` is for messages."""
    slurms, warnings = _sbatch_lines(path, text, groups)
    ours: dict[str, Any] = {}
    lines = [(number, line) for number, line in _header(text) if _has_mark(line)]
    options = _options_by_spelling(groups) if lines else {}
    for number, line in lines:
        ours |= _cotenant_line(path, number, line, options)
    return ParsedDirectives({**slurms.values, **ours}, tuple(warnings), frozenset(slurms.behaviors))


def _sbatch_lines(path: str, text: str, groups: tuple[type, ...]) -> tuple[SbatchRequest, list[str]]:
    """What the `#SBATCH` lines ask for, and a sentence for everything that is ignored."""
    words, refused = header_words(text)
    warnings = [(number, f"{MARK}: {why}; the line is ignored") for number, why in refused]
    settings: list[Setting] = []
    start = 0
    while start < len(words):
        found, end, why = _settings_until_wrong([word.text for word in words[start:]])
        settings += [replace(setting, place=setting.place + start) for setting in found]
        if why is not None:  # what follows the wrong word still counts
            warnings.append((words[start + end].line, f"{MARK} {why}; it is ignored"))
        start += end + 1

    def report(setting: Setting, error: UsageError) -> None:
        warnings.append((words[setting.place].line, f"{MARK} `{setting}`: {error.message}; it is ignored"))

    request = read_settings(settings, groups, on_error=report)
    warnings += [
        (words[setting.place].line, f"{MARK} `{setting}` is ignored: {why}") for setting, why in request.unused
    ]
    return request, [f"{path}:{number}: {text}" for number, text in sorted(warnings)]


def _settings_until_wrong(words: list[str]) -> tuple[list[Setting], int, str | None]:
    """The options up to the first word that sbatch would refuse, the index of that word, and why."""
    try:
        found, end = split_options(words)
    except InvalidWord as error:
        return split_options(words[: error.place])[0], error.place, error.message
    return found, end, f"`{words[end]}` is no option" if end < len(words) else None


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


def _has_mark(line: str) -> bool:
    return line.startswith(COTENANT_MARK) and line[len(COTENANT_MARK) :][:1].isspace()


def _cotenant_line(path: str, number: int, line: str, options: Options) -> dict[str, Any]:
    values = {}
    try:
        words = shlex.split(line[len(COTENANT_MARK) :], comments=True)
    except ValueError as error:
        why = f"{COTENANT_MARK} cannot be split into words: {str(error).lower()}"
        raise JobFileError(path, number, why) from error
    for spelling, text in _pairs(words, options):
        if spelling not in options:
            raise JobFileError(path, number, f"no option `{spelling}`", hint="see `cotenant submit --help`")
        field, option = options[spelling]
        values[field] = _value(path, number, spelling, text, option)
    return values


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
        _, option = options.get(name, ("", None))
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
