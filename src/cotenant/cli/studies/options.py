"""What the verbs of `cotenant study` share: options, and a simulated GPU in place of a real one.

A module of its own: each verb is loaded alone, when it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from cotenant.cli.options import cli_option
from cotenant.cli.parameter_types import PATH

if TYPE_CHECKING:
    from cotenant.core.gpu import Gpu
    from cotenant.simserver.backend import SimulatedBackend

out_option = cli_option("--out", type=PATH, required=True, metavar="DIR", help="Folder of the results.")
resume_option = cli_option("--resume", is_flag=True, help="Continue with the results in DIR.")
mlflow_option = cli_option("--mlflow", metavar="URI", help="Log every run to this MLflow server or folder.")
experiment_option = cli_option("--experiment", default="cotenant", metavar="NAME", help="MLflow experiment.")
python_option = cli_option(
    "--python", metavar="PATH", help="Interpreter that runs the jobs; by default the one of cotenant."
)


class SimulatedStudyGpu(NamedTuple):
    """A simulated GPU; `env` points jobs at it."""

    backend: SimulatedBackend
    gpu: Gpu
    env: dict[str, str]


@contextmanager
def simulated_study_gpu(model: str) -> Iterator[SimulatedStudyGpu]:
    """A simulated server with one GPU of `model`, for the time of a study.

    Raises:
        UsageError: there is no such GPU.
    """
    from cotenant.simserver.backend import SimulatedBackend, SimulatedServer

    with TemporaryDirectory(prefix="cotenant-study-") as folder:
        SimulatedServer.create(Path(folder), f"1x{model}")
        backend = SimulatedBackend(Path(folder))
        (gpu,) = backend.inventory()
        yield SimulatedStudyGpu(backend, gpu, {"COTENANT_SIM_SERVER": folder})
