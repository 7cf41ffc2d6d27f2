"""Results of the rows of `ground_truth.py`, and their error tables."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.estimator.ground_truth_rows import Group, Row
from cotenant.core.stats import quantile
from cotenant.core.units import MiB
from cotenant.demo.accuracy import signed_error
from cotenant.gpu_specs import gpu_spec

WORST = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The estimate of a row.

    Attributes:
        reserved_bytes: predicted peak; of a GPU without memory limit if the job does not fit; `unlimited_bytes`: of
            such a GPU in any case.
        spread_bytes: upper end of the estimate's interval - `unlimited_bytes`; `split_bytes`: as in `ReservedRange`.
        retried: the job fits only after the allocator released its cache, or not at all.
        family: the family whose errors determine the margin.
        oom: whether the estimator predicts that the job does not fit.
        problem: why there is no estimate, or None.
        traced_at: the commit that made the trace.
    """

    row: Row
    reserved_bytes: int = 0
    allocated_bytes: int = 0
    margin_bytes: int = 0
    parameter_bytes: int = 0
    unlimited_bytes: int = 0
    spread_bytes: int = 0
    split_bytes: int = 0
    retried: bool = False
    family: str = ""
    oom: bool = False
    problem: str | None = None
    traced_at: str = ""
    elapsed_s: float = 0.0

    @property
    def peak_bytes(self) -> int:
        """The predicted peak of the quantity that was measured."""
        return self.allocated_bytes if self.row.quantity == "allocated" else self.reserved_bytes


