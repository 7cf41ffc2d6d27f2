"""Plots estimated against measured bytes, one figure per set. Needs matplotlib (`pip install cotenant[plots]`).

    python -m benchmarks.estimator.error_plots --dumps FOLDER [--out FOLDER]

The input is written by `ground_truth.py --dump FOLDER/SET.jsonl`; `all_estimates.py` runs both. Vertical bars reach
from the estimate to the bound.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks._lib.results import RESULTS
from cotenant.core.units import GiB
from cotenant.estimators.plot import new_figure

ROOT = Path(__file__).resolve().parents[2]
FAMILY_COLORS = {
    "no convolutions": "#4e79a7",
    "known convolutions": "#59a14f",
    "guessed convolutions": "#e15759",
}


def read_dump(path: Path) -> list[dict[str, Any]]:
    """The rows of a dump that have an estimate and did not run out of memory."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row["problem"] is None and not row["measured_oom"]]


def points(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[float, float, float]]]:
    """Family -> (measured, estimated, bound) of each row in GiB, including the set's constant beside reserved bytes."""
    found: dict[str, list[tuple[float, float, float]]] = {}
    for row in rows:
        estimated = row["reserved_bytes"] + row["outside_bytes"]
        bound = estimated + row["margin_bytes"]
        point = (row["measured_bytes"] / GiB, estimated / GiB, bound / GiB)
        found.setdefault(row["family"], []).append(point)
    return found


def draw(path: Path, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Save one figure; the suffix of `path` selects the format."""
    figure = new_figure(path)
    figure.set_size_inches(7, 6.5)
    axes = figure.add_subplot()
    found = points(rows)
    largest = max((max(point) for family_points in found.values() for point in family_points), default=1.0)
    axes.plot([0, largest], [0, largest], color="#999999", linewidth=0.8)
    for family, family_points in sorted(found.items()):
        measured, estimated, bounds = zip(*family_points, strict=True)
        color = FAMILY_COLORS.get(family, "#333333")
        axes.vlines(measured, estimated, bounds, color=color, alpha=0.25, linewidth=1.2)
        axes.scatter(measured, estimated, s=9, color=color, label=f"{family} ({len(family_points)})")
    axes.set_xlabel("measured, GiB")
    axes.set_ylabel("estimated (bar: up to the bound), GiB")
    axes.set_title(title, loc="left", fontsize=10)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dumps", type=Path, required=True, help="folder of the dumps, one SET.jsonl per set")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the figures")
    args = parser.parse_args()
    for dump in sorted(args.dumps.glob("*.jsonl")):
        path = args.out / f"errors_{dump.stem}.svg"
        draw(path, f"{dump.stem}: measured against estimated", read_dump(dump))
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
