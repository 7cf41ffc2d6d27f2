"""Accumulation of two gradients of one tensor, which autograd does in place unless a dispatch mode is active."""

from __future__ import annotations

import math
import sys
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import graph

from cotenant.tracing.operators.strides import is_non_overlapping_and_dense

_OUR_FRAMES = 2  # `is_in_place` and the mode
_SUMS_IN_FORMULAS = {
    "Atan2Backward0": 1,
    "LinalgCholeskyExBackward0": 1,
    "LinalgLstsqBackward0": 2,
    "LinalgLuBackward0": 1,
    "LinalgLuFactorExBackward0": 1,
    "LinalgPinvBackward0": 2,
    "LinalgQrBackward0": 1,
    "LinalgSvdBackward0": 3,
    "StdMeanBackward0": 1,
    "VarMeanBackward0": 1,
}
"""How often a node first adds two tensors of its own. Source: FunctionsManual.cpp, `atan2_backward`,
`cholesky_backward`, `linalg_lstsq_backward`, `linalg_lu_backward`, `pinv_backward`, `linalg_qr_backward`,
`svd_backward`, `var_mean_backward`."""
_GROUP_NORM = "NativeGroupNormBackward0"
"""In a second backward pass it adds products in the shape of its groups. Source: FunctionsManual.cpp,
`infinitely_differentiable_native_group_norm_backward`."""
_AROUND_THE_MODE = "torch/_dynamo/eval_frame.py"


class InplaceGradAccumulation:
    """Recognizes additions by autograd's engine, by the number of owners of the first gradient."""

    def __init__(self) -> None:
        self._learning: list[tuple[int, int, int]] | None = None
        self._sole_owner = (4, 2, 0)
        self._node_with_sums: object = None
        self._sums = 0

    def learn(self) -> None:
        """Learn the owner counts of a gradient that autograd would reuse, from one that it does. Call inside the mode.

        Counts of references depend on the versions of Python and PyTorch.
        """
        self._learning = []
        x = torch.empty(4, 4, device="cuda", requires_grad=True)
        hidden = x.mm(x)
        (hidden.relu() * 2 + hidden).mm(x).sum().backward()
        if self._learning:
            self._sole_owner = min(self._learning)
        self._learning = None

    def is_in_place(self, args: Any) -> bool:
        """Whether autograd's engine, adding two gradients of one tensor, would write into the first.

        The engine reuses a gradient that has no other owner. Under a dispatch mode it never does, since every tensor
        then counts as a subclass (PyTorch 2.4 to 2.13). Source: torch/csrc/autograd/input_buffer.cpp, `accumulate`.
        """
        first = args[0]
        if not isinstance(first, FakeTensor) or torch.is_grad_enabled() or not isinstance(args[1], FakeTensor):
            return False
        if first.layout is not torch.strided or called_from_python(_OUR_FRAMES):  # a sparse tensor has no storage
            return False
        shares = torch._C._storage_Use_Count(first.untyped_storage()._cdata)
        owners = (first._use_count(), shares, sys.getrefcount(first))
        if self._learning is not None:
            self._learning.append(owners)
        if owners != self._sole_owner or not is_non_overlapping_and_dense(first):
            return False
        return not self._is_of_formula(first)

    def _is_of_formula(self, first: FakeTensor) -> bool:
        """Whether the sum is one of the first in a node whose formula has some; later sums are the engine's."""
        node = torch._C._current_autograd_node()
        if node is not None and node.name() == _GROUP_NORM:
            result = tuple(node._input_metadata[0].shape)
            return first.dim() == 4 and first.numel() == math.prod(result) and tuple(first.shape) != result
        sums = 0 if node is None else _SUMS_IN_FORMULAS.get(node.name(), 0)
        if not sums:
            return False
        if node != self._node_with_sums:
            self._node_with_sums, self._sums = node, 0
        self._sums += 1
        return self._sums <= sums


def called_from_python(frames: int) -> bool:
    """Whether the operator was called by Python code, not by autograd's C++.

    Autograd's thread has no Python below it, except where a backward function starts a backward pass of its own:
    reentrant checkpoints do. The innermost frame is then the engine's start. In scripts that compile, a frame of Dynamo
    is around the mode, so that it compiles nothing below (`inductor.compiled_frames`).
    Source: torch/utils/checkpoint.py, `CheckpointFunction.backward`; torch/autograd/graph.py, `_engine_run_backward`.

    `frames`: from the caller of this function to the dispatch mode, both included.
    """
    caller = sys._getframe(frames).f_back
    while caller is not None and caller.f_code.co_filename.endswith(_AROUND_THE_MODE):
        caller = caller.f_back
    return caller is not None and caller.f_code is not graph._engine_run_backward.__code__
