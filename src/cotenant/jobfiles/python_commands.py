"""Finds the Python commands of a batch script, by reading it as a shell would, without running anything.

Pure: text in, commands out. The reader follows variables (`shell_variables`), options (`shell_options`), `shift`, `cd`,
`source .../activate`, `conda activate`, the first value of a `for` loop, the branches that the variables exclude,
functions, programs that start another (`srun`, `env`, `exec`, `time`, `nohup`, ...), and, where it may read them, the
scripts that the script runs. It lists a name of unknown value in `unknown`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cotenant.jobfiles import shell_conditions, shell_functions, shell_lines, shell_options, shell_runners
from cotenant.jobfiles.shell_variables import ShellVariables

SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh", "mksh"))
_SHELL_FILES = frozenset(("--rcfile", "--init-file"))
"""Options of a shell with a value, beside those whose last letter is `o` or `O`: `-euo pipefail`."""
"""Programs that run batch scripts. The runner, which imports the standard library only, has a copy."""

_BRANCHES = frozenset(("if", "then", "elif", "else", "fi"))
_KEYWORDS = frozenset(("do", "{", "!", "while", "until")) | _BRANCHES
_TESTS = frozenset(("[", "[[", "test", "true", "false"))
_FIRST_OF_LOOP = re.compile(r"\s*for\s*\(\(\s*(\w+)\s*=\s*(\d+)\s*;[^;]*;[^;]*?\)\)")
_MAX_SCRIPTS = 8
_MAX_ROUNDS = 64  # of a loop over the arguments
_MAX_CALLS = 256  # of functions, in all


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonCommand:
    """A command of a script that runs a Python program.

    Attributes:
        words: argv, from the interpreter, the launcher (`torchrun`) or the `.py` file on.
        line: where it begins in the script, from 1.
        folder: working directory, as `cd` named it; empty: where the script starts.
        env: variables that the script sets for it.
        bin_folders: folders that the script puts before the PATH, by activating an environment.
        conda_env: name or path of the conda environment that is active, or empty.
        unknown: variables and substitutions in `words` whose value is not known; they count as empty.
    """

    words: tuple[str, ...]
    line: int
    folder: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    bin_folders: tuple[str, ...] = ()
    conda_env: str = ""
    unknown: tuple[str, ...] = ()


def find_python_commands(
    text: str,
    env: Mapping[str, str],
    arguments: Sequence[str] = (),
    *,
    name: str = "",
    workdir: str = "",
    read: Callable[[str], str | None] | None = None,
    gpus: int = 1,
) -> list[PythonCommand]:
    """The Python commands of the shell script `text`, in their order.

    Args:
        text: the script.
        env: variables that it starts with.
        arguments: its own, `$1` and `$@`.
        name: `$0`; empty: not known.
        workdir: the absolute folder where it starts; empty: not known.
        read: the text of a script at a path below `workdir`, or None if there is none; without it, the scripts that
            this one runs are not followed.
        gpus: how many GPUs `nvidia-smi` lists.
    """
    reader = _ScriptReader(env, arguments, name=name, workdir=workdir, read=read, gpus=gpus)
    reader.read(list(shell_lines.logical_lines(text)))
    if not reader.found:
        reader.read_functions()
    return reader.found


def place_of_script(words: Sequence[str]) -> int | None:
    """Which of the words of a command is the shell script that it runs; None: it runs none, or commands (`bash -c`)."""
    if not words or words[0].rpartition("/")[2] not in SHELLS:
        return 0 if words and words[0].endswith(".sh") else None
    place = 1
    while place < len(words) and words[place][:1] in ("-", "+"):
        word = words[place]
        if word == "--":
            place += 1
            break
        is_long = word.startswith("--")
        if not is_long and "c" in word:
            return None
        place += 2 if word in _SHELL_FILES or (not is_long and word[-1] in "oO") else 1
    return place if place < len(words) else None


class _ScriptReader:
    """State of the shell while the script is read."""

    def __init__(
        self,
        env: Mapping[str, str],
        arguments: Sequence[str],
        *,
        name: str,
        workdir: str,
        read: Callable[[str], str | None] | None,
        gpus: int,
    ) -> None:
        self.found: list[PythonCommand] = []
        self._variables = ShellVariables(env, arguments, name=name, gpus=gpus, where=self._where)
        self._workdir = workdir
        self._read_file = read
        self._gpus = gpus
        self._scripts = 0  # that were read so far
        self._folder = ""
        self._bin_folders: tuple[str, ...] = ()
        self._conda_env = ""
        self._branches = shell_conditions.Branches()
        self._cases = shell_conditions.Cases()
        self._getopts = shell_options.Getopts()
        self._status: bool | None = None  # of the command before, in a list of them
        self._has_left = False  # the loop, by `break`, or the function, by `return`
        self._functions: dict[str, tuple[shell_options.Line, ...]] = {}
        self._called: list[str] = []  # functions that are being read
        self._calls = 0

    def read(self, lines: Sequence[shell_options.Line]) -> None:
        """Read lines; a loop over the arguments as often as it runs, a function where it is called."""
        place = 0
        while place < len(lines) and not self._has_left:
            loop = shell_options.argument_loop(lines, place)
            function = shell_functions.function_at(lines, place)
            if function is not None:
                self._functions[function.name] = function.body
                place = function.end + 1
            elif loop is None:
                self._read_line(*lines[place])
                place += 1
            else:
                self._repeat(loop)
                place = loop.end + 1

    def read_functions(self) -> None:
        """Read all functions, as far as calls are not known that reach one with a Python command."""
        for body in list(self._functions.values()):
            self.read(body)
            self._has_left = False

    def _call(self, words: Sequence[str], env: Mapping[str, str]) -> None:
        name, self._calls = words[0], self._calls + 1
        if name in self._called or self._calls > _MAX_CALLS:
            return
        arguments, self._variables.arguments = self._variables.arguments, list(words[1:])
        branches, cases = self._branches.depth, self._cases.depth
        for variable, value in env.items():
            self._variables.assign(variable, [value], is_computed=True)
        self._called.append(name)
        self.read(self._functions[name])
        self._called.pop()
        self._variables.arguments = arguments
        self._branches.leave(branches)
        self._cases.leave(cases)
        self._has_left = False

    def _repeat(self, loop: shell_options.ArgumentLoop) -> None:
        arguments = list(self._variables.arguments)
        branches, cases = self._branches.depth, self._cases.depth
        for place in range(_MAX_ROUNDS):
            goes_on: bool | None = place < len(arguments)
            if loop.variable and goes_on:
                self._variables.assign(loop.variable, [arguments[place]])
            elif not loop.variable:
                goes_on = self._goes_on(loop)
            if goes_on is not False:
                self.read(loop.body)
                self._branches.leave(branches)
                self._cases.leave(cases)
            if self._has_left or not goes_on:
                break
        self._has_left = False

    def _goes_on(self, loop: shell_options.ArgumentLoop) -> bool | None:
        """Whether a `while` goes on; None: not known."""
        truth: bool | None = None
        for before, words in shell_lines.listed_commands(self._variables.with_names(loop.condition)):
            self._variables.unknown = {}
            if words[0] == "getopts" and len(words) > 2:
                value: bool | None = self._next_option(words[1], words[2])
            else:
                texts = self._variables.texts(words)
                value = None if self._variables.unknown else shell_conditions.truth(texts)
            truth = shell_conditions.joined(truth, before, value)
        return truth if truth is None or not loop.is_until else not truth

    def _next_option(self, letters: str, name: str) -> bool:
        found = self._getopts.read(letters, self._variables.arguments)
        if found is not None:
            self._variables.assign(name, [found[0]])
            self._variables.assign("OPTARG", [found[1]])
        self._variables.assign("OPTIND", [str(self._getopts.next_argument)])
        return found is not None

    def _read_line(self, number: int, line: str) -> None:
        for part in self._cases.commands(line, self._case_word):
            self._read_part(number, part)

    def _case_word(self, word: str) -> str | None:
        """The word that a `case` matches; None: not known. An argument that is not given is empty."""
        self._variables.unknown = {}
        text = self._variables.texts([word.strip("\"'")])[0]
        return None if set(self._variables.unknown) - {f"${place}" for place in range(1, 10)} else text

    def _read_part(self, number: int, line: str) -> None:
        if self._variables.assign_array(line):
            return
        if first := _FIRST_OF_LOOP.match(line):
            self._variables.assign(first[1], [first[2]])
            line = line[first.end() :]
        self._status = None
        for before, words in shell_lines.listed_commands(self._variables.with_names(line)):
            is_skipped = (before == "&&" and self._status is False) or (before == "||" and self._status is True)
            if is_skipped and not set(words) & _KEYWORDS:
                continue
            self._variables.unknown = {}
            self._command(number, words, before)

    def _command(self, number: int, words: list[str], before: str = "") -> None:
        is_negated = False
        while words and words[0] in _KEYWORDS:
            if words[0] in _BRANCHES:
                self._branches.keyword(words[0])
            is_negated |= words[0] == "!"
            words = words[1:]
        is_certain = before not in ("&&", "||") or self._status is not None
        self._status = None
        if words and (words[0] in _TESTS or self._branches.in_condition):
            texts = self._variables.texts(words)
            truth = None if self._variables.unknown else shell_conditions.truth(texts)
            self._status = not truth if is_negated and truth is not None else truth
            if self._branches.in_condition:
                self._branches.condition(self._status, before)
            self._variables.unknown = {}
        if self._branches.is_excluded or self._cases.is_excluded or self._has_left:
            return
        if words[:1] in (["break"], ["return"]):
            self._has_left = is_certain and self._branches.is_certain and self._cases.is_certain
            return
        if len(words) > 3 and words[0] == "for" and words[2] == "in":
            self._variables.assign(words[1], self._variables.expanded([words[3]])[:1])
            return
        env: dict[str, str] = {}
        appended = set()
        while words and (match := shell_runners.ASSIGNMENT.fullmatch(words[0])):
            name, value = match[1], " ".join(self._variables.expanded([match[3]]))
            before_it = env.get(name, self._variables.known(name) or "") if match[2] else ""
            env[name] = before_it + value
            appended |= {name} if match[2] else set()
            words = words[1:]
        if not words:
            for name, value in env.items():
                self._variables.assign(name, [value], is_computed=True, is_appended=name in appended)
            return
        words = self._variables.expanded(words)
        if words and words[0] in self._functions:
            self._call(words, env)
        elif words:
            self._run(number, words, env)

    def _run(self, number: int, words: list[str], env: dict[str, str]) -> None:
        name = words[0].rpartition("/")[2]
        if name in ("export", "declare", "typeset", "local"):
            for word in words[1:]:
                if match := shell_runners.ASSIGNMENT.fullmatch(word):
                    before = (self._variables.known(match[1]) or "") if match[2] else ""
                    value = before + match[3]
                    self._variables.assign(match[1], [value], is_computed=True, is_appended=bool(match[2]))
        elif name in ("cd", "pushd") and len(words) > 1:
            self._folder = self._below(words[-1])
        elif name == "shift":
            self._variables.arguments = self._variables.arguments[
                int(words[1]) if words[1:2] and words[1].isdecimal() else 1 :
            ]
        elif name in ("source", ".") and len(words) > 1:
            self._source(number, words[1], words[2:])
        elif name == "eval":
            for inner in shell_lines.commands(" ".join(words[1:])):
                self._command(number, inner)
        elif name in ("conda", "mamba", "micromamba") and words[1:2] == ["activate"]:
            self._conda_env = words[2] if len(words) > 2 else "base"
        else:
            inner, conda_env = shell_runners.without_runners(words, env)
            self._conda_env = conda_env or self._conda_env
            if not shell_runners.runs_python(inner):
                self._run_script(number, inner, env)
            else:
                self.found.append(
                    PythonCommand(
                        words=tuple(inner),
                        line=number,
                        folder=self._folder,
                        env={**self._variables.assigned, **env},
                        bin_folders=self._bin_folders,
                        conda_env=self._conda_env,
                        unknown=tuple(self._variables.unknown),
                    )
                )

    def _below(self, path: str) -> str:
        """`path` from where the script starts."""
        return path if path.startswith("/") else "/".join(filter(None, (self._folder, path)))

    def _run_script(self, number: int, words: Sequence[str], env: Mapping[str, str]) -> None:
        """Find the Python commands of a shell script that a line runs."""
        place = place_of_script(words)
        if place is None:
            return
        words = words[place:]
        text = self._script(words[0])
        if text is None:
            return
        inner = _ScriptReader(
            {**self._variables.all_values(), **env},
            words[1:],
            name=words[0],
            workdir=self._where(),
            read=self._relative(self._folder),
            gpus=self._gpus,
        )
        inner._scripts = self._scripts
        inner.read([(number, line) for _, line in shell_lines.logical_lines(text)])
        self._scripts = inner._scripts
        for command in inner.found:
            self.found.append(
                replace(
                    command,
                    folder=self._below(command.folder),
                    env={**self._variables.assigned, **env, **command.env},
                    bin_folders=(*map(self._below, command.bin_folders), *self._bin_folders),
                    conda_env=command.conda_env or self._conda_env,
                )
            )

    def _relative(self, folder: str) -> Callable[[str], str | None]:
        read = self._read_file
        return lambda path: read(path if path.startswith("/") else posixpath.join(folder, path)) if read else None

    def _script(self, path: str) -> str | None:
        """The text of a script that this one runs; None: it is not read."""
        if self._read_file is None or self._scripts >= _MAX_SCRIPTS:
            return None
        self._scripts += 1
        return self._read_file(self._below(path))

    def _where(self) -> str:
        """The absolute folder where the next command runs; empty: not known."""
        return posixpath.normpath(posixpath.join(self._workdir, self._folder)) if self._workdir else ""

    def _source(self, number: int, path: str, rest: Sequence[str]) -> None:
        folder, _, name = path.rpartition("/")
        if name == "parse_options.sh":
            options, self._variables.arguments = shell_options.kaldi_options(self._variables.arguments)
            for option, value in options.items():
                self._variables.assign(option, [value])
            return
        if name != "activate":
            self.read([(number, line) for _, line in shell_lines.logical_lines(self._script(path) or "")])
            return
        if rest and folder.endswith("bin"):  # `source .../bin/activate NAME` is conda's
            self._conda_env = rest[0]
        elif folder:
            self._bin_folders = (self._below(folder), *self._bin_folders)
