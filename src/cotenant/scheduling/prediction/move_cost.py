"""What it costs to stop a job and to let it continue elsewhere, by the attempts of its workload."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cotenant.core.job import Attempt, Job
from cotenant.scheduling.checkpoints import is_moved, is_saved

ASSUMED_PART_S = 30.0
"""Assumed for saving the state, and for starting again, while nothing is known of it for any workload."""


class TypicalMove(NamedTuple):
    """What saving and starting take in the median over workloads."""

    save_s: float
    startup_s: float


ASSUMED_MOVE = TypicalMove(ASSUMED_PART_S, ASSUMED_PART_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveCost:
    """What a move of a workload costs.

    Attributes:
        save_s: from the signal to its end with its state saved, the median; None if it never was.
        startup_s: from a start until samples show it on a GPU, the median; None if not known.
        saves: stops after which its state was saved, of the newest; `unsaved`: moves after which it was not, in all.
        typical: stands for a part that is not known.
    """

    save_s: float | None = None
    startup_s: float | None = None
    saves: int = 0
    unsaved: int = 0
    typical: TypicalMove = ASSUMED_MOVE

    @property
    def seconds(self) -> float:
        """Saving and starting."""
        save_s = self.typical.save_s if self.save_s is None else self.save_s
        return save_s + (self.typical.startup_s if self.startup_s is None else self.startup_s)


def move_cost(saves_s: Sequence[float], startups_s: Sequence[float], unsaved: int, typical: TypicalMove) -> MoveCost:
    """The cost by what was recorded of a workload."""
    return MoveCost(
        save_s=_median(saves_s), startup_s=_median(startups_s), saves=len(saves_s), unsaved=unsaved, typical=typical
    )


def typical_move(
    saves_s: Iterable[Sequence[float]], startups_s: Iterable[Sequence[float]], *, pace: float
) -> TypicalMove:
    """The medians over workloads of their medians; `ASSUMED_PART_S` while no workload has one.

    `pace`: seconds of GPU time per second of the records.
    """
    parts_s = []
    for by_workload in (saves_s, startups_s):
        medians = [median for recorded in by_workload if (median := _median(recorded)) is not None]
        found = _median(medians)
        parts_s.append(ASSUMED_PART_S / pace if found is None else found)
    return TypicalMove(*parts_s)


def _median(values: Sequence[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None


def saving_s(attempt: Attempt) -> float | None:
    """How long it took to save its state; None if it did not."""
    return attempt.exit.stopping_s if attempt.exit is not None and is_saved(attempt) else None


def is_wasted(attempt: Attempt) -> bool:
    """Whether it was moved without its state: the work of the whole attempt is lost."""
    return is_moved(attempt) and not is_saved(attempt) and attempt.exit is not None and attempt.exit.exit_code != 0


def saved_before(job: Job, last: Attempt) -> Iterator[Attempt]:
    """The attempts whose work `last` continued, newest first: those just before it that saved their state."""
    for attempt in reversed(job.attempts[: last.number - 1]):
        if not is_saved(attempt):
            return
        yield attempt


def worked_s(earlier: Attempt, last: Attempt) -> float:
    """How long an attempt worked that saved its state, without what its move cost."""
    if earlier.started_at_s is None or earlier.ended_at_s is None:
        return 0.0
    return earlier.ended_at_s - earlier.started_at_s - (saving_s(earlier) or 0.0) - (last.startup_s or 0.0)
