"""Some of the GPUs of this machine, named as CUDA_VISIBLE_DEVICES names them; the others do not exist for its user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cotenant.core.errors import BackendError
from cotenant.core.gpu import Gpu, GpuSample

if TYPE_CHECKING:
    from cotenant.core.ports import GpuBackend


class VisibleGpus:
    """A backend that shows some GPUs of another one.

    `visible`: indices, UUIDs or their beginnings, separated by commas. An index counts the GPUs that the driver lists,
    which are those of the cgroup where one confines us. CUDA ignores what follows a wrong entry; here it is an error.

    Raises:
        BackendError: an entry names no GPU, or none is named.
    """

    def __init__(self, backend: GpuBackend, visible: str) -> None:
        self._backend = backend
        self.name = backend.name
        self._chosen = frozenset(gpu.uuid for gpu in choose_visible(backend.inventory(), visible))

    def inventory(self) -> tuple[Gpu, ...]:
        """The visible GPUs, in the order of the other backend."""
        return tuple(gpu for gpu in self._backend.inventory() if gpu.uuid in self._chosen)

    def sample(self, at_s: float) -> Mapping[str, GpuSample]:
        """A sample of every visible GPU that can be read."""
        return {uuid: sample for uuid, sample in self._backend.sample(at_s).items() if uuid in self._chosen}

    def close(self) -> None:
        """Close the other backend."""
        self._backend.close()


def choose_visible(gpus: Sequence[Gpu], visible: str) -> list[Gpu]:
    """The GPUs that `visible` names, a value of CUDA_VISIBLE_DEVICES.

    Raises:
        BackendError: an entry names no GPU, or none is named.
    """
    chosen: dict[str, Gpu] = {}
    for entry in filter(None, map(str.strip, visible.split(","))):
        if entry.isascii() and entry.isdigit():
            found = [gpu for gpu in gpus if gpu.index == int(entry[:6])]
        else:
            found = [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
        if not found:
            names = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus) or "none"
            raise BackendError(f"there is no GPU `{entry[:40]}` here", hint=f"GPUs here: {names}")
        chosen |= {gpu.uuid: gpu for gpu in found}
    if not chosen:
        raise BackendError("no GPU is visible", hint="name some, e.g. 0,1, or leave the setting out")
    return list(chosen.values())
