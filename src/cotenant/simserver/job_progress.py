"""Work done by a fake job: exact, however rarely it is computed.

A module of its own: arithmetic on virtual time, tested without processes.
"""

from __future__ import annotations

from collections.abc import Sequence

from cotenant.sim.interference import Interference, TrueActivity
from cotenant.simserver.gpu import ActivityChange


class JobProgress:
    """Work done in seconds of the job alone, from the changes that its GPUs recorded.

    A job on several GPUs runs at the speed of the slowest. `solo_speed`: its speed without neighbors, below 1 on a MIG
    instance.
    """

    def __init__(
        self, interference: Interference, keys: Sequence[str], *, since_s: float, solo_speed: float = 1.0
    ) -> None:
        self._interference = interference
        self._solo_speed = solo_speed
        self._keys = tuple(keys)  # of the job, one per GPU
        self.at_s = since_s
        self.done_s = 0.0
        self.speed = 1.0

    def advance(self, histories: Sequence[Sequence[ActivityChange]], until_s: float) -> None:
        """Add the work since the last call up to `until_s`; `histories` has the changes of each of its GPUs."""
        moments = {change.at_s for history in histories for change in history if self.at_s < change.at_s < until_s}
        for moment_s in [*sorted(moments), until_s]:
            self.speed = self._speed_at(histories, self.at_s)
            self.done_s += self.speed * max(0.0, moment_s - self.at_s)
            self.at_s = max(self.at_s, moment_s)
        self.speed = self._speed_at(histories, until_s)

    def _speed_at(self, histories: Sequence[Sequence[ActivityChange]], at_s: float) -> float:
        return self._solo_speed * min(
            self._gpu_speed(history, key, at_s) for history, key in zip(histories, self._keys, strict=True)
        )

    def _gpu_speed(self, history: Sequence[ActivityChange], own_key: str, at_s: float) -> float:
        now = next((change for change in reversed(history) if change.at_s <= at_s), history[0])
        keys = [key for key, _, _ in now.active]
        if own_key not in keys:
            return 1.0
        speeds = self._interference.speeds([TrueActivity(label or None, smact) for _, label, smact in now.active])
        return speeds[keys.index(own_key)]
