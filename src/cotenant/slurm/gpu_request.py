"""Which GPUs a submission requests, in whichever of sbatch's ways.

Pure. Source: sbatch(1): the command line wins over the environment, and that over the header of the script.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cotenant.jobfiles.sbatch import Setting

GPU_OPTIONS = ("gres", "gpus", "gpus-per-node", "gpus-per-task")
_VARIABLES = {"gres": "SBATCH_GRES", "gpus": "SBATCH_GPUS", "gpus-per-node": "SBATCH_GPUS_PER_NODE",
              "gpus-per-task": "SBATCH_GPUS_PER_TASK"}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmGpuRequest:
    """GPUs as a submission requests them.

    Attributes:
        gpus: on one node; 0 without a request. None: it cannot be read, or it is for several nodes.
        type: e.g. `a100`; empty if any will do.
        options: the options that request them, of `GPU_OPTIONS`.
        other_gres: further resources in `--gres`, as written.
        exclusive: whole nodes are requested.
    """

    gpus: int | None
    type: str = ""
    options: tuple[str, ...] = ()
    other_gres: tuple[str, ...] = ()
    exclusive: bool = False


def last_values(header: Sequence[Setting], line: Sequence[Setting], env: Mapping[str, str]) -> dict[str, str | None]:
    """The value that counts of each option: of the command line, else of the environment, else of the header."""
    values = {setting.option.name: setting.value for setting in header}
    values |= {name: env[variable] for name, variable in _VARIABLES.items() if env.get(variable)}
    values |= {name: env[variable] for name, variable in (("comment", "SBATCH_COMMENT"),) if env.get(variable)}
    return values | {setting.option.name: setting.value for setting in line}


def read_gpu_request(values: Mapping[str, str | None]) -> SlurmGpuRequest:
    """The GPUs that options request; `values` as `last_values` gives them."""
    found: list[tuple[str, str, int]] = []
    others: list[str] = []
    unreadable = False
    for part in filter(None, map(str.strip, (values.get("gres") or "").removeprefix("gres:").split(","))):
        if part.split(":")[0] != "gpu":
            others.append(part)
        elif (counted := _counted(part.split(":")[1:])) is None:
            unreadable = True
        else:
            found.append(("gres", *counted))
    tasks = values.get("ntasks") or "1"
    for name in GPU_OPTIONS[1:]:
        text = values.get(name)
        if text is None:
            continue
        counted = None if "," in text else _counted(text.split(":"))
        if counted is None or not tasks.isdigit():
            unreadable = True
            continue
        kind, count = counted
        found.append((name, kind, count * (int(tasks) if name == "gpus-per-task" else 1)))
    nodes = values.get("nodes") or "1"
    kinds = {kind for _, kind, _ in found if kind}
    is_plain = not unreadable and nodes in ("1", "1-1") and len(kinds) <= 1 and len({n for _, _, n in found}) <= 1
    return SlurmGpuRequest(
        gpus=(found[0][2] if found else 0) if is_plain else None,
        type=kinds.pop() if len(kinds) == 1 else "",
        options=tuple(dict.fromkeys(name for name, _, _ in found)),
        other_gres=tuple(others),
        exclusive="exclusive" in values,
    )


def _counted(parts: Sequence[str]) -> tuple[str, int] | None:
    """Type and number in `2`, `a100`, `a100:2` or nothing; None for anything else."""
    if len(parts) > 2:
        return None
    kind = parts[0] if parts and not parts[0].isdigit() else ""
    count = parts[-1] if parts and parts[-1].isdigit() else "1"
    if len(parts) == 2 and not (kind and parts[1].isdigit()):
        return None
    return kind, int(count[:6])
