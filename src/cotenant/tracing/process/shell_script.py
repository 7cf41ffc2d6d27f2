"""The command behind variables and a shell script, as in `NCCL_DEBUG=INFO bash scripts/train.sh 8 /data`.

The script is read (`jobfiles.python_commands`) and not run: of what it does, its one Python command is traced, in the
folder and with the variables that it sets.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cotenant.core.errors import UsageError
from cotenant.core.units import format_bytes
from cotenant.jobfiles.checkpoint_habits import MAX_SCRIPT_BYTES
from cotenant.jobfiles.python_commands import SHELLS, PythonCommand, find_python_commands
from cotenant.osutil.regular_files import read_regular_file

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_MAX_LISTED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedCommand:
    """A command without a shell: its argv, folder and variables."""

    command: tuple[str, ...]
    workdir: str
    env: Mapping[str, str]


def resolve(command: Sequence[str], *, workdir: str, env: Mapping[str, str]) -> ResolvedCommand:
    """`command` without the variables set before it, and without the shell script that it runs.

    A command that runs no shell script is returned as it is.

    Raises:
        UsageError: the script cannot be read; it runs no Python program or several; or one with a value that is known
            only when it runs.
    """
    words, env = list(command), dict(env)
    while words and (match := _ASSIGNMENT.fullmatch(words[0])):
        env[match[1]] = match[2]
        words.pop(0)
    found = _script_of(words, workdir)
    if found is None:
        return ResolvedCommand(command=tuple(words), workdir=workdir, env=env)
    name, text, arguments = found
    only = _only_command(name, find_python_commands(text, env, arguments))
    folders = [str(Path(workdir, Path(folder).expanduser())) for folder in only.bin_folders]
    path = {"PATH": ":".join([*folders, env.get("PATH", "")])} if folders else {}
    return ResolvedCommand(command=only.words, workdir=str(Path(workdir, only.folder)), env={**env, **path, **only.env})


def _script_of(words: Sequence[str], workdir: str) -> tuple[str, str, Sequence[str]] | None:
    """(name, text, arguments) of the shell script that a command runs; None if it runs none."""
    if words and Path(words[0]).name in SHELLS:
        place = next((place for place, word in enumerate(words[1:], start=1) if not word.startswith("-")), None)
        if place is None or any("c" in word for word in words[1:place]):  # `bash -c`, `bash -lc`
            return None
    elif words and words[0].endswith(".sh"):
        place = 0
    else:
        return None
    content = read_regular_file(Path(workdir, words[place]), max_bytes=MAX_SCRIPT_BYTES)
    if content is None:
        raise UsageError(
            f"`{words[place]}` in `{workdir}` is no readable shell script of at most {format_bytes(MAX_SCRIPT_BYTES)}",
            hint="check the name and the folder, or give the command that trains: `-- python train.py ARGS`",
        )
    return words[place], content.decode(errors="replace").replace("\r\n", "\n"), words[place + 1 :]


def _only_command(name: str, found: Sequence[PythonCommand]) -> PythonCommand:
    distinct = list({command.words: command for command in found}.values())
    if not distinct:
        raise UsageError(
            f"`{name}` starts no Python program that can be seen by reading it",
            hint="give the command that trains: `cotenant estimate -- python train.py ARGS`",
        )
    if len(distinct) > 1:
        lines = ", ".join(str(command.line) for command in distinct[:_MAX_LISTED])
        more = ", ..." if len(distinct) > _MAX_LISTED else ""
        raise UsageError(
            f"`{name}` starts {len(distinct)} Python programs (lines {lines}{more}), and one can be traced",
            hint=f"give the one that trains, e.g. `cotenant estimate -- {shlex.join(distinct[0].words)}`",
        )
    only = distinct[0]
    if only.unknown:
        raise UsageError(
            f"line {only.line} of `{name}`: the value of `{only.unknown[0]}` is known only when it runs",
            hint="set it: `NAME=VALUE cotenant estimate ...`, or give the command itself: `-- python train.py ARGS`",
        )
    return only
