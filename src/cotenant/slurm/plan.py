"""What a submission adds to the options of its user: shards in place of a whole GPU, and a comment. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cotenant.core.units import MiB, format_bytes
from cotenant.jobfiles.sbatch import Setting
from cotenant.slurm.gpu_request import GPU_OPTIONS, SlurmGpuRequest
from cotenant.slurm.shards import GpuShards

Addition = Literal["auto", "shards", "comment", "nothing"]
"""What may be added: shards where they fit and a comment, only one of them, or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """The options for sbatch.

    Attributes:
        words: the user's options, without those that shards replace, and what is added to them.
        added: the words that are added.
        shards: how many are requested; 0 without.
        promised_bytes: GPU memory that the request stands for; None for whole GPUs of unknown size.
        reasons: sentences on what was added, or why not.
    """

    words: tuple[str, ...]
    added: tuple[str, ...]
    shards: int
    promised_bytes: int | None
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSize:
    """The shards that a job may use, and the memory that one stands for."""

    shards: GpuShards
    bytes: int


def plan_submission(
    line: Sequence[Setting],
    request: SlurmGpuRequest,
    bound_bytes: int | None,
    size: ShardSize | None,
    *,
    addition: Addition,
    has_comment: bool,
    estimator: str = "",
) -> Submission:
    """The options for sbatch of a job that needs `bound_bytes` on each GPU; None: it is not known.

    `line`: options of the command line; `size`: None where the site has no shards that this job can use.
    """
    count, reasons = 0, []
    if addition in ("auto", "shards"):
        count, reason = shard_count(request, bound_bytes, size)
        reasons.append(reason)
    replaced: tuple[Setting, ...] = ()
    added: list[str] = []
    if count and size is not None:
        replaced = tuple(setting for setting in line if setting.option.name in GPU_OPTIONS)
        on_line = {setting.option.name for setting in replaced}
        # A header cannot be taken back, but a later 0 counts.
        added += [f"--{name}=0" for name in request.options if name != "gres" and name not in on_line]
        added.append(f"--gres={','.join((f'{size.shards.label}:{count}', *request.other_gres))}")
    if addition in ("auto", "comment") and bound_bytes is not None:
        if has_comment:
            reasons.append("the comment is left as it is")
        else:
            added.append(f"--comment=cotenant:mem={math.ceil(bound_bytes / MiB)}M,by={estimator or 'declared'}")
    words = [word for setting in line if setting not in replaced for word in words_of(setting)]
    promised = count * size.bytes if count and size is not None else bound_bytes
    return Submission(
        words=(*words, *added), added=tuple(added), shards=count, promised_bytes=promised, reasons=tuple(reasons)
    )


def shard_count(request: SlurmGpuRequest, bound_bytes: int | None, size: ShardSize | None) -> tuple[int, str]:
    """How many shards to request, and why; 0: the request stays as it is."""
    if size is None:
        return 0, "no shards here: the request stays as it is"
    if bound_bytes is None:
        return 0, "its memory is not known: the request stays as it is"
    if request.gpus != 1:
        what = "no GPU" if request.gpus == 0 else "not exactly one GPU on one node"
        return 0, f"it requests {what}: the request stays as it is"
    if request.exclusive:
        return 0, "it requests whole nodes (--exclusive): the request stays as it is"
    if request.type and request.type != size.shards.type:
        return 0, f"there are no shards of GPUs of type {request.type}: the request stays as it is"
    count = max(1, math.ceil(bound_bytes / size.bytes))
    if count > size.shards.per_gpu:
        return 0, f"it needs {count} of {size.shards.per_gpu} shards of a GPU: the request stays as it is"
    size_text = f"{format_bytes(size.bytes)} each"
    return count, f"{count} of the {size.shards.per_gpu} shards of a GPU, {size_text}, in place of a whole one"


def words_of(setting: Setting) -> tuple[str, ...]:
    """A setting as words of a command line."""
    name = setting.option.name
    return (f"--{name}",) if setting.value is None else (f"--{name}={setting.value}",)
