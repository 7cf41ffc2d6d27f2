"""The driver of the null GPU, as a process on it finds it. A module of its own: both kinds of values ask it."""

from __future__ import annotations

import ctypes
from typing import Any

from cotenant.core.errors import TraceError


def null_driver() -> Any:
    """The driver of the null GPU, which was loaded before torch.

    Raises:
        TraceError: it was not; whatever driver there is instead was not started.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        _ = driver.null_known
        driver.null_foreign_launches.restype = ctypes.c_ulong
        driver.null_outside_bytes.restype = driver.null_managed_bytes.restype = ctypes.c_size_t
        driver.null_outside_file.restype = ctypes.c_char_p
    except (OSError, AttributeError) as error:
        raise TraceError(
            "unsupported",
            "the libraries of the null GPU were not loaded",
            hint="is their folder, `cotenant/null-gpu` in the user's cache, on a file system mounted `noexec`?",
        ) from error
    return driver
