"""Checks of files that are written later, made while the user still reads our messages."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cotenant.cli.output import note
from cotenant.core.errors import UsageError

_MARK = re.compile("%%|(%[0-9]{0,2}[jAaxu])")


def check(path: Path) -> None:
    """Refuse a file for results that cannot be written, before the work that leads to them.

    Raises:
        UsageError: the message says why.
    """
    folder = path.absolute().parent
    if not folder.is_dir():
        why = f"there is no folder `{path.parent}`"
    elif path.is_dir():
        why = "it is a folder"
    elif not os.access(path if path.exists() else folder, os.W_OK):
        why = "permission denied"
    else:
        return
    raise UsageError(f"cannot write `{path}`: {why}", hint="name another file")


def warn(paths: Iterable[str | None]) -> None:
    """Warn on stderr of absolute `paths` for a job's output that cannot be written now.

    No error, as with `sbatch`: the folder may be made before the job starts. Of a path with a mark such as `%j`, which
    the daemon expands, only the part before the mark is checked. Call it only if the daemon is on this machine.
    """
    for path in sorted(set(filter(None, paths))):
        try:
            why = _why_not(path)
        except OSError as error:
            why = f"its output `{path}` cannot be reached ({(error.strerror or str(error)).lower()})"
        if why is not None:
            note(f"warning: {why}: the job will fail when it starts, unless that has changed by then")


def default(job: Mapping[str, Any]) -> dict[str, str]:
    """The output files of a job that names none: `cotenant-%j.out` in its folder, as with `sbatch`.

    None where its folder may not be written: the daemon's folder takes its output, for `cotenant logs`.
    """
    workdir = str(job["workdir"])
    if job["stdout_path"] is not None or not os.access(workdir, os.W_OK | os.X_OK):
        return {}
    name = "cotenant-%A_%a.out" if "array" in job else "cotenant-%j.out"
    path = f"{workdir.replace('%', '%%').rstrip('/')}/{name}"
    return {"stdout_path": path, "stderr_path": job["stderr_path"] or path}


def _why_not(path: str) -> str | None:
    *folders, name = Path(path).parts
    known = Path("/")
    for folder in folders:
        if _has_mark(folder):
            return None if known.is_dir() else f"there is no folder `{known}` for its output"
        known /= folder.replace("%%", "%")
    if not known.is_dir():
        return f"there is no folder `{known}` for its output"
    file = known / name.replace("%%", "%")
    if not _has_mark(name) and file.exists():
        if file.is_dir():
            return f"its output `{file}` is a folder"
        return None if os.access(file, os.W_OK) else f"its output `{file}` may not be written"
    return None if os.access(known, os.W_OK | os.X_OK) else f"its output may not be written to `{known}`"


def _has_mark(part: str) -> bool:
    return any(found[1] for found in _MARK.finditer(part))
