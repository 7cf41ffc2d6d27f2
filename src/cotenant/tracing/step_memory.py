"""How much memory the work of each optimizer step took, and whether the same work would take more in a later one.

A validation before the first step, or a regularization in it, has no gradients and states of an optimizer beside it.
When it comes again it has, so its peak is higher by what was left in memory since.
"""

from __future__ import annotations

_MIN_SHARE = 0.01  # of the peak: work that would exceed it by less is as it will be


class LiveRange:
    """Allocated bytes of all GPUs: `now`, and the least and the most since `restart`."""

    __slots__ = ("least", "most", "now")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Nothing is allocated."""
        self.now = self.least = self.most = 0

    def add(self, nbytes: int) -> None:
        """So many bytes are allocated, or freed if negative."""
        self.now += nbytes
        self.most = max(self.most, self.now)
        self.least = min(self.least, self.now)

    def restart(self) -> None:
        """Forget the range so far."""
        self.least = self.most = self.now


class StepMemory:
    """Memory of the steps so far; `live` counts what is allocated, and nobody else restarts it.

    Attributes:
        number: of the step that the script works for now, 0 before the training.
    """

    def __init__(self, live: LiveRange) -> None:
        self._live = live
        self._beside: list[int] = []  # allocated when the training began, and at least in each step
        self._peaks: list[int] = []  # of the work before the training, and of the work that each step follows
        self._peak_of_work = self._peak = 0

    @property
    def number(self) -> int:
        return len(self._peaks)

    def training_begins(self) -> None:
        """A model is about to run with gradients; the first such call counts."""
        if not self._peaks:
            self._add(self._live.most, self._live.now)

    def step_begins(self) -> None:
        """An optimizer is about to step."""
        self._peak_of_work = self._live.most

    def step_ends(self) -> None:
        """It has."""
        self._add(self._peak_of_work, self._live.least)

    def _add(self, peak: int, beside: int) -> None:
        self._peaks.append(peak)
        self._beside.append(beside)
        self._peak = max(self._peak, self._live.most)
        self._live.restart()

    def would_need_more(self, number: int) -> bool:
        """Whether the work of that step would raise the peak if it came again for the last one."""
        if number >= len(self._peaks):
            return False
        later = self._beside[-1] - self._beside[number]
        return self._peaks[number] + later > self._peak * (1 + _MIN_SHARE)
