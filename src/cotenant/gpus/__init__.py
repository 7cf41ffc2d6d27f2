"""Readings of GPUs, and their sharing modes."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cotenant.core.ports import GpuBackend

logger = logging.getLogger(__name__)

NAMES = ("auto", "nvml", "simulated")


def create(name: str = "auto", *, simulated_dir: Path | None = None) -> GpuBackend:
    """The backend of that name; `auto` is NVML where a GPU answers, else the simulated server.

    `simulated_dir` is the folder of a simulated server that exists.

    Raises:
        UnknownName: there is no such backend.
        BackendError: it cannot work here; the message says why.
    """
    makers: dict[str, Callable[[], GpuBackend]] = {
        "auto": lambda: _auto(simulated_dir),
        "nvml": _nvml,
        "simulated": lambda: _simulated(simulated_dir),
    }
    if name not in makers:
        from cotenant.core.errors import UnknownName

        raise UnknownName("GPU backend", name, NAMES)
    return makers[name]()


def _nvml() -> GpuBackend:
    from cotenant.gpus.nvml import NvmlBackend

    backend = NvmlBackend()
    if backend.has_activity or shutil.which("dcgmi") is None:
        return backend
    return _with_dcgm(backend)


def _with_dcgm(backend: GpuBackend) -> GpuBackend:
    """`backend` with SM activity from DCGM; without it where DCGM does not answer."""
    from cotenant.core.errors import BackendError
    from cotenant.gpus.dcgm import DcgmActivityBackend, DcgmReader

    try:
        return DcgmActivityBackend(backend, DcgmReader())
    except BackendError as error:
        logger.warning("no SM activity from DCGM", extra={"fields": {"why": error.message, "hint": error.hint}})
        return backend


def _simulated(folder: Path | None) -> GpuBackend:
    from cotenant.core.errors import BackendError
    from cotenant.simserver.backend import SimulatedBackend

    if folder is None:
        raise BackendError("no simulated server was named", hint="give the folder of one")
    return SimulatedBackend(folder)


def _auto(folder: Path | None) -> GpuBackend:
    from cotenant.core.errors import BackendError

    try:
        backend = _nvml()
        if backend.inventory():
            return backend
        backend.close()
        reason = "NVML lists no GPU"
    except BackendError as error:
        reason = error.message
    if folder is None:
        raise BackendError(f"no GPU here: {reason}", hint="use a simulated server to try without one")
    return _simulated(folder)
