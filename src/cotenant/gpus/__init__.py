"""GPU backends read GPUs and processes on them. A new one is one file and one line in `GPU_BACKENDS`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cotenant.core.errors import BackendError
from cotenant.core.registry import Registry

if TYPE_CHECKING:
    from cotenant.core.ports import GpuBackend  # every simulated job imports this package: it must stay light


class BackendOptions(NamedTuple):
    """What a backend may need to know.

    Attributes:
        simulated_dir: folder of a simulated server that exists, or None.
    """

    simulated_dir: Path | None = None


BackendFactory = Callable[[BackendOptions], "GpuBackend"]
"""Makes a backend, or raises BackendError where it cannot work."""

GPU_BACKENDS: Registry[BackendFactory] = Registry(
    "GPU backend",
    "cotenant.gpu_backends",
    {
        "nvml": "cotenant.gpus.nvml:create",
        "simulated": "cotenant.simserver.backend:create",
    },
)

AUTO = "auto"


def create(name: str = AUTO, options: BackendOptions | None = None) -> GpuBackend:
    """The backend of that name; `auto` is NVML where it lists a GPU, else the simulated server if there is one.

    Raises:
        UnknownName: there is no such backend.
        BackendError: it cannot work here; the message says why.
    """
    options = options or BackendOptions()
    if name != AUTO:
        return GPU_BACKENDS.get(name)(options)
    try:
        backend = GPU_BACKENDS.get("nvml")(options)
        if backend.inventory():
            return backend
        backend.close()
        reason = "NVML lists no GPU"
    except BackendError as error:
        reason = error.message
    if options.simulated_dir is None:
        raise BackendError(f"no GPU here: {reason}", hint="use a simulated server to try without one")
    return GPU_BACKENDS.get("simulated")(options)
