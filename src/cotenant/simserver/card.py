"""A card of a simulated server: what it is, who is on it, and its file.

This is what every simulated job imports, so it is the standard library's light half only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cotenant.gpus.power_model import card_power


class SimulatedOutOfMemory(Exception):
    """The card has less free than was asked for; sizes as torch tells them."""

    def __init__(self, tried_bytes: int, card: CardState, own: CardProcess) -> None:
        super().__init__(f"tried to allocate {tried_bytes} bytes with {card.free_bytes} free")
        self.gpu_uuid = card.uuid
        self.tried_bytes = tried_bytes
        self.free_bytes = card.free_bytes
        self.total_bytes = card.total_bytes
        attached = own in card.processes
        self.own_bytes = own.used_bytes if attached else 0
        self.own_allocated_bytes = own.allocated_bytes
        self.others = tuple((each.pid, each.used_bytes) for each in card.processes if each.key != own.key)


class CardProcess(NamedTuple):
    """A process on a card.

    `smact`, `smocc`, `drama`, `utilization` are what it would show alone; `speed` is the part of its speed
    alone that it runs at, as it reported last.
    """

    key: str
    pid: int
    start_ticks: int
    boot_id: str
    label: str
    context_bytes: int
    allocated_bytes: int = 0
    smact: float = 0.0
    smocc: float = 0.0
    drama: float = 0.0
    utilization: float = 0.0
    speed: float = 1.0

    @property
    def used_bytes(self) -> int:
        """What nvidia-smi would show for it."""
        return self.context_bytes + self.allocated_bytes


class CardChange(NamedTuple):
    """Who was active from a virtual moment on: key, label and SM activity alone of each."""

    at_s: float
    active: tuple[tuple[str, str, float], ...]


class CardState(NamedTuple):
    """A card at a virtual moment `at_s`; `board_power_w` is its power limit."""

    uuid: str
    number: int
    model: str
    total_bytes: int
    board_power_w: float
    at_s: float = 0.0
    energy_j: float = 0.0
    failed: bool = False
    processes: tuple[CardProcess, ...] = ()
    changes: tuple[CardChange, ...] = (CardChange(0.0, ()),)

    @property
    def used_bytes(self) -> int:
        """Memory in use, whoever holds it."""
        return sum(each.used_bytes for each in self.processes)

    @property
    def free_bytes(self) -> int:
        """Memory that the next allocation may take."""
        return self.total_bytes - self.used_bytes

    @property
    def smact(self) -> float:
        """SM activity now: each process adds its own, as far as it gets to run."""
        return min(1.0, sum(each.smact * each.speed for each in self.processes))

    @property
    def utilization(self) -> float:
        """Part of the time in which anybody runs: processes that do not depend on each other overlap.

        Of one that does not say, the root of its SM activity, as on the workloads measured on an A100 (rms 0.09).
        """
        parts = (each.utilization or math.sqrt(each.smact) for each in self.processes)
        return 1.0 - math.prod(1.0 - min(1.0, each) for each in parts)

    @property
    def power_w(self) -> float:
        """Watts now."""
        model = card_power(self.model, self.board_power_w)
        return model.watts(len(self.processes), self.utilization)


def is_alive(process: CardProcess) -> bool:
    """Whether this very process runs; a zombie has given back its memory."""
    return process.boot_id == boot_id() and start_ticks(process.pid) == process.start_ticks


def start_ticks(pid: int) -> int | None:
    """Start time of a living process in clock ticks; None for none and for zombies. Source: proc_pid_stat(5)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


_boot_ids: list[str] = []


def boot_id() -> str:
    """Names this boot of the machine."""
    if not _boot_ids:
        _boot_ids.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    return _boot_ids[0]


def card_json(card: CardState) -> dict[str, Any]:
    """The card as it is kept."""
    return {
        **card._asdict(),
        "processes": [each._asdict() for each in card.processes],
        "changes": [each._asdict() for each in card.changes],
    }


def read_card(path: Path) -> CardState:
    """A card as it was last changed.

    Raises:
        OSError, ValueError: there is none, or it cannot be understood.
    """
    told = json.loads(path.read_text())
    changes = tuple(CardChange(each["at_s"], _active(each["active"])) for each in told["changes"])
    return CardState(
        **{**told, "processes": tuple(CardProcess(**each) for each in told["processes"]), "changes": changes}
    )


def _active(told: Sequence[Sequence[Any]]) -> tuple[tuple[str, str, float], ...]:
    return tuple((str(key), str(label), float(smact)) for key, label, smact in told)
