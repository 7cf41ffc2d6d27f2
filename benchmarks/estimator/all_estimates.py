"""Regenerates every result about the estimator: the shipped scores, all tables, the figures.

    python -m benchmarks.estimator.all_estimates [--quick] [--traces FOLDER] [--pythonpath FOLDER] [--only NAME ...]

Takes half an hour on two idle cores. `--pythonpath` names a folder with transformers 4.51.3 for xMem's language models
(see `ground_truth.py`); without it that set is omitted, since other versions allocate differently. `--traces` caches
traces in FOLDER, so that a change of the estimator needs only replays.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROWS = {"mlp": 180, "cnn": 200, "transformer": None, "timm": 100, "peft": None}
"""Rows to score of each set; None: all. With `--pythonpath`, `margins` makes the pages of all but PEFT, and xMem's."""


def commands(args: argparse.Namespace, dumps: Path) -> Iterator[tuple[str, list[str]]]:
    """(Name, program with arguments), in order: the scores come first, since all bounds depend on them."""
    traces = ["--traces", str(args.traces)] if args.traces else []
    folder = ["--pythonpath", args.pythonpath] if args.pythonpath else []
    quick = ["--quick"] if args.quick else ["--write"]
    if folder or args.quick:
        ship = [] if args.quick else ["--ship"]
        yield "margins", ["margins", *quick, *ship, *traces, *folder, "--dumps", str(dumps)]
    yield "estimates", ["published_scripts", *quick]
    yield "estimators", ["ranking", *quick]
    for name, rows in ROWS.items():
        if folder and name != "peft":
            continue
        cache = ["--traces", str(args.traces / name)] if args.traces else []
        count = ["--rows", str(rows)] if rows and not args.quick else []
        dump = ["--dump", str(dumps / f"{name}.jsonl")]
        yield name, ["ground_truth", "--set", name, *quick, *count, *cache, *dump]
    yield "plots", ["error_plots", "--dumps", str(dumps), *(["--out", str(dumps)] if args.quick else [])]
    yield "speed", ["estimate_speed", *quick]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few rows of each set, no result written")
    parser.add_argument("--traces", type=Path, help="folder of cached traces, one subfolder per set")
    parser.add_argument("--pythonpath", default="", help="folder of transformers 4.51.3")
    parser.add_argument("--only", nargs="*", default=[], help="names of the parts to run")
    args = parser.parse_args()
    failed = []
    with tempfile.TemporaryDirectory(prefix="cotenant-dumps-") as folder:
        for name, (program, *rest) in commands(args, Path(folder)):
            if args.only and name not in args.only:
                continue
            print(f"== {name}", flush=True)
            done = subprocess.run(
                [sys.executable, "-m", f"benchmarks.estimator.{program}", *rest], cwd=ROOT, check=False
            )
            if done.returncode:
                failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
