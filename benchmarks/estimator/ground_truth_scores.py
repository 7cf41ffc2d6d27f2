"""What became of measured rows, and how it is counted."""

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
    """What became of a row.

    Attributes:
        reserved_bytes: predicted peak, on a card without limit if it does not fit.
        family: whose errors make its margin.
        oom: the estimator says that it does not fit.
        problem: why there is no estimate, or None.
    """

    row: Row
    reserved_bytes: int = 0
    allocated_bytes: int = 0
    margin_bytes: int = 0
    parameter_bytes: int = 0
    family: str = ""
    oom: bool = False
    problem: str | None = None
    elapsed_s: float = 0.0


def commonest(values: Sequence[int]) -> int:
    """The value that most of `values` are within 2 MiB of, if that is a third of them, else their median."""
    middle = int(statistics.median(values))
    near = {value: sum(abs(value - other) <= 2 * MiB for other in values) for value in values}
    best = max(values, key=lambda value: (near[value], -abs(value - middle)))
    return best if near[best] >= max(2, len(values) / 3) else middle


def outside_of(results: Sequence[Result]) -> dict[str, int]:
    """The constant beside reserved bytes, by what rows load: what these rows leave."""
    left: dict[str, list[int]] = {}
    for result in results:
        if not result.row.doubt:
            left.setdefault(result.row.loads, []).append(result.row.measured_bytes - result.reserved_bytes)
    return {loads: commonest(values) for loads, values in left.items()}


def split(results: Sequence[Result], fitted: int | None) -> tuple[list[Result], list[Result]]:
    """The first `fitted` results that are estimates, and the other ones; none and all for None."""
    done = [result for result in results if result.problem is None]
    return (done[:fitted], done[fitted:]) if fitted is not None else ([], done)


def error_line(title: str, errors: Sequence[float]) -> str:
    """One line of the table: absolute relative errors, and how many estimates are low."""
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
    """Errors of the rows that ran, ours and of two rules."""
    ran = [result for result in scored if not result.row.measured_oom]
    if not ran:
        return ["No row to score."]
    truth = [result.row.measured_bytes for result in ran]
    mean = statistics.fmean(truth)
    pairs = {
        "cotenant": [result.reserved_bytes + outside[result.row.loads] for result in ran],
        "16 bytes a parameter": [4 * result.parameter_bytes + outside[result.row.loads] for result in ran],
        "mean of these rows": [mean] * len(ran),
    }
    lines = [
        "| absolute relative error | rows | median | mean | P90 | P95 | max | low | low by > 1 % |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for title, values in pairs.items():
        errors = [signed_error(value, true) for value, true in zip(values, truth, strict=True)]
        lines.append(error_line(title, errors))
    within = sum(abs(value - true) <= 2 * MiB for value, true in zip(pairs["cotenant"], truth, strict=True))
    missed = [result for result in ran if result.row.measured_bytes > bound(result, outside)]
    margin = statistics.fmean(
        result.margin_bytes / (result.reserved_bytes + outside[result.row.loads]) for result in ran
    )
    lines += [
        "",
        f"Within 2 MiB: {within} of {len(ran)}.",
        f"Measured peak above our bound: {len(missed)} of {len(ran)}, with a mean margin of {margin:.1%}.",
    ]
    return lines


def bound(result: Result, outside: Mapping[str, int]) -> int:
    """What a policy would find free for this row, context as fitted."""
    return result.reserved_bytes + outside[result.row.loads] + result.margin_bytes


def failure_lines(scored: Sequence[Result], outside: Mapping[str, int]) -> list[str]:
    """Wrong calls of out-of-memory, and runs that fail under a cap at the estimate, as xMem counts them.

    A second run is capped at the estimate, rounded to 1 % of the card, if both runs and the estimator agree that the
    job fits. Nothing was run here: one fails if its measured peak is above the cap. A capped allocator can squeeze a
    job a little, so this counts some failures that would not be.
    """
    wrong = [result.row.title for result in scored if result.oom != result.row.measured_oom]
    fits = [result for result in scored if not result.oom and not result.row.measured_oom]
    lines = [f"Wrong OOM calls: {len(wrong)} of {len(scored)}" + (f" ({'; '.join(wrong)})." if wrong else ".")]
    for title, with_margin in (("estimate", 0), ("bound", 1)):
        failed = 0
        for fit in fits:
            known = gpu_spec(fit.row.gpu)
            total = known.torch_total_bytes or known.memory_total_bytes
            kernels = outside[fit.row.loads]
            asked = fit.reserved_bytes + kernels + with_margin * fit.margin_bytes
            cap = round(min(asked / total, 1.0), 2) * total
            failed += cap < fit.row.measured_bytes - kernels
        share = (failed + len(wrong)) / len(scored)
        lines.append(f"PEF, second run capped at the {title}: {share:.1%} ({failed} runs above their cap).")
    return lines


def worst_lines(scored: Sequence[Result], outside: Mapping[str, int]) -> list[str]:
    """The largest errors, one by one."""
    ran = [result for result in scored if not result.row.measured_oom]

    def error(result: Result) -> float:
        return signed_error(result.reserved_bytes + outside[result.row.loads], result.row.measured_bytes)

    lines = ["| largest errors | measured MiB | estimated MiB | error |", "| --- | ---: | ---: | ---: |"]
    for result in sorted(ran, key=lambda one: -abs(error(one)))[:WORST]:
        told = (result.reserved_bytes + outside[result.row.loads]) / MiB
        lines.append(
            f"| {result.row.title} | {result.row.measured_bytes / MiB:.0f} | {told:.0f} | {error(result):+.1%} |"
        )
    return lines


def constants(group: Group, fitted: Sequence[Result], scored: Sequence[Result]) -> dict[str, int]:
    """What the figures of `group` hold beside reserved bytes, by what rows load; every row has one."""
    known = outside_of(fitted) if group.outside_bytes is None else {"": group.outside_bytes}
    usual = statistics.median_low(known.values())
    return {**{result.row.loads: usual for result in scored}, **known}


def report_lines(group: Group, results: Sequence[Result], left_out: Counter[str], fitted_rows: int) -> list[str]:
    """All that is told of a set."""
    fitted, scored = split(results, fitted_rows if group.outside_bytes is None else None)
    outside = constants(group, fitted, scored)
    told = ", ".join(f"{size / MiB:.0f} MiB{f' with {loads}' if loads else ''}" for loads, size in outside.items())
    if fitted:
        spread = [(result.row.measured_bytes - result.reserved_bytes) / MiB for result in fitted]
        told += f", by {len(fitted)} rows ({min(spread):.0f} to {max(spread):.0f})"
    lines = [f"Measured: {group.measures}. Beside reserved bytes: {told}."]
    if left_out:
        lines.append("Left out: " + ", ".join(f"{count} {why}" for why, count in left_out.most_common()) + ".")
    lines += ["", *score_lines(scored, outside)]
    if any(result.row.measured_oom for result in scored):
        lines += failure_lines(scored, outside)
    times = [result.elapsed_s for result in results]
    lines += [
        f"Seconds a row (warm, forked): median {statistics.median(times):.2f}, P95 {quantile(times, 0.95):.2f}.",
        "",
        *worst_lines(scored, outside),
    ]
    doubts = Counter(result.row.doubt for result in scored if result.row.doubt)
    lines += [f"\nCounted though doubtful: {count} readings {why}." for why, count in doubts.most_common()]
    failed = Counter(result.problem for result in results if result.problem is not None)
    lines += [f"\nNo estimate for {count}: {why}" for why, count in failed.most_common()]
    return lines
