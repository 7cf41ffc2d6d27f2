"""`DistributedDataParallel` with its own C++ reducer, on process groups without other ranks.

Its buckets, their order and their rebuilding after the first step are PyTorch's own. Two things need the other ranks:
the comparison of parameters, and the result of the collective, which a fake group does not give.
Source: torch/nn/parallel/distributed.py; torch/csrc/distributed/c10d/reducer.cpp and comm.cpp, `parseHookResult`.

A module of its own: the rules of one class of torch, which the session installs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from cotenant.tracing.patches.registry import Patch, Phase

_SOURCE = "torch/nn/parallel/distributed.py, `DistributedDataParallel.__init__`"


def patches() -> list[Patch]:
    """The check, and a communication hook in place of the collective."""
    return [
        Patch(
            target="torch.distributed.utils:_verify_param_shape_across_processes", phase=Phase.DISTRIBUTED,
            replacement=lambda *_, **__: None, also_in="torch", reason="The other ranks are not there.",
            source=_SOURCE,
        ),
        Patch(
            target="torch.nn.parallel:DistributedDataParallel.__init__", phase=Phase.DISTRIBUTED,
            replacement=_with_hook, wraps=True, reason="The work of a fake group has no result.", source=_SOURCE,
        ),
        Patch(
            target="torch.nn.parallel:DistributedDataParallel.register_comm_hook", phase=Phase.DISTRIBUTED,
            replacement=lambda self, state, hook: None, reason="A reducer takes one hook, and has ours.",
            source="torch/nn/parallel/distributed.py, `register_comm_hook`",
        ),
    ]  # fmt: skip


def _with_hook(original: Callable[..., None]) -> Callable[..., None]:
    register = torch.nn.parallel.DistributedDataParallel.register_comm_hook

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        # A lambda, for its annotations would have to be the classes themselves (`_check_comm_hook`).
        register(self, None, lambda state, bucket: _completed(bucket))

    return init


def _completed(bucket: Any) -> torch.futures.Future[torch.Tensor]:
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done
