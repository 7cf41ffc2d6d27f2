"""Finds the Python commands of a batch script, by reading it as a shell would, without running anything.

Pure: text in, commands out. The reader follows variables, `shift`, `cd`, `source .../activate`, `conda activate`, the
first value of a `for` loop, arrays, integers in `$(( ... ))`, the branches that the variables exclude, and programs
that start another: `srun`, `env`, `exec`, `time`, `nohup`, ... It knows neither functions nor the output of commands;
it lists a name of unknown value in `unknown`.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cotenant.core.errors import UsageError
from cotenant.jobfiles import shell_arithmetic, shell_arrays, shell_conditions
from cotenant.jobfiles.sbatch import SbatchOption, split_options

MAX_SCRIPT_LINES = 5_000
MAX_JOINED_LINES = 100
LAUNCHERS = frozenset(("accelerate", "deepspeed", "torchrun"))
NOTEBOOK_COMMANDS = frozenset(("jupyter", "jupyter-execute", "jupyter-nbconvert", "papermill"))
SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh", "mksh"))
"""Programs that run batch scripts. The runner, which imports the standard library only, has a copy."""

_BRANCHES = frozenset(("if", "then", "elif", "else", "fi"))
_KEYWORDS = frozenset(("do", "{", "!", "while", "until")) | _BRANCHES
_RUNNERS: Mapping[str, frozenset[str]] = {
    "command": frozenset(),
    "exec": frozenset(("-a",)),
    "mpiexec": frozenset(("-n", "-np", "-c", "-H", "--host", "--hostfile", "-x", "--map-by", "--bind-to")),
    "mpirun": frozenset(("-n", "-np", "-c", "-H", "--host", "--hostfile", "-x", "--map-by", "--bind-to")),
    "nice": frozenset(("-n",)),
    "nohup": frozenset(),
    "numactl": frozenset(("-m", "-N", "-C", "-i")),
    "stdbuf": frozenset(("-i", "-o", "-e")),
    "time": frozenset(("-f", "-o")),
    "xvfb-run": frozenset(("-n", "-s", "-f")),
}
"""Programs that run the command after their options, and those of their options that take a value."""
_RUN_SUBCOMMANDS: Mapping[str, frozenset[str]] = {
    "conda": frozenset(("-n", "--name", "-p", "--prefix", "--cwd")),
    "mamba": frozenset(("-n", "--name", "-p", "--prefix", "--cwd")),
    "pipenv": frozenset(),
    "poetry": frozenset(),
    "uv": frozenset(("--with", "--python", "-p", "--extra", "--group", "--project", "--directory")),
}
"""Programs whose subcommand `run` does the same."""
_SRUN = {
    option.name: option
    for option in (
        *(SbatchOption(name=name, value="none") for name in ("exact", "label", "overlap", "pty", "unbuffered")),
        *(SbatchOption(name=name) for name in ("cpu-bind", "jobid", "mpi", "het-group", "multi-prog", "task-epilog")),
        SbatchOption(name="kill-on-bad-exit", value="optional"),
    )
}
_SRUN_FLAGS = frozenset(("-l", "-u", "-E", "-K"))
"""Flags of srun that mean something else to sbatch."""
_NO_TRAINING = frozenset(("build", "ensurepip", "http.server", "pip", "pytest", "venv", "virtualenv"))
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:(\w+|[@*#?$!-])|\{(\w+|[@*])(?::?-([^{}]*))?[^{}]*\}|\(+[^()]*\)+)|`[^`]*`")
_FIRST_OF_LOOP = re.compile(r"\s*for\s*\(\(\s*(\w+)\s*=\s*(\d+)\s*;[^;]*;[^;]*?\)\)")
_RANDOM = "12345"  # what `$RANDOM` is: a number of at most 32,767, of a port or a seed
_ARITHMETIC = "cotenant_arithmetic_"
_NAME_BEFORE_QUOTE = re.compile(r"\$(\w+)(?=['\"])")
_HEREDOC = re.compile(r"<<-?\s*(['\"\\]?)(\w+)\1?")
_PYTHON = re.compile(r"python(3(\.\d+)?)?")


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


def find_python_commands(text: str, env: Mapping[str, str], arguments: Sequence[str] = ()) -> list[PythonCommand]:
    """The Python commands of the shell script `text`, in their order.

    `env`: variables that the script starts with; `arguments`: its own arguments, `$1` and `$@`.
    """
    reader = _ScriptReader(env, arguments)
    for number, line in _logical_lines(text):
        reader.read(number, line)
    return reader.found


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with the number of their first, continuations joined, here-documents left out."""
    waiting: list[str] = []
    parts: list[str] = []
    start = 0
    for number, line in enumerate(text.split("\n")[:MAX_SCRIPT_LINES], start=1):
        if waiting:
            if line.strip() == waiting[0]:
                waiting.pop(0)
            continue
        start = start or number
        if line.endswith("\\") and not line.endswith("\\\\"):
            parts.append(line[:-1])
            continue
        code = line.partition(" #")[0] if shell_arrays.is_open(" ".join(parts)) else line
        whole = " ".join([*parts, code])
        is_open = whole.count('"') % 2 or whole.count("'") % 2  # a string may go on in the next line
        is_open = is_open or shell_arrays.is_open(whole)
        if is_open and not whole.lstrip().startswith("#") and len(parts) < MAX_JOINED_LINES:
            parts.append(code)
            continue
        waiting = [match[2] for match in _HEREDOC.finditer(whole)]
        yield start, whole
        parts, start = [], 0


