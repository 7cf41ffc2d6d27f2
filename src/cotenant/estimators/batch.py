"""The largest batch that fits: a few traces of the same script with other values of one argument."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cotenant.core.errors import TraceError, UsageError
from cotenant.core.units import format_bytes

_MOST_TRIALS = 16
_SECANTS = 5
"""Trials after which what is left is halved at every other: the bound may be too uneven for a straight line."""
_GRAIN = 100
"""The answer is exact to this share of itself: to one example below 200, to 1 % above."""
_MOST_GROWTH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One batch size that was tried. `bound_bytes` is None, and `problem` told, where the script failed with it."""

    batch_size: int
    bound_bytes: int | None
    fits: bool
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSearch:
    """What the search found.

    Attributes:
        largest: the largest size that was traced and fits; None if not even 1 does.
        smallest_misfit: the smallest size that was traced and does not fit; None if every one fits.
        trials: in the order they were made.
    """

    argument: str
    limit_bytes: int
    largest: int | None
    smallest_misfit: int | None
    trials: tuple[Trial, ...]


def find_batch_size(
    bound_of: Callable[[int], int],
    *,
    argument: str,
    start: int,
    limit_bytes: int,
    on_trial: Callable[[Trial], None] = lambda _: None,
) -> BatchSearch:
    """Search from `start` on, along the line through two bounds; each trial is a call of `bound_of`.

    A script that fails with a large size (its data may be fewer) counts as one that does not fit.

    Raises:
        UsageError: memory does not depend on the argument.
        TraceError: of the first trial.
    """
    search = _Search(bound_of, limit_bytes, on_trial)
    first = search.attempt(start, may_fail=False)
    if first.fits:
        search.attempt(2 * start)
    elif start > 1:
        search.attempt(max(1, start // 2))
    if search.is_flat():
        search.attempt(8 * start)
    if search.is_flat():
        raise UsageError(
            f"`{argument}` does not change the memory: the bound is {format_bytes(first.bound_bytes)} with "
            f"{' and '.join(str(each.batch_size) for each in search.trials)}",
            hint="name the argument that sets the batch size with `--arg`",
        )
    while len(search.trials) < _MOST_TRIALS:
        guess = search.next_guess()
        if guess is None:
            break
        search.attempt(guess)
    return BatchSearch(
        argument=argument,
        limit_bytes=limit_bytes,
        largest=search.low.batch_size if search.low else None,
        smallest_misfit=search.high.batch_size if search.high else None,
        trials=tuple(search.trials),
    )


class _Search:
    """Trials so far, and between which two of them the answer lies."""

    def __init__(self, bound_of: Callable[[int], int], limit_bytes: int, on_trial: Callable[[Trial], None]) -> None:
        self.bound_of = bound_of
        self.limit_bytes = limit_bytes
        self.on_trial = on_trial
        self.trials: list[Trial] = []
        self.low: Trial | None = None
        self.high: Trial | None = None

    def attempt(self, size: int, *, may_fail: bool = True) -> Trial:
        try:
            bound = self.bound_of(size)
            trial = Trial(batch_size=size, bound_bytes=bound, fits=bound <= self.limit_bytes)
        except TraceError as error:
            if not may_fail:
                raise
            trial = Trial(batch_size=size, bound_bytes=None, fits=False, problem=error.message)
        self.trials.append(trial)
        if trial.fits:
            self.low = trial if self.low is None or size > self.low.batch_size else self.low
        else:
            self.high = trial if self.high is None or size < self.high.batch_size else self.high
        self.on_trial(trial)
        return trial

    def is_flat(self) -> bool:
        """More than one bound is known, and all are the same."""
        known = [each.bound_bytes for each in self.trials if each.bound_bytes is not None]
        return len(known) > 1 and len(set(known)) == 1

    def next_guess(self) -> int | None:
        """The size to try next; None if the answer is known."""
        if self.low is None:
            smallest = self.high.batch_size if self.high else 1
            return None if smallest == 1 else max(1, min(smallest - 1, self.on_line() or smallest // 2))
        low = self.low.batch_size
        grain = max(1, low // _GRAIN)
        if self.high is None:
            return max(low + grain, min(self.on_line() or 2 * low, _MOST_GROWTH * low))
        high = self.high.batch_size
        if high - low <= grain:
            return None
        halve = len(self.trials) > _SECANTS and len(self.trials) % 2 == 0
        line = None if halve else self.on_line()
        return min(max(line or (low + high) // 2, low + grain), high - 1)

    def on_line(self) -> int | None:
        """The size at which the line through the two trials around the limit, or nearest to it, reaches it."""
        known = [(each.bound_bytes, each.batch_size) for each in self.trials if each.bound_bytes is not None]
        near = sorted(known, key=lambda each: abs(each[0] - self.limit_bytes))
        below = [each for each in near if each[0] <= self.limit_bytes]
        above = [each for each in near if each[0] > self.limit_bytes]
        pair = (below[0], above[0]) if below and above else tuple(near[:2])
        if len(pair) < 2 or pair[0][0] == pair[1][0]:
            return None
        (bound_a, size_a), (bound_b, size_b) = pair
        per_byte = (size_b - size_a) / (bound_b - bound_a)
        return max(1, int(size_a + (self.limit_bytes - bound_a) * per_byte)) if per_byte > 0 else None


def value_of(args: Sequence[str], argument: str) -> int | None:
    """The number that `argument` has in `args` (`--batch-size 64`, `--batch-size=64`, `batch_size=64`), or None."""
    argument = argument.removesuffix("=")
    for i, each in enumerate(args):
        text = args[i + 1] if each == argument and i + 1 < len(args) else None
        if each.startswith(f"{argument}="):
            text = each[len(argument) + 1 :]
        if text is not None and text.isdecimal() and int(text) > 0:
            return int(text)
    return None


def with_value(args: Sequence[str], argument: str, value: int) -> tuple[str, ...]:
    """`args` with `argument` set to `value` wherever it stands, else at the end; a last `=` of it joins them there."""
    name = argument.removesuffix("=")
    found = list(args)
    hits = 0
    for i, each in enumerate(args):
        if each == name and i + 1 < len(args):
            found[i + 1] = str(value)
            hits += 1
        elif each.startswith(f"{name}="):
            found[i] = f"{name}={value}"
            hits += 1
    if not hits:
        found += [name, str(value)] if name == argument and name.startswith("-") else [f"{name}={value}"]
    return tuple(found)
