"""`cotenant estimate --find-batch-size`: the largest batch that fits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cotenant.cli import estimate_text
from cotenant.cli.output import note
from cotenant.core.errors import CotenantError, TraceError
from cotenant.core.units import format_bytes

if TYPE_CHECKING:
    from cotenant.core.ports import EstimateRequest
    from cotenant.estimators.batch_search import BatchSearch
    from cotenant.estimators.traced import TracedEstimator

_FIRST_BATCH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizeQuery:
    """What is sought: the most that `argument` of the script can be, below `limit_bytes` or, without, on the GPU."""

    argument: str
    limit_bytes: int | None

    def search(
        self, request: EstimateRequest, estimator: TracedEstimator, *, json: bool
    ) -> tuple[EstimateRequest, BatchSearch]:
        """The request with the largest batch, and how it was found.

        Raises:
            CotenantError: not even the smallest batch fits.
        """
        from cotenant.estimators.batch_search import Trial, find_batch_size, value_of, with_value
        from cotenant.estimators.replay_input import usable_bytes
        from cotenant.gpu_specs import gpu_spec

        script, *args = request.command
        limit = self.limit_bytes or usable_bytes(gpu_spec(request.gpu))

        def with_batch(size: int) -> EstimateRequest:
            return replace(request, command=(script, *with_value(args, self.argument, size)))

        def show(trial: Trial) -> None:
            if not json:
                estimate_text.print_trial(self.argument, trial)

        def bound_of(size: int) -> int:
            result = estimator.explain(with_batch(size))
            if result.estimate.partial:
                # What was seen until the script ended is a lower bound, and no batch is known to fit by one.
                why = next(iter(result.trace.warnings), "the script was not seen to its end")
                raise TraceError("raised", f"only a lower bound: {why}", hint="raise the limit with `--timeout`?")
            return result.fit.bound_bytes

        if not json:
            print(f"largest {self.argument} with a bound of {format_bytes(limit)} at most")
        search = find_batch_size(
            bound_of,
            argument=self.argument,
            start=value_of(args, self.argument) or _FIRST_BATCH,
            limit_bytes=limit,
            on_trial=show,
        )
        if search.largest is None:
            raise _none_fits(search)
        if search.remark is not None:
            note(f"warning: {search.remark}")
        if not json:
            print()
        return with_batch(search.largest), search


def _none_fits(search: BatchSearch) -> CotenantError:
    known = [each for each in search.trials if each.bound_bytes is not None]
    least = min(known, key=lambda each: each.batch_size)
    smaller = next((each for each in search.trials if each.batch_size < least.batch_size), None)
    also = "" if smaller is None else f"; with {smaller.batch_size}, {smaller.problem}"
    flat = len(known) > 1 and len({each.bound_bytes for each in known}) == 1
    hint = "try `--what-if`, or a larger GPU: `--fits-on`"
    return CotenantError(
        f"no batch fits in {format_bytes(search.limit_bytes)}: with {least.batch_size} the bound is "
        f"{format_bytes(least.bound_bytes)}{also}",
        hint=f"`{search.argument}` changed nothing: `--batch-arg` names another; or {hint}" if flat else hint,
    )
