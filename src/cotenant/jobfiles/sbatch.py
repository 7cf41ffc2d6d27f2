"""Options of sbatch: the one table of their names, and how sbatch splits command lines and `#SBATCH` lines into them.

Pure. Source: sbatch(1) of Slurm 22.05, whose sbatch splits as this module does, and names that later versions added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cotenant.core.errors import UsageError

MARK = "#SBATCH"

Value = Literal["required", "optional", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SbatchOption:
    """An option of sbatch.

    Attributes:
        name: its long name, without the dashes.
        letter: its short name, or empty.
        value: whether it takes a value; an optional one must stand in the same word, as in `--nice=5`.
    """

    name: str
    letter: str = ""
    value: Value = "required"


def _table() -> Mapping[str, SbatchOption]:
    with_letter = (
        "account A, array a, begin b, chdir D, clusters M, constraint C, core-spec S, cpus-per-task c, dependency d, "
        "distribution m, error e, exclude x, extra-node-info B, gpus G, input i, job-name J, licenses L, nodefile F, "
        "nodelist w, nodes N, ntasks n, output o, partition p, qos q, time t"
    )
    without_letter = (
        "acctg-freq batch bb bbf cluster-constraint comment container container-id "
        "cores-per-socket cpu-freq cpus-per-gpu deadline delay-boot export export-file extra gid "
        "gpu-bind gpu-freq gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint job_name "
        "kill-on-invalid-dep mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network "
        "ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket open-mode power prefer priority profile "
        "reservation segment signal sockets-per-node switches thread-spec threads-per-core time-min tmp "
        "tres-bind tres-per-task uid wait-all-nodes wckey workdir wrap"
    )
    flags = (
        "contiguous, help h, hold H, ignore-pbs, no-requeue, overcommit O, oversubscribe s, parsable, quiet Q, reboot, "
        "requeue, share, spread-job, test-only, usage u, use-min-nodes, verbose v, version V, wait W"
    )
    options = [SbatchOption(name=name, letter=letter) for name, letter in map(str.split, with_letter.split(","))]
    options += [SbatchOption(name=name) for name in without_letter.split()]
    options += [
        SbatchOption(name=words[0], letter=words[1] if words[1:] else "", value="none")
        for words in map(str.split, flags.split(","))
    ]
    options += [
        SbatchOption(name=name, value="optional") for name in ("exclusive", "get-user-env", "nice", "propagate")
    ]
    options += [SbatchOption(name="no-kill", letter="k", value="optional")]
    return {option.name: option for option in options}


OPTIONS = _table()
_BY_LETTER = {option.letter: option for option in OPTIONS.values() if option.letter}


_VARIABLES = (
    "ACCOUNT ACCTG_FREQ BATCH CLUSTERS CLUSTER_CONSTRAINT CONSTRAINT CONTAINER CORE_SPEC CPUS_PER_GPU "
    "DELAY_BOOT DISTRIBUTION ERROR EXCLUSIVE EXPORT GET_USER_ENV GPUS GPUS_PER_NODE GPUS_PER_SOCKET GPUS_PER_TASK "
    "GPU_BIND GPU_FREQ GRES GRES_FLAGS HINT IGNORE_PBS INPUT JOB_NAME MEM_BIND MEM_PER_CPU MEM_PER_GPU NETWORK NO_KILL "
    "NO_REQUEUE OPEN_MODE OUTPUT OVERCOMMIT PARTITION POWER PROFILE QOS REQUEUE RESERVATION SIGNAL SPREAD_JOB "
    "THREADS_PER_CORE THREAD_SPEC USE_MIN_NODES WAIT WAIT_ALL_NODES WCKEY"
)
_OTHER_NAMES = {
    "ARRAY_INX": "array",
    "BURST_BUFFER": "bb",
    "CPU_FREQ_REQ": "cpu-freq",
    "DEBUG": "verbose",
    "MEM_PER_NODE": "mem",
    "REQ_SWITCH": "switches",
    "TIMELIMIT": "time",
}
VARIABLES: Mapping[str, SbatchOption] = {
    f"SBATCH_{name}": OPTIONS[option]
    for name, option in ({name: name.lower().replace("_", "-") for name in _VARIABLES.split()} | _OTHER_NAMES).items()
}
"""Options by the input environment variables of sbatch. Source: sbatch of Slurm 22.05, src/sbatch/opt.c, `env_vars`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """An option as it was given.

    Attributes:
        written: for messages, e.g. `-p` or `--part`.
        value: its value, or None without one.
        place: index of its first word.
    """

    option: SbatchOption
    written: str
    value: str | None
    place: int

    def __str__(self) -> str:
        if self.value is None:
            return self.written
        return f"{self.written}={self.value}" if self.written.startswith("--") else f"{self.written} {self.value}"


