"""Admission rules: why a GPU does not admit a job now. A rule whose input is unknown refuses.

A decision and its explanation run the same rules, in this order:

0. The GPU is available for as long as the time limit of the job.
1. Rules on the GPU alone: samples are fresh, the GPU is not reserved, no resident has it exclusively.
2. Rules on the GPU and the demand: it is a MIG instance where one is requested, large enough and empty where that is
   needed, and has enough memory available.
3. The gates of the policy (`gates`), on GPUs with residents.
4. The pairing rule of the policy (`pairing`), on the job and the residents.

A GPU pool caches the outcome of 1 and 3, which no demand changes, until the GPU changes or `Refusal.opens_at_s`. That
of 0 changes with time, and is never cached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf as INFINITE  # noqa: N812 -- a constant
from typing import Any

from cotenant.core.gpu import Gpu
from cotenant.core.placement import Deferral, Rejection
from cotenant.core.units import format_bytes, format_duration
from cotenant.scheduling.demand import Demand
from cotenant.scheduling.placement.gates import OPEN, SHUT, AdmissionGate
from cotenant.scheduling.placement.gpu_view import GpuView
from cotenant.scheduling.placement.pairing import PairingRule
from cotenant.scheduling.placement.refusal import Refusal


def gpu_refusal(view: GpuView, at_s: float, job_id: int | None = None) -> Refusal | None:
    """Why the GPU admits no job, or only the one it is reserved for."""
    if not view.is_open:
        if view.available_bytes is None:
            return Refusal("stale_telemetry", lambda: _stale_text(view, at_s))
        return Refusal("held_exclusively", lambda: _owner_text(view))
    reserved_for = view.reserved_for
    if reserved_for is not None and reserved_for != job_id:
        return Refusal("reserved", lambda: f"reserved for job {reserved_for}, {view.reservation_reason}")
    return None


def _owner_text(view: GpuView) -> str:
    owner = next(resident.job_id for resident in view.residents if resident.sharing == "exclusive")
    return f"job {owner} has it exclusively"


def _stale_text(view: GpuView, at_s: float) -> str:
    latest = view.snapshot.latest
    if latest is None:
        return "no sample yet"
    if latest.used_bytes is None:
        return "memory in use could not be read"
    return f"memory in use is not known, the newest sample is {format_duration(at_s - latest.at_s)} old"


def latest_start_s(view: GpuView, demand: Demand) -> float:
    """Until when a job of this demand may start there; infinite if it has no time limit, or the GPU no end."""
    until_s = view.snapshot.gpu.available_until_s
    return INFINITE if until_s is None or demand.time_limit_s is None else until_s - demand.time_limit_s


def has_time(view: GpuView, demand: Demand, at_s: float) -> bool:
    """Whether a job that starts now reaches its time limit, if it has one, before the GPU is gone."""
    return at_s <= latest_start_s(view, demand)


def time_refusal(view: GpuView, demand: Demand, at_s: float) -> Refusal | None:
    """Why a job would not end before the GPU is gone."""
    if demand.time_limit_s is None or has_time(view, demand, at_s):
        return None
    return Refusal("insufficient_time", _time_text, INFINITE, view.snapshot.gpu, demand.time_limit_s, at_s)


def _time_text(gpu: Gpu, limit_s: float, at_s: float) -> str:
    left_s = max(0.0, (gpu.available_until_s or 0.0) - at_s)
    where = gpu.server or f"GPU {gpu.index}"
    limit, left = format_duration(limit_s), format_duration(left_s)
    return f"its time limit of {limit} is longer than the {left} that {where} has left"


def demand_refusal(view: GpuView, demand: Demand) -> Refusal | None:
    """Why the GPU does not meet `demand`, whatever its policy."""
    if demand.sharing == "mig" and view.snapshot.gpu.mig_profile is None:
        return Refusal("no_mig_instance", lambda: "is not a MIG instance, which was requested")
    if view.total_bytes < demand.min_gpu_bytes:
        has, needs = format_bytes(view.total_bytes), format_bytes(demand.min_gpu_bytes)
        return Refusal("gpu_too_small", lambda: f"has {has}, must be a GPU of {needs}")
    if demand.exclusive and not view.is_empty:
        return Refusal("not_empty", lambda: f"must be empty ({demand.exclusive_reason}), {_occupants(view)}")
    if not fits(view, demand):
        return Refusal("insufficient_memory", lambda: _memory_text(view, demand))
    return None


def fits(view: GpuView, demand: Demand) -> bool:
    """Whether the GPU has the size that is demanded, and as much memory available."""
    return (view.available_bytes or 0) >= demand.bytes_per_gpu and view.total_bytes >= demand.min_gpu_bytes


def fitting(views: Iterable[GpuView], demand: Demand) -> list[GpuView]:
    """Those of `views` that `fits`, with one call for all of them."""
    needed, min_gpu_bytes = demand.bytes_per_gpu, demand.min_gpu_bytes
    return [view for view in views if (view.available_bytes or 0) >= needed and view.total_bytes >= min_gpu_bytes]


def _occupants(view: GpuView) -> str:
    if view.residents:
        noun = "job" if len(view.residents) == 1 else "jobs"
        return f"{noun} {', '.join(str(resident.job_id) for resident in view.residents)} on it"
    return f"{format_bytes(view.snapshot.foreign_bytes or 0)} in use by others"


def _memory_text(view: GpuView, demand: Demand) -> str:
    headroom = f" and {format_bytes(demand.headroom_bytes)} of headroom" if demand.headroom_bytes else ""
    return f"needs {format_bytes(demand.bytes or 0)}{headroom}, {format_bytes(view.available_bytes or 0)} available"


def opening_time(gates: Sequence[AdmissionGate]) -> Callable[[GpuView, float], float]:
    """When all of `gates` are open for a GPU with residents: `OPEN` for now, infinite for not before it changes."""
    opening_times = [gate.opens_at_s for gate in reversed(gates)]  # those declared last are the cheapest
    if len(opening_times) == 1:
        return opening_times[0]

    def gates_open_at_s(view: GpuView, at_s: float) -> float:
        latest_s = OPEN
        for opens_at_s in opening_times:
            gate_opens_s = opens_at_s(view, at_s)
            if gate_opens_s > latest_s:
                if gate_opens_s == SHUT:
                    return SHUT
                latest_s = gate_opens_s
        return latest_s

    return gates_open_at_s


class AdmissionRules:
    """All rules of one policy.

    Attributes:
        gates_open_at_s: when all gates of a GPU with residents are open, see `opening_time`.
    """

    def __init__(self, gates: Sequence[AdmissionGate], pairing: PairingRule[Any, Any] | None) -> None:
        self.gates = tuple(gates)
        self.pairing = pairing
        self.gates_open_at_s = opening_time(gates)

    def refusal(self, view: GpuView, demand: Demand, job_id: int, at_s: float) -> Refusal | None:
        """The first rule that refuses a job, or None if the GPU admits it now."""
        refusal = time_refusal(view, demand, at_s) or gpu_refusal(view, at_s, job_id) or demand_refusal(view, demand)
        if refusal is not None:
            return refusal
        for gate in self.gates if view.residents else ():
            if not (demand.ignores_activity and gate.is_of_activity):
                refusal = gate.check(view, at_s)
                if refusal is not None:
                    return refusal
        if self.pairing is not None and not demand.exclusive:
            judgment = self.pairing.judge(demand.profile, view.gpu_class)
            return judgment if isinstance(judgment, Refusal) else None
        return None

    def admits(self, view: GpuView, demand: Demand, job_id: int, at_s: float) -> bool:
        """Whether no rule refuses."""
        return self.refusal(view, demand, job_id, at_s) is None

    def deferral(self, demand: Demand, job_id: int, views: Sequence[GpuView], at_s: float) -> Deferral:
        """Why a job is not placed: one rejection per GPU, and a sentence about the GPU that comes closest."""
        refusals = [self.refusal(view, demand, job_id, at_s) for view in views]
        wanted = f"{demand.gpus} GPUs{' of one host' if demand.one_node else ''}"
        too_few = Refusal("too_few_gpus", lambda: f"qualifies, but {wanted} are needed at once")
        rejections = tuple(_rejection(view, refusal or too_few) for view, refusal in zip(views, refusals, strict=True))
        refused = [(view, refusal) for view, refusal in zip(views, refusals, strict=True) if refusal is not None]
        if not refused:
            tally = f"{len(views)} of {len(views)} qualify" if views else "no GPU is known"
            return Deferral(
                job_id=job_id,
                reason=f"{demand.text}, {tally}",
                rejections=rejections,
                rule=too_few.rule if views else "",
            )
        view, refusal = max(refused, key=lambda pair: (_closeness(pair[1]), pair[0].available_bytes or 0))
        qualify = len(views) - len(refused)
        best = f", best of {len(views)}" if len(views) > 1 and not qualify else ""
        reason = f"GPU {view.snapshot.gpu.index}{best}: {refusal.reason}"
        if qualify:
            reason = f"{demand.text}, {qualify} of {len(views)} qualif{'y' if qualify > 1 else 'ies'}; {reason}"
        return Deferral(job_id=job_id, reason=reason, rejections=rejections, rule=refusal.rule)


def _closeness(refusal: Refusal) -> int:
    """How many of the rules a GPU passed before this one: of the largest, a job waits for the least."""
    return _STAGES.get(refusal.rule, len(_STAGES))


_STAGES = {
    rule: stage
    for stage, rule in enumerate(
        (
            "insufficient_time",
            "stale_telemetry",
            "gpu_too_small",
            "no_mig_instance",
            "held_exclusively",
            "reserved",
            "not_empty",
            "insufficient_memory",
        )
    )
}


def head_of_line_wait(job_id: int, head: int, views: Sequence[GpuView]) -> Deferral:
    """Why a job is not placed by a policy that starts jobs strictly in order: job `head` waits before it."""
    blocked = Refusal("head_of_line", lambda: f"job {head} is ahead, and this policy starts jobs in order")
    rejections = tuple(_rejection(view, blocked) for view in views)
    return Deferral(job_id=job_id, reason=blocked.reason, rejections=rejections, rule=blocked.rule)


def _rejection(view: GpuView, refusal: Refusal) -> Rejection:
    return Rejection(gpu_uuid=view.uuid, rule=refusal.rule, reason=refusal.reason)
