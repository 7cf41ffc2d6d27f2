"""The states of a job in one word, as Slurm's users know them.

A module of its own: shell completion reads it, and has 150 ms.
"""

from __future__ import annotations

from collections.abc import Mapping

SHORT: Mapping[str, str] = {
    "PENDING": "PD",
    "HELD": "H",
    "STARTING": "ST",
    "RUNNING": "R",
    "COMPLETED": "CD",
    "FAILED": "F",
    "OOM": "OOM",
    "TIMEOUT": "TO",
    "CANCELLED": "CA",
    "LOST": "LO",
}
"""The words, and how they are shortened."""
DONE = ("COMPLETED", "FAILED", "OOM", "TIMEOUT", "CANCELLED", "LOST")
"""The states of jobs that have ended."""
