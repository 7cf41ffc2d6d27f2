"""The daemon's configuration: schema, loading, validation, and where files are."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cotenant.daemon.config.value_types import ConfigKey


def reference() -> list[ConfigKey]:
    """Every key with its type, default and meaning, for the reference page."""
    from cotenant.daemon.config.value_types import reference as keys  # `paths` is imported by every client

    return keys()
