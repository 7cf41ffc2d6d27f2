"""Scores of measured peaks above our estimates, by family of jobs; the bound of an estimate is their quantile.

    python -m benchmarks.estimator.margins [--write] [--ship] [--quick] [--traces FOLDER] [--pythonpath FOLDER]

The rows are those of `ground_truth.py`: a fixed sample of each set, of which the first rows fit the constant beside
reserved bytes and are used for nothing else. Excluded are rows that ran out of memory, that fit only after the
allocator released its cache, and rows with a doubtful measurement. A row is judged by the rows of other families of
networks. `--write` writes the page and, from the same estimates and with the bound by these scores, those of
`ground_truth.py` for the same sets, except with `--cached`; `--ship` writes the scores into the package,
`data/margins.json`.

The published scripts of 2025-09 (`published_scripts.py`) and the adapters of PEFT are the test set and not used here.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks._lib.results import add_write_option, commit, today, write_result
from benchmarks.estimator.ground_truth import (
    DATA,
    FITTED_ROWS,
    ROOT,
    Options,
    cached_trace,
    dump,
    estimate_rows,
    sample,
    traces_line,
)
from benchmarks.estimator.ground_truth import write as write_set_page
from benchmarks.estimator.ground_truth_rows import GROUPS, read
from benchmarks.estimator.ground_truth_scores import Result, outside_of
from benchmarks.estimator.ground_truth_scores import report_lines as report_lines_of_set
from benchmarks.estimator.margin_scales import Network, scale_lines
from cotenant.core.units import MiB
from cotenant.estimators.margin import (
    COVERAGE,
    FAMILIES,
    above_bytes,
    margin_by_scores,
    quantile,
    scale_bytes,
    score_of,
)
from cotenant.gpu_specs import gpu_spec

SHIPPED = ROOT / "src" / "cotenant" / "estimators" / "data" / "margins.json"
SETS = {"mlp": 400, "transformer": None, "cnn": 300, "timm": 600, "xmem": None}
"""Rows to score, by set; None: all. Of few rows 99 % leaves out none, and the worst one is the margin."""
PAGES = {**SETS, "mlp": 180, "cnn": 200, "timm": 100}
"""Rows of the sets' own pages, which the same estimates make."""
OLD_LIBRARIES = ("timm", "xmem")
"""Sets that were measured with versions of libraries which `--pythonpath` has."""
QUICK = {"mlp": 20, "cnn": 20}
QUICK_FITTED_ROWS = 8
COVERAGES = (0.9, 0.95, 0.98, 0.99)
_VARIANT = re.compile(r"(?:legacy|tf|timm|test|tiny)_|[^a-z].*")
"""What the name of a network of timm has beside that of its family."""
CONTEXT_BYTES = 524 * MiB
"""CUDA context of an A100 (CARMA), added where a set does not include it: margins are shares of device bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A row with the error of its estimate.

    Attributes:
        above_bytes: measured peak - estimate; negative if the estimate is too high.
        spread_bytes: upper end of the estimate's interval - estimate.
        split_bytes: as in `Interval`.
        scale_bytes: unit of the family's scores.
        device_bytes: the estimate including the context.
    """

    group: str
    title: str
    family: str
    reserved_bytes: int
    above_bytes: int
    spread_bytes: int
    split_bytes: int
    scale_bytes: int
    device_bytes: int

    @property
    def network(self) -> str:
        """The family of networks that a row belongs to; generated networks are drawn one by one."""
        if self.group == "timm":
            return f"timm {_VARIANT.sub('', self.title)}"
        return f"xmem {self.title.split()[0]}" if self.group == "xmem" else f"{self.group} {self.title}"

    @property
    def score(self) -> float:
        return score_of(self.family, self.above_bytes, self.spread_bytes, self.scale_bytes)

    def margin_bytes(self, score: float) -> float:
        """The margin if the family's quantile is `score`."""
        return max(0.0, above_bytes(self.family, score, self.spread_bytes, self.scale_bytes))

    def is_covered(self, score: float) -> bool:
        """Whether the measured peak is within that margin."""
        return self.above_bytes <= self.margin_bytes(score)


def estimate_set(name: str, args: argparse.Namespace, fitted: int) -> list[Result]:
    """Estimates of the first `fitted` rows, if the set has a constant to fit, and of those to score."""
    group, count = GROUPS[name], (QUICK if args.quick else SETS)[name]
    rows, _ = read(group, args.data)
    more = fitted if group.outside_bytes is None else 0
    rows = sample(rows, None if count is None else count + more, seed=0)
    if args.cached:
        rows = [row for row in rows if not row.measured_oom and cached_trace(row, args.traces / name, steps=3)]
    options = Options(steps=3, traces=args.traces / name if args.traces else None, commit=commit())
    folders = [part for part in args.pythonpath.split(os.pathsep) if part and name in OLD_LIBRARIES]
    return list(estimate_rows(rows, options, group.imports, folders, args.workers))


