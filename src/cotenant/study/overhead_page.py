"""The results of `cotenant study overhead` as a Markdown page, with what it takes to repeat them.

A module of its own: the HTML report has figures and belongs to a folder of results, this page stands alone.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

import cotenant
from cotenant.core.errors import UsageError
from cotenant.measurement.data_card import commit
from cotenant.study.overhead_report import HEAD, table_cells, tool_costs

Row = Mapping[str, str]


def write_page(rows: Sequence[Row], path: Path, command: str) -> Path:
    """Write the page to `path`; `command` is the one that measured the rows.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(page_lines(rows, command)) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write `{path}`: {(error.strerror or str(error)).lower()}") from error
    return path


def page_lines(rows: Sequence[Row], command: str) -> list[str]:
    """The text of the page."""
    times = sorted(row["at"] for row in rows)
    devices = ", ".join(sorted({row["device"] for row in rows}))
    lines = [
        "# What monitoring costs a training job",
        "",
        "Every tool runs in every repeat, in random order, and is compared with the run without a tool of the same",
        "repeat: geometric mean of the ratios and its 95 % interval (Student's t on their logarithms). Published:",
        "thesis, table 3.2, A100. CPU: CPU time of job and tool over that of the job alone. After: from the last epoch",
        "to the end.",
        "",
        f"- device: {devices}; {_processor()}, {os.cpu_count()} CPUs, {platform.system()} {platform.release()}",
        f"- Python {platform.python_version()}, cotenant {cotenant.__version__}, commit {commit()}",
        f"- measured {times[0]} to {times[-1]}" if times else "- nothing was measured",
        f"- repeat: `{command}`",
    ]
    costs = tool_costs(rows)
    for job in dict.fromkeys(cost.job for cost in costs):
        of_job = [cost for cost in costs if cost.job == job]
        pairs = max((cost.epoch.pairs for cost in of_job if cost.epoch is not None), default=0)
        lines += ["", f"## Job `{job}`, up to {pairs} repeats", "", "| " + " | ".join(HEAD) + " |"]
        lines.append("| --- |" + " ---: |" * (len(HEAD) - 2) + " --- |")
        lines += ["| " + " | ".join(table_cells(cost)) + " |" for cost in of_job]
    return lines


def _processor() -> str:
    """Model of the CPU, as /proc/cpuinfo has it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()
