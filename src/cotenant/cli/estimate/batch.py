"""`cotenant estimate --find-batch-size`: the largest batch that fits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cotenant.cli.estimate import text as estimate_text
from cotenant.cli.output import note
from cotenant.core.errors import CotenantError, TraceError
from cotenant.core.units import format_bytes

if TYPE_CHECKING:
    from cotenant.core.ports import EstimateRequest
    from cotenant.estimators.base import ExplainingEstimator
    from cotenant.estimators.batch_search import BatchSearch

_FIRST_BATCH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizeQuery:
    """The largest value of the script's `argument` whose bound is at most `limit_bytes`, by default the GPU's."""

    argument: str
    limit_bytes: int | None

    def search(
        self, request: EstimateRequest, estimator: ExplainingEstimator, *, json: bool
    ) -> tuple[EstimateRequest, BatchSearch]:
        """The request with the largest batch, and how it was found.

        Raises:
            CotenantError: not even the smallest batch fits.
        """
        from cotenant.estimators.batch_search import Trial, find_batch_size, value_of, with_value
        from cotenant.gpu_specs import gpu_spec

        script, *args = request.command
        limit = self.limit_bytes or gpu_spec(request.gpu).usable_bytes

        def with_batch(size: int) -> EstimateRequest:
            return replace(request, command=(script, *with_value(args, self.argument, size)))

        def show(trial: Trial) -> None:
            if not json:
                estimate_text.print_trial(self.argument, trial)

        def bound_of(size: int) -> int:
            result = estimator.explain(with_batch(size))
            if result.estimate.partial:
                # The script ended early, so this is a lower bound, from which no batch size is known to fit.
                why = next(iter(result.trace.warnings), "the script ended early")
                raise TraceError("raised", f"only a lower bound: {why}", hint="raise the limit with `--timeout`?")
            return result.fit.bound_bytes

        if not json:
            print(f"largest {self.argument} with a bound of {format_bytes(limit)} at most")
        given = value_of(args, self.argument)
        try:
            search = find_batch_size(
                bound_of,
                argument=self.argument,
                start=given or _FIRST_BATCH,
                limit_bytes=limit,
                on_trial=show,
            )
        except TraceError as error:
            if given is None and self.argument in error.log_tail:  # as argparse refuses what it does not know
                hint = f"does the script take `{self.argument}`? `--batch-arg=NAME` names its argument"
                raise TraceError(error.kind, error.message, hint=hint, log_tail=error.log_tail) from error
            raise
        if search.largest is None:
            raise _none_fits(search)
        if search.remark is not None:
            note(f"warning: {search.remark}")
        if not json:
            print()
        return with_batch(search.largest), search


def _none_fits(search: BatchSearch) -> CotenantError:
    known = [trial for trial in search.trials if trial.bound_bytes is not None]
    smallest = min(known, key=lambda trial: trial.batch_size)
    failed = next((trial for trial in search.trials if trial.batch_size < smallest.batch_size), None)
    also = "" if failed is None else f"; with {failed.batch_size}, {failed.problem}"
    is_flat = len(known) > 1 and len({trial.bound_bytes for trial in known}) == 1
    hint = "try `--what-if`, or a larger GPU: `--fits-on`"
    return CotenantError(
        f"no batch fits in {format_bytes(search.limit_bytes)}: with {smallest.batch_size} the bound is "
        f"{format_bytes(smallest.bound_bytes)}{also}",
        hint=f"`{search.argument}` changed nothing: `--batch-arg` names another; or {hint}" if is_flat else hint,
    )
