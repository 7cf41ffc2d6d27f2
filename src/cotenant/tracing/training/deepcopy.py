"""`copy.deepcopy` of fake tensors: new memory on the same GPU, parameters again parameters, shared storages shared.

Source: torch/nn/parameter.py, `Parameter.__deepcopy__`; torch/_tensor.py, `Tensor.__deepcopy__`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor


def install() -> None:
    """Replace how fake tensors are copied; by itself, a copy has a fake mode of its own and is no parameter."""
    FakeTensor.__deepcopy__ = _deepcopy


def _deepcopy(self: Any, memo: dict[Any, Any]) -> Any:
    known = memo.get(id(self))
    if known is not None:
        return known
    is_parameter = isinstance(self, torch.nn.Parameter)
    if not self.is_leaf:
        raise RuntimeError("Only Tensors created explicitly by the user support the deepcopy protocol at the moment")
    with torch.no_grad():
        made = self.detach().clone() if is_parameter or _owns_storage(self) else _copy_view(self, memo)
    made.requires_grad_(self.requires_grad)
    if is_parameter:
        made._is_param = True
    elif self.grad is not None:
        made.grad = _deepcopy(self.grad, memo)
    memo[id(self)] = made
    memo.setdefault(id(memo), []).append(self)  # as copy does, so that the id stays taken
    return made


def _owns_storage(tensor: torch.Tensor) -> bool:
    """Whether a tensor is all of its storage."""
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def _copy_view(tensor: torch.Tensor, memo: dict[Any, Any]) -> torch.Tensor:
    """A tensor in a copy of its storage, which is copied once."""
    storage = tensor.untyped_storage()
    key = ("storage", storage._cdata)
    if key not in memo:
        memo[key] = torch.empty(storage.nbytes(), dtype=torch.uint8, device=tensor.device)
    whole = memo[key].view(tensor.dtype)
    return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
