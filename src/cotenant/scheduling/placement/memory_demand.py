"""How much memory a job needs, and whether a decision keeps what was promised."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cotenant.core.gpu import ServerSnapshot
from cotenant.core.job import Job, SharingRequest
from cotenant.core.placement import Placement
from cotenant.core.units import MiB, format_bytes
from cotenant.scheduling.placement.gpu_view import MAX_IDLE_BYTES
from cotenant.scheduling.recovery import effective_sharing, has_oomed

PROMISE_STEP_BYTES = 16 * MiB
"""Promises are whole multiples of this, so that jobs of about the same need are alike to a policy."""

MAX_OVERSHOOT = 1.2
"""A job predicted to need up to this multiple of the largest GPU may still try it, alone: the prediction may be off."""


@dataclass(frozen=True, slots=True)
class MemoryDemand:
    """What a job asks of each of its GPUs.

    Attributes:
        bytes: to be available; None where only an empty GPU will do, whatever it has.
        alone: no neighbors, now or later; `exclusive_reason` says why, for people.
        min_gpu_bytes: smaller GPUs will not do.
        spare_bytes: to be available besides, but not promised.
        sharing: how it shares, where not alone; `mig` only on a MIG instance, and alone there.
        at_once: it ran out of memory and is tried again: no rule on the activity of a GPU holds it.
    """

    gpus: int
    bytes: int | None
    alone: bool = False
    exclusive_reason: str = ""
    min_gpu_bytes: int = 0
    headroom_bytes: int = 0
    sharing: SharingRequest = "auto"
    ignores_activity: bool = False

    @property
    def text(self) -> str:
        """`2 GPUs with 13.1 GiB available each`, `1 empty GPU`."""
        noun = ("MIG instance" if self.sharing == "mig" else "GPU") + ("" if self.gpus == 1 else "s")
        empty = "empty " if self.alone else ""
        if self.bytes is None:
            return f"{self.gpus} {empty}{noun}"
        each = "" if self.gpus == 1 else " each"
        return f"{self.gpus} {empty}{noun} with {format_bytes(self.bytes)} available{each}"


def demand_bytes(job: Job) -> int | None:
    """Bytes that must be available on each GPU; None when unknown.

    What the submitter declared, or else the bound of the estimate, or more once an attempt ran out of memory.
    A partial estimate is a lower bound of unknown distance, so it counts as unknown.
    """
    if job.spec.declared_bytes is not None:
        return max(job.spec.declared_bytes, job.min_memory_bytes)
    if job.estimate is None or job.estimate.partial:
        return None
    return max(job.estimate.bound_bytes, job.min_memory_bytes)


def capacity_bytes(totals_bytes: Sequence[int], gpus: int) -> int | None:
    """The most that each of `gpus` GPUs can have at once; None if there are not so many.

    `totals_bytes` are sorted, largest first.
    """
    return totals_bytes[gpus - 1] if 0 < gpus <= len(totals_bytes) else None


def never_fits(job: Job, totals_bytes: Sequence[int]) -> str | None:
    """Why no moment will come at which these GPUs can take `job`; None if one may.

    For a job that wants a MIG instance, `totals_bytes` are those of the instances.
    """
    capacity = capacity_bytes(totals_bytes, job.spec.gpus)
    if capacity is None and job.spec.sharing == "mig":
        return "needs a MIG instance, the server has none"
    if capacity is None:
        return f"needs {job.spec.gpus} GPUs, the server has {len(totals_bytes)}"
    likely = _likely_bytes(job)
    if likely is None or likely <= capacity * MAX_OVERSHOOT:
        return None
    return f"needs {format_bytes(likely)} on each GPU, the largest has {format_bytes(capacity)}"


def demand_of(
    job: Job, totals_bytes: Sequence[int], *, learned_bytes: int | None = None, unknown_bytes: int | None = None
) -> MemoryDemand:
    """The need of `job` on a server with these GPUs (largest first).

    A job gets its GPUs alone if it asked for that, if its need is unknown, if it ran out of memory among
    neighbors too often, or if it is predicted to take all of the largest GPU or slightly more. The last two go
    to the largest GPUs only.

    `learned_bytes` is what history knows better than the estimate, if it does; `unknown_bytes` what a job of
    unknown need is promised by a policy that takes the risk.
    """
    gpus = job.spec.gpus
    wanted = demand_bytes(job) if learned_bytes is None else max(learned_bytes, job.min_memory_bytes)
    if wanted is None and unknown_bytes is not None:
        wanted = max(unknown_bytes, job.min_memory_bytes)
    capacity = capacity_bytes(totals_bytes, gpus) or 0
    share = effective_sharing(job)
    if share == "mig":
        wanted = None if wanted is None else _round_up(wanted)
        return MemoryDemand(
            gpus, wanted, alone=True, exclusive_reason="an instance of its own was asked for", sharing=share
        )
    if wanted is None:
        why, least = "its memory need is not known", capacity if job.exclusive_retry else 0
        return MemoryDemand(gpus, None, alone=True, exclusive_reason=why, min_gpu_bytes=least)
    wanted = _round_up(wanted)
    if wanted > capacity - MAX_IDLE_BYTES and never_fits(job, totals_bytes) is None:
        why = f"{format_bytes(wanted)} predicted, {format_bytes(capacity)} is the largest"
        return MemoryDemand(gpus, None, alone=True, exclusive_reason=why, min_gpu_bytes=capacity)
    if job.exclusive_retry:
        why = "it ran out of memory among neighbors"
        return MemoryDemand(gpus, wanted, alone=True, exclusive_reason=why, min_gpu_bytes=capacity)
    if job.spec.exclusive:
        return MemoryDemand(gpus, wanted, alone=True, exclusive_reason="it was submitted as exclusive")
    return MemoryDemand(gpus, wanted, sharing=share, ignores_activity=has_oomed(job))


def _round_up(wanted_bytes: int) -> int:
    return -(-wanted_bytes // PROMISE_STEP_BYTES) * PROMISE_STEP_BYTES


def _likely_bytes(job: Job) -> int | None:
    """What the job will probably hold: no margin, and no floor, for a floor must not keep a job out for good."""
    if job.spec.declared_bytes is not None:
        return job.spec.declared_bytes
    return None if job.estimate is None or job.estimate.partial else job.estimate.device_bytes


def totals_bytes(server: ServerSnapshot) -> list[int]:
    """Memory of every GPU, largest first."""
    return sorted((each.gpu.memory_total_bytes for each in server.gpus), reverse=True)


class PlacementChecker:
    """Checks the answers of a policy against one snapshot, so that a faulty policy cannot over-promise."""

    def __init__(self, server: ServerSnapshot) -> None:
        self._available = {each.gpu.uuid: each.available_bytes for each in server.gpus}
        self._taken = {each.gpu.uuid for each in server.gpus if each.residents}
        self._closed = {
            each.gpu.uuid for each in server.gpus if any(mate.sharing == "exclusive" for mate in each.residents)
        }

    def admit(self, placement: Placement, gpus: int) -> str | None:
        """Count `placement` in, or say which promise it would break (and count nothing)."""
        uuids = placement.gpu_uuids
        if len(set(uuids)) != gpus or len(uuids) != gpus:
            return f"{gpus} different GPUs wanted, {len(set(uuids))} given"
        broken = next(filter(None, (self._breaks(uuid, placement) for uuid in uuids)), None)
        if broken is None:
            self._count(uuids, placement)
        return broken

    def _breaks(self, uuid: str, placement: Placement) -> str | None:
        available = self._available.get(uuid)
        if available is None:
            return f"nothing may be promised on {uuid}"
        if not 0 < placement.promised_bytes <= available:
            wanted = format_bytes(placement.promised_bytes)
            return f"{wanted} promised on {uuid}, {format_bytes(available)} available"
        if uuid in self._closed or (placement.sharing == "exclusive" and uuid in self._taken):
            return f"{uuid} cannot be shared with job {placement.job_id}"
        return None

    def _count(self, uuids: Iterable[str], placement: Placement) -> None:
        for uuid in uuids:
            self._available[uuid] = (self._available[uuid] or 0) - placement.promised_bytes
            self._taken.add(uuid)
            if placement.sharing == "exclusive":
                self._closed.add(uuid)
