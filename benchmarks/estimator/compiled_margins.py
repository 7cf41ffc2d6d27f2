"""Scores of jobs with compiled code, for the margin of their bounds.

    python -m benchmarks.estimator.compiled_margins FILE ... [--data FOLDER] [--ship]

FILE is one that `benchmarks.estimator.compiled --saved` wrote. A row is a kind, judged by the null GPU, or a published
script with its settings, judged by the largest reserved bytes of its runs. Its score is how far these are above the
estimated ones, in units of the estimate. `--ship` writes the scores into the package, `data/compiled_margins.json`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.estimator.compiled import CLONES, DATA, ROOT
from benchmarks.estimator.compiled_scripts import read_scripts
from cotenant.estimators.margin import COVERAGE, quantile

SHIPPED = ROOT / "src" / "cotenant" / "estimators" / "data" / "compiled_margins.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the published tables")
    parser.add_argument("--ship", action="store_true", help="write the scores into the package")
    args = parser.parse_args()
    records = [json.loads(line) for file in args.files for line in file.read_text(encoding="utf-8").splitlines()]
    found = {record["key"]: record["result"] for record in records}
    rows = sorted([*kind_rows(found), *published_rows(found, args.data)], key=lambda row: row[1])
    for name, score in rows:
        print(f"{score:+8.2%}  {name}")
    scores = [score for _, score in rows]
    score, reached = quantile(scores, COVERAGE)
    print(f"{len(rows)} rows: {score:+.2%} covers another one with {reached:.1%}")
    if args.ship:
        made = {
            "commits": sorted({record["commit"] for record in records}),
            "rows": [name for name, _ in rows],
            "scores": [round(10_000 * score) for score in scores],
        }
        SHIPPED.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    return 0


def kind_rows(found: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    """(name, score) of the kinds that were compiled without a part that ran eagerly, and that the null GPU ran."""
    for key, ours in found.items():
        how, _, kind = key.partition(" ")
        null = found.get(f"null {kind}", {})
        if how == "inductor" and _is_compiled(ours) and "reserved" in null:
            yield f"null GPU: {kind}", null["reserved"] / ours["reserved"] - 1


def published_rows(found: Mapping[str, Mapping[str, Any]], data: Path) -> Iterator[tuple[str, float]]:
    """(name, score) of the published scripts of which reserved bytes are known."""
    for table in CLONES:
        for script in read_scripts(data, table):
            ours = found.get(f"published {script.digest} {script.processes} {dict(script.env)}", {})
            if _is_compiled(ours) and script.reserved_mib:
                yield f"published: {script.name}", max(script.reserved_mib) / ours["reserved"] - 1


def _is_compiled(ours: Mapping[str, Any]) -> bool:
    return "reserved" in ours and not ours["eager"]


if __name__ == "__main__":
    sys.exit(main())
