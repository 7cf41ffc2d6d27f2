"""Options in the script itself: lines `#COTENANT --gpus 2` and, as far as they have a meaning here, `#SBATCH` ones.

They stand at the top, before the first command, as for sbatch. The command line wins over them, and `#COTENANT` over
`#SBATCH`. An option of `#SBATCH` that means nothing here is left out with a warning; a wrong `#COTENANT` is an error.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from cotenant.cli.slurm_options import parse_dependencies, parse_gpus, parse_gres
from cotenant.cli.slurm_times import parse_array
from cotenant.core.errors import JobFileError, UsageError
from cotenant.core.units import parse_bytes, parse_duration

MAX_HEADER_BYTES = 64 * 1024
COTENANT_MARK, SBATCH_MARK = "#COTENANT", "#SBATCH"

_SBATCH_SUPPORTED = frozenset(
    (
        *("-J", "--job-name", "-t", "--time", "-d", "--dependency", "-a", "--array", "-G", "--gpus", "--gres"),
        *(
            "--nice",
            "--begin",
            "-o",
            "--output",
            "-e",
            "--error",
            "-D",
            "--chdir",
            "--export",
            "--requeue",
            "-H",
            "--hold",
        ),
        "--exclusive",
    )
)
_SBATCH_SYNONYMS = {"--gpus-per-node": "--gpus", "--gpus-per-task": "--gpus", "--workdir": "--chdir"}


@dataclass(frozen=True, slots=True)
class DirectiveOption:
    """An option of `submit`: the parameter it sets, and the type of its value; `bool` takes none.

    `choices` are the values there are, if they are few; `negates`: the option is `--no-...`.
    """

    parameter: str
    kind: type
    choices: tuple[str, ...] = ()
    negates: bool = False


@dataclass(frozen=True, slots=True)
class ParsedDirectives:
    """What a script asks for: values by parameter, and a sentence for everything that is left out."""

    values: Mapping[str, Any]
    warnings: tuple[str, ...]


def directive_options(parameters: Mapping[str, Any]) -> dict[str, DirectiveOption]:
    """Options by their spelling, of parameters as `typer` has them (name to annotation)."""
    found: dict[str, DirectiveOption] = {}
    for name, annotation in parameters.items():
        kind, info = get_args(annotation)[:2]
        # Inside `Annotated`, typer keeps the first spelling where else the default stands.
        first = getattr(info, "default", None)
        spellings = (*((first,) if isinstance(first, str) else ()), *(getattr(info, "param_decls", None) or ()))
        for declared in spellings:
            kinds = [each for each in get_args(kind) or (kind,) if each is not type(None)]
            plain = kinds[0] if isinstance(kinds[0], type) else str
            choices = () if isinstance(kinds[0], type) else get_args(kinds[0])
            for spelling in declared.split("/"):
                found[spelling] = DirectiveOption(name, plain, choices, negates=spelling.startswith("--no-"))
    return found


def parse_directives(path: Path, options: Mapping[str, DirectiveOption]) -> ParsedDirectives:
    """What the top of the script `path` asks for.

    Raises:
        JobFileError: a `#COTENANT` line that cannot be understood; names it.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_HEADER_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return ParsedDirectives({}, ())  # whoever runs it says what is wrong with it
    ours: dict[str, Any] = {}
    slurms: dict[str, Any] = {}
    warnings: list[str] = []
    for number, line in _header(text):
        if _is(line, COTENANT_MARK):
            ours |= _cotenant_line(str(path), number, line, options)
        elif _is(line, SBATCH_MARK):
            values, left_out = _sbatch_line(str(path), number, line, options)
            slurms |= values
            warnings += left_out
    return ParsedDirectives({**slurms, **ours}, tuple(warnings))


def _header(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            return
        yield number, line.rstrip("\r")


def _is(line: str, mark: str) -> bool:
    return line.startswith(mark) and line[len(mark) : len(mark) + 1].isspace()


def _words(path: str, number: int, line: str, mark: str) -> list[str]:
    try:
        return shlex.split(line[len(mark) :], comments=True)
    except ValueError as error:
        raise JobFileError(path, number, f"{mark} cannot be split into words: {str(error).lower()}") from error


def _cotenant_line(path: str, number: int, line: str, options: Mapping[str, DirectiveOption]) -> dict[str, Any]:
    values = {}
    for spelling, value in _pairs(_words(path, number, line, COTENANT_MARK), options):
        option = options.get(spelling)
        if option is None:
            raise JobFileError(path, number, f"no option `{spelling}`", hint="see `cotenant submit --help`")
        values[option.parameter] = _converted(path, number, spelling, value, option)
    return values


def _sbatch_line(
    path: str, number: int, line: str, options: Mapping[str, DirectiveOption]
) -> tuple[dict[str, Any], list[str]]:
    values: dict[str, Any] = {}
    left_out = []
    try:
        words = _words(path, number, line, SBATCH_MARK)
    except JobFileError as error:
        return {}, [f"{error.message}; the line is left out"]
    for spelling, value in _pairs(words, options):
        name = _SBATCH_SYNONYMS.get(spelling, spelling)
        option = options.get(name) if name in _SBATCH_SUPPORTED else None
        shown = spelling if value is None else f"{spelling}={value}"
        if option is None:
            left_out.append(f"{path}:{number}: `{shown}` of {SBATCH_MARK} is left out: it has no meaning here")
            continue
        try:
            values[option.parameter] = _converted(path, number, spelling, value, option)
        except JobFileError as error:
            left_out.append(f"{error.message}; it is left out")
    return values, left_out


def _pairs(words: list[str], options: Mapping[str, DirectiveOption]) -> Iterator[tuple[str, str | None]]:
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
        option = options.get(_SBATCH_SYNONYMS.get(name, name))
        takes_one = option is None or option.kind is not bool
        if given is None and takes_one and rest and not rest[0].startswith("-"):
            given = rest.pop(0)
        yield name, given


def _converted(path: str, number: int, spelling: str, value: str | None, option: DirectiveOption) -> Any:
    if option.kind is bool:
        if value is not None:
            raise JobFileError(path, number, f"`{spelling}` takes no value, found `{value}`")
        return not option.negates
    if value is None:
        raise JobFileError(path, number, f"`{spelling}` has no value")
    if option.kind in (int, float):
        try:
            return option.kind(value)
        except ValueError as error:
            raise JobFileError(path, number, f"`{spelling}` is `{value}`, wanted a number") from error
    if option.choices and value not in option.choices:
        raise JobFileError(path, number, f"`{spelling}` is `{value}`, wanted one of {', '.join(option.choices)}")
    _check(path, number, spelling, value, option)
    return Path(value) if option.kind is Path else value


_CHECKS: Mapping[str, Callable[[str], object]] = {
    "array": parse_array,
    "dependency": parse_dependencies,
    "gpu_mem": parse_bytes,
    "gpus": parse_gpus,
    "gres": parse_gres,
    "time": parse_duration,
    "time_slot": parse_duration,
}
"""By parameter, what will read its text later, when nobody knows any more which line that was."""


def _check(path: str, number: int, spelling: str, value: str, option: DirectiveOption) -> None:
    try:
        _CHECKS.get(option.parameter, str)(value)
    except UsageError as error:
        raise JobFileError(path, number, f"`{spelling}`: {error.message}", hint=error.hint) from error