def commonest(values: Sequence[int]) -> int:
    """The value with the most neighbors within 2 MiB, if these are a third of `values`.

    Else the lower median of the first half: with `values` in the order of the estimates, errors grow with them.
    """
    middle = int(statistics.median(values))
    near = {value: sum(abs(value - other) <= 2 * MiB for other in values) for value in values}
    best = max(values, key=lambda value: (near[value], -abs(value - middle)))
    if near[best] >= max(2, len(values) / 3):
        return best
    return statistics.median_low(values[: (len(values) + 1) // 2])


def outside_of(results: Sequence[Result]) -> dict[str, int]:
    """Loaded libraries -> the constant beside reserved bytes, fitted to these rows."""
    left: dict[str, list[int]] = {}
    for result in sorted(results, key=lambda result: result.peak_bytes):
        if not result.row.doubt:
            left.setdefault(result.row.loads, []).append(result.row.measured_bytes - result.peak_bytes)
    return {loads: commonest(values) for loads, values in left.items()}


def split(results: Sequence[Result], fitted: int | None) -> tuple[list[Result], list[Result]]:
    """(The first `fitted` results with an estimate, the others); with None all are in the second list."""
    done = [result for result in results if result.problem is None]
    return (done[:fitted], done[fitted:]) if fitted is not None else ([], done)


def error_line(title: str, errors: Sequence[float]) -> str:
    """One table row: absolute relative errors, and the share of low estimates."""
    if not errors:
        return f"| {title} | 0 | | | | | | | |"
    sizes = [abs(error) for error in errors]
    numbers = [
        statistics.median(sizes),
        statistics.fmean(sizes),
        *(quantile(sizes, p) for p in (0.9, 0.95)),
        max(sizes),
    ]
    low = sum(error < 0 for error in errors) / len(errors)
    far = sum(error < -0.01 for error in errors) / len(errors)
    return (
        f"| {title} | {len(errors)} | "
        + " | ".join(f"{number:.2%}" for number in numbers)
        + f" | {low:.0%} | {far:.1%} |"
    )


def score_lines(scored: Sequence[Result], outside: Mapping[str, int]) -> list[str]:
    """Errors of the rows that ran: ours and those of two baselines."""
    ran = [result for result in scored if not result.row.measured_oom]
    if not ran:
        return ["No row to score."]
    truth = [result.row.measured_bytes for result in ran]
    mean = statistics.fmean(truth)
    pairs: dict[str, list[float]] = {
        "cotenant": [result.peak_bytes + outside[result.row.loads] for result in ran],
        "16 bytes per parameter": [4 * result.parameter_bytes + outside[result.row.loads] for result in ran],
        "mean of these rows": [mean] * len(ran),
    }
    lines = [
        "| absolute relative error | rows | median | mean | P90 | P95 | max | low | low by > 1 % |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for title, values in pairs.items():
        errors = [signed_error(value, true) for value, true in zip(values, truth, strict=True)]
        lines.append(error_line(title, errors))
    lines += beyond_weights_lines(ran, outside)
    lines += other_error_lines(ran)
    within = sum(abs(value - true) <= 2 * MiB for value, true in zip(pairs["cotenant"], truth, strict=True))
    printed = [
        (result.row.readings, value)
        for result, value in zip(ran, pairs["cotenant"], strict=True)
        if result.row.readings is not None
    ]
    as_printed = sum(low <= value <= high for (low, high), value in printed)
    missed = [result for result in ran if result.row.measured_bytes > bound(result, outside)]
    margin = statistics.fmean(result.margin_bytes / (result.peak_bytes + outside[result.row.loads]) for result in ran)
    lines += [
        "",
        f"Within 2 MiB: {within} of {len(ran)}.",
        *([f"Within what the printed number may mean: {as_printed} of {len(printed)}."] if printed else []),
        f"Measured peak above our bound: {len(missed)} of {len(ran)}, with a mean margin of {margin:.1%}.",
    ]
    return lines


def beyond_weights_lines(ran: Sequence[Result], outside: Mapping[str, int]) -> list[str]:
    """Errors of the rows whose reading may lack the weights: from the reading, and beyond that range."""
    found = [result for result in ran if result.row.may_lack_weights]
    if not found:
        return []
    plain, beyond = [], []
    for result in found:
        estimated, true = result.peak_bytes + outside[result.row.loads], result.row.measured_bytes
        nearest = min(max(estimated, true), true + result.parameter_bytes)
        plain.append(signed_error(estimated, true))
        beyond.append((estimated - nearest) / true)
    title = "cotenant, rows whose reading may lack the weights"
    return [error_line(title, plain), error_line(f"{title}: beyond them", beyond)]


def others_of(results: Sequence[Result]) -> list[str]:
    """Names of the estimators recorded with these rows, in the order of the rows' columns."""
    return list(dict.fromkeys(name for result in results for name in result.row.others))


def other_error_lines(ran: Sequence[Result]) -> list[str]:
    """Errors of the recorded estimators, each on the rows that it says fit; published errors have no sign."""
    lines = []
    for name in others_of(ran):
        found = [(result.row.others[name], result.row.measured_bytes) for result in ran if name in result.row.others]
        errors = [signed_error(other.estimated_bytes, measured) for other, measured in found if not other.oom]
        lines.append(error_line(f"{name}, recorded", errors))
    for name in dict.fromkeys(name for result in ran for name in result.row.other_errors):
        sizes = [result.row.other_errors[name] for result in ran if name in result.row.other_errors]
        lines.append(f"{error_line(f'{name}, published', sizes).rsplit('|', 3)[0]}| | |")
    return lines


def other_failure_lines(scored: Sequence[Result]) -> list[str]:
    """Failures of the recorded estimators: wrong predictions of OOM, and recorded second runs that ran out of memory.

    A third column has the rule of `failure_lines` in place of the recorded second runs.
    """
    names = others_of(scored)
    if not names:
        return []
    lines = [
        "",
        "| recorded estimator | rows | wrong OOM predictions | PEF, as recorded | PEF, by the measured peak |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name in names:
        found = [(result.row.others[name], result.row) for result in scored if name in result.row.others]
        wrong = sum(other.oom != row.measured_oom for other, row in found)
        fits = [(other, row) for other, row in found if not other.oom and not row.measured_oom]
        recorded = sum(bool(other.second_oom) for other, _ in fits)
        above = sum(cap_of(other.estimated_bytes, row.gpu) < row.measured_bytes for other, row in fits)
        shares = (f"{(failed + wrong) / len(found):.1%}" for failed in (recorded, above))
        lines.append(f"| {name} | {len(found)} | {wrong} | {' | '.join(shares)} |")
    return [*lines, ""]


def cap_of(requested_bytes: int, gpu: str) -> float:
    """The cap of a second run, as xMem sets it: a whole percentage of the GPU."""
    known = gpu_spec(gpu)
    total = known.torch_total_bytes or known.memory_total_bytes
    return round(min(requested_bytes / total, 1.0), 2) * total


def bound(result: Result, outside: Mapping[str, int]) -> int:
    """The bound of this row including the fitted constant."""
    return result.peak_bytes + outside[result.row.loads] + result.margin_bytes


def failure_lines(scored: Sequence[Result], outside: Mapping[str, int]) -> list[str]:
    """Wrong OOM predictions, and runs that would fail if capped at the estimate (xMem's PEF metric).

    xMem caps a second run at the estimate, rounded to 1 % of the GPU, if both runs and the estimator agree that the
    job fits. Here the second run is not executed: it counts as failed if the measured peak exceeds the cap. That
    overestimates failures, since a capped allocator can squeeze a job into slightly less.
    """
    wrong = [result.row.title for result in scored if result.oom != result.row.measured_oom]
    fits = [result for result in scored if not result.oom and not result.row.measured_oom]
    lines = [f"Wrong OOM predictions: {len(wrong)} of {len(scored)}" + (f" ({'; '.join(wrong)})." if wrong else ".")]
    for title, with_margin in (("estimate", 0), ("bound", 1)):
        failed = 0
        for fit in fits:
            kernels = outside[fit.row.loads]
            requested = fit.peak_bytes + kernels + with_margin * fit.margin_bytes
            failed += cap_of(requested, fit.row.gpu) < fit.row.measured_bytes - kernels
        share = (failed + len(wrong)) / len(scored)
        lines.append(f"PEF, second run capped at the {title}: {share:.1%} ({failed} runs above their cap).")
    return lines


def worst_lines(scored: Sequence[Result], outside: Mapping[str, int], *, all_rows: bool = False) -> list[str]:
    """The rows with the largest errors, or all of them."""
    ran = [result for result in scored if not result.row.measured_oom]

    def error(result: Result) -> float:
        return signed_error(result.peak_bytes + outside[result.row.loads], result.row.measured_bytes)

    title = "all rows" if all_rows else "largest errors"
    lines = [f"| {title} | measured MiB | estimated MiB | error | bound MiB |", "| --- | ---: | ---: | ---: | ---: |"]
    for result in sorted(ran, key=lambda result: -abs(error(result)))[: None if all_rows else WORST]:
        estimated = (result.peak_bytes + outside[result.row.loads]) / MiB
        lines.append(
            f"| {result.row.title} | {result.row.measured_bytes / MiB:.0f} | {estimated:.0f} | {error(result):+.1%} "
            f"| {bound(result, outside) / MiB:.0f} |"
        )
    return lines


def constants(group: Group, fitted: Sequence[Result], scored: Sequence[Result]) -> dict[str, int]:
    """Loaded libraries -> the constant of `group` beside reserved bytes, for all rows."""
    known = outside_of(fitted) if group.outside_bytes is None else {"": group.outside_bytes}
    usual = statistics.median_low(known.values())
    return {**{result.row.loads: usual for result in scored}, **known}


def report_lines(group: Group, results: Sequence[Result], left_out: Counter[str], fitted_rows: int) -> list[str]:
    """The report of a set."""
    fitted, scored = split(results, fitted_rows if group.outside_bytes is None else None)
    outside = constants(group, fitted, scored)
    constant_text = ", ".join(
        f"{size / MiB:.0f} MiB{f' with {loads}' if loads else ''}" for loads, size in outside.items()
    )
    if fitted:
        spread = [(result.row.measured_bytes - result.peak_bytes) / MiB for result in fitted]
        constant_text += f", by {len(fitted)} rows ({min(spread):.0f} to {max(spread):.0f})"
    quantities = " or ".join(dict.fromkeys(f"{result.row.quantity} bytes" for result in results)) or "reserved bytes"
    lines = [f"Measured: {group.measures}. Beside {quantities}: {constant_text}."]
    if left_out:
        lines.append("Left out: " + ", ".join(f"{count} {why}" for why, count in left_out.most_common()) + ".")
    lines += ["", *score_lines(scored, outside)]
    if any(result.row.measured_oom for result in scored):
        lines += [*failure_lines(scored, outside), *other_failure_lines(scored)]
    times = [result.elapsed_s for result in results]
    lines += [
        f"Seconds a row (warm, forked): median {statistics.median(times):.2f}, P95 {quantile(times, 0.95):.2f}.",
        "",
        *worst_lines(scored, outside, all_rows=group.all_rows),
    ]
    doubts = Counter(result.row.doubt for result in scored if result.row.doubt)
    lines += [f"\nCounted though doubtful: {count} readings {why}." for why, count in doubts.most_common()]
    failed = Counter(result.problem for result in results if result.problem is not None)
    lines += [f"\nNo estimate for {count}: {why}" for why, count in failed.most_common()]
    return lines