def why_excluded(result: Result) -> str:
    """Why a row is neither scored nor used to fit the constant; empty if it is."""
    if result.row.measured_oom:
        return "ran out of memory"
    if result.problem is not None:
        return result.problem[:70]
    return "does not fit, or only after retries" if result.retried else ""


def score_set(name: str, found: Sequence[Result], fitted: int) -> list[Scored]:
    """Scores of the rows that were not used to fit the constant."""
    group = GROUPS[name]
    done = [result for result in found if not why_excluded(result)]
    outside: dict[str, int] = {"": group.outside_bytes or 0}
    if group.outside_bytes is None:
        outside, done = outside_of(done[:fitted]), done[fitted:]
    usual = statistics.median_low(outside.values())
    scored = []
    for result in done:
        if result.row.doubt:
            continue
        beside = outside.get(result.row.loads, usual)
        scored.append(
            Scored(
                group=name,
                title=result.row.title,
                family=result.family,
                reserved_bytes=result.reserved_bytes,
                above_bytes=result.row.measured_bytes - beside - result.reserved_bytes,
                spread_bytes=result.spread_bytes,
                split_bytes=result.split_bytes,
                scale_bytes=scale_bytes(
                    result.family, result.reserved_bytes, result.allocated_bytes, result.split_bytes
                ),
                device_bytes=result.reserved_bytes + max(beside, CONTEXT_BYTES),
            )
        )
    return scored


def held_out(rows: Sequence[Scored], coverage: float) -> list[tuple[Scored, bool, float]]:
    """(Row, covered, margin / estimate), with the quantile of the row's family without the row's family of networks.

    Rows of a family with a single family of networks are omitted.
    """
    found = []
    for family in FAMILIES:
        mine = sorted((row for row in rows if row.family == family), key=lambda scored: scored.score)
        networks: dict[str, list[Scored]] = {}
        for row in mine:
            networks.setdefault(row.network, []).append(row)
        for network, members in networks.items():
            scores = [scored.score for scored in mine if scored.network != network]
            if not scores:
                continue
            score, _ = quantile(scores, coverage)
            for member in members:
                margin = member.margin_bytes(score) / member.device_bytes
                found.append((member, member.is_covered(score), margin))
    return found


def width_lines(rows: Sequence[Scored]) -> list[str]:
    """What carries the width of the default bound, by family: the interval alone, and the quantile added to it."""
    lines = ["", f"What the mean margin is made of at {COVERAGE:.0%} (all rows of the family set the quantile):", ""]
    lines += ["| family | rows | networks | quantile | interval alone | quantile alone | margin |"]
    lines += ["| --- |" + " ---: |" * 6]
    for family in FAMILIES:
        mine = [row for row in rows if row.family == family]
        if not mine:
            continue
        score, _ = quantile(sorted(row.score for row in mine), COVERAGE)
        spread = statistics.fmean(row.spread_bytes / row.device_bytes for row in mine)
        quantile_alone = statistics.fmean(score * row.scale_bytes / row.device_bytes for row in mine)
        margin = statistics.fmean(row.margin_bytes(score) / row.device_bytes for row in mine)
        shares = " | ".join(f"{share:.1%}" for share in (spread, quantile_alone, margin))
        lines.append(f"| {family} | {len(mine)} | {len({row.network for row in mine})} | {score:.3f} | {shares} |")
    return lines


def report_lines(rows: Sequence[Scored], left_out: Counter[str]) -> list[str]:
    """Coverage and mean margin, by family and by set."""
    lines = [f"Left out: {count} rows: {why}." for why, count in left_out.most_common()]
    for title, parts in (("family", FAMILIES), ("set", tuple(SETS))):
        lines += ["", f"By {title}, each row by the rows of other families of networks:", ""]
        head = " | ".join(f"{coverage:.0%}: above the bound | mean margin" for coverage in COVERAGES)
        lines += [f"| {title} | rows | {head} |", "| --- |" + " ---: |" * (1 + 2 * len(COVERAGES))]
        for part in (*parts, "all"):
            cells = list(_cells(rows, title, part))
            if cells:
                lines.append(f"| {part} | " + " | ".join(cells) + " |")
    lines += width_lines(rows)
    for family in FAMILIES[1:]:
        mine = [row for row in rows if row.family == family]
        networks = [Network(**{name: getattr(row, name) for name in Network.__slots__}) for row in mine]
        lines += scale_lines(family, networks)
    lines += ["", "Rows with the highest scores (measured peak above the estimate, in units of the family):", ""]
    lines += ["| row | family | score |", "| --- | --- | ---: |"]
    for family in FAMILIES:
        worst = sorted((row for row in rows if row.family == family), key=lambda scored: -scored.score)
        lines += [f"| {scored.group}: {scored.title} | {family} | {scored.score:.3f} |" for scored in worst[:5]]
    return lines


