"""Asks the runner's rules whether output is that of a process that ran out of GPU memory.

Nobody imports the runner, which is a program: it is started with the question. For processes that it does not run
itself, such as those of Slurm and Kubernetes.

A module of its own: two rooms ask, and neither knows how.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from cotenant.engines.runner_spec import RUNNER_DIR

TAIL_BYTES = 256 * 1024
"""Of the end of an output; the runner looks at no more."""
TIMEOUT_S = 30.0


def oom_evidence(outputs: Sequence[str], *, failed: bool) -> dict[str, Any]:
    """Fields of `OomEvidence` that the ends of `outputs` show; {} if the rules cannot be applied."""
    question = json.dumps({"outputs": list(outputs), "failed": failed})
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(RUNNER_DIR), "--oom-evidence"],
            input=question.encode(),
            capture_output=True,
            check=True,
            timeout=TIMEOUT_S,
        )
        return dict(json.loads(done.stdout))
    except (OSError, ValueError, subprocess.SubprocessError):
        return {}
