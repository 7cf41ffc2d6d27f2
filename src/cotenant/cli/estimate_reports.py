"""What `cotenant estimate` can tell of a trace beside the estimate: tables, a plot, a snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotenant.cli import estimate_json, estimate_text, output_files
from cotenant.cli.estimate_batch import BatchSizeQuery
from cotenant.cli.output import note
from cotenant.core.errors import UsageError

if TYPE_CHECKING:
    from cotenant.estimators.traced import TracedResult


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateReports:
    """What is asked for; every one of them needs a trace."""

    fits_on: bool
    what_if: bool
    utilization: bool
    plot: Path | None
    snapshot: Path | None
    batch: BatchSizeQuery | None

    def first_option(self) -> str | None:
        """The first option given that needs a trace."""
        given = {
            "--fits-on": self.fits_on,
            "--what-if": self.what_if,
            "--utilization": self.utilization,
            "--plot": self.plot,
            "--snapshot": self.snapshot,
            "--find-batch-size": self.batch,
        }
        return next((name for name, value in given.items() if value), None)

    def check_files(self, script: str) -> None:
        """Refuse what could not be written, or would be `script` itself, before it is run for that."""
        for path in (self.plot, self.snapshot):
            if path is None:
                continue
            output_files.check(path)
            if path.exists() and Path(script).exists() and path.samefile(script):
                raise UsageError(
                    f"cannot write `{path}`: it is the script, and would be overwritten", hint="name another file"
                )
        if self.plot is not None:
            from cotenant.estimators.plot import new_figure

            new_figure(self.plot)

    def tables(self, result: TracedResult, command: Sequence[str], *, json: bool) -> dict[str, Any]:
        """The tables asked for: printed, or given for the JSON value."""
        told: dict[str, Any] = {}
        if self.fits_on:
            from cotenant.estimators.fit import capability_of

            fits = result.fits_on()
            told["fits_on"] = [estimate_json.of_fit(each) for each in fits]
            if not json:
                estimate_text.print_fits(fits, capability_of(result.trace), gpus=len(result.gpus) or 1)
        if self.what_if:
            from cotenant.estimators.whatif import NOT_COMPUTED, what_if

            changes = what_if(result)
            told["what_if"] = [estimate_json.of_change(each) for each in changes]
            if not json:
                estimate_text.print_changes(changes, result.fit, NOT_COMPUTED)
        if self.utilization:
            told["utilization"] = _utilization(result, command, json=json)
        return told

    def save_files(self, result: TracedResult, *, title: str) -> None:
        """The plot and the snapshot, as far as they are asked for."""
        if self.plot is None and self.snapshot is None:
            return
        from cotenant.estimators.allocation_history import allocation_history
        from cotenant.estimators.memory_viz import save_snapshot
        from cotenant.estimators.plot import save_plot

        of = f" of GPU {result.index}" if result.gpus else ""
        history = allocation_history(result.scene, result.capacity_bytes)
        if self.plot is not None:
            left = max(0, result.fit.usable_bytes - result.estimate.context_bytes)
            save_plot(self.plot, history, title=title + of, usable_bytes=left)
            note(f"drawn in `{self.plot}`")
        if self.snapshot is not None:
            save_snapshot(self.snapshot, history, result.scene.stack)
            note(f"snapshot{of} in `{self.snapshot}`: open it at https://pytorch.org/memory_viz")


def _utilization(result: TracedResult, command: Sequence[str], *, json: bool) -> dict[str, Any] | None:
    """SMACT and SMOCC, printed or given; None, with a note, where nothing was learned of such a network."""
    from cotenant.estimators.learned.utilization import utilization_of
    from cotenant.estimators.trace_features import features_of

    try:
        found = utilization_of(result.trace, features_of(result.trace, command))
    except UsageError as error:
        note(f"no utilization: {error.message}")
        return None
    if not json:
        print(f"\n  {estimate_text.utilization_line(found.smact, found.smocc)}")
    for warning in found.warnings:
        note(f"warning: {warning}")
    return {"smact": found.smact, "smocc": found.smocc, "gpu": found.gpu, "warnings": list(found.warnings)}
