"""Command line of the timing benchmarks: `--quick`, `--write`, and the machine in the result's head."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable

from benchmarks._lib.results import add_write_option, commit, today, version, write_result


def run(doc: str | None, name: str, title: str, measure: Callable[[bool], list[str]]) -> int:
    """Print the lines of `measure(quick)` and write them with `--write`; returns the exit code."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one small job, one repeat")
    add_write_option(parser)
    args = parser.parse_args()
    load = os.getloadavg()[0]
    lines = measure(args.quick)
    machine = f"{os.cpu_count()} cores, load {load:.1f} before; torch {version('torch')}"
    report = "\n".join([f"{machine}, Python {platform.python_version()}.", "", *lines])
    print(report)
    if args.write:
        repeat = f"python benchmarks/{name}.py{' --quick' if args.quick else ''} --write"
        head = f"# {title}, {today()}\n\nCommit {commit()}. Repeat with `{repeat}`."
        write_result(name, f"{head}\n{report}")
    return 0
