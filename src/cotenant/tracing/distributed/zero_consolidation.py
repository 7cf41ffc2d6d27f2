"""The states that other ranks send where `ZeroRedundancyOptimizer` consolidates them for a checkpoint.

Every rank has states like ours for its own share of the parameters. They arrive on the GPU as bytes and become tensors
there before they go to the CPU. Source: torch/distributed/optim/zero_redundancy_optimizer.py, `_broadcast_object`.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from cotenant.tracing.patches.registry import Patch, PatchContext, Phase

_MODULE = "torch.distributed.optim.zero_redundancy_optimizer"


def patches(context: PatchContext) -> list[Patch]:
    """The method that collects."""
    return [
        Patch(
            target=f"{_MODULE}:ZeroRedundancyOptimizer.consolidate_state_dict", phase=Phase.DISTRIBUTED,
            replacement=_with_synthetic_ranks, wraps=True, reason="It receives the states of other processes.",
            source="torch/distributed/optim/zero_redundancy_optimizer.py, `consolidate_state_dict`",
        )
    ]  # fmt: skip


def _with_synthetic_ranks(collect: Any) -> Any:
    def consolidate_state_dict(self: Any, to: int = 0) -> None:
        module: Any = sys.modules[_MODULE]
        broadcast = module._broadcast_object

        def from_others(thing: Any, src_rank: int, group: Any = None, device: Any = "cpu") -> Any:
            if torch.distributed.get_rank() == src_rank:
                return broadcast(thing, src_rank=src_rank, group=group, device=device)
            share = _rank_state_dict(
                self, self._partition_parameters()[torch.distributed.get_group_rank(group, src_rank)]
            )
            size = sum(tensor.nbytes for state in share["state"].values() for tensor in state.values())
            torch.empty(size, dtype=torch.uint8, device=device)
            return share

        module._broadcast_object = from_others
        try:
            collect(self, to)
        finally:
            module._broadcast_object = broadcast

    return consolidate_state_dict


def _rank_state_dict(optimizer: Any, groups: Any) -> dict[str, Any]:
    """The state dict of a rank with these groups: each parameter has states like our first one."""
    ours = [(of, state) for of, state in optimizer.optim.state.items() if isinstance(of, torch.Tensor)]
    states: dict[int, Any] = {}
    numbered = []
    for own, group in zip(optimizer.optim.state_dict()["param_groups"], groups, strict=True):
        first = len(states)
        for parameter in group["params"]:
            states[len(states)] = {
                name: torch.empty_like(parameter, dtype=value.dtype) if value.shape == of.shape else value
                for of, state in ours[:1]
                for name, value in state.items()
                if isinstance(value, torch.Tensor)
            }
        numbered.append({**own, "params": list(range(first, len(states)))})
    return {"state": states, "param_groups": numbered}