class _ScriptReader:
    """State of the shell while the script is read."""

    def __init__(self, env: Mapping[str, str], arguments: Sequence[str]) -> None:
        self.found: list[PythonCommand] = []
        self._arguments = list(arguments)
        self._env = {"RANDOM": _RANDOM, **env}
        self._set: dict[str, str] = {}
        self._folder = ""
        self._bin_folders: tuple[str, ...] = ()
        self._conda_env = ""
        self._unknown: dict[str, None] = {}
        self._branches = shell_conditions.Branches()
        self._arrays = shell_arrays.Arrays()
        self._arithmetic: list[str] = []  # expressions of the line
        self._not_evaluated: set[str] = set()  # variables that hold the value of one that is not known

    def read(self, number: int, line: str) -> None:
        """Read one line."""
        if self._arrays.assign(line, self._known):
            return
        line = self._arrays.expanded(line, self._known)
        if first := _FIRST_OF_LOOP.match(line):
            self._assign(first[1], [first[2]])
            line = line[first.end() :]
        for words in _commands(self._with_names(line)):
            self._unknown = {}
            self._command(number, words)

    def _with_names(self, line: str) -> str:
        """A line with a variable in the place of each `$(( ... ))`, which is evaluated when its command is read."""
        self._arithmetic = []
        text = ""
        for part, is_expression in shell_arithmetic.parts(line):
            text += f"${{{_ARITHMETIC}{len(self._arithmetic)}}}" if is_expression else part
            self._arithmetic += [part] if is_expression else []
        return text

    def _command(self, number: int, words: list[str]) -> None:
        is_negated = False
        while words and words[0] in _KEYWORDS:
            if words[0] in _BRANCHES:
                self._branches.keyword(words[0])
            is_negated |= words[0] == "!"
            words = words[1:]
        if words and self._branches.in_condition:
            texts = [_VARIABLE.sub(self._substitute, word) for word in words]
            self._branches.condition(None if self._unknown or is_negated else shell_conditions.truth(texts))
            self._unknown = {}
        if self._branches.is_excluded:
            return
        if len(words) > 3 and words[0] == "for" and words[2] == "in":
            self._assign(words[1], self._expanded([words[3]]))
            return
        env: dict[str, str] = {}
        while words and (match := _ASSIGNMENT.fullmatch(words[0])):
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
                if match := _ASSIGNMENT.fullmatch(word):
                    self._assign(match[1], [match[2]])
        elif name in ("cd", "pushd") and len(words) > 1:
            self._folder = self._below(words[-1])
        elif name == "shift":
            self._arguments = self._arguments[int(words[1]) if words[1:] and words[1].isdecimal() else 1 :]
        elif name in ("source", ".") and len(words) > 1:
            self._source(words[1], words[2:])
        elif name in ("conda", "mamba", "micromamba") and words[1:2] == ["activate"]:
            self._conda_env = words[2] if len(words) > 2 else "base"
        else:
            inner = self._without_runners(words, env)
            if _runs_python(inner):
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

    def _source(self, path: str, rest: Sequence[str]) -> None:
        folder, _, name = path.rpartition("/")
        if name != "activate":
            return
        if rest and folder.endswith("bin"):  # `source .../bin/activate NAME` is conda's
            self._conda_env = rest[0]
        elif folder:
            self._bin_folders = (self._below(folder), *self._bin_folders)

    def _without_runners(self, words: list[str], env: dict[str, str]) -> list[str]:
        """The command that `srun`, `env` and the like run; their variables are added to `env`."""
        while words:
            name = words[0].rpartition("/")[2]
            if name == "srun":
                words = words[1 + _srun_options(words[1:]) :]
            elif name == "env":
                words = _after_options(words[1:], frozenset(("-u", "-C", "--unset", "--chdir")))
                while words and ((match := _ASSIGNMENT.fullmatch(words[0])) or words[0].startswith("-")):
                    if match:
                        env[match[1]] = match[2]
                        words = words[1:]
                    else:
                        words = _after_options(words, frozenset(("-u", "-C", "--unset", "--chdir")))
            elif name == "timeout":
                words = _after_options(words[1:], frozenset(("-k", "-s", "--kill-after", "--signal")))[1:]
            elif name in _RUN_SUBCOMMANDS and words[1:2] == ["run"]:
                if name in ("conda", "mamba"):
                    pairs = dict(itertools.pairwise(words))
                    self._conda_env = pairs.get("-n", pairs.get("--name", pairs.get("-p", self._conda_env)))
                words = _after_options(words[2:], _RUN_SUBCOMMANDS[name])
            elif name in _RUNNERS:
                words = _after_options(words[1:], _RUNNERS[name])
            else:
                break
        return words

    def _expanded(self, words: Sequence[str]) -> list[str]:
        """`words` with the values of variables; one that is a variable and nothing else is split, as without quotes."""
        expanded: list[str] = []
        for word in words:
            if word in ("$@", "$*", "${@}"):
                expanded += self._arguments
            elif re.fullmatch(r"\$(\w+|\{\w+\})", word):
                expanded += self._value(word.strip("${}"), word).split()
            elif word.endswith("$"):  # what is in the brackets behind it was read as a command of its own
                self._unknown["$(...)"] = None
                expanded.append(_VARIABLE.sub(self._substitute, word[:-1]))
            else:
                expanded.append(_VARIABLE.sub(self._substitute, word))
        return expanded

    def _substitute(self, match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name is None:
            self._unknown[match[0]] = None
            return ""
        if name in ("@", "*"):
            return " ".join(self._arguments)
        return self._value(name, match[0], default=match[3])

    def _known(self, name: str) -> str | None:
        return self._set.get(name, self._env.get(name))

    def _value(self, name: str, written: str, default: str | None = None) -> str:
        if name.isdigit():
            place = int(name[:4]) - 1
            if 0 <= place < len(self._arguments):
                return self._arguments[place]
        key = name.removeprefix(_ARITHMETIC)
        if key != name and key.isdecimal() and int(key[:4]) < len(self._arithmetic):
            expression = self._arithmetic[int(key[:4])]
            number = shell_arithmetic.evaluate(expression, self._known)
            if number is None:
                self._unknown[f"$(({expression}))"] = None
            return "" if number is None else str(number)
        found = self._known(name)
        if (found is None and default is None) or name in self._not_evaluated:
            self._unknown[written] = None
        return default or "" if found is None else found


def _commands(line: str) -> Iterator[list[str]]:
    """The simple commands of a line, as words with their quotes removed; redirections are left out."""
    line = _NAME_BEFORE_QUOTE.sub(r"${\1}", line)  # a quote ends the name in `$model'_'$length`
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|()<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    words: list[str] = []
    skips_next = False
    try:
        tokens = _without_comment(list(lexer))
    except ValueError:  # an open quote
        return
    for token in tokens:
        if set(token) <= set("<>&") and set(token) & set("<>"):
            if words and words[-1].isdigit():
                words.pop()  # `2>` is a descriptor and a redirection
            skips_next = True
        elif token and set(token) <= set(";&|()"):
            if words:
                yield words
            words, skips_next = [], False
        elif skips_next:
            skips_next = False
        else:
            words.append(token)
    if words:
        yield words


def _without_comment(tokens: list[str]) -> list[str]:
    for place, token in enumerate(tokens):
        if token.startswith("#"):
            return tokens[:place]
    return tokens


def _srun_options(words: list[str]) -> int:
    """How many of the words after `srun` are its options and their values."""
    own = [place for place, word in enumerate(words) if word in _SRUN_FLAGS]
    try:
        end = split_options([word for word in words if word not in _SRUN_FLAGS], _SRUN)[1]
        for place in own:  # they stood among the options, not in the command
            end += place <= end
        return end
    except UsageError:  # an option of srun that sbatch does not have: without a value, or in one word with it
        return next((place for place, word in enumerate(words) if not word.startswith("-")), len(words))


def _after_options(words: list[str], with_value: frozenset[str]) -> list[str]:
    while words and words[0].startswith("-"):
        word = words[0]
        words = words[2:] if word in with_value else words[1:]
        if word == "--":
            break
    return words


def _runs_python(words: Sequence[str]) -> bool:
    """Whether `words` run a Python program that may train: not `python -c`, not `pip`."""
    if not words:
        return False
    name = words[0].rpartition("/")[2]
    if name in LAUNCHERS:
        return name != "accelerate" or list(words[1:2]) == ["launch"]
    if name.endswith(".py"):
        return True
    if name in NOTEBOOK_COMMANDS:
        return any(word.endswith(".ipynb") for word in words[1:])
    if not _PYTHON.fullmatch(name):
        return False
    rest = list(words[1:])
    while rest:
        word = rest.pop(0)
        if word == "-m":
            return bool(rest) and rest[0] not in _NO_TRAINING
        if word in ("-c", "-", "-V", "--version", "-h", "--help"):
            return False
        if word in ("-W", "-X") and rest:
            rest.pop(0)
        elif not word.startswith("-"):
            return True
    return False
