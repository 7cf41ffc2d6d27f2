"""The measurements beside the repository, which users do not have: tests that read them skip where they are absent."""

from __future__ import annotations

from pathlib import Path

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
