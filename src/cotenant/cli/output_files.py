"""Files that will be written later, looked at while somebody reads what we say of them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from cotenant.cli.output import note
from cotenant.core.errors import UsageError

_MARK = re.compile("%%|(%[0-9]{0,2}[jAaxu])")


def check(path: Path) -> None:
    """Refuse a file for a command's results that could not be written, before the work that leads to them.

    Raises:
        UsageError: it says why.
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
    """Say on stderr which of `paths` for a job's output, which are absolute, could not be written now.

    No error, as with `sbatch`: until the job starts, somebody may have made the folder. Of a name with a mark, which
    the daemon fills in, what stands before it is looked at. Nothing is said where the daemon is on another machine.
    """
    if os.environ.get("COTENANT_HOST"):
        return
    for path in sorted({each for each in paths if each is not None}):
        try:
            why = _why_not(path)
        except OSError as error:
            why = f"its output `{path}` cannot be reached ({(error.strerror or str(error)).lower()})"
        if why is not None:
            note(f"warning: {why}: the job will fail when it starts, unless that has changed by then")


def _why_not(path: str) -> str | None:
    *folders, name = Path(path).parts
    known = Path("/")
    for each in folders:
        if _is_filled_in(each):
            return None if known.is_dir() else f"there is no folder `{known}` for its output"
        known /= each.replace("%%", "%")
    if not known.is_dir():
        return f"there is no folder `{known}` for its output"
    file = known / name.replace("%%", "%")
    if not _is_filled_in(name) and file.exists():
        if file.is_dir():
            return f"its output `{file}` is a folder"
        return None if os.access(file, os.W_OK) else f"its output `{file}` may not be written"
    return None if os.access(known, os.W_OK | os.X_OK) else f"its output may not be written to `{known}`"


def _is_filled_in(part: str) -> bool:
    return any(found[1] for found in _MARK.finditer(part))
