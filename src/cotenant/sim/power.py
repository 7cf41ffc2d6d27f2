"""Watts of a GPU, from the part of time in which it has work.

    power = idle + work x busy

On 18 runs of the AEGIS study (three traces, six policies, A100-40GB) this explains the mean power within 2.5 W (rms;
worst 5.2 W), where a line in SM activity misses by 12.7 W: an A100 that has any kernel to run clocks up and draws most
of what it ever will, however few SMs are busy. `benchmarks/energy.py` fits it again and shows what energies come out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, NamedTuple

from cotenant.gpus.simcard import MODELS
from cotenant.sim.interference import Activity

# Of the board power, where nothing of a kind of GPU was measured: the A100's parts of its 400 W.
IDLE_PART, WORK_PART = 49.5 / 400.0, 225.6 / 400.0
UNKNOWN_BOARD_W = 300.0


class PowerModel(NamedTuple):
    """Watts of one GPU: idle, more with a process attached, and more while it has work.

    `origin`: `fitted` to measured runs, or `assumed` from the board power.
    """

    idle_w: float
    attached_w: float
    work_w: float
    origin: Literal["fitted", "assumed"] = "assumed"

    def watts(self, residents: int, busy: float) -> float:
        """Power with so many attempts on the GPU, which has work for this part of the time."""
        return self.idle_w + (self.attached_w if residents else 0.0) + self.work_w * busy


# A100: the regression above. Others: Zeus (SymbioticLab/Zeus, Apache-2.0) at the highest power limit: idle is the least
# mean power of any run, idle + work the median over its vision, speech and language workloads at their hungriest.
MEASURED = {
    "A100": PowerModel(49.5, 0.0, 225.6, "fitted"),
    "V100": PowerModel(36.2, 0.0, 189.8, "fitted"),
    "A40": PowerModel(82.5, 0.0, 166.5, "fitted"),
    "RTX6000": PowerModel(55.4, 0.0, 180.6, "fitted"),
    "P100": PowerModel(33.5, 0.0, 131.5, "fitted"),
}


def power_model(gpu_type: str) -> PowerModel:
    """What a GPU of this type draws; a MIG instance has its sevenths of it."""
    whole, _, profile = gpu_type.partition("/")
    family = whole.partition("-")[0]
    found = MEASURED.get(family)
    if found is None:
        board_w = MODELS[whole].board_w if whole in MODELS else UNKNOWN_BOARD_W
        found = PowerModel(IDLE_PART * board_w, 0.0, WORK_PART * board_w)
    if not profile:
        return found
    part = int(profile.partition("g")[0]) / 7.0
    return PowerModel(found.idle_w * part, found.attached_w * part, found.work_w * part, "assumed")


def busy(members: Iterable[Activity | None]) -> float:
    """Part of time in which a GPU has work: each member has some at times that do not depend on the others'.

    Where utilization was not measured it is the root of the SM activity, as on the 53 workloads of the A100 (rms 0.09).
    """
    idle = 1.0
    for each in members:
        if each is not None:
            part = math.sqrt(each.smact) if each.utilization is None else each.utilization
            idle *= 1.0 - min(1.0, part)
    return 1.0 - idle
