"""Watts of a GPU, from the part of time in which it has work.

    power = idle + work x busy

On 18 runs of the AEGIS study (three traces, six policies, A100-40GB) this explains the mean power within 2.5 W (rms;
worst 5.2 W), where a line in SM activity misses by 12.7 W: an A100 that has any kernel to run clocks up and draws most
of what it ever will, however few SMs are busy. `benchmarks/simulator/energy.py` fits it again and shows what energies come out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from cotenant.gpu_specs import gpu_specs_by_name
from cotenant.gpus.power_model import MEASURED, PowerModel, card_power
from cotenant.sim.interference import TrueActivity

__all__ = ["MEASURED", "PowerModel", "busy", "power_model"]

UNKNOWN_BOARD_W = 300.0


def power_model(gpu_type: str) -> PowerModel:
    """What a GPU of this type draws; a MIG instance has its sevenths of it."""
    whole, _, profile = gpu_type.partition("/")
    spec = gpu_specs_by_name().get(whole)
    found = card_power(whole, UNKNOWN_BOARD_W if spec is None else spec.board_power_w or UNKNOWN_BOARD_W)
    if not profile:
        return found
    part = int(profile.partition("g")[0]) / 7.0
    return PowerModel(found.idle_w * part, found.attached_w * part, found.work_w * part, "assumed")


def busy(members: Iterable[TrueActivity | None]) -> float:
    """Part of time in which a GPU has work: each member has some at times that do not depend on the others'.

    Where utilization was not measured it is the root of the SM activity, as on the 53 workloads of the A100 (rms 0.09).
    """
    idle = 1.0
    for each in members:
        if each is not None:
            part = math.sqrt(each.smact) if each.utilization is None else each.utilization
            idle *= 1.0 - min(1.0, part)
    return 1.0 - idle
