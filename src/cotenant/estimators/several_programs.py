"""A shell script that starts several Python programs: the answer is that of the program that needs most.

They run one after the other, as far as reading the script shows, so the job needs as much as the largest. Programs that
prepare data or evaluate have no estimate; neither has one that needs a file that an earlier one writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from cotenant.core.errors import CotenantError, TraceError, UsageError
from cotenant.core.units import format_bytes
from cotenant.estimators.traced_result import TracedResult
from cotenant.tracing.process.shell_script import ResolvedCommand

_MAX_LISTED = 3
_NO_TRAINING = frozenset({"no-step", "no-cuda"})


def largest(commands: Sequence[ResolvedCommand], explain: Callable[[ResolvedCommand], TracedResult]) -> TracedResult:
    """The result with the largest bound, and a warning with what is known of the others.

    It is partial if a program that may train has none, or was not traced.

    Raises:
        TraceError, UsageError: no program has a result; the error is of the first that may train.
    """
    if len(commands) == 1:
        return explain(commands[0])
    results: dict[int, TracedResult] = {}
    errors: dict[int, CotenantError] = {}
    untraced = [command.where for command in commands if not command.is_traced]
    for place, command in enumerate(commands):
        if not command.is_traced:
            continue
        try:
            results[place] = explain(command)
        except (TraceError, UsageError) as error:
            errors[place] = error
    failed = [error for error in errors.values() if not has_no_training(error)]
    if not results:
        raise (failed or list(errors.values()))[0]
    best = max(results, key=lambda place: results[place].estimate.bound_bytes)
    others = [
        f"{command.where} ({_outcome(results.get(place), errors.get(place))})"
        for place, command in enumerate(commands)
        if place != best and command.is_traced
    ]
    if untraced:
        listed = ", ".join([*untraced[:_MAX_LISTED], *(["..."] if len(untraced) > _MAX_LISTED else [])])
        others.append(f"{len(untraced)} that were not traced ({listed})")
    note = (
        f"the answer is for {commands[best].where}, one of {len(commands)} programs; it does not count "
        f"{', '.join(others)}; for another, give its command in place of the script's, and add those that run at once"
    )
    found = results[best]
    estimate = replace(
        found.estimate,
        warnings=(note, *found.estimate.warnings),
        partial=found.estimate.partial or bool(failed or untraced),
    )
    return replace(found, estimate=estimate)


def has_no_training(error: CotenantError) -> bool:
    """Whether a program has no estimate because it trains nothing, so that its job needs no memory for it."""
    return isinstance(error, TraceError) and error.kind in _NO_TRAINING


def _outcome(result: TracedResult | None, error: CotenantError | None) -> str:
    if result is not None:
        return f"bound {format_bytes(result.estimate.bound_bytes)}"
    return "no estimate" if error is None else f"no estimate: {error.message}"
