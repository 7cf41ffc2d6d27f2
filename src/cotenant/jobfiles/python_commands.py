"""Finds the Python commands of a batch script, by reading it as a shell would, without running anything.

Pure: text in, commands out. The reader follows variables, `shift`, `cd`, `source .../activate`, `conda activate`, the
first value of a `for` loop, arrays, integers in `$(( ... ))`, the branches that the variables exclude, programs that
start another (`srun`, `env`, `exec`, `time`, `nohup`, ...), and, where it may read them, the scripts that the script
runs. It does not know functions, and the output of a few commands alone (`shell_outputs`); it lists a name of unknown
value in `unknown`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cotenant.jobfiles import (
    shell_arithmetic,
    shell_arrays,
    shell_conditions,
    shell_lines,
    shell_outputs,
    shell_parameters,
    shell_runners,
)

SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh", "mksh"))
"""Programs that run batch scripts. The runner, which imports the standard library only, has a copy."""

_BRANCHES = frozenset(("if", "then", "elif", "else", "fi"))
_KEYWORDS = frozenset(("do", "{", "!", "while", "until")) | _BRANCHES
_VARIABLE = re.compile(r"\$(?:(\w+|[@*#?$!-])|\{(#?)(\w+|[@*#])([^{}]*)\}|\(+[^()]*\)+)|`[^`]*`")
_SLICE = re.compile(r":\s*(\d{1,4})")
_FIRST_OF_LOOP = re.compile(r"\s*for\s*\(\(\s*(\w+)\s*=\s*(\d+)\s*;[^;]*;[^;]*?\)\)")
_RANDOM = "12345"  # what `$RANDOM` is: a number of at most 32,767, of a port or a seed
_ARITHMETIC = "cotenant_arithmetic_"
_OUTPUT = "cotenant_output_"
_MAY_BE_EMPTY = re.compile(r"\w*(PATH|ARGS?|OPTS|OPTIONS|FLAGS)", re.IGNORECASE)
"""Names of variables that a script appends to or passes on, and that are often not set."""
_MAX_SCRIPTS = 8
_MAX_ROUNDS = 3


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
    """
    reader = _ScriptReader(env, arguments, name=name, workdir=workdir, read=read)
    for number, line in shell_lines.logical_lines(text):
        reader.read(number, line)
    return reader.found


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
    ) -> None:
        self.found: list[PythonCommand] = []
        self._arguments = list(arguments)
        self._name = name
        self._workdir = workdir
        self._read_file = read
        self._scripts = 0  # that were read so far
        self._env = {"RANDOM": _RANDOM, **env}
        self._set: dict[str, str] = {}
        self._folder = ""
        self._bin_folders: tuple[str, ...] = ()
        self._conda_env = ""
        self._unknown: dict[str, None] = {}
        self._branches = shell_conditions.Branches()
        self._cases = shell_conditions.Cases()
        self._arrays = shell_arrays.Arrays()
        self._arithmetic: list[str] = []  # expressions of the line
        self._outputs: list[str] = []  # commands in `$(...)` of the line
        self._not_evaluated: set[str] = set()  # variables that hold the value of one that is not known

    def read(self, number: int, line: str) -> None:
        """Read one line."""
        for part in self._cases.commands(line, self._case_word):
            self._read_part(number, part)

    def _case_word(self, word: str) -> str | None:
        """The word that a `case` matches; None: not known. An argument that is not given is empty."""
        self._unknown = {}
        text = self._texts([word.strip("\"'")])[0]
        return None if set(self._unknown) - {f"${place}" for place in range(1, 10)} else text

    def _read_part(self, number: int, line: str) -> None:
        if self._arrays.assign(line, self._known):
            return
        line = self._arrays.expanded(line, self._known)
        if first := _FIRST_OF_LOOP.match(line):
            self._assign(first[1], [first[2]])
            line = line[first.end() :]
        for join, words in shell_lines.joined_commands(self._with_names(line)):
            self._unknown = {}
            self._command(number, words, join)

    def _with_names(self, line: str) -> str:
        """A line with variables in the places of `$(( ... ))` and `$( ... )`, evaluated when its command is read."""
        self._arithmetic, self._outputs = [], []
        text = ""
        for part, is_expression in shell_arithmetic.parts(line):
            text += f"${{{_ARITHMETIC}{len(self._arithmetic)}}}" if is_expression else part
            self._arithmetic += [part] if is_expression else []
        return self._without_outputs(text)

    def _without_outputs(self, line: str, depth: int = 0) -> str:
        text = ""
        for part, is_command in shell_outputs.parts(line):
            if is_command:
                inner = self._without_outputs(part, depth + 1) if depth < _MAX_ROUNDS else part
                text += f"${{{_OUTPUT}{len(self._outputs)}}}"
                self._outputs.append(inner)
            else:
                text += part
        return text

    def _command(self, number: int, words: list[str], join: str) -> None:
        is_negated = False
        while words and words[0] in _KEYWORDS:
            if words[0] in _BRANCHES:
                self._branches.keyword(words[0])
            is_negated |= words[0] == "!"
            words = words[1:]
        if words and self._branches.in_condition:
            truth = shell_conditions.truth(self._texts(words))
            is_known = truth is not None and not self._unknown
            self._branches.condition(truth is not is_negated if is_known else None, join)
            self._unknown = {}
        if self._branches.is_excluded or self._cases.is_excluded:
            return
        if len(words) > 3 and words[0] == "for" and words[2] == "in":
            self._assign(words[1], self._expanded([words[3]])[:1])
            return
        env: dict[str, str] = {}
        while words and (match := shell_runners.ASSIGNMENT.fullmatch(words[0])):
            env[match[1]] = " ".join(self._expanded([match[2]]))
            words = words[1:]
        if not words:
            for name, value in env.items():
                self._assign(name, [value])
                if self._arithmetic and self._unknown:
                    self._not_evaluated.add(name)
            return
        words = self._expanded(words)
        if words:
            self._run(number, words, env)

    def _assign(self, name: str, words: Sequence[str]) -> None:
        self._not_evaluated.discard(name)
        self._set[name] = " ".join(words)

    def _run(self, number: int, words: list[str], env: dict[str, str]) -> None:
        name = words[0].rpartition("/")[2]
        if name in ("export", "declare", "typeset", "local"):
            for word in words[1:]:
                if match := shell_runners.ASSIGNMENT.fullmatch(word):
                    self._assign(match[1], [match[2]])
        elif name in ("cd", "pushd") and len(words) > 1:
            self._folder = self._below(words[-1])
        elif name == "shift":
            self._arguments = self._arguments[int(words[1]) if words[1:] and words[1].isdecimal() else 1 :]
        elif name in ("source", ".") and len(words) > 1:
            self._source(number, words[1], words[2:])
        elif name == "eval":
            for inner in shell_lines.commands(" ".join(words[1:])):
                self._run(number, inner, dict(env))
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
                        env={**self._set, **env},
                        bin_folders=self._bin_folders,
                        conda_env=self._conda_env,
                        unknown=tuple(self._unknown),
                    )
                )

    def _below(self, path: str) -> str:
        """`path` from where the script starts."""
        return path if path.startswith("/") else "/".join(filter(None, (self._folder, path)))

    def _run_script(self, number: int, words: Sequence[str], env: Mapping[str, str]) -> None:
        """Find the Python commands of a shell script that a line runs."""
        if words and words[0].rpartition("/")[2] in SHELLS:
            place = next((place for place, word in enumerate(words[1:], start=1) if not word.startswith("-")), None)
            if place is None or any("c" in word for word in words[1:place]):
                return
            words = words[place:]
        elif not words or not words[0].endswith(".sh"):
            return
        text = self._script(words[0])
        if text is None:
            return
        variables = {**self._env, **self._set, **env}
        inner = _ScriptReader(
            variables, words[1:], name=words[0], workdir=self._where(), read=self._relative(self._folder)
        )
        inner._scripts = self._scripts
        for _, line in shell_lines.logical_lines(text):
            inner.read(number, line)
        self._scripts = inner._scripts
        for command in inner.found:
            self.found.append(
                replace(
                    command,
                    folder=self._below(command.folder),
                    env={**self._set, **env, **command.env},
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
        if name != "activate":
            text = self._script(path)
            for _, line in shell_lines.logical_lines(text or ""):
                self.read(number, line)
            return
        if rest and folder.endswith("bin"):  # `source .../bin/activate NAME` is conda's
            self._conda_env = rest[0]
        elif folder:
            self._bin_folders = (self._below(folder), *self._bin_folders)

    def _expanded(self, words: Sequence[str]) -> list[str]:
        """`words` with the values of variables; one that is a variable and nothing else is split, as without quotes."""
        expanded: list[str] = []
        for word in words:
            if word in ("$@", "$*", "${@}"):
                expanded += self._arguments
            elif match := re.fullmatch(r"\$\{@:(\d{1,4})\}", word):
                expanded += self._arguments[max(int(match[1]) - 1, 0) :]
            elif re.fullmatch(r"\$(\w+|\{\w+\}|\{\w+:?[-+][^{}]*\})", word):
                expanded += self._texts([word])[0].split()
            elif word.endswith("$"):  # what is in the brackets behind it was read as a command of its own
                self._unknown["$(...)"] = None
                expanded += self._texts([word[:-1]])
            else:
                expanded += self._texts([word])
        return expanded

    def _texts(self, words: Sequence[str]) -> list[str]:
        """`words` with the values of variables in them, also of those in a default: `${A:-${B}}`."""
        texts = []
        for word in words:
            text = _VARIABLE.sub(self._substitute, word)
            for _ in range(_MAX_ROUNDS):
                if "${" not in word or "${" not in text or (further := _VARIABLE.sub(self._substitute, text)) == text:
                    break
                text = further
            texts.append(text)
        return texts

    def _substitute(self, match: re.Match[str]) -> str:
        name, rest = match[1] or match[3], match[4] or ""
        if name is None:
            self._unknown[match[0]] = None
            return ""
        if name in ("@", "*"):
            start = _SLICE.fullmatch(rest)
            return " ".join(self._arguments[max(int(start[1]) - 1, 0) :] if start else self._arguments)
        if match[2]:  # `${#NAME}`
            return str(len(self._value(name, match[0])))
        if not rest or name.startswith((_ARITHMETIC, _OUTPUT)):
            return self._value(name, match[0])
        return self._changed(name, match[0], rest)

    def _changed(self, name: str, written: str, rest: str) -> str:
        """The value of `${name` + `rest` + `}`."""
        if name == "BASH_SOURCE":
            return self._value("0", written)
        found = shell_parameters.expanded(self._parameter(name), rest)
        if name in self._not_evaluated or found is None:
            self._unknown[written] = None
            return ""
        if "=" in rest[:2] and found:
            self._assign(name, [found])
        return _VARIABLE.sub(self._substitute, found) if found in rest else found

    def _parameter(self, name: str) -> str | None:
        """The value of a variable or of an argument; None: it is not set."""
        if not name.isdigit():
            return self._known(name)
        place = int(name[:4]) - 1
        if place < 0:
            return self._name or None
        return self._arguments[place] if place < len(self._arguments) else self._known(name)

    def _known(self, name: str) -> str | None:
        return self._set.get(name, self._env.get(name))

    def _printed(self, place: int) -> str | None:
        """What the command in a `$( ... )` of the line prints; None: not known."""
        before, self._unknown = self._unknown, {}
        text = self._texts([self._outputs[place]])[0]
        is_known, self._unknown = not self._unknown, before
        return shell_outputs.printed(text, self._where()) if is_known else None

    def _value(self, name: str, written: str) -> str:
        if name == "#":
            return str(len(self._arguments))
        key = name.removeprefix(_OUTPUT)
        if key != name and key.isdecimal() and int(key[:4]) < len(self._outputs):
            output = self._printed(int(key[:4]))
            if output is None:
                self._unknown["$(...)"] = None
            return output or ""
        if name == "BASH_SOURCE":
            name = "0"
        key = name.removeprefix(_ARITHMETIC)
        if key != name and key.isdecimal() and int(key[:4]) < len(self._arithmetic):
            expression = self._arithmetic[int(key[:4])]
            number = shell_arithmetic.evaluate(expression, self._known)
            if number is None:
                self._unknown[f"$(({expression}))"] = None
            return "" if number is None else str(number)
        found = self._parameter(name)
        if name == "PWD" and found is None:
            found = self._where() or None
        if name in self._not_evaluated or (found is None and not _MAY_BE_EMPTY.fullmatch(name)):
            self._unknown[written] = None
        return found or ""
