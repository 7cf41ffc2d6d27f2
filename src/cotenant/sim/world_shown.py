"""What a policy in a simulated world is shown of the GPUs, and when it is worth another look.

A daemon reads every GPU once a second. Here a GPU is shown when somebody waits and it has changed: every reading of the
last window on a server, the mean since its newest attempt was seen on a cluster.
"""

from __future__ import annotations

import math
from typing import Any

from cotenant.core.gpu import GpuSnapshot
from cotenant.scheduling.interference import Activity
from cotenant.scheduling.policy import Placer
from cotenant.sim.events import EventQueue
from cotenant.sim.world_card import Card
from cotenant.sim.world_config import WorldConfig

FULL_READINGS_UP_TO = 64
"""GPUs; a larger cluster shows its policy mean activity, not every reading."""


class Shown:
    """Puts events of the kind `look` at the moments to look again; their subject is a card, or None for a timer."""

    def __init__(self, placing: Placer, events: EventQueue[Any], look: int, config: WorldConfig, gpus: int) -> None:
        self._placing = placing
        self._events = events
        self._look = look
        self._config = config
        self._full = gpus <= FULL_READINGS_UP_TO
        self._moving: dict[str, Card] = {}  # what they show changes from reading to reading
        self._changed: dict[str, Card] = {}  # the policy does not know yet
        self._stale: dict[str, Card] = {}  # the policy knows, but not their newest activity
        self._timers: set[float] = set()
        self._overdue = False

    def changed(self, card: Card) -> None:
        """It is not as the policy thinks, beyond what the policy did itself."""
        self._changed[card.gpu.uuid] = card

    def moves(self, card: Card, at_s: float) -> None:
        """Its activity changed: what it shows moves over the next window."""
        card.moved_s = self.shown_s(at_s)
        card.moves += 1
        if self._full:
            card.moving_until_s = card.moved_s + self._config.window_s + self._config.reading_s
            self._moving[card.gpu.uuid] = card
        self._look_again(card, at_s)

    def _look_again(self, card: Card, at_s: float) -> None:
        moved_s = card.moved_s
        for each in self._config.recheck_s:
            if moved_s + each > at_s:
                self._events.put(moved_s + each, self._look, card, card.moves)
                return

    @property
    def moving(self) -> bool:
        """Whether the policy may see something else from one moment to the next, though nothing happens."""
        return bool(self._moving) or self._overdue

    def looks(self, card: Card | None, version: int, at_s: float) -> bool:
        """One of the moments to look at a card, or a timer of the policy; False if the card has changed again since."""
        if card is None:
            self._timers.discard(at_s)
            return True
        if card.moves != version:
            return False
        self._stale[card.gpu.uuid] = card
        self._look_again(card, at_s)
        return True

    def wake(self, wakes_s: float | None, at_s: float) -> None:
        """The policy wants to be asked at `wakes_s`, whatever happens; or with the next event, if that is past."""
        self._overdue = wakes_s is not None and wakes_s <= at_s
        if wakes_s is not None and wakes_s > at_s and wakes_s not in self._timers:
            self._timers.add(wakes_s)
            self._events.put(wakes_s, self._look, None)

    def tell(self, at_s: float) -> None:
        """Tell the policy what it does not know."""
        for card in self._changed.values():
            self._placing.update(self.snapshot(card, at_s))
        self._changed.clear()
        if not self._full:
            for uuid, card in self._stale.items():
                if card.residents:
                    self._placing.activity(uuid, Activity(None, *card.mean_activity(at_s, self._config.window_s)))
            self._stale.clear()
            return
        for uuid, card in list(self._moving.items()):
            if card.moving_until_s < at_s:
                del self._moving[uuid]
            self._placing.update(self.snapshot(card, at_s))

    def snapshot(self, card: Card, at_s: float) -> GpuSnapshot:
        """A GPU as readings show it."""
        return card.snapshot(at_s, window_s=self._config.window_s, reading_s=self._config.reading_s)

    def shown_s(self, at_s: float) -> float:
        """The first reading that shows what happens at `at_s`."""
        return math.ceil(at_s / self._config.reading_s) * self._config.reading_s
