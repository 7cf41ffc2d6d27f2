"""What `cotenant estimate` can report of a trace besides the estimate: tables, a batch size, a plot, a snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotenant.cli import output_files
from cotenant.cli.estimate import json_output as estimate_json
from cotenant.cli.estimate import text as estimate_text
from cotenant.cli.estimate.batch import BatchSizeQuery
from cotenant.cli.options import flag, option
from cotenant.cli.output import note
from cotenant.cli.parameter_types import PATH, Parsed, number
from cotenant.core.errors import UsageError
from cotenant.core.units import parse_bytes

if TYPE_CHECKING:
    from cotenant.estimators.budget import Baseline
    from cotenant.estimators.traced_result import TracedResult


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateReports:
    """The reports that are wanted; every one of them needs a trace."""

    SECTION = "Reports"

    fits_on: bool = flag("--fits-on", help="List which known GPUs and MIG instances it fits on.")
    what_if: bool = flag("--what-if", help="List what allocator settings and 8-bit optimizer states would save.")
    utilization: bool = flag(
        "--utilization", help="Also show what its layers alone predict: SMACT and SMOCC on an A100; learned."
    )
    find_batch_size: bool = flag(
        "--find-batch-size", help="Find the largest batch size that fits, within 1 %; traces several times."
    )
    batch_arg: str = option(
        "--batch-arg",
        default="--batch-size",
        metavar="ARGUMENT",
        help="The script's argument for the batch size; write `--batch-arg=--batch`.",
    )
    memory_limit_bytes: int | None = option(
        "--memory-limit",
        type=Parsed("size", parse_bytes),
        metavar="SIZE",
        help="With --find-batch-size: memory that the bound may reach; by default the GPU's.",
    )
    budget_bytes: int | None = option(
        "--budget",
        type=Parsed("size", parse_bytes),
        metavar="SIZE",
        help="For CI: exit with 6 if the bound is larger, and print what is held at the peak.",
    )
    baseline: Path | None = option(
        "--baseline",
        type=PATH,
        metavar="FILE",
        help="List what changed at the peak since an earlier estimate, which `--json` printed into FILE.",
    )
    strict: float | None = option(
        "--strict",
        type=number(minimum=0, maximum=1),
        metavar="RATIO",
        help="For CI: exit with 6 if the margin is more than RATIO of the bound, e.g. 0.1, or a part of the script was "
        "not traced or runs otherwise on a GPU.",
    )
    plot: Path | None = option(
        "--plot", type=PATH, metavar="FILE", help="Plot memory over time (.png, .svg, .pdf); needs matplotlib."
    )
    snapshot: Path | None = option(
        "--snapshot", type=PATH, metavar="FILE", help="Write a pickle for https://pytorch.org/memory_viz."
    )

    html: Path | None = option(
        "--html", type=PATH, metavar="FILE", help="Write all of it as one HTML page, with memory over time."
    )

    @property
    def batch(self) -> BatchSizeQuery | None:
        """The search for a batch size, if one is wanted."""
        if not self.find_batch_size:
            return None
        return BatchSizeQuery(argument=self.batch_arg, limit_bytes=self.memory_limit_bytes)

    def first_option(self) -> str | None:
        """The first option given that needs a trace."""
        given = {
            "--fits-on": self.fits_on,
            "--what-if": self.what_if,
            "--utilization": self.utilization,
            "--find-batch-size": self.find_batch_size,
            "--budget": self.budget_bytes is not None,
            "--baseline": self.baseline,
            "--strict": self.strict is not None,
            "--plot": self.plot,
            "--snapshot": self.snapshot,
            "--html": self.html,
        }
        return next((name for name, value in given.items() if value), None)

    def check_options(self) -> None:
        """Refuse options that have no effect.

        Raises:
            UsageError: `--memory-limit` without `--find-batch-size`.
        """
        if self.memory_limit_bytes is not None and not self.find_batch_size:
            raise UsageError("`--memory-limit` needs `--find-batch-size`", hint="add it, or leave out the limit")

    def check_files(self, script: str) -> None:
        """Refuse files that cannot be read or written, or that are `script` itself, before it is traced."""
        self._read_baseline()
        for path in (self.plot, self.snapshot, self.html):
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
        """Print the tables that are wanted, unless `json`; their fields for the JSON value."""
        answer: dict[str, Any] = {}
        if self.fits_on:
            from cotenant.estimators.fit import capability_of

            fits = result.fits_on()
            answer["fits_on"] = [estimate_json.of_fit(fit) for fit in fits]
            if not json:
                estimate_text.print_fits(fits, capability_of(result.trace), gpus=len(result.gpus) or 1)
        if self.what_if:
            from cotenant.estimators.whatif import notes_on, what_if

            changes = what_if(result)
            answer["what_if"] = [estimate_json.of_change(change) for change in changes]
            if not json:
                estimate_text.print_changes(changes, result.fit, notes_on(changes))
        if self.baseline is not None:
            answer["changes"] = self._changes(result, json=json)
        if self.utilization:
            answer["utilization"] = _utilization(result, command, json=json)
        return answer

    def _changes(self, result: TracedResult, *, json: bool) -> dict[str, int]:
        """Requested bytes at the peak since the baseline, by part; unchanged ones are left out."""
        from cotenant.estimators.budget import change_report, parts_at_peak

        baseline = self._read_baseline()
        if baseline is None:
            return {}
        over_budget = self.budget_bytes is not None and result.estimate.bound_bytes > self.budget_bytes
        if not json and not over_budget:  # else the budget's report has them
            print(f"\n{change_report(result, baseline)}")
        now = parts_at_peak(result)
        changes = {name: now.get(name, 0) - baseline.parts.get(name, 0) for name in {**now, **baseline.parts}}
        return {name: change for name, change in changes.items() if change}

    def _read_baseline(self) -> Baseline | None:
        from cotenant.estimators.budget import Baseline

        return None if self.baseline is None else Baseline.read(self.baseline)

    def failed_checks(self, result: TracedResult) -> list[str]:
        """What `--budget` and `--strict` found; with `--baseline`, the budget's report says what changed since."""
        from cotenant.estimators.budget import budget_report, doubts

        found = [] if self.strict is None else [f"`--strict`: {text}" for text in doubts(result, self.strict)]
        baseline = self._read_baseline()
        parts = None if baseline is None else baseline.parts
        report = "" if self.budget_bytes is None else budget_report(result, self.budget_bytes, parts)
        return [*found, *([f"`--budget`: {report}"] if report else [])]

    def save_files(self, result: TracedResult, *, title: str) -> None:
        """Write the plot and the snapshot that are wanted."""
        if self.html is not None:
            from cotenant.estimators.estimate_page import estimate_page

            note(f"page in `{estimate_page(result, title).write(self.html)}`")
        if self.plot is None and self.snapshot is None:
            return
        from cotenant.estimators.allocation_history import allocation_history
        from cotenant.estimators.memory_viz import save_snapshot
        from cotenant.estimators.plot import save_plot

        of = f" of GPU {result.index}" if result.gpus else ""
        history = allocation_history(result.replay_input, result.capacity_bytes)
        if self.plot is not None:
            left = max(0, result.fit.usable_bytes - result.estimate.context_bytes)
            save_plot(self.plot, history, title=title + of, usable_bytes=left)
            note(f"plot in `{self.plot}`")
        if self.snapshot is not None:
            save_snapshot(self.snapshot, history, result.replay_input.stack)
            note(f"snapshot{of} in `{self.snapshot}`: open it at https://pytorch.org/memory_viz")


def _utilization(result: TracedResult, command: Sequence[str], *, json: bool) -> dict[str, Any] | None:
    """SMACT and SMOCC; None, with a note, if no model was trained on such networks."""
    from cotenant.estimators.learned.utilization import utilization_of
    from cotenant.estimators.trace_features import features_of

    try:
        found = utilization_of(result.trace, features_of(result.trace, command), result.replay_input.gpu)
    except UsageError as error:
        note(f"no utilization: {error.message}")
        return None
    if not json:
        is_part = result.estimate.smact is not None
        print(f"\n  {estimate_text.utilization_line(found.smact, found.smocc, is_part=is_part)}")
    for warning in found.warnings:
        note(f"warning: {warning}")
    return {"smact": found.smact, "smocc": found.smocc, "gpu": found.gpu, "warnings": list(found.warnings)}
