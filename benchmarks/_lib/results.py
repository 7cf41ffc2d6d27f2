"""Result pages of benchmarks: file name with the date, commit and versions."""

from __future__ import annotations

import datetime
import subprocess
from importlib import metadata
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results"


def today() -> str:
    """The day in UTC, as in the names of the pages."""
    return datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat()


def keep(name: str, text: str) -> None:
    """Write the page `name` of today, found without a GPU, and say where."""
    path = RESULTS / f"{name}_no-gpu_{today()}.md"
    path.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
    print(f"\nwritten to benchmarks/results/{path.name}")


def commit() -> str:
    """The commit of this checkout, `-dirty` where files differ from it."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=RESULTS, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def version(name: str) -> str:
    """Of an installed package, or `absent`."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"
