"""The script that is submitted: the user's, unchanged, inside one that watches it.

The outer script has the same `#SBATCH` lines. It writes the inner one to a private folder on the node and runs it under
`slurm.supervise`, with the Python of this installation. Where the node has none, the script takes the place of
the outer one, whose process Slurm sends the signals to.
"""

from __future__ import annotations

import json
import shlex
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cotenant.jobfiles.sbatch import MARK

# Not `-m`: that would put the job's folder first on `sys.path`, where a `json.py` of the user would be imported.
BOOTSTRAP = (
    "import sys; sys.path = [p for p in sys.path if p]; from cotenant.slurm.supervise import main; sys.exit(main())"
)
SCRIPT_FILE, JOB_FILE = "slurm_script", "job.json"


def header_lines(text: str) -> list[str]:
    """The lines of a script that sbatch reads."""
    lines = []
    for line in text.split("\n"):
        if line.startswith(MARK):
            lines.append(line)
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return lines


def interpreter_words(text: str) -> list[str]:
    """The interpreter of a script, and its argument if there is one, as the kernel reads the first line.

    Naming it runs the script where temporary folders are mounted `noexec`. All after the interpreter is one argument.
    Source: execve(2), "Interpreter scripts".
    """
    return text.partition("\n")[0].removeprefix("#!").strip().split(None, 1) or ["/bin/sh"]


def _outer_interpreter(text: str) -> str:
    """Bash for scripts of bash: dash drops exported functions from the environment, and `module` is one."""
    words = interpreter_words(text)
    if Path(words[0]).name == "bash":
        return words[0]
    return "/usr/bin/env bash" if Path(words[0]).name == "env" and words[1:] == ["bash"] else "/bin/sh"


def watched_script(text: str, job: Mapping[str, Any], *, python: str) -> str:
    """The outer script for the script `text`; `job` is what `slurm.supervise` reads.

    Raises:
        ValueError: `text` holds a NUL, which no shell script can.
    """
    if "\0" in text:
        raise ValueError("the script holds a NUL")
    mark = f"COTENANT_{uuid.uuid4().hex}"
    body = text if text.endswith("\n") else text + "\n"
    lines = [
        f"#!{_outer_interpreter(text)}",
        "# Written by `cotenant sbatch`. It runs the script below, unchanged, and watches its GPU memory.",
        *header_lines(text),
        # A script that a full disk has cut short must not run: `rm -rf /data/old` may have become `rm -rf /data`.
        'for cotenant_parent in "${TMPDIR:-/tmp}" /tmp /dev/shm; do',
        '    cotenant_folder=$(mktemp -d "$cotenant_parent/cotenant-$SLURM_JOB_ID.XXXXXX") || continue',
        f"    cat >\"$cotenant_folder/{SCRIPT_FILE}\" <<'{mark}' &&",
        f"{body}{mark}",
        f"        cat >\"$cotenant_folder/{JOB_FILE}\" <<'{mark}' && break",
        f"{json.dumps(dict(job))}\n{mark}",
        '    rm -rf "$cotenant_folder"',
        "    cotenant_folder=",
        "done",
        'if [ -z "$cotenant_folder" ]; then',
        '    echo "cotenant: the script cannot be written to a temporary folder of this node" >&2',
        "    exit 1",
        "fi",
        f"cotenant_python={shlex.quote(python)}",
        'if [ -x "$cotenant_python" ]; then',
        f'    exec "$cotenant_python" -c {shlex.quote(BOOTSTRAP)} "$cotenant_folder" "$@"',
        "fi",
        'echo "cotenant: this node has no $cotenant_python: the job is not watched" >&2',
        # By a descriptor, so that no process is needed to remove the file at its end.
        f'exec 9<"$cotenant_folder/{SCRIPT_FILE}"',
        'rm -rf "$cotenant_folder"',
        f'exec {shlex.join(interpreter_words(text))} /dev/fd/9 "$@"',
    ]
    return "\n".join(lines) + "\n"
