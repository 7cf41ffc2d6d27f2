"""Jobs that run until the test opens their gate, and leave a line for each of their runs: one that ran twice shows."""

from __future__ import annotations

GATE = "echo $$ >>{0}; until [ -e {0}.open ]; do sleep 0.05; done; echo end >>{0}.ends"
"""A shell command: adds its pid to a file, waits for FILE.open, and adds `end` to FILE.ends. `GATE.format(FILE)`."""


def lines(path):
    """The lines of a file that a job writes; none before it has begun."""
    return path.read_text().splitlines() if path.exists() else []
