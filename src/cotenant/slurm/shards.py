"""Shards: how a site lets jobs share GPUs, and how many of them stand for an amount of GPU memory.

Source: gres.conf(5), `Name=shard`. A shard has no size of its own: a site says how many a GPU has, and Slurm counts. So
a shard is the GPU's memory divided by its number of shards, unless the user names its size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from cotenant.core.errors import UnknownName
from cotenant.gpu_specs import gpu_spec, sizes_of
from cotenant.slurm.installation import SlurmInstallation

_GRES = re.compile(r"(?P<name>gpu|shard)(?::(?P<type>[^:,()]+))?:(?P<count>\d{1,9})(?![\w.])")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuShards:
    """GPUs of one type with their shards.

    Attributes:
        type: of the GPUs and of the shards; empty where a site names none.
        per_gpu: shards of one GPU.
        gpu_memory_bytes: of one GPU; None where its type names no GPU that is known.
    """

    type: str
    per_gpu: int
    gpu_memory_bytes: int | None = None

    @property
    def label(self) -> str:
        """For `--gres`, without the number."""
        return f"shard:{self.type}" if self.type else "shard"


def parse_node_gres(texts: Iterable[str]) -> list[GpuShards]:
    """The shards in the GRES of nodes, e.g. `gpu:a100:4(S:0-1),shard:a100:160(S:0-1)`, the most frequent type first.

    A type whose nodes disagree about the shards of a GPU is left out: the size of its shards is ambiguous.
    """
    found: dict[str, list[int]] = {}
    for text in texts:
        counts: dict[tuple[str, str], int] = {}
        for match in _GRES.finditer(text):
            key = (match["name"], match["type"] or "")
            counts[key] = counts.get(key, 0) + int(match["count"])
        for (name, kind), shards in counts.items():
            if name != "shard":
                continue
            gpus = sum(n for (what, of), n in counts.items() if what == "gpu" and kind in ("", of))
            if gpus and shards >= gpus:
                found.setdefault(kind, []).append(shards // gpus)
    clear = {kind: per_gpu for kind, per_gpu in found.items() if len(set(per_gpu)) == 1}
    return [
        GpuShards(type=kind, per_gpu=per_gpu[0], gpu_memory_bytes=memory_of_type(kind))
        for kind, per_gpu in sorted(clear.items(), key=lambda item: -len(item[1]))
    ]


def memory_of_type(name: str) -> int | None:
    """Memory of a GPU that a site calls `name`; None if that names none, or several."""
    if sizes_of(name):
        return None
    try:
        return gpu_spec(name).memory_total_bytes
    except UnknownName:
        return None


def shards_of(slurm: SlurmInstallation, partition: str | None) -> list[GpuShards]:
    """The shards of a partition, or of the default one.

    Raises:
        BackendError: Slurm does not answer.
    """
    text = slurm.output("sinfo", "-h", "-N", *(["-p", partition] if partition else []), "-o", "%P|%N|%G")
    rows = [line.split("|", 2) for line in text.splitlines() if line.count("|") >= 2]
    if partition is None and any(row[0].endswith("*") for row in rows):
        rows = [row for row in rows if row[0].endswith("*")]
    return parse_node_gres(row[2] for row in rows)
