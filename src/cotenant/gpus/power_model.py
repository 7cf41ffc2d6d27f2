"""Power of a GPU from the share of time in which it is busy: power = idle + work x busy (decision 0046).

On 18 runs of the AEGIS study (three traces, six policies, A100-40GB) this explains the mean power within 2.5 W (rms;
worst 5.2 W), where a line in SM activity misses by 12.7 W: an A100 that has any kernel to run clocks up and draws most
of what it ever will, however few SMs are busy. `benchmarks/simulator/energy.py` repeats the fit.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from cotenant.core.gpu import mig_slices

DEFAULT_BOARD_POWER_W = 300.0
"""Of a GPU that the table does not know."""

# Of the board power, where nothing of a kind of GPU was measured: the A100's parts of its 400 W.
IDLE_FRACTION, WORK_FRACTION = 49.5 / 400.0, 225.6 / 400.0


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


# A100: 18 runs of the AEGIS study. Others: Zeus (SymbioticLab/Zeus, Apache-2.0) at the highest power limit: idle is the
# least mean power of any run, idle + work the median over its vision, speech and language workloads at their hungriest.
MEASURED = {
    "A100": PowerModel(49.5, 0.0, 225.6, "fitted"),
    "V100": PowerModel(36.2, 0.0, 189.8, "fitted"),
    "A40": PowerModel(82.5, 0.0, 166.5, "fitted"),
    "RTX6000": PowerModel(55.4, 0.0, 180.6, "fitted"),
    "P100": PowerModel(33.5, 0.0, 131.5, "fitted"),
}


def gpu_power(gpu_type: str, board_w: float) -> PowerModel:
    """What a whole GPU of this type, e.g. `A100-40GB`, draws; without measurements, parts of its board power."""
    known = MEASURED.get(gpu_type.partition("-")[0])
    return known or PowerModel(IDLE_FRACTION * board_w, 0.0, WORK_FRACTION * board_w)


def power_model(gpu_type: str) -> PowerModel:
    """The model of a GPU type, e.g. `A100-40GB`; of a MIG instance, `A100-40GB/3g.20gb`, its sevenths."""
    from cotenant.gpu_specs import gpu_specs_by_name  # not at import: every simulated job imports this module

    whole, _, profile = gpu_type.partition("/")
    spec = gpu_specs_by_name().get(whole)
    board_w = None if spec is None else spec.board_power_w
    found = gpu_power(whole, board_w or DEFAULT_BOARD_POWER_W)
    if not profile:
        return found
    part = mig_slices(profile) / 7.0
    return PowerModel(found.idle_w * part, found.attached_w * part, found.work_w * part, "assumed")
