"""The demand of a job on each of its GPUs: memory, exclusivity, sharing."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from cotenant.core.gpu import Gpu
from cotenant.core.job import Job, SharingRequest
from cotenant.core.units import MiB, counted, format_bytes
from cotenant.scheduling.recovery import effective_sharing, has_precedence

MAX_IDLE_BYTES = 2**30
"""A GPU without residents counts as empty with up to this much foreign memory: a display server, driver overhead."""

PROMISE_STEP_BYTES = 16 * MiB
"""Promises are multiples of this, so that jobs with about the same demand share one demand class."""

MAX_OVERSHOOT = 1.2
"""A job predicted to need up to this multiple of the largest GPU may still run there, alone: the prediction may be
off."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand of a job on each of its GPUs.

    Attributes:
        bytes: must be available; None for an empty GPU of any size.
        exclusive: no neighbors, now or later; `exclusive_reason` is the reason that is displayed.
        min_gpu_bytes: smaller GPUs are not admitted.
        headroom_bytes: must be available in addition, but are not promised.
        sharing: how the job shares, unless `exclusive`. `mig` stands for an exclusive MIG instance.
        ignores_activity: the job ran out of memory, as samples bear out, and is retried: rules on GPU activity do not
            hold it back.
        profile: what the pairing rule of the policy compares.
        time_limit_s: a GPU that is available for less is not admitted; None: any is.
        one_node: all GPUs must be of one node.
        bytes_per_gpu: `bytes` and headroom.
        is_confined: `time_limit_s` or `one_node` is set, which no index of GPUs knows of.
    """

    gpus: int
    bytes: int | None
    exclusive: bool = False
    exclusive_reason: str = ""
    min_gpu_bytes: int = 0
    headroom_bytes: int = 0
    sharing: SharingRequest = "auto"
    ignores_activity: bool = False
    profile: Hashable = None
    time_limit_s: float | None = None
    one_node: bool = False
    bytes_per_gpu: int = field(init=False, compare=False)
    is_confined: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_confined", self.one_node or self.time_limit_s is not None)
        object.__setattr__(self, "bytes_per_gpu", (self.bytes or 0) + self.headroom_bytes)

    @property
    def text(self) -> str:
        """`2 GPUs with 13.1 GiB available each`, `1 empty GPU`."""
        noun = ("MIG instance" if self.sharing == "mig" else "GPU") + ("" if self.gpus == 1 else "s")
        noun += " of one host" if self.one_node else ""
        empty = "empty " if self.exclusive else ""
        if self.bytes is None:
            return f"{self.gpus} {empty}{noun}"
        per_gpu = "" if self.gpus == 1 else " each"
        return f"{self.gpus} {empty}{noun} with {format_bytes(self.bytes)} available{per_gpu}"


def demand_bytes(job: Job) -> int | None:
    """Bytes that must be available on each GPU; None if unknown.

    What the user declared, else the bound of the estimate, or more once an attempt ran out of memory. A partial
    estimate is a lower bound of unknown distance, so it counts as unknown.
    """
    if job.spec.declared_bytes is not None:
        return max(job.spec.declared_bytes, job.min_memory_bytes)
    if job.estimate is None or job.estimate.partial:
        return None
    return max(job.estimate.bound_bytes, job.min_memory_bytes)


def capacity_bytes(totals_bytes: Sequence[int], gpus: int) -> int | None:
    """The most that each of `gpus` GPUs can offer at once; None if there are fewer GPUs.

    `totals_bytes` are sorted, largest first.
    """
    return totals_bytes[gpus - 1] if 0 < gpus <= len(totals_bytes) else None


class GpuSizes:
    """Memory of the GPUs that jobs may get. Two are equal if they offer the same.

    `one_node`: all GPUs of a job must be of one node.
    """

    def __init__(self, gpus: Iterable[Gpu] = (), *, one_node: bool = False) -> None:
        by_node: dict[str, list[int]] = {}
        for gpu in gpus:
            by_node.setdefault(gpu.server if one_node else "", []).append(gpu.memory_total_bytes)
        self.one_node = one_node
        self._by_node = [sorted(sizes, reverse=True) for sizes in by_node.values()]
        self._all = sorted((size for sizes in self._by_node for size in sizes), reverse=True)

    def __bool__(self) -> bool:
        return bool(self._all)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GpuSizes) and sorted(self._by_node) == sorted(other._by_node)

    __hash__ = None  # type: ignore[assignment]

    def of(self, gpus: int) -> Sequence[int]:
        """Bytes of each GPU that a job of so many may get, largest first: of the node with most for it, or of all."""
        if gpus <= 1 or len(self._by_node) <= 1:
            return self._all
        return max(self._by_node, key=lambda sizes: (capacity_bytes(sizes, gpus) or 0, len(sizes)))


def never_fits(job: Job, totals_bytes: Sequence[int], *, one_node: bool = False) -> str | None:
    """Why these GPUs can never take `job`, even empty; None if they may. `totals_bytes`: as `GpuSizes.of` gives them.

    For a job that requests a MIG instance, `totals_bytes` are those of the instances.
    """
    capacity = capacity_bytes(totals_bytes, job.spec.gpus)
    if capacity is None and job.spec.sharing == "mig":
        return "needs a MIG instance, the server has none"
    if capacity is None and one_node:
        return f"needs {counted(job.spec.gpus, 'GPU')} of one host, no host has more than {len(totals_bytes)}"
    if capacity is None:
        return f"needs {counted(job.spec.gpus, 'GPU')}, the server has {len(totals_bytes)}"
    likely = _likely_bytes(job)
    if likely is None or likely <= capacity * MAX_OVERSHOOT:
        return None
    return f"needs {format_bytes(likely)} on each GPU, the largest has {format_bytes(capacity)}"


def demand_of(
    job: Job, totals_bytes: Sequence[int], *, learned_bytes: int | None = None, unknown_bytes: int | None = None
) -> Demand:
    """The demand of `job` on a server with these GPUs (largest first).

    A job gets its GPUs exclusively if it requests that, if its memory need is unknown, if it ran out of memory among
    neighbors too often, or if it is predicted to take all of the largest GPU or slightly more. The last two are
    admitted on the largest GPUs only.

    `learned_bytes` replaces the estimate where history knows better; `unknown_bytes` is promised to a job of unknown
    need by a policy that takes that risk.
    """
    gpus = job.spec.gpus
    needed = demand_bytes(job) if learned_bytes is None else max(learned_bytes, job.min_memory_bytes)
    if needed is None and unknown_bytes is not None:
        needed = max(unknown_bytes, job.min_memory_bytes)
    capacity = capacity_bytes(totals_bytes, gpus) or 0
    sharing = effective_sharing(job)
    if sharing == "mig":
        needed = None if needed is None else _round_up(needed)
        reason = "an instance of its own was requested"
        return Demand(gpus, needed, exclusive=True, exclusive_reason=reason, sharing=sharing)
    if needed is None:
        reason, least = "its memory need is not known", capacity if job.exclusive_retry else 0
        return Demand(gpus, None, exclusive=True, exclusive_reason=reason, min_gpu_bytes=least)
    needed = _round_up(needed)
    if needed > capacity - MAX_IDLE_BYTES and never_fits(job, totals_bytes) is None:
        reason = f"needs {format_bytes(needed)}, the largest GPU has {format_bytes(capacity)}"
        return Demand(gpus, None, exclusive=True, exclusive_reason=reason, min_gpu_bytes=capacity)
    if job.exclusive_retry:
        reason = "it ran out of memory among neighbors"
        return Demand(gpus, needed, exclusive=True, exclusive_reason=reason, min_gpu_bytes=capacity)
    if job.spec.exclusive:
        return Demand(gpus, needed, exclusive=True, exclusive_reason="it was submitted as exclusive")
    return Demand(gpus, needed, sharing=sharing, ignores_activity=has_precedence(job))


def _round_up(needed_bytes: int) -> int:
    return -(-needed_bytes // PROMISE_STEP_BYTES) * PROMISE_STEP_BYTES


def _likely_bytes(job: Job) -> int | None:
    """The predicted use without margin and learned minimum, because neither may exclude a job for good.

    None, too, where compiled code was traced eagerly: on a GPU it often needs a fraction.
    """
    if job.spec.declared_bytes is not None:
        return job.spec.declared_bytes
    estimate = job.estimate
    return None if estimate is None or estimate.partial or estimate.eager else estimate.device_bytes
