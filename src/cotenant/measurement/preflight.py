"""Whether there is anything to measure: asked once, before the first of many processes fails for the same reason."""

from __future__ import annotations

import json
import subprocess

from cotenant.core.errors import BackendError, UsageError
from cotenant.core.units import format_duration
from cotenant.measurement.campaign import CampaignSetup

LIMIT_S = 120.0
_ASK = "import json, torch; print(json.dumps([torch.__version__, torch.version.cuda, torch.cuda.is_available()]))"
_OTHER = "name the Python that trains on this GPU with `--python PATH`"
_ELSEWHERE = "go where the GPU is, see `cotenant doctor` for what is missing, or estimate, which needs no GPU"


def check_gpu(setup: CampaignSetup) -> None:
    """Ask the torch of `setup.python`, in the environment of the jobs, for a GPU.

    Raises:
        UsageError: there is no such interpreter.
        BackendError: it has no torch, one that was built without CUDA, or one that finds no GPU.
    """
    try:
        asked = subprocess.run(
            [setup.python, "-c", _ASK],
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
            f"`{setup.python}` did not import torch in {format_duration(LIMIT_S)}", hint=_OTHER
        ) from error
    lines = [line for line in asked.stdout.splitlines() if line.strip()]
    if asked.returncode or not lines:
        last = (asked.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise BackendError(f"`{setup.python}` cannot import torch, which measures: {last}", hint=_OTHER)
    torch, cuda, found = json.loads(lines[-1])
    if cuda is None:
        raise BackendError(
            f"torch {torch} of `{setup.python}` was built without CUDA, and one with it is wanted", hint=_OTHER
        )
    if not found:
        why = f": {setup.no_watch}" if setup.no_watch else ""
        raise BackendError(f"torch {torch} finds no GPU here, and one is wanted{why}", hint=_ELSEWHERE)
