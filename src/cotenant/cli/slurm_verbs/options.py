"""Values of options as Slurm spells them: GPUs, dependencies, environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cotenant.core.errors import UsageError
from cotenant.core.units import MAX_TEXT_CHARS, shortened
from cotenant.engines.slurm_environment import SECRETS

MAX_GPUS = 1024
_ALWAYS_EXPORTED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TMPDIR")


def parse_gpus(text: str) -> int:
    """Number of GPUs in `2` or `a100:2`.

    Raises:
        UsageError: not a number from 1 to `MAX_GPUS`.
    """
    count = text.rpartition(":")[2]
    if not (count.isascii() and count.isdigit() and len(count) < MAX_TEXT_CHARS and 1 <= int(count) <= MAX_GPUS):
        raise UsageError(f"must be a number from 1 to {MAX_GPUS}, got `{shortened(text)}`", hint="write --gpus N")
    return int(count)


def parse_gres(text: str) -> int:
    """Number of GPUs in `gpu`, `gpu:2` or `gpu:a100:2`.

    Raises:
        UsageError: another resource, or not a number from 1 to `MAX_GPUS`.
    """
    resource, *rest = text.split(":")
    is_counted = bool(rest) and rest[-1].isascii() and rest[-1].isdigit()
    is_type = len(rest) == 1 and rest[0][:1].isalpha()
    if resource != "gpu" or len(rest) > 2 or (rest and not (is_counted or is_type)):
        raise UsageError(f"must be gpu:N, got `{shortened(text)}`", hint="write --gres=gpu:N")
    count = rest[-1].lstrip("0") if is_counted else "1"
    if not count or len(count) > len(str(MAX_GPUS)) or int(count) > MAX_GPUS:
        raise UsageError(f"must be a number from 1 to {MAX_GPUS}, got `{shortened(text)}`", hint="write --gres=gpu:N")
    return int(count)


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
            raise UsageError(
                f"must be KIND:ID[:ID...] or singleton, got `{shortened(part)}`", hint=f"KIND is one of {known}"
            )
        fields[DEPENDENCIES[kind]] += refs
    return fields


def resolve_dependencies(job: Mapping[str, Any], ids_of: Callable[[Sequence[str]], list[int]]) -> dict[str, Any]:
    """`job` with ids in place of references to the jobs it waits for; `ids_of` knows arrays and their tasks."""
    resolved = {field: ids_of(job[field]) for field in DEPENDENCIES.values() if job.get(field)}
    return {**job, **resolved}


def exported_environment(export: str, env: Mapping[str, str]) -> dict[str, str]:
    """The variables that `--export` names, and always those that programs rely on, such as PATH and HOME.

    Raises:
        UsageError: a named variable is not set.
    """
    exported = {name: env[name] for name in _ALWAYS_EXPORTED if name in env}
    for part in export.split(","):
        name, equals, value = part.partition("=")
        if part == "ALL":
            exported |= {name: value for name, value in env.items() if name not in SECRETS}
        elif part in ("NONE", "NIL"):
            continue
        elif equals and name:
            exported[name] = value
        elif part in env:
            exported[part] = env[part]
        else:
            raise UsageError(f"`--export`: variable `{part}` is not set", hint=f"write {part or 'NAME'}=VALUE")
    return exported
