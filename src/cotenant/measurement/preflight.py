"""Checks once that the jobs' torch can use a GPU, before many processes fail for the same reason.

A module of its own: two verbs need it, and it loads no campaign.
"""

from __future__ import annotations

import json
import subprocess

from cotenant.core.errors import BackendError, UsageError
from cotenant.core.units import format_duration
from cotenant.measurement.campaign import CampaignSetup

LIMIT_S = 120.0
_PROBE_CODE = (
    "import json, torch; print(json.dumps([torch.__version__, torch.version.cuda, torch.cuda.is_available()]))"
)
_OTHER_PYTHON_HINT = "name the Python that trains on this GPU with `--python PATH`"
_NO_GPU_HINT = "run this on a machine with a GPU, or see `cotenant doctor`; estimates need no GPU"


def check_gpu(setup: CampaignSetup) -> None:
    """Check that the torch of `setup.python` finds a GPU in the environment of the jobs.

    Raises:
        UsageError: there is no such interpreter.
        BackendError: it has no torch, a torch without CUDA, or one that finds no GPU.
    """
    try:
        done = subprocess.run(
            [setup.python, "-c", _PROBE_CODE],
            env=setup.plain_env(), stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=LIMIT_S, check=False,
        )  # fmt: skip
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(
            f"`--python`: cannot start `{setup.python}`: {reason}", hint="give the path of a Python"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise BackendError(
            f"`{setup.python}` did not import torch in {format_duration(LIMIT_S)}", hint=_OTHER_PYTHON_HINT
        ) from error
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise BackendError(f"`{setup.python}` cannot import torch: {last}", hint=_OTHER_PYTHON_HINT)
    torch, cuda, found = json.loads(lines[-1])
    if cuda is None:
        raise BackendError(f"torch {torch} of `{setup.python}` was built without CUDA", hint=_OTHER_PYTHON_HINT)
    if not found:
        why = f": {setup.no_watch}" if setup.no_watch else ""
        raise BackendError(f"torch {torch} finds no GPU{why}", hint=_NO_GPU_HINT)
