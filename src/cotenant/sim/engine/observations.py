"""What a policy in a simulated world is shown of the GPUs, and when it is worth another look.

A daemon reads every GPU once a second. Here a GPU is shown when somebody waits and it has changed: every reading of the
last window on a server, the mean since its newest attempt was seen on a cluster.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from cotenant.core.gpu import GpuSnapshot
from cotenant.scheduling.placement.policy import Placer
from cotenant.scheduling.prediction.interference import GpuActivity
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.engine.sim_gpu import SimGpu

MAX_GPUS_WITH_READINGS = 64
"""GPUs; a larger cluster shows its policy mean activity, not every reading."""


class Observations:
    """Tells the policy of GPUs; `wake_at` lets the world ask it at a time at which nothing else may happen.

    Attributes:
        next_look_s: when a GPU that has changed is worth another look, which matters if somebody waits then; infinite
            for never.
    """

    def __init__(self, placing: Placer, wake_at: Callable[[float], None], config: SimulationConfig, gpus: int) -> None:
        self._placing = placing
        self._wake_at = wake_at
        self._config = config
        self._reading_s = config.reading_s
        self._full = gpus <= MAX_GPUS_WITH_READINGS
        self._moving: dict[str, SimGpu] = {}  # what they show changes from reading to reading
        self._changed: dict[str, SimGpu] = {}  # the policy does not know yet
        self._stale: dict[SimGpu, None] = {}  # the policy knows, but not their newest activity
        self._wakes: set[float] = set()
        self._overdue = False
        self._after_s = sorted(config.recheck_s)
        # For each of these delays, in the order of time: when, whom, and the count of changes after which that holds.
        self._looks: list[deque[tuple[float, SimGpu, int]]] = [deque() for _ in self._after_s]
        self.next_look_s = math.inf

    def changed(self, card: SimGpu) -> None:
        """It is not as the policy thinks, beyond what the policy did itself."""
        self._changed[card.gpu.uuid] = card

    def moves(self, card: SimGpu, at_s: float) -> None:
        """Its activity changed: what it shows moves over the next window."""
        card.moved_s = self.shown_s(at_s)
        card.moves += 1
        if self._full:
            card.moving_until_s = card.moved_s + self._config.window_s + self._reading_s
            self._moving[card.gpu.uuid] = card
        self._look_later(card, at_s)

    def _look_later(self, card: SimGpu, at_s: float, first: int = 0) -> None:
        """After the first of the delays from that number on which is not over yet."""
        moved_s, after_s = card.moved_s, self._after_s
        for number in range(first, len(after_s)):
            due_s = moved_s + after_s[number]
            if due_s > at_s:
                self._looks[number].append((due_s, card, card.moves))
                self.next_look_s = min(self.next_look_s, due_s)
                return

    def look(self, at_s: float) -> bool:
        """The moments to look at GPUs up to `at_s` have come; False if all those have changed again since."""
        anything = False
        stale, last = self._stale, len(self._looks) - 1
        # Those of longer delays changed earlier, and so each queue stays in the order of time.
        for number in range(last, -1, -1):
            looks = self._looks[number]
            while looks and looks[0][0] <= at_s:
                _, card, moves = looks.popleft()
                if card.moves == moves:
                    anything = True
                    stale[card] = None
                    if number < last:
                        self._look_later(card, at_s, number + 1)
        next_s = math.inf
        for looks in self._looks:
            if looks and looks[0][0] < next_s:
                next_s = looks[0][0]
        self.next_look_s = next_s
        return anything

    @property
    def moving(self) -> bool:
        """Whether the policy may see something else from one moment to the next, though nothing happens."""
        return bool(self._moving) or self._overdue

    def wake(self, wakes_s: float | None, at_s: float) -> None:
        """The policy wants to be asked at `wakes_s`, whatever happens; or with the next event, if that is past."""
        self._overdue = wakes_s is not None and wakes_s <= at_s
        if wakes_s is not None and wakes_s > at_s and wakes_s not in self._wakes:
            self._wakes.add(wakes_s)
            self._wake_at(wakes_s)

    def woke(self, at_s: float) -> None:
        """That time has come."""
        self._wakes.discard(at_s)

    def tell(self, at_s: float) -> None:
        """Tell the policy what it does not know."""
        if self._changed:
            for card in self._changed.values():
                self._placing.update(self.snapshot(card, at_s))
            self._changed.clear()
        if self._full:
            for uuid, card in list(self._moving.items()):
                if card.moving_until_s < at_s:
                    del self._moving[uuid]
                self._placing.update(self.snapshot(card, at_s))
        elif self._stale:
            window_s, activity = self._config.window_s, self._placing.activity
            for card in self._stale:
                if card.residents:
                    activity(card.gpu.uuid, GpuActivity(None, *card.mean_activity(at_s, window_s)))
            self._stale.clear()

    def snapshot(self, card: SimGpu, at_s: float) -> GpuSnapshot:
        """A GPU as readings show it."""
        return card.snapshot(at_s, window_s=self._config.window_s, reading_s=self._reading_s)

    def shown_s(self, at_s: float) -> float:
        """The first reading that shows what happens at `at_s`."""
        return math.ceil(at_s / self._reading_s) * self._reading_s
