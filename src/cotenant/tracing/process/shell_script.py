"""The command behind variables and a shell script, as in `NCCL_DEBUG=INFO bash scripts/train.sh 8 /data`.

The script is read (`jobfiles.python_commands`) and not run: of what it does, its Python commands are traced, in the
folder and with the variables that it sets.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cotenant.core.errors import UsageError
from cotenant.core.units import format_bytes
from cotenant.jobfiles.checkpoint_habits import MAX_SCRIPT_BYTES
from cotenant.jobfiles.python_commands import PythonCommand, find_python_commands, place_of_script
from cotenant.jobfiles.shell_runners import without_runners
from cotenant.osutil.regular_files import read_regular_file

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_MAX_PROGRAMS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedCommand:
    """A command without a shell: its argv, folder and variables.

    `where`: its line of the shell script, as in "line 3 of `train.sh`"; empty: it stands in none.
    `is_traced`: False for one of too many.
    """

    command: tuple[str, ...]
    workdir: str
    env: Mapping[str, str]
    where: str = ""
    is_traced: bool = True


def resolve(command: Sequence[str], *, workdir: str, env: Mapping[str, str], gpus: int = 1) -> list[ResolvedCommand]:
    """`command` without variables and runners (`uv run`, `srun`) before it; of a shell script, its Python programs.

    A command that runs no shell script is returned as it is. Of more than four programs four are to be traced: of each
    Python file the first, then others. `gpus`: how many the script finds.

    Raises:
        UsageError: the script cannot be read; it runs no Python program; or one with a value that is known only when it
            runs.
    """
    words, env = list(command), dict(env)
    while words and (match := _ASSIGNMENT.fullmatch(words[0])):
        env[match[1]] = match[2]
        words.pop(0)
    words, _ = without_runners(words, env)
    found = _script_of(words, workdir)
    if found is None:
        return [ResolvedCommand(command=tuple(words), workdir=workdir, env=env)]
    name, text, arguments = found

    def read(path: str) -> str | None:
        content = read_regular_file(Path(workdir, path), max_bytes=MAX_SCRIPT_BYTES)
        return None if content is None else _decoded(content)

    programs = find_python_commands(
        text, env, arguments, name=name, workdir=str(Path(workdir).absolute()), read=read, gpus=gpus
    )
    distinct = _distinct(name, programs)
    chosen = _chosen(distinct)
    for program in chosen:
        if program.unknown:
            raise UsageError(
                f"line {program.line} of `{name}`: the value of `{program.unknown[0]}` is known only when it runs",
                hint="set it: `NAME=VALUE cotenant estimate ...`, or give the command: `-- python train.py ARGS`",
            )
    return [
        _in_environment(program, name, workdir, env, is_traced=any(program is one for one in chosen))
        for program in distinct
    ]


def _in_environment(
    program: PythonCommand, name: str, workdir: str, env: Mapping[str, str], *, is_traced: bool
) -> ResolvedCommand:
    folders = [str(Path(workdir, Path(folder).expanduser())) for folder in program.bin_folders]
    path = {"PATH": ":".join([*folders, env.get("PATH", "")])} if folders else {}
    return ResolvedCommand(
        command=program.words,
        workdir=str(Path(workdir, program.folder)),
        env={**env, **path, **program.env},
        where=f"line {program.line} of `{name}`",
        is_traced=is_traced,
    )


def _script_of(words: Sequence[str], workdir: str) -> tuple[str, str, Sequence[str]] | None:
    """(name, text, arguments) of the shell script that a command runs; None if it runs none."""
    place = place_of_script(words)
    if place is None:
        return None
    content = read_regular_file(Path(workdir, words[place]), max_bytes=MAX_SCRIPT_BYTES)
    if content is None:
        raise UsageError(
            f"`{words[place]}` in `{workdir}` is no readable shell script of at most {format_bytes(MAX_SCRIPT_BYTES)}",
            hint="check the name and the folder, or give the command that trains: `-- python train.py ARGS`",
        )
    return words[place], _decoded(content), words[place + 1 :]


def _decoded(content: bytes) -> str:
    return content.decode(errors="replace").replace("\r\n", "\n")


def _distinct(name: str, found: Sequence[PythonCommand]) -> list[PythonCommand]:
    """The commands that differ, in their order."""
    by_words: dict[tuple[str, ...], PythonCommand] = {}
    for command in found:
        by_words.setdefault(command.words, command)
    distinct = list(by_words.values())
    if not distinct:
        raise UsageError(
            f"`{name}` starts no Python program that can be seen by reading it",
            hint="give the command that trains: `cotenant estimate -- python train.py ARGS`",
        )
    return distinct


def _chosen(programs: list[PythonCommand]) -> list[PythonCommand]:
    """At most four, those with known values first: the first of each Python file, the second of each, and so on."""
    if len(programs) <= _MAX_PROGRAMS:
        return programs
    files: Counter[str] = Counter()
    ranked = []
    for program in programs:
        file = next((word for word in program.words if word.endswith(".py")), "")
        ranked.append((bool(program.unknown), files[file], program.line))
        files[file] += 1
    places = sorted(range(len(programs)), key=lambda place: ranked[place])[:_MAX_PROGRAMS]
    return [programs[place] for place in sorted(places)]