def environment_settings(env: Mapping[str, str]) -> list[Setting]:
    """The options that the environment sets; a flag is set by any value."""
    return [
        Setting(option=option, written=name, value=_variable(option, env[name]), place=0)
        for name, option in VARIABLES.items()
        if name in env
    ]


def _variable(option: SbatchOption, text: str) -> str | None:
    """The value of an option that a variable sets: an empty one is none if it may be left out, else an empty text."""
    return None if option.value == "none" or (option.value == "optional" and not text) else text


class InvalidWord(UsageError):
    """A word that sbatch refuses; `place` is its index."""

    def __init__(self, message: str, place: int) -> None:
        super().__init__(message)
        self.place = place


def split_options(words: Sequence[str], further: Mapping[str, SbatchOption] | None = None) -> tuple[list[Setting], int]:
    """The options that `words` begin with, and the index of the first word after them.

    As getopt_long(3): long names may be shortened, letters joined, and `--` ends the options. `further`: long options
    that sbatch does not have, by name.

    Raises:
        InvalidWord: no such option, or a value is missing, or is one too many.
    """
    known = OPTIONS if further is None else {**OPTIONS, **further}
    settings: list[Setting] = []
    place = 0
    while place < len(words):
        word = words[place]
        if word == "--":
            return settings, place + 1
        if word == "-" or not word.startswith("-"):
            break
        found = [_long(word, place, known)] if word.startswith("--") else list(_letters(word, place))
        last = found[-1]
        if last.option.value == "required" and last.value is None:
            if place + 1 == len(words):
                raise InvalidWord(f"`{last.written}` has no value", place)
            found[-1] = Setting(option=last.option, written=last.written, value=words[place + 1], place=place)
            place += 1
        settings += found
        place += 1
    return settings, place


def _long(word: str, place: int, known: Mapping[str, SbatchOption]) -> Setting:
    start, equals, value = word[2:].partition("=")
    names = [start] if start in known else [name for name in known if name.startswith(start)]
    if not names:
        raise InvalidWord(f"no such option: `--{start}`", place)
    if len(names) > 1:
        raise InvalidWord(f"`--{start}` may be {', '.join(f'--{name}' for name in sorted(names))}", place)
    option = known[names[0]]
    if equals and option.value == "none":
        raise InvalidWord(f"`--{option.name}` takes no value, found `{value}`", place)
    return Setting(option=option, written=f"--{option.name}", value=value if equals else None, place=place)


def _letters(word: str, place: int) -> Iterator[Setting]:
    for at, letter in enumerate(word[1:], start=1):
        option = _BY_LETTER.get(letter)
        if option is None:
            raise InvalidWord(f"no such option: `-{letter}`", place)
        rest = word[at + 1 :]
        takes_rest = option.value != "none" and bool(rest)
        yield Setting(option=option, written=f"-{letter}", value=rest if takes_rest else None, place=place)
        if takes_rest:
            return


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderWord:
    """A word of a `#SBATCH` line, and the number of the line."""

    text: str
    line: int


def header_words(text: str) -> tuple[list[HeaderWord], list[tuple[int, str]]]:
    """The words of all `#SBATCH` lines above the first command of a script; and lines that sbatch refuses, with why.

    The lines count as one list of words: a value may stand on the next line. Quotes group words, `#` begins a comment
    wherever it stands outside of them, a backslash takes the meaning of the next character but not that of a blank, and
    an empty word, e.g. `''`, ends the line.
    """
    words: list[HeaderWord] = []
    refused: list[tuple[int, str]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.startswith(MARK):
            try:
                words += [HeaderWord(text=word, line=number) for word in _split(line[len(MARK) :])]
            except UsageError as error:
                refused.append((number, error.message))
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return words, refused


def _split(line: str) -> Iterator[str]:
    word, quote, is_escaped, is_word = "", "", False, False
    for character in f"{line.rstrip()} ":
        if not quote and character.isspace():  # also after a backslash
            if is_word and not word:
                return
            if word:
                yield word
            word, is_escaped, is_word = "", False, False
            continue
        is_word = True
        if is_escaped:
            word, is_escaped = word + character, False
        elif character == "\\":
            is_escaped = True
        elif character in (quote or "'\""):
            quote = "" if quote else character
        elif character == "#" and not quote:
            break
        else:
            word += character
    if quote:
        raise UsageError(f"a {quote} is not closed")
    if word:
        yield word
