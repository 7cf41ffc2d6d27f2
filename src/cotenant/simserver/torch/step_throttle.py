"""Sets the step time of a script on fake tensors, and the activity of its GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cotenant.core.errors import UsageError
from cotenant.sim.interference import SmactPowerLaw, TrueActivity
from cotenant.simserver.torch.process_gpus import ProcessGpus

STEP_S = "COTENANT_SIM_STEP_S"
SMACT = "COTENANT_SIM_SMACT"
DEFAULT_SMACT = 0.5
"""Nothing is computed, so the SM activity cannot be measured; the job may set it."""


@dataclass(slots=True, kw_only=True)
class StepThrottle:
    """Delays steps to their configured time, longer if neighbors slow the job down.

    Attributes:
        smact: solo SM activity.
        step_s: solo step time on the server's clock; None: as long as tracing takes, without slowdowns.
    """

    smact: float = DEFAULT_SMACT
    step_s: float | None = None
    _began_s: float | None = None

    @classmethod
    def of(cls, env: Mapping[str, str]) -> StepThrottle:
        """The throttle that the job's environment configures.

        Raises:
            UsageError: a variable is not a number, or out of range.
        """
        step_s = _number(env, STEP_S)
        smact = _number(env, SMACT)
        if smact is not None and smact > 1:
            raise UsageError(f"{SMACT} is `{env[SMACT]}`, must be from 0 to 1")
        return cls(smact=DEFAULT_SMACT if smact is None else smact, step_s=step_s)

    def stepped(self, gpus: ProcessGpus) -> None:
        """Called after an optimizer step."""
        members = [TrueActivity(None, self.smact), *(TrueActivity(None, smact) for smact in gpus.partners_smact())]
        speed = SmactPowerLaw().speeds(members)[0] if self.step_s is not None else 1.0
        gpus.work(smact=self.smact, utilization=1.0, speed=round(speed, 4))
        if self.step_s is None:
            return
        now_s = gpus.now_s()
        if self._began_s is not None:
            gpus.rest(self._began_s + self.step_s / speed - now_s)
        self._began_s = gpus.now_s()


def _number(env: Mapping[str, str], name: str) -> float | None:
    text = env.get(name, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise UsageError(f"{name} is `{text}`, wanted a number from 0")
    return value
