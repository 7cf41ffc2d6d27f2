"""Programs that run another one, as `srun`, `nohup` and `uv run`, and which commands run a Python program. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence

from cotenant.core.errors import UsageError
from cotenant.jobfiles.sbatch import SbatchOption, split_options

LAUNCHERS = frozenset(("accelerate", "deepspeed", "torchrun"))
_MPI_LAUNCHERS = frozenset(("mpiexec", "mpirun"))  # part of the command: scripts divide a batch by their processes
NOTEBOOK_COMMANDS = frozenset(("jupyter", "jupyter-execute", "jupyter-nbconvert", "papermill"))
RUNNERS: Mapping[str, frozenset[str]] = {
    "command": frozenset(),
    "exec": frozenset(("-a",)),
    "nice": frozenset(("-n",)),
    "nohup": frozenset(),
    "numactl": frozenset(("-m", "-N", "-C", "-i")),
    "stdbuf": frozenset(("-i", "-o", "-e")),
    "time": frozenset(("-f", "-o")),
    "xvfb-run": frozenset(("-n", "-s", "-f")),
}
"""Programs that run the command after their options, and those of their options that take a value."""
RUN_SUBCOMMANDS: Mapping[str, frozenset[str]] = {
    "conda": frozenset(("-n", "--name", "-p", "--prefix", "--cwd")),
    "mamba": frozenset(("-n", "--name", "-p", "--prefix", "--cwd")),
    "pipenv": frozenset(),
    "poetry": frozenset(),
    "uv": frozenset(("--with", "--python", "-p", "--extra", "--group", "--project", "--directory")),
}
"""Programs whose subcommand `run` does the same."""
_KALDI = frozenset(("queue.pl", "retry.pl", "run.pl", "slurm.pl", "ssh.pl", "stdout.pl"))
"""Runners of Kaldi's recipes: `run.pl --gpu 1 JOB=1:4 exp/train.log COMMAND`; each option has a value."""
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
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
"""A name, a plus sign where the value is appended, and the value."""
_PYTHON = re.compile(r"python(3(\.\d+)?)?")


def srun_options(words: list[str]) -> int:
    """How many of the words after `srun` are its options and their values."""
    own = [place for place, word in enumerate(words) if word in _SRUN_FLAGS]
    try:
        end = split_options([word for word in words if word not in _SRUN_FLAGS], _SRUN)[1]
        for place in own:  # they stood among the options, not in the command
            end += place <= end
        return end
    except UsageError:  # an option of srun that sbatch does not have: without a value, or in one word with it
        return next((place for place, word in enumerate(words) if not word.startswith("-")), len(words))


def after_options(words: list[str], with_value: frozenset[str]) -> list[str]:
    """The words after the options of a program; `with_value`: those that have their value in the next word."""
    while words and words[0].startswith("-"):
        word = words[0]
        words = words[2:] if word in with_value else words[1:]
        if word == "--":
            break
    return words


def runs_python(words: Sequence[str]) -> bool:
    """Whether `words` run a Python program that may train: not `python -c`, not `pip`."""
    if not words:
        return False
    name = words[0].rpartition("/")[2]
    if name in LAUNCHERS:
        return name != "accelerate" or list(words[1:2]) == ["launch"]
    if name in _MPI_LAUNCHERS:
        ends = (at for at, word in enumerate(words) if word.endswith(".py") or _PYTHON.fullmatch(word))
        return runs_python(words[next(ends, len(words)) :])
    if name.endswith(".py"):
        return True
    if name in NOTEBOOK_COMMANDS:
        return any(word.endswith(".ipynb") for word in words[1:])
    if not _PYTHON.fullmatch(name):
        return False
    rest = list(words[1:])
    while rest:
        word = rest.pop(0)
        flag, value = flag_with_value(word)
        if flag == "m":
            return (value or "".join(rest[:1])) not in {"", *_NO_TRAINING}
        if flag == "c" or word in ("-", "-V", "--version", "-h", "--help"):
            return False
        if flag and not value:
            del rest[:1]
        elif not word.startswith("-"):
            return True
    return False


def flag_with_value(word: str) -> tuple[str, str]:
    """The option of Python in `word` that takes a value, and that value where it is there: `-um` is `-u -m`.

    Source: Python/getopt.c, `SHORT_OPTS`.
    """
    if word.startswith("-") and not word.startswith("--"):
        for position, flag in enumerate(word[1:], start=2):
            if flag in "cmWX":
                return flag, word[position:]
    return "", ""


def _after_log(words: list[str]) -> list[str]:
    """The words after the options, the range of jobs and the log of a runner of Kaldi."""
    while words and (words[0].startswith("-") or ASSIGNMENT.fullmatch(words[0])):
        words = words[2 if words[0].startswith("-") else 1 :]
    return words[1:]


def without_runners(words: list[str], env: dict[str, str]) -> tuple[list[str], str]:
    """The command that `srun`, `env` and the like run, and the conda environment that one of them names, or ''.

    Variables that they set are added to `env`.
    """
    conda_env = ""
    while words:
        name = words[0].rpartition("/")[2]
        if name == "srun":
            words = words[1 + srun_options(words[1:]) :]
        elif name == "env":
            words = after_options(words[1:], frozenset(("-u", "-C", "--unset", "--chdir")))
            while words and ((match := ASSIGNMENT.fullmatch(words[0])) or words[0].startswith("-")):
                if match:
                    env[match[1]] = match[3]
                    words = words[1:]
                else:
                    words = after_options(words, frozenset(("-u", "-C", "--unset", "--chdir")))
        elif name == "timeout":
            words = after_options(words[1:], frozenset(("-k", "-s", "--kill-after", "--signal")))[1:]
        elif name in RUN_SUBCOMMANDS and words[1:2] == ["run"]:
            if name in ("conda", "mamba"):
                pairs = dict(itertools.pairwise(words))
                conda_env = pairs.get("-n", pairs.get("--name", pairs.get("-p", conda_env)))
            words = after_options(words[2:], RUN_SUBCOMMANDS[name])
        elif name in _KALDI:
            words = _after_log(words[1:])
        elif name in RUNNERS:
            words = after_options(words[1:], RUNNERS[name])
        else:
            break
    return words, conda_env
