"""`copy.deepcopy` of fake tensors: new memory on the same GPU; parameters stay parameters, shared storages stay shared.

Source: torch/nn/parameter.py, `Parameter.__deepcopy__`; torch/_tensor.py, `Tensor.__deepcopy__`.

A module of its own: it replaces one method of torch.
"""

from __future__ import annotations

from typing import Any

import torch

from cotenant.tracing.patches.registry import Patch, PatchContext, Phase


def patches(context: PatchContext) -> list[Patch]:
    """How fake tensors are copied."""
    return [
        Patch(
            target="torch._subclasses.fake_tensor:FakeTensor.__deepcopy__",
            phase=Phase.TRAINING,
            replacement=_deepcopy,
            reason="By itself the copy of a fake parameter is no parameter, and has a fake mode of its own.",
            source="torch/_subclasses/fake_tensor.py, `FakeTensor`",
        )
    ]


def _deepcopy(self: Any, memo: dict[Any, Any]) -> Any:
    known = memo.get(id(self))
    if known is not None:
        return known
    is_parameter = isinstance(self, torch.nn.Parameter)
    if not self.is_leaf:
        raise RuntimeError("Only Tensors created explicitly by the user support the deepcopy protocol at the moment")
    with torch.no_grad():
        copied = self.detach().clone() if is_parameter or _owns_storage(self) else _copy_view(self, memo)
        if not is_parameter:
            self.new_empty(())  # the tensor that gets the copied storage
    copied.requires_grad_(self.requires_grad)
    if is_parameter:
        copied._is_param = True
    elif self.grad is not None:
        copied.grad = _deepcopy(self.grad, memo)
    memo[id(self)] = copied
    memo.setdefault(id(memo), []).append(self)  # as `copy` does, so that no other object gets the id
    return copied


def _owns_storage(tensor: torch.Tensor) -> bool:
    """Whether a tensor covers all of its storage."""
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def _copy_view(tensor: torch.Tensor, memo: dict[Any, Any]) -> torch.Tensor:
    """The same view of a copy of the storage, which is copied once."""
    storage = tensor.untyped_storage()
    key = ("storage", storage._cdata)
    if key not in memo:
        memo[key] = torch.empty(storage.nbytes(), dtype=torch.uint8, device=tensor.device)
    whole = memo[key].view(tensor.dtype)
    return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
