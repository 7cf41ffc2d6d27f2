"""The Python call `cotenant.estimate`."""

from __future__ import annotations


def estimate() -> None:
    """Placeholder until tracing lands in the next commit."""