def _cells(rows: Sequence[Scored], title: str, part: str) -> Iterator[str]:
    key: Callable[[Scored], str] = (
        (lambda scored: scored.family) if title == "family" else (lambda scored: scored.group)
    )
    for coverage in COVERAGES:
        results = [judged for judged in held_out(rows, coverage) if part in ("all", key(judged[0]))]
        if not results:
            return
        if coverage == COVERAGES[0]:
            yield str(len(results))
        missed = sum(not covered for _, covered, _ in results)
        yield f"{missed} ({missed / len(results):.1%})"
        yield f"{statistics.fmean(margin for _, _, margin in results):.1%}"


def shipped(rows: Sequence[Scored]) -> dict[str, object]:
    """The content of `data/margins.json`: ascending scores in units of 1e-4, and their source."""
    families = {}
    for family in FAMILIES:
        mine = [row for row in rows if row.family == family]
        families[family] = {
            "rows": dict(sorted(Counter(scored.group for scored in mine).items())),
            "scores": sorted(round(10_000 * scored.score) for scored in mine),
        }
    return {
        "source": "benchmarks/estimator/margins.py --ship; sets as in ground_truth_rows.py, sampled with seed 0",
        "families": families,
    }


def with_margin(result: Result, rows: Sequence[Scored]) -> Result:
    """`result` with the margin by the scores of `rows`; where the job fits, its bound is at most the GPU."""
    if result.problem is not None:
        return result
    gpu = gpu_spec(result.row.gpu)
    scale = scale_bytes(result.family, result.unlimited_bytes, result.allocated_bytes, result.split_bytes)
    scores = sorted(scored.score for scored in rows if scored.family == result.family)
    margin = margin_by_scores(scores, result.family, gpu, result.spread_bytes, scale)
    bound = result.unlimited_bytes + gpu.context.typical_bytes + margin.bytes
    if not result.oom:
        bound = min(bound, gpu.usable_bytes)
    return replace(result, margin_bytes=max(0, bound - result.reserved_bytes - gpu.context.typical_bytes))


def write_page(
    name: str, results: Sequence[Result], rows: Sequence[Scored], args: argparse.Namespace, fitted: int
) -> None:
    """The page of `ground_truth.py` for a set, with the bound by the scores of this run."""
    group = GROUPS[name]
    _, left_out = read(group, args.data)
    results = [with_margin(result, rows) for result in results]
    report = report_lines_of_set(group, results, left_out, fitted)
    if args.dumps:
        dump(args.dumps / f"{name}.jsonl", group, results, fitted)
    options = argparse.Namespace(
        rows=PAGES[name],
        seed=0,
        quick=False,
        traces=args.traces,
        pythonpath=args.pythonpath if name in OLD_LIBRARIES else "",
    )
    sys.path[:0] = [part for part in options.pythonpath.split(os.pathsep) if part]  # for the versions on the page
    write_set_page(group, "\n".join(report), options, Counter(item.traced_at for item in results if item.traced_at))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_write_option(parser)
    parser.add_argument("--ship", action="store_true", help="write the scores into the package")
    parser.add_argument("--quick", action="store_true", help="a few rows of two sets")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the published tables")
    parser.add_argument("--traces", type=Path, help="folder of cached traces, one subfolder per set")
    parser.add_argument("--pythonpath", default="", help="folder of timm 1.0.9 and transformers 4.51.3")
    parser.add_argument("--cached", action="store_true", help="only rows with a trace in the folder of --traces")
    parser.add_argument("--dumps", type=Path, help="folder for the numbers of the pages' rows, as JSON lines")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    if args.cached and not args.traces:
        parser.error("--cached needs --traces FOLDER")
    if not args.data.is_dir():
        print(f"skipped: no published measurements at `{args.data}`; set --data FOLDER")
        return 0
    rows: list[Scored] = []
    left_out: Counter[str] = Counter()
    traced_at: Counter[str] = Counter()
    results: dict[str, list[Result]] = {}
    fitted = QUICK_FITTED_ROWS if args.quick else FITTED_ROWS
    for name in QUICK if args.quick else SETS:
        results[name] = estimate_set(name, args, fitted)
        scored = score_set(name, results[name], fitted)
        left_out.update(why for result in results[name] if (why := why_excluded(result)))
        left_out.update(result.row.doubt for result in results[name] if result.row.doubt)
        traced_at.update(result.traced_at for result in results[name] if result.traced_at)
        print(f"{name}: {len(scored)} rows", file=sys.stderr, flush=True)
        rows += scored
    report = "\n".join(report_lines(rows, left_out))
    print(report)
    if args.write:
        for name, page_rows in PAGES.items() if not args.cached else ():
            write_page(name, results[name][: page_rows and page_rows + fitted], rows, args, fitted)
        cached = " --cached --traces TRACES" if args.cached else ""
        repeat = f"python -m benchmarks.estimator.margins --write --ship{cached} --pythonpath FOLDER"
        head = f"# Coverage and margin of the bound, {today()}\n\nCommit {commit()}; no GPU. Repeat with `{repeat}`."
        head += f"\n{traces_line(traced_at)}"
        write_result("margins", f"{head}\n\n{report}")
    if args.ship:
        SHIPPED.write_text(json.dumps(shipped(rows)) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
