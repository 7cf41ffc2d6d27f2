"""GPU backend of a simulated server: everything works without a GPU, and jobs are real processes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cotenant.core.errors import BackendError
from cotenant.core.gpu import Gpu, GpuProcess, GpuSample
from cotenant.gpus import BackendOptions
from cotenant.simserver.gpu import GpuState, SimulatedOutOfMemory
from cotenant.simserver.mig import SimulatedMig
from cotenant.simserver.server import Attachment, SimulatedServer

__all__ = ["Attachment", "SimulatedBackend", "SimulatedOutOfMemory", "SimulatedServer"]


def create(options: BackendOptions) -> SimulatedBackend:
    """The backend of the server in `options.simulated_dir`.

    Raises:
        BackendError: no folder is given, or there is no server in it.
    """
    if options.simulated_dir is None:
        raise BackendError("no simulated server was named", hint="give the folder of one")
    return SimulatedBackend(options.simulated_dir)


class SimulatedBackend:
    """Reads the simulated server in a folder.

    Raises:
        BackendError: there is none.
    """

    name = "simulated"

    def __init__(self, folder: Path) -> None:
        self.server = SimulatedServer.open(folder)
        self.mig = SimulatedMig(self.server)

    def inventory(self) -> tuple[Gpu, ...]:
        """The GPUs, by index; a GPU in MIG mode is replaced by its instances."""
        instances = self.mig.instances()
        found: list[Gpu] = []
        for index in range(len(self.server.uuids)):
            if index in instances:
                found += [gpu for _, gpu in instances[index]]
                continue
            state = self.server.gpu(index)
            found.append(
                Gpu(uuid=state.uuid, index=state.number, name=state.model, memory_total_bytes=state.total_bytes)
            )
        return tuple(found)

    def sample(self, at_s: float) -> Mapping[str, GpuSample]:
        """A sample of every GPU that has not failed. Power and energy are those of virtual time."""
        states = []
        instances = self.mig.instances()
        numbers = [index for index in range(len(self.server.uuids)) if index not in instances]
        numbers += [number for own in instances.values() for number, _ in own]
        for index in numbers:
            try:
                states.append(self.server.gpu(index))
            except (OSError, ValueError):
                continue  # like a GPU that fell off the bus
        return {state.uuid: self._sample(state, at_s) for state in states if not state.failed}

    def close(self) -> None:
        """Does nothing: no file is open."""

    def _sample(self, state: GpuState, at_s: float) -> GpuSample:
        processes = state.processes
        return GpuSample(
            at_s=at_s,
            used_bytes=state.used_bytes,
            smact=state.smact,
            smocc=min(1.0, sum(process.smocc * process.speed for process in processes)),
            drama=min(1.0, sum(process.drama * process.speed for process in processes)),
            utilization=state.utilization,
            power_w=state.power_w,
            energy_j=self.server.energy_j(state),
            processes=tuple(
                GpuProcess(pid=process.pid, used_bytes=process.used_bytes, sm=process.smact * process.speed)
                for process in processes
            ),
        )
