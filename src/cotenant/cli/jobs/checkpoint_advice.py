"""What the script of a job saves, for `submit` and `show`: finds the script of a command and reads it here.

Only the client reads scripts, with its user's rights; the daemon never does. A job of another machine has no advice.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

from cotenant.core.errors import CotenantError
from cotenant.jobfiles.checkpoint_habits import MAX_SCRIPT_BYTES, CheckpointHabit, find_habit
from cotenant.jobfiles.python_commands import SHELLS, find_python_commands
from cotenant.osutil.regular_files import read_regular_file
from cotenant.tracing.process.program import SAVING_LAUNCHER, find_program


class CheckpointHabitView(TypedDict):
    """How the script of a job saves its state, read from its text and its command line."""

    library: Annotated[str, "what saves, e.g. `transformers.Trainer`"]
    saves: Annotated[str | None, "how often, e.g. `every 500 steps`; `never`; null: not known"]
    resumes: Annotated[bool, "the same command goes on from what was saved"]
    missing: Annotated[list[str], "what to add so that the job can be moved"]
    advice: str | None


def habit_of(command: Sequence[str], workdir: str) -> CheckpointHabit | None:
    """The habit of the Python script that `command` runs, itself or in a shell script with one Python command.

    None if that is not known, for whatever reason: a file that cannot be read, is no file, or is too large.
    """
    if Path(command[0]).name in SHELLS and len(command) > 1:
        found = _in_shell_script(command, workdir)
        if found is None:
            return None
        command, workdir = found
    try:
        program = find_program(command, workdir=workdir, env=os.environ, python="python")
    except (CotenantError, ValueError, OSError):
        return None
    target = program.target if program.kind == "script" else f"{program.target.replace('.', '/')}.py"
    source = read_regular_file(Path(workdir, target), max_bytes=MAX_SCRIPT_BYTES)
    if source is None:
        return None
    is_wrapped = list(command[1:3]) == SAVING_LAUNCHER
    return find_habit(source, program.args, launcher=program.launcher, is_wrapped=is_wrapped)


def habit_view(job: Mapping[str, Any], *, is_remote: bool) -> CheckpointHabitView | None:
    """As `--json` prints it, for a job with its command, folder and `checkpoint_signal`."""
    habit = None if is_remote else habit_of(job["command"], job["workdir"])
    if habit is None:
        return None
    return {
        "library": habit.library,
        "saves": habit.saves or None,
        "resumes": habit.resumes,
        "missing": list(habit.missing),
        "advice": habit.advice(is_checkpointable=job["checkpoint_signal"] is not None),
    }


def _in_shell_script(command: Sequence[str], workdir: str) -> tuple[Sequence[str], str] | None:
    """The one Python command of a shell script, and its folder; None if there are several, or none."""
    if command[1].startswith("-"):
        text = command[2] if command[1].endswith("c") and len(command) > 2 else ""
        rest: Sequence[str] = command[4:]
    else:
        text = (read_regular_file(Path(workdir, command[1]), max_bytes=MAX_SCRIPT_BYTES) or b"").decode(
            errors="replace"
        )
        rest = command[2:]
    commands = find_python_commands(text, os.environ, rest)
    if len(commands) != 1 or commands[0].unknown:
        return None
    return commands[0].words, str(Path(workdir, commands[0].folder))
