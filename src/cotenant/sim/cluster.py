"""Clusters to simulate: GPUs of one or several types, whole or as MIG instances."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cotenant.core import mig
from cotenant.core.errors import UnknownName, UsageError
from cotenant.core.gpu import Gpu
from cotenant.core.units import GiB

MAX_GPUS = 1_000_000

_PART = re.compile(r"(?:(?P<servers>\d+)\*)?(?P<count>\d+)x(?P<type>[A-Za-z0-9.+-]+?)(?:/(?P<layout>[0-9a-z.+]+))?")
_MEMORY_IN_NAME = re.compile(r"-(\d+(?:\.\d+)?)GB$")


class Slot(NamedTuple):
    """A GPU or MIG instance of a cluster.

    Attributes:
        gpu_type: e.g. `A100-40GB`, or `A100-40GB/3g.20gb` for an instance.
        server: number of its server.
    """

    gpu: Gpu
    gpu_type: str
    server: int

    @property
    def is_mig(self) -> bool:
        """Whether it is a MIG instance."""
        return self.gpu.mig_profile is not None


@dataclass(frozen=True, slots=True)
class Cluster:
    """All GPUs in display order; `text` describes them.

    A job may get GPUs of several servers; it then runs at `SimulationConfig.cross_node_speed`.
    """

    text: str
    slots: tuple[Slot, ...]

    def __len__(self) -> int:
        return len(self.slots)


def parse(text: str) -> Cluster:
    """Parse a cluster such as `4xA100-40GB`, `2*8xV100-32GB,1xT4-16GB` or `2xA100-40GB/4g.20gb+3g.20gb`.

    `N*` repeats a server; all parts without it form one server. A slash precedes the MIG layout of each GPU. The memory
    of a GPU that is not in the table follows from its name: `G2-32GB`.

    Raises:
        UsageError: the text cannot be parsed.
        UnknownName: there is no such GPU or MIG profile.
    """
    slots: list[Slot] = []
    servers = 0
    own_server: int | None = None
    for part in text.split(","):
        found = _PART.fullmatch(part.strip())
        if found is None:
            raise UsageError(f"`{part}` does not describe GPUs", hint="write e.g. `4xA100-40GB` or `2*8xV100-32GB`")
        count = int(found["count"])
        copies = int(found["servers"]) if found["servers"] else 1
        if not 1 <= count * copies <= MAX_GPUS:
            raise UsageError(f"`{part}` is {count * copies} GPUs", hint=f"from 1 to {MAX_GPUS}")
        if not found["servers"] and own_server is None:
            own_server, servers = servers, servers + 1
        for _ in range(copies):
            server = own_server if not found["servers"] and own_server is not None else servers
            servers += 1 if found["servers"] else 0
            for _ in range(count):
                slots += _gpu_slots(found["type"], found["layout"], server, parent=f"SIM-CARD-{len(slots)}")
    return Cluster(text, numbered(slots))


def memory_bytes(gpu_type: str) -> int:
    """Memory of a GPU, from the table of GPUs or else from its name.

    Raises:
        UnknownName: no table knows it and its name says nothing.
    """
    from cotenant.gpu_specs import gpu_specs_by_name

    known = gpu_specs_by_name().get(gpu_type)
    if known is not None:
        return known.memory_total_bytes
    found = _MEMORY_IN_NAME.search(gpu_type)
    if found is None:
        raise UnknownName("GPU type", gpu_type, gpu_specs_by_name())
    return int(float(found[1]) * GiB)


def _gpu_slots(gpu_type: str, layout: str | None, server: int, *, parent: str) -> list[Slot]:
    if layout is None:
        return _whole(gpu_type, server)
    from cotenant import gpu_specs

    spec = gpu_specs.gpu_spec(gpu_type)
    parts = layout.split("+")
    memory = {part: spec.instance(part).memory_total_bytes for part in parts}
    mig.layout_of(parts, instance_profiles(gpu_type))
    return [instance_slot(gpu_type, part, memory[part], server, parent=parent) for part in parts]


def instance_profiles(gpu_type: str) -> tuple[mig.InstanceProfile, ...]:
    """The MIG profiles of a GPU, from the table of GPUs.

    Raises:
        UnknownName, UsageError: the table does not know the GPU, or it has no MIG.
    """
    from cotenant import gpu_specs

    return mig.parse_profiles([(profile.name, profile.memory_bytes) for profile in gpu_specs.gpu_spec(gpu_type).mig])


def instance_slot(gpu_type: str, profile: str, memory_bytes: int, server: int, *, parent: str) -> Slot:
    """A MIG instance of such a GPU."""
    gpu = Gpu(
        uuid="",
        index=0,
        name=f"{gpu_type} MIG {profile}",
        memory_total_bytes=memory_bytes,
        mig_parent=parent,
        mig_profile=profile,
    )
    return Slot(gpu=gpu, gpu_type=f"{gpu_type}/{profile}", server=server)


def _whole(gpu_type: str, server: int) -> list[Slot]:
    gpu = Gpu(uuid="", index=0, name=gpu_type, memory_total_bytes=memory_bytes(gpu_type))
    return [Slot(gpu=gpu, gpu_type=gpu_type, server=server)]


def numbered(slots: Sequence[Slot]) -> tuple[Slot, ...]:
    """The slots with UUIDs and indices in their order, and names of their servers if there are several."""
    from dataclasses import replace

    width = len(str(max(0, len(slots) - 1)))
    names = (
        [f"server-{slot.server}" for slot in slots] if len({slot.server for slot in slots}) > 1 else [""] * len(slots)
    )
    return tuple(
        slot._replace(gpu=replace(slot.gpu, uuid=f"SIM-{index:0{width}d}", index=index, server=server))
        for index, (slot, server) in enumerate(zip(slots, names, strict=True))
    )
