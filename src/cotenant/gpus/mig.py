"""The `nvidia-smi` commands that create a layout of MIG instances; the layouts themselves are in `core.mig`.

A module of its own: `cotenant mig` and measurements run `nvidia-smi`; the daemon changes layouts through NVML
(`mig_nvml`).
"""

from __future__ import annotations

import subprocess

from cotenant.core.errors import BackendError
from cotenant.core.mig import Layout

TIMEOUT_S = 60.0


def commands(index: int, layout: Layout, *, had_instances: bool) -> list[list[str]]:
    """The commands that create the layout on the GPU at `index`, which must be in MIG mode and idle."""
    smi = ["nvidia-smi", "mig", "-i", str(index)]
    clear = [[*smi, "-dci"], [*smi, "-dgi"]] if had_instances else []
    return [*clear, [*smi, "-cgi", ",".join(f"{instance.profile.name}:{instance.start}" for instance in layout), "-C"]]


def apply(index: int, layout: Layout, *, had_instances: bool) -> list[str]:
    """Create the layout; returns the output of each command.

    Raises:
        BackendError: a command failed; the message has its output and how many commands succeeded before.
    """
    outputs: list[str] = []
    for command in commands(index, layout, had_instances=had_instances):
        text = " ".join(command)
        done_before = f"; {len(outputs)} commands succeeded before" if outputs else ""
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BackendError(f"`{text}` does not work: {error}{done_before}") from error
        if done.returncode != 0:
            message = " ".join((done.stderr or done.stdout).split())
            raise BackendError(
                f"`{text}` failed: {message}{done_before}", hint="it needs root, MIG mode, and an idle GPU"
            )
        outputs.append(done.stdout.strip())
    return outputs
