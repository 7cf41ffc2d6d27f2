"""How fast the attempts of a simulated world go: worked out anew for those whose company has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from cotenant.sim.engine.observations import Observations
from cotenant.sim.engine.sim_gpu import RunningAttempt, SimGpu
from cotenant.sim.engine.speeds import SpeedCache


class SpeedUpdater:
    """`next_at(at_s, live)` is to happen when an attempt has come to its `next_s`, unless its speed changes before."""

    def __init__(
        self, speeds: SpeedCache, shown: Observations, next_at: Callable[[float, RunningAttempt], None]
    ) -> None:
        self._speeds = speeds
        self._shown = shown
        self._next_at = next_at

    def rate(self, cards: Sequence[SimGpu], at_s: float) -> None:
        """New speeds for everybody on these GPUs; gangs drag what they show on their other GPUs along."""
        speeds = self._speeds
        gangs: dict[RunningAttempt, None] = {}
        for card in cards:
            company = card.company = speeds.of(card)
            for live, speed in zip(card.active, company.speeds, strict=True):
                if len(live.cards) > 1:
                    gangs[live] = None
                elif speed != live.speed:
                    self._change(live, speed, at_s)
        touched: Iterable[SimGpu] = cards
        for live in gangs:
            speed = _of_gang(live)
            if speed != live.speed:
                self._change(live, speed, at_s)
                touched = dict.fromkeys((*touched, *live.cards))
        for card in touched:
            card.advance(at_s)
            card.at_work = speeds.held_up(card) if gangs else card.company
            card.settle(at_s)
            if card.residents:
                self._shown.moves(card, at_s)

    def _change(self, live: RunningAttempt, speed: float, at_s: float) -> None:
        live.done_s += live.speed * (at_s - live.since_s)
        live.since_s = at_s
        live.speed = speed
        self.go_on(live, at_s)

    def go_on(self, live: RunningAttempt, at_s: float) -> None:
        """It works on from here, at its speed; what was to happen next to it holds no longer."""
        live.version += 1
        left_s = max(0.0, live.next_s - live.done_s)
        self._next_at(at_s + left_s / live.speed, live)


def _of_gang(live: RunningAttempt) -> float:
    """Each of its GPUs waits for the slowest, and for the network between them."""
    return min([card.company.speeds[card.active.index(live)] for card in live.cards]) * live.links
