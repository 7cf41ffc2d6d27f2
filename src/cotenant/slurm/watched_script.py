"""The script that is submitted: the user's, unchanged, inside one that watches it.

The outer script has the same `#SBATCH` lines. It writes the inner one to a private folder on the node and runs it under
`slurm.supervise`, with the Python of this installation; where the node does not have that, it runs the script without.
"""

from __future__ import annotations

import json
import shlex
import uuid
from collections.abc import Mapping
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
        "#!/bin/sh",
        "# Written by `cotenant sbatch`. It runs the script below, unchanged, and watches its GPU memory.",
        *header_lines(text),
        'cotenant_folder=$(mktemp -d "${TMPDIR:-/tmp}/cotenant-$SLURM_JOB_ID.XXXXXX") || exit 1',
        f"cat >\"$cotenant_folder/{SCRIPT_FILE}\" <<'{mark}'",
        f"{body}{mark}",
        f"cat >\"$cotenant_folder/{JOB_FILE}\" <<'{mark}'",
        f"{json.dumps(dict(job))}\n{mark}",
        f"cotenant_python={shlex.quote(python)}",
        'if [ -x "$cotenant_python" ]; then',
        f'    exec "$cotenant_python" -c {shlex.quote(BOOTSTRAP)} "$cotenant_folder" "$@"',
        "fi",
        'echo "cotenant: this node has no $cotenant_python: the job is not watched" >&2',
        f'{shlex.join(interpreter_words(text))} "$cotenant_folder/{SCRIPT_FILE}" "$@"',
        "cotenant_code=$?",
        'rm -rf "$cotenant_folder"',
        "exit $cotenant_code",
    ]
    return "\n".join(lines) + "\n"
