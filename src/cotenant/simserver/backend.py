"""A simulated server, read as NVML is: everything works without a GPU, and its jobs are real processes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cotenant.core.errors import BackendError
from cotenant.core.gpu import Gpu, GpuProcess, GpuSample
from cotenant.gpus import BackendOptions
from cotenant.simserver.card import CardState, SimulatedOutOfMemory
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

    def inventory(self) -> tuple[Gpu, ...]:
        """The cards, in order."""
        cards = [self.server.card(i) for i in range(len(self.server.uuids))]
        return tuple(
            Gpu(uuid=each.uuid, index=each.number, name=each.model, memory_total_bytes=each.total_bytes)
            for each in cards
        )

    def sample(self, at_s: float) -> Mapping[str, GpuSample]:
        """A reading of every card that has not failed. Power and energy are of virtual time."""
        cards = []
        for index in range(len(self.server.uuids)):
            try:
                cards.append(self.server.card(index))
            except (OSError, ValueError):
                continue  # as a GPU that fell off the bus
        return {each.uuid: self._sample(each, at_s) for each in cards if not each.failed}

    def close(self) -> None:
        """Nothing is held."""

    def _sample(self, card: CardState, at_s: float) -> GpuSample:
        processes = card.processes
        return GpuSample(
            at_s=at_s,
            used_bytes=card.used_bytes,
            smact=card.smact,
            smocc=min(1.0, sum(each.smocc * each.speed for each in processes)),
            drama=min(1.0, sum(each.drama * each.speed for each in processes)),
            utilization=card.utilization,
            power_w=card.power_w,
            energy_j=self.server.energy_j(card),
            processes=tuple(
                GpuProcess(pid=each.pid, used_bytes=each.used_bytes, sm=each.smact * each.speed) for each in processes
            ),
        )
