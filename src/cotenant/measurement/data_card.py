"""The data card of a campaign: what was measured, on which machine, how, and the meaning of each column."""

from __future__ import annotations

import platform
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import cotenant
from cotenant.measurement.job_list import JobList
from cotenant.measurement.result_table import COLUMNS

_SETUP = ("gpu", "driver", "torch", "cuda", "cudnn", "transformers", "timm", "torchvision")


def write_card(out: Path, jobs: JobList, rows: Sequence[Mapping[str, str]], no_watch: str) -> None:
    """Write `README.md` in `out`."""
    (out / "README.md").write_text("\n".join(card_lines(jobs, rows, no_watch)) + "\n", encoding="utf-8")


def card_lines(jobs: JobList, rows: Sequence[Mapping[str, str]], no_watch: str) -> list[str]:
    """The card's text."""
    outcomes = Counter(row["outcome"] for row in rows)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common()) or "none yet"
    lines = [
        "# GPU memory and step times of training scripts, measured",
        "",
        f"Runs: {counts}; {len(jobs.jobs)} jobs in `{Path(jobs.path).name}`. Each job ran alone on the GPU in its own",
        "process, its script unmodified, under a probe that counts optimizer steps, reads torch's memory statistics at",
        "every change of phase, and stops the run after some steps and one short validation pass.",
        "",
        "## Setup",
        "",
        *(f"- {name}: {text}" for name, text in setup_of(rows).items()),
        "",
        "## Files",
        "",
        "- `rows.csv`: a row for each run, columns below; an empty cell was not measured or does not apply.",
        "- `JOB/run-N.json`: all that the probe wrote of run N, and what the driver said (`usage`); `.log`: its",
        "  output.",
        "- `JOB/run-N.history.json.gz`: every event of the caching allocator as columns (requested sizes; the line of",
        "  the script that allocated), `marks`: when each phase began, in microseconds since the epoch.",
    ]
    if no_watch:
        lines += ["", f"The driver was not read: {no_watch}. Columns from NVML are empty."]
    lines += ["", "## Columns of rows.csv", "", "| column | meaning |", "| --- | --- |"]
    return [*lines, *(f"| `{name}` | {meaning} |" for name, meaning in COLUMNS.items())]


def setup_of(rows: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The software and hardware of the runs, and this machine."""
    found = {name: sorted({row[name] for row in rows} - {""}) for name in _SETUP}
    setup = {name: ", ".join(values) for name, values in found.items() if values}
    dates = sorted({row["at"][:10] for row in rows} - {""})
    if dates:
        setup["dates"] = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return {
        **setup,
        "host": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "cotenant": f"{cotenant.__version__}, commit {commit()}",
    }


def commit() -> str:
    """Commit of the checkout that this package runs from; `unknown` outside of a checkout."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=Path(cotenant.__file__).parent,
            capture_output=True,
            text=True,
            check=False,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip() or "unknown"
