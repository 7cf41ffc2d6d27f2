"""Estimates of the example scripts, with their measured memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import cotenant
from cotenant.core.errors import CotenantError, UsageError
from cotenant.core.estimate import Estimate
from cotenant.demo.accuracy import signed_error
from cotenant.demo.published import MeasuredScript

Estimating = Callable[[Path, Sequence[str], str], Estimate]
"""Script, its arguments, name of a GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptEstimate:
    """The estimate of a script; `problem` says why there is none. `elapsed_s` is wall-clock time."""

    measured: MeasuredScript
    estimate: Estimate | None
    problem: str | None
    elapsed_s: float

    @property
    def error(self) -> float | None:
        """Signed relative error of the device bytes."""
        if self.estimate is None:
            return None
        return signed_error(self.estimate.device_bytes, self.measured.measured_bytes)

    @property
    def exceeds_bound(self) -> bool:
        """Whether the job needs more memory than the bound, so that it could run out of memory."""
        return self.estimate is not None and self.measured.measured_bytes > self.estimate.bound_bytes


def estimate_scripts(
    scripts: Iterable[MeasuredScript], folder: Path, *, gpu: str, estimating: Estimating | None = None
) -> Iterator[ScriptEstimate]:
    """Estimates in the order of `scripts`, as soon as they are made; a failure is in `problem`."""
    estimate_script = estimating or _estimate_script
    for script in scripts:
        began_s = time.perf_counter()
        estimate, problem = None, None
        try:
            estimate = estimate_script(folder / script.script, script.args, gpu)
        except CotenantError as error:
            problem = error.message
        yield ScriptEstimate(
            measured=script, estimate=estimate, problem=problem, elapsed_s=time.perf_counter() - began_s
        )


def find_examples(given: Path | None = None) -> Path:
    """The folder of example scripts: `given`, or the one beside the package's sources, or in the working folder.

    Raises:
        UsageError: it was not found.
    """
    if given is not None:
        if not (given / "resnet50.py").is_file():
            raise UsageError(
                f"`{given}` holds no example scripts (no `resnet50.py`)", hint="name the folder `examples`"
            )
        return given
    for parent in (Path(cotenant.__file__).resolve().parents[2], Path.cwd()):
        if (parent / "examples" / "resnet50.py").is_file():
            return parent / "examples"
    raise UsageError(
        "the example scripts are not part of the installed package and were not found beside it",
        hint="clone the repository and say `--examples PATH/TO/examples`",
    )


def _estimate_script(script: Path, args: Sequence[str], gpu: str) -> Estimate:
    return cotenant.estimate(script, args, gpu=gpu)
