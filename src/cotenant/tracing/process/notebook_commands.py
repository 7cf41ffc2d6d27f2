"""Commands that run a Jupyter notebook: `jupyter execute`, `jupyter nbconvert --execute`, `papermill`.

Sources: nbclient/cli.py; nbconvert/nbconvertapp.py; papermill/cli.py and `papermill.parameterize`.
"""

from __future__ import annotations

import keyword
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cotenant.core.errors import UsageError
from cotenant.jobfiles.shell_runners import NOTEBOOK_COMMANDS
from cotenant.tracing.process.notebook import ENDING

_PAPERMILL_FLAGS = frozenset(
    (
        "--inject-input-path", "--inject-output-path", "--inject-paths", "--request-save-on-cell-execute",
        "--prepare-only", "--help-notebook", "--progress-bar", "--no-progress-bar", "--log-output", "--no-log-output",
        "--report-mode", "--no-report-mode",
    )
)  # fmt: skip
_RAW = ("-r", "--parameters_raw")
_PAPERMILL_FILES = frozenset(("-f", "--parameters_file", "-y", "--parameters_yaml", "-b", "--parameters_base64"))


@dataclass(frozen=True, slots=True)
class NotebookRun:
    """A notebook, the Python lines that set its parameters, and the folder that it runs in."""

    path: str
    assignments: tuple[str, ...] = ()
    folder: str = "."


def find_notebook(command: Sequence[str]) -> NotebookRun | None:
    """The notebook that `command` runs, or is; None if it is about none.

    Raises:
        UsageError: the command runs none, or sets parameters in a way that is not read.
    """
    name, words = Path(command[0]).name, list(command[1:])
    if name.endswith(ENDING):
        if words:
            raise UsageError(
                f"a notebook takes no arguments, found `{words[0]}`",
                hint=f"papermill sets parameters: `-- papermill {command[0]} out.ipynb -p NAME VALUE`",
            )
        return _beside_its_file(command[0])
    if name == "papermill":
        return _of_papermill(words)
    if name not in NOTEBOOK_COMMANDS:
        return None
    verb = name.partition("-")[2] or (words.pop(0) if words else "")
    path = next((word for word in words if word.endswith(ENDING)), None)
    if verb not in ("execute", "run") and not (verb == "nbconvert" and "--execute" in words):
        raise UsageError(
            f"`{name} {verb}` runs no notebook",
            hint="write `jupyter execute NOTEBOOK` or `jupyter nbconvert --execute NOTEBOOK`",
        )
    if path is None:
        raise UsageError(f"`{name} {verb}` names no notebook, a file that ends with {ENDING}")
    return _beside_its_file(path)


def _beside_its_file(path: str) -> NotebookRun:
    """Jupyter starts a kernel in the notebook's folder: nbclient/cli.py, `run_notebook`."""
    return NotebookRun(path, folder=str(Path(path).parent))


def _of_papermill(words: list[str]) -> NotebookRun:
    places: list[str] = []
    assignments: list[str] = []
    folder = "."
    while words:
        word, equals, value = words.pop(0).partition("=")
        if word in ("-p", "--parameters", *_RAW):
            if len(words) < 2:
                raise UsageError(f"papermill's `{word}` takes a name and a value", hint="write `-p epochs 3`")
            assignments.append(_assignment(words.pop(0), words.pop(0), is_raw=word in _RAW))
        elif word in _PAPERMILL_FILES:
            raise UsageError(
                f"parameters by papermill's `{word}` are not read",
                hint="give those that decide memory by `-p NAME VALUE`",
            )
        elif word == "--cwd":
            folder = value if equals else (words.pop(0) if words else ".")
        elif word.startswith("-") and len(word) > 1:
            if not equals and word not in _PAPERMILL_FLAGS and words:
                words.pop(0)
        else:
            places.append(f"{word}{equals}{value}")
    if not places or not places[0].endswith(ENDING):
        raise UsageError("`papermill` names no notebook", hint="write `papermill train.ipynb out.ipynb -p epochs 3`")
    return NotebookRun(places[0], tuple(assignments), folder)


def _assignment(name: str, value: str, *, is_raw: bool) -> str:
    """A Python line. Values are typed as papermill types them: papermill/cli.py, `_resolve_type`."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise UsageError(f"`{name}` is no name of a parameter", hint="write `-p NAME VALUE`")
    return f"{name} = {value if is_raw else _typed(value)!r}"


def _typed(value: str) -> object:
    constants = {"True": True, "False": False, "None": None}
    if value in constants:
        return constants[value]
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
