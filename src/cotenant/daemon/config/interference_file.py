"""The file of measured interference that the daemon reads: beside its configuration, or where that says.

A module of its own: the study writes this file, and knows nothing else of the configuration.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from cotenant.core.errors import UsageError
from cotenant.daemon.config.paths import config_files
from cotenant.daemon.config.schema import Config
from cotenant.scheduling.prediction.interference_table import InterferenceTable, parse_table

FILE_NAME = "interference.json"
MAX_BYTES = 64 * 2**20


def interference_files(env: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """The files beside the configuration files, later ones over earlier ones; they need not exist."""
    return tuple(path.with_name(FILE_NAME) for path in config_files(env))


def read_interference(config: Config, env: Mapping[str, str] = os.environ) -> InterferenceTable | None:
    """The table that the configuration names, else the last of `interference_files` that exists; None without one.

    Raises:
        UsageError: the named file does not exist, or a file is no table.
    """
    named = config.scheduling.interference
    if named is not None:
        return read_table(Path(named))
    found = [path for path in interference_files(env) if path.exists()]
    return read_table(found[-1]) if found else None


def read_table(path: Path) -> InterferenceTable:
    """The table in a file.

    Raises:
        UsageError: there is none, or it is no table.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UsageError(f"{path}: larger than {MAX_BYTES >> 20} MiB", hint="this is no interference table")
        return parse_table(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise UsageError(
            f"cannot read `{path}`: {reason}", hint="write it with `cotenant study collocate --install`"
        ) from error
