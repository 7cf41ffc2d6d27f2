"""What a script reads from the null GPU, where nothing is computed: the values that a trace assumes, too.

A number is 1, since scripts divide by losses, and 0 on a line about an overflow; a boolean is False, unless a check
made it that sound values pass (`assumptions.booleans`), or its line says that something is finite; conditions of loops
are another matter: see `assumptions.data_dependent_loops`. A copy of a whole tensor is zeros. Small tensors of data are
known (`known_tensors`), and what libraries copied to the GPU is until the next kernel (csrc/memory.c of `nullgpu`).
"""

from __future__ import annotations

import ctypes
import linecache
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from cotenant.tracing.assumptions import booleans
from cotenant.tracing.assumptions.data_dependent_loops import DataDependentLoops, script_frame
from cotenant.tracing.cuda_build.driver import null_driver
from cotenant.tracing.cuda_build.known_tensors import KnownTensors
from cotenant.tracing.patches.registry import KernelPatch, Phase

_Address, _Size = ctypes.c_void_p, ctypes.c_size_t
_ZERO_IN = ("amp/grad_scaler.py",)
"""Files of PyTorch that read a number which says that something went wrong, and 0 that all is well."""


class UnknownValues:
    """Answers reads of single values. `recorder` has `warn` and `steps`.

    Attributes:
        driver: of the null GPU.
        places: lines that read, in order.
    """

    def __init__(self, recorder: Any) -> None:
        self._loops = DataDependentLoops(recorder)
        self.driver = null_driver()
        self._known = KnownTensors(self.driver, self._note_place)
        self.places: dict[str, None] = {}

    def patches(self) -> list[KernelPatch]:
        """The operator behind `item`, `float`, `int` and `bool`, and those of which results are known."""
        return [
            *self._known.patches(),
            KernelPatch(
                target="aten::_local_scalar_dense", phase=Phase.OPERATORS, key="CUDA", kernel=self.read,
                reason="The value was never computed.",
                source="aten/src/ATen/native/cuda/CUDAScalar.cu, `_local_scalar_dense_cuda`",
            )
        ]  # fmt: skip

    def read(self, tensor: torch.Tensor) -> complex | float | bool:
        """The value of a tensor of one element: the known one, or else the assumed one."""
        value = self._known.item(tensor)
        if value is not None:
            return value
        content = torch.empty((), dtype=tensor.dtype)
        if self.driver.null_known(_Address(tensor.data_ptr()), _Size(tensor.itemsize), _Address(content.data_ptr())):
            known: complex | float | bool = content.item()
            return known
        frame = self._note_place()
        truth = booleans.assumed(tensor)
        if isinstance(truth, bool):
            return truth
        if truth is not None:
            likely = truth == "likely" or (truth == "selection" and self._loops.selects())
            return self._loops.truth(likely=likely)
        if frame is None:
            return 0 if _reads_a_flag() else self._value(tensor.dtype, "")
        return self._value(tensor.dtype, _source_line(frame))

    def _note_place(self) -> FrameType | None:
        """The line of the script that reads now, added to `places`."""
        frame = script_frame()
        if frame is not None:
            self.places[f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}"] = None
        return frame

    def _value(self, dtype: torch.dtype, line: str) -> complex | float | bool:
        if dtype is torch.bool:
            return self._loops.truth(likely="finite" in line)
        if dtype.is_complex:
            return complex(1.0)
        if "overflow" in line:  # of gradients, as DeepSpeed and apex count it: a step would be skipped
            return 0
        return self._loops.number() if dtype.is_floating_point else 1


def _source_line(frame: FrameType) -> str:
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno)


def _reads_a_flag() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.endswith(_ZERO_IN):
            return True
        frame = frame.f_back
    return False
