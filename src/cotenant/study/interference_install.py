"""Writes a fitted table where the daemon reads it: `cotenant study collocate --install`.

A module of its own: fitting reads rows and changes nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from cotenant.core.errors import CotenantError, UsageError
from cotenant.daemon.config.interference_file import interference_files
from cotenant.osutil.atomic import replacing
from cotenant.scheduling.prediction.interference_table import InterferenceTable


def default_path(env: Mapping[str, str] = os.environ) -> Path:
    """The file beside the machine's configuration for root, beside the user's own for others."""
    machine, own = interference_files(env)
    return machine if os.geteuid() == 0 else own


def install_table(table: InterferenceTable, path: Path, *, allow_simulated: bool) -> Path:
    """Write the table to `path`: a daemon that starts later reads it whole, the old one or the new one.

    Raises:
        UsageError: it was measured on a simulated GPU, and `allow_simulated` is False.
        CotenantError: the file cannot be written; what was there stays.
    """
    if table.is_simulated and not allow_simulated:
        raise UsageError(
            f"these rows are of a simulated GPU (`simulated {table.gpu}`), not of a real one",
            hint="to install them all the same, e.g. to try it, add `--allow-simulated`",
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Readable by others: with a daemon of root, users may look at what it predicts from.
        with replacing(path, mode=0o644, durable=True) as file:
            file.write((json.dumps(table.to_json(), indent=1) + "\n").encode())
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CotenantError(f"cannot write `{path}`: {reason}", hint="name another file with `--table`") from error
    return path
