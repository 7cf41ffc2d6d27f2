"""What the words of an option mean, as Slurm spells them: GPUs, priorities, dependencies, environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

from cotenant.core.errors import UsageError
from cotenant.core.units import MAX_TEXT_CHARS, shortened

_Given = TypeVar("_Given", str, Path)
_Read = TypeVar("_Read")

MAX_GPUS = 1024
SECRETS = ("COTENANT_TOKEN",)
"""What `ALL` leaves out: a job, and whoever may read it, has no use for them."""
_ALWAYS_EXPORTED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TMPDIR")


@overload
def parse_option(option: str, text: _Given, reader: Callable[[_Given], _Read]) -> _Read: ...
@overload
def parse_option(option: str, text: None, reader: Callable[..., _Read]) -> None: ...
def parse_option(option: str, text: _Given | None, reader: Callable[[_Given], _Read]) -> _Read | None:
    """`text`, given for `option`, as `reader` understands it; None where nothing was given.

    Raises:
        UsageError: it cannot be understood; names `option`.
    """
    if text is None:
        return None
    try:
        return reader(text)
    except UsageError as error:
        raise UsageError(f"`{option}`: {error.message}", hint=error.hint) from error


def parse_gpus(text: str) -> int:
    """GPUs asked for with `--gpus`: `2`, or `a100:2`.

    Raises:
        UsageError: it is no number above zero.
    """
    count = text.rpartition(":")[2]
    if not (count.isascii() and count.isdigit() and len(count) < MAX_TEXT_CHARS and 1 <= int(count) <= MAX_GPUS):
        raise UsageError(f"`--gpus={shortened(text)}` is no number from 1 to {MAX_GPUS}", hint="write --gpus N")
    return int(count)


def parse_gres(gres: str | None) -> int | None:
    """GPUs asked for with `--gres`: `gpu`, `gpu:2` or `gpu:a100:2`.

    Raises:
        UsageError: it asks for something else.
    """
    if gres is None:
        return None
    kind, *rest = gres.split(":")
    is_counted = bool(rest) and rest[-1].isascii() and rest[-1].isdigit()
    of_a_kind = len(rest) == 1 and rest[0][:1].isalpha()
    if kind != "gpu" or len(rest) > 2 or (rest and not (is_counted or of_a_kind)):
        raise UsageError(f"`--gres={gres}` is not understood", hint="write --gres=gpu:N")
    count = rest[-1].lstrip("0") if is_counted else "1"
    if not count or len(count) > len(str(MAX_GPUS)) or int(count) > MAX_GPUS:
        raise UsageError(f"`--gres={shortened(gres)}` is no number from 1 to {MAX_GPUS}", hint="write --gres=gpu:N")
    return int(count)


def parse_priority(nice: int | None, priority: int | None) -> int | None:
    """What `--nice` or `--priority` asks for; None: neither is given.

    Raises:
        UsageError: both are.
    """
    if nice is not None and priority is not None:
        raise UsageError("--nice and --priority say the same", hint="leave out one of them")
    return -nice if nice is not None else priority


DEPENDENCIES = {"afterok": "after", "afterany": "after_any", "afternotok": "after_failed"}
"""Fields of `JobSpec` by Slurm's word."""


def parse_dependencies(text: str | None) -> dict[str, Any]:
    """Fields of a job for `afterok:3`, `afterok:3:4`, `afterany:3_1,singleton`; ids stay as they are written.

    Raises:
        UsageError: another kind of dependency, or no ids.
    """
    fields: dict[str, Any] = {"after": [], "after_any": [], "after_failed": [], "singleton": False}
    for part in text.split(",") if text is not None else ():
        kind, *refs = part.split(":")
        if kind == "singleton" and not refs:
            fields["singleton"] = True
            continue
        if kind not in DEPENDENCIES or not refs or not all(refs):
            known = ", ".join(DEPENDENCIES)
            raise UsageError(f"dependency `{part}` is not understood", hint=f"write KIND:ID, of {known}; or singleton")
        fields[DEPENDENCIES[kind]] += refs
    return fields


def resolve_dependencies(job: Mapping[str, Any], ids_of: Callable[[Sequence[str]], list[int]]) -> dict[str, Any]:
    """`job` with the jobs it waits for as ids: `ids_of` knows arrays and their tasks."""
    named = {field: ids_of(job[field]) for field in DEPENDENCIES.values() if job.get(field)}
    return {**job, **named}


def exported_environment(export: str, env: Mapping[str, str]) -> dict[str, str]:
    """The variables that `--export` lets through; what a program cannot do without is always among them.

    Raises:
        UsageError: a variable that is named is not set.
    """
    kept = {name: env[name] for name in _ALWAYS_EXPORTED if name in env}
    for part in export.split(","):
        name, equals, value = part.partition("=")
        if part == "ALL":
            kept |= {name: value for name, value in env.items() if name not in SECRETS}
        elif part in ("NONE", "NIL"):
            continue
        elif equals and name:
            kept[name] = value
        elif part in env:
            kept[part] = env[part]
        else:
            raise UsageError(f"`--export` names `{part}`, which is not set")
    return kept
