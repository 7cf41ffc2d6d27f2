"""Parsing time of model summaries, on the published files.

    python -m benchmarks.estimator.summaries [--quick] [--write] [--data FOLDER]

The files are those of GPUMemNet and CARMA (torchsummary, torchinfo, modelsummary). For comparison, GPUMemNet's authors
report 0.99 ms for a CNN and 1.77 ms for GPT-2 XL on their machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks._lib.results import add_write_option, today, write_result
from cotenant.core.errors import SummaryError
from cotenant.learn.model_summaries.summary import parse_summary

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data" / "gpumemnet" / "summaries"
SHOWN = {
    "gpumemnet/efficientnet_32.txt": "0.99",
    "gpumemnet/gpt2_xl_bs2_sl512.txt": "1.77",
    "gpumemnet/resnet50_32.txt": "",
    "carma/maskrcnn.txt": "",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One file; `problem`: why it is not a summary."""

    name: str
    kib: float
    format: str
    layers: int
    median_ms: float
    problem: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20 repeats instead of 300")
    add_write_option(parser)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the summaries")
    args = parser.parse_args()
    paths = sorted(args.data.glob("*/*.txt"))
    if not paths:
        print(f"skipped: no published summaries at `{args.data}`; set --data FOLDER")
        return 0
    repeats = 20 if args.quick else 300
    report = "\n".join(report_lines([read(path, args.data, repeats) for path in paths]))
    print(report)
    if args.write:
        write(report, repeats, quick=args.quick)
    return 0


def read(path: Path, folder: Path, repeats: int) -> Timed:
    text = path.read_text(encoding="utf-8")
    name = str(path.relative_to(folder))
    try:
        found = parse_summary(text, name)
    except SummaryError as error:
        return Timed(name=name, kib=len(text) / 1024, format="", layers=0, median_ms=0.0, problem=error.reason)
    took = median_ms(lambda: parse_summary(text, name), repeats)
    return Timed(name=name, kib=len(text) / 1024, format=found.format, layers=len(found.layers), median_ms=took)


def median_ms(call: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000


def report_lines(results: Sequence[Timed]) -> list[str]:
    read_ones = [result for result in results if not result.problem]
    lines = [
        "| file | KiB | format | layers | ms, median | ms, GPUMemNet's parser |",
        "| --- | ---: | --- | ---: | ---: | ---: |",
    ]
    for read_one in read_ones:
        if read_one.name in SHOWN:
            cells = (
                read_one.name,
                f"{read_one.kib:.0f}",
                read_one.format,
                str(read_one.layers),
                f"{read_one.median_ms:.2f}",
            )
            lines.append("| " + " | ".join((*cells, SHOWN[read_one.name])) + " |")
    lines += ["", "| format | files | ms, median of files | ms, slowest |", "| --- | ---: | ---: | ---: |"]
    for form in sorted({read_one.format for read_one in read_ones}):
        times = [read_one.median_ms for read_one in read_ones if read_one.format == form]
        lines.append(f"| {form} | {len(times)} | {statistics.median(times):.2f} | {max(times):.2f} |")
    refused = [result for result in results if result.problem]
    lines += ["", f"{len(read_ones)} of {len(results)} files are summaries and were read."]
    if refused:
        lines.append(f"{len(refused)} are logs of training and were refused: `{refused[0].problem}`.")
    return lines


def write(report: str, repeats: int, *, quick: bool) -> None:
    repeat = f"python -m benchmarks.estimator.summaries{' --quick' if quick else ''} --write"
    head = [
        f"# Reading summaries of models, {today()}",
        "",
        f"Python {platform.python_version()}, {os.cpu_count()} cores shared with other work, one thread.",
        f"Median of {repeats} readings of each file. Repeat with `{repeat}`; there is no seed to set.",
        "Published times: `overheads.csv` of the same data, on their machine.",
        "",
    ]
    write_result("summaries", "\n".join([*head, report]))


if __name__ == "__main__":
    sys.exit(main())
