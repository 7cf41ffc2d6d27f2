"""What the job's first words name: a script, a command, or a .rad file that holds the whole of it."""

from __future__ import annotations

import contextlib
import difflib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cotenant.cli.jobs.job_options import RadEstimate
from cotenant.cli.output import note
from cotenant.core.errors import EMPTY_HINT, JobFileError, UsageError
from cotenant.jobfiles.rad import parse_rad


def parse_command(
    words: Sequence[str], rad_estimate: RadEstimate, *, moved: bool
) -> tuple[list[str], str, dict[str, Any]]:
    """Argv, a name, and the further fields of a job that `words` settle; `moved` as for `resolve`.

    Raises:
        UsageError: there is no such file or program; JobFileError: a .rad file is wrong.
    """
    if words[0].endswith(".rad"):
        return _from_rad(words, rad_estimate)
    argv = resolve(words, os.environ.get("PATH", os.defpath), moved=moved)
    return argv, Path(words[0]).stem, {"gpus": 1, "declared_bytes": None, "source": None}


def resolve(words: Sequence[str], path: str, *, moved: bool) -> list[str]:
    """Argv for a script or a command: scripts with their interpreter, commands by the absolute path of the program.

    `path` is searched for programs. `moved`: the job will run in another folder than this one.

    Raises:
        UsageError: there is no such file or program.
    """
    word, rest = words[0], list(words[1:])
    if not word:
        raise UsageError("the script or command has no name", hint=EMPTY_HINT)
    file = Path(word)
    shown = str(file.absolute()) if moved else word
    if file.suffix in (".py", ".sh"):
        if not file.is_file():
            raise _no_such_file(file)
        interpreters = ("python", "python3") if file.suffix == ".py" else ("bash",)
        return [_program(interpreters, path), shown, *rest]
    if file.suffix == ".ipynb":
        raise UsageError(
            f"`{file}` is a notebook, which a command runs",
            hint=f"`cotenant submit jupyter execute {file}`, or `... papermill {file} out.ipynb`, which keeps outputs",
        )
    if "/" in word:
        if not file.is_file():
            raise _no_such_file(file)
        if not os.access(file, os.X_OK):
            raise UsageError(f"`{word}` is not executable", hint=f"chmod +x {word}, or name its interpreter")
        return [str(file.absolute()), *rest]
    found = shutil.which(word, path=path)
    if found is None:
        here = f"`./{word}` is in this folder" if file.is_file() else None
        raise UsageError(f"no such command: `{word}`", hint=here or "scripts need their ending: `train.py`")
    return [found, *rest]


def _no_such_file(file: Path) -> UsageError:
    if file.is_dir():
        return UsageError(f"`{file}` is a folder", hint="name the script in it")
    if file.exists():
        return UsageError(f"`{file}` is not a regular file", hint="name the script itself")
    if file.is_symlink():
        return UsageError(f"`{file}` is a link to `{file.readlink()}`, where no file is")
    with contextlib.suppress(OSError):
        names = [entry.name for entry in file.parent.iterdir()]
        close = difflib.get_close_matches(file.name, names, n=1)
        if close:
            return UsageError(f"no such file: `{file}`", hint=f"did you mean `{file.with_name(close[0])}`?")
    return UsageError(f"no such file: `{file}`")


def _program(names: Sequence[str], path: str) -> str:
    for name in names:
        found = shutil.which(name, path=path)
        if found is not None:
            return found
    raise UsageError(f"no `{names[0]}` on the PATH")


def _from_rad(words: Sequence[str], choice: RadEstimate) -> tuple[list[str], str, dict[str, Any]]:
    """argv, name and further fields from a `.rad` file."""
    if len(words) > 1:
        raise UsageError(f"a .rad file holds the whole command, but `{words[1]}` follows it")
    path = Path(words[0])
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read `{path}`: {(error.strerror or str(error)).lower()}") from error
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise JobFileError(str(path), line, "is not UTF-8 text") from error
    rad = parse_rad(text, str(path))
    declared = None if choice == "none" else rad.memory_bytes.get(choice)
    if choice != "none" and declared is None and rad.memory_bytes:
        note(f"{path}: {choice} has no figure for the memory; it will be estimated")
    fields: dict[str, Any] = {"gpus": rad.gpus, "declared_bytes": declared, "source": str(path.absolute())}
    if rad.exclusive is not None:
        fields["exclusive"] = rad.exclusive
    summary = path.absolute().parent / rad.model_file
    if summary.is_file():
        fields |= {"model_summary": str(summary), "batch_size": rad.batch_size}
    elif declared is None:
        note(f"warning: {path}:{rad.model_line}: no such file: `{rad.model_file}`; the command itself must be traced")
    return list(rad.argv), path.stem, fields
