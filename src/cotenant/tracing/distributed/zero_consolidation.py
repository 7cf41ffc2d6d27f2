"""What other processes would send of `ZeroRedundancyOptimizer` where its states are collected to be saved.

Each has states like ours for its own share of the parameters. They arrive on the GPU as bytes, and are made tensors
there before they go to the CPU. Source: torch/distributed/optim/zero_redundancy_optimizer.py, `_broadcast_object`.
"""

from __future__ import annotations

from typing import Any

import torch

from cotenant.tracing.patches.import_hooks import when_imported


def install() -> None:
    """Mend the optimizer once a script imports it."""
    when_imported("torch.distributed.optim.zero_redundancy_optimizer", _patch)


def _patch(module: Any) -> None:
    kind = module.ZeroRedundancyOptimizer
    collect, broadcast = kind.consolidate_state_dict, module._broadcast_object

    def consolidate_state_dict(self: Any, to: int = 0) -> None:
        def from_others(thing: Any, src_rank: int, group: Any = None, device: Any = "cpu") -> Any:
            if torch.distributed.get_rank() == src_rank:
                return broadcast(thing, src_rank=src_rank, group=group, device=device)
            share = _rank_state_dict(
                self, self._partition_parameters()[torch.distributed.get_group_rank(group, src_rank)]
            )
            size = sum(each.nbytes for state in share["state"].values() for each in state.values())
            torch.empty(size, dtype=torch.uint8, device=device)
            return share

        module._broadcast_object = from_others
        try:
            collect(self, to)
        finally:
            module._broadcast_object = broadcast

    kind.consolidate_state_dict = consolidate_state_dict


def _rank_state_dict(optimizer: Any, groups: Any) -> dict[str, Any]:
    """The state dict of a process that has these groups of parameters: what ours holds for one, for each of them."""
    ours = [(of, state) for of, state in optimizer.optim.state.items() if isinstance(of, torch.Tensor)]
    states: dict[int, Any] = {}
    numbered = []
    for own, group in zip(optimizer.optim.state_dict()["param_groups"], groups, strict=True):
        first = len(states)
        for each in group["params"]:
            states[len(states)] = {
                name: torch.empty_like(each, dtype=value.dtype) if value.shape == of.shape else value
                for of, state in ours[:1]
                for name, value in state.items()
                if isinstance(value, torch.Tensor)
            }
        numbered.append({**own, "params": list(range(first, len(states)))})
    return {"state": states, "param_groups": numbered}
