"""The largest batch size that fits, from a few traces of the script with other values of one argument."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cotenant.core.errors import TraceError, UsageError
from cotenant.core.units import format_bytes

_MAX_TRIALS = 16
_SECANTS = 5
"""After so many trials every other one bisects: the bound may be too uneven for a straight line."""
_GRAIN = 100
"""The answer is exact to this share of itself: to one example below 200, to 1 % above."""
_MAX_GROWTH = 16
_PLATEAU = 256
"""Memory that does not change for a batch so many times larger no longer follows the batch. A smaller factor proves
nothing: the tensors of a few small examples share segments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One batch size that was tried. Without a complete trace `bound_bytes` is None and `problem` says why."""

    batch_size: int
    bound_bytes: int | None
    fits: bool
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSearch:
    """The result of a search.

    Attributes:
        largest: the largest size that was traced and fits; None if not even 1 does. Where memory stops growing with
            the size, the smallest of those that take the same.
        smallest_misfit: the smallest size that was traced and does not fit; None if every one fits.
        trials: in the order they were made.
        remark: why `largest` is not simply the last size before memory runs out; None where it is.
    """

    argument: str
    limit_bytes: int
    largest: int | None
    smallest_misfit: int | None
    trials: tuple[Trial, ...]
    remark: str | None = None


def find_batch_size(
    bound_of: Callable[[int], int],
    *,
    argument: str,
    start: int,
    limit_bytes: int,
    on_trial: Callable[[Trial], None] = lambda _: None,
) -> BatchSearch:
    """Search from `start`, along the line through two bounds; each trial calls `bound_of`.

    A script that fails with a large size (its data set may be smaller) counts as one that does not fit.

    Raises:
        UsageError: memory does not depend on the argument.
        TraceError: the first trial failed.
    """
    search = _Search(bound_of, limit_bytes, on_trial)
    first = search.attempt(start, may_fail=False)
    if first.fits:
        search.attempt(2 * start)
        for factor in (8, _PLATEAU):
            if search.is_flat() and search.high is None:
                search.attempt(factor * start)
        if search.is_flat() and search.high is None:
            raise _useless(argument, search.known)
    elif start > 1:
        search.attempt(max(1, start // 2))
        if search.is_flat() and search.smallest > 1:
            search.attempt(1)
    while len(search.trials) < _MAX_TRIALS and search.plateau() is None:
        guess = search.next_guess()
        if guess is None:
            break
        search.attempt(guess)
    largest = search.plateau() or search.low
    return BatchSearch(
        argument=argument,
        limit_bytes=limit_bytes,
        largest=largest.batch_size if largest else None,
        smallest_misfit=search.high.batch_size if search.high else None,
        trials=tuple(search.trials),
        remark=search.remark(),
    )


def _useless(argument: str, trials: Sequence[Trial]) -> UsageError:
    return UsageError(
        f"`{argument}` does not change the memory: the bound is {format_bytes(trials[0].bound_bytes)} with "
        f"{' and '.join(str(trial.batch_size) for trial in trials)}",
        hint="name the argument that sets the batch size with `--batch-arg`",
    )


class _Search:
    """The trials so far, and the two of them that enclose the answer."""

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

    @property
    def known(self) -> list[Trial]:
        """Trials whose bound is known."""
        return [trial for trial in self.trials if trial.bound_bytes is not None]

    @property
    def smallest(self) -> int:
        return min(trial.batch_size for trial in self.trials)

    def is_flat(self) -> bool:
        """More than one bound is known, and all are the same."""
        return len(self.known) > 1 and len({name.bound_bytes for name in self.known}) == 1

    def plateau(self) -> Trial | None:
        """The first trial from which memory no longer grows; None if it grows, or if that is unknown."""
        if self.high is not None or self.low is None:
            return None
        same = [name for name in self.known if name.bound_bytes == self.low.bound_bytes]
        first = min(same, key=lambda trial: trial.batch_size)
        return first if self.low.batch_size >= _PLATEAU * first.batch_size else None

    def remark(self) -> str | None:
        """See `BatchSearch`."""
        flat, low, high = self.plateau(), self.low, self.high
        if flat is not None:
            return f"from {flat.batch_size} on, larger batches take no more memory: do the data end there?"
        if low is None:
            return None
        if high is None:
            return f"larger ones than {low.batch_size} may fit: the search ended after {len(self.trials)} trials"
        rest = high.batch_size - low.batch_size
        if rest > max(1, low.batch_size // _GRAIN):
            limits = f"between {low.batch_size} and {high.batch_size} nothing is known: the search ended"
            return f"{limits} after {len(self.trials)} trials"
        if high.problem is not None:
            return f"with {high.batch_size} it is not memory that is missing: {high.problem}"
        return None

    def next_guess(self) -> int | None:
        """The size to try next; None if the answer is known."""
        if self.low is None:
            smallest = self.high.batch_size if self.high else 1
            return None if smallest == 1 else max(1, min(smallest - 1, self.on_line() or smallest // 2))
        low = self.low.batch_size
        grain = max(1, low // _GRAIN)
        if self.high is None:
            most = _MAX_GROWTH * low
            return max(low + grain, min(self.on_line() or most, most))
        high = self.high.batch_size
        if high - low <= grain:
            return None
        halve = len(self.trials) > _SECANTS and len(self.trials) % 2 == 0
        line = None if halve else self.on_line()
        if line is not None and line >= high and self.high.bound_bytes is None:
            line = None  # the line predicts memory, and memory is not the limit here
        return min(max(line or (low + high) // 2, low + grain), high - 1)

    def on_line(self) -> int | None:
        """The size at which the line through the two trials around the limit, or nearest to it, reaches it."""
        known = [(trial.bound_bytes, trial.batch_size) for trial in self.trials if trial.bound_bytes is not None]
        near = sorted(known, key=lambda point: abs(point[0] - self.limit_bytes))
        below = [row for row in near if row[0] <= self.limit_bytes]
        above = [row for row in near if row[0] > self.limit_bytes]
        pair = (below[0], above[0]) if below and above else tuple(near[:2])
        if len(pair) < 2 or pair[0][0] == pair[1][0]:
            return None
        (bound_a, size_a), (bound_b, size_b) = pair
        per_byte = (size_b - size_a) / (bound_b - bound_a)
        return max(1, int(size_a + (self.limit_bytes - bound_a) * per_byte)) if per_byte > 0 else None


def value_of(args: Sequence[str], argument: str) -> int | None:
    """The number that `argument` has in `args` (`--batch-size 64`, `--batch-size=64`, `batch_size=64`), or None."""
    argument = argument.removesuffix("=")
    for i, arg in enumerate(args):
        text = args[i + 1] if arg == argument and i + 1 < len(args) else None
        if arg.startswith(f"{argument}="):
            text = arg[len(argument) + 1 :]
        if text is not None and text.isdecimal() and int(text) > 0:
            return int(text)
    return None


def with_value(args: Sequence[str], argument: str, value: int) -> tuple[str, ...]:
    """`args` with `argument` set to `value` wherever it stands, else at the end; a last `=` of it joins them there."""
    name = argument.removesuffix("=")
    found = list(args)
    hits = 0
    for i, arg in enumerate(args):
        if arg == name and i + 1 < len(args):
            found[i + 1] = str(value)
            hits += 1
        elif arg.startswith(f"{name}="):
            found[i] = f"{name}={value}"
            hits += 1
    if not hits:
        found += [name, str(value)] if name == argument and name.startswith("-") else [f"{name}={value}"]
    return tuple(found)
