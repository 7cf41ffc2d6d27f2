"""Process groups, of which this process is one rank, by default rank 0.

Nothing is sent: collectives leave their tensors as they are and complete at once. FSDP2 (`fully_shard`) and
`ZeroRedundancyOptimizer` run their own code on such groups. The memory of NCCL itself is not part of a trace; the
header has the sizes of its groups. Source: torch/distributed/distributed_c10d.py.
"""

from __future__ import annotations

import functools
import os
from dataclasses import replace
from typing import Any

import torch

from cotenant.tracing.distributed import data_parallel, ddp, multiprocessing, pipelines, zero_consolidation
from cotenant.tracing.distributed.nccl_groups import NcclGroups
from cotenant.tracing.patches.registry import Entry, Patch, PatchContext, Phase, patch_attributes

_ONE_RANK_WARNING = "traced as one process of a distributed job"


class _CompletedWork:
    """What an asynchronous collective returns: work that is complete."""

    def wait(self, timeout: object = None) -> bool:
        """Nothing to wait for."""
        return True

    def is_completed(self) -> bool:
        """True."""
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        """A future that is complete."""
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(None)
        return future


def patches(context: PatchContext) -> list[Entry]:
    """Whatever talks to other GPUs and processes."""
    entries: list[Entry] = [*data_parallel.patches(context), *multiprocessing.patches(context)]
    if not torch.distributed.is_available():
        return entries
    return [
        *entries,
        *group_patches(context.recorder, context.groups),
        *(
            Patch(
                target=f"torch.multiprocessing:{name}", phase=Phase.DISTRIBUTED,
                replacement=functools.partial(_run_first, context.recorder),
                reason="It starts one process per GPU; the first is traced, in this process.",
                source=f"torch/multiprocessing/spawn.py, `{name}`",
            )
            for name in ("spawn", "start_processes")
        ),
        Patch(
            target="torch._C._distributed_c10d:ProcessGroup.monitored_barrier", phase=Phase.DISTRIBUTED,
            replacement=_pass_barrier, reason="Only Gloo has one, and a group here is a fake one.",
            source="torch/csrc/distributed/c10d/ProcessGroup.hpp, `monitoredBarrier`",
        ),
        *pipelines.patches(context),
        *zero_consolidation.patches(context),
        *ddp.patches(),
    ]  # fmt: skip


_COLLECTIVES = (
    "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter",
    "reduce_scatter_tensor", "scatter", "gather", "all_to_all", "all_to_all_single", "send", "recv", "isend", "irecv",
    "_all_gather_base", "_reduce_scatter_base", "all_reduce_coalesced", "all_gather_single", "reduce_scatter_single",
)  # fmt: skip


def group_patches(recorder: Any, groups: NcclGroups) -> list[Patch]:
    """Groups of `torch.distributed` and their collectives. `recorder` has `warn` and `header`."""
    import torch.distributed.distributed_c10d as c10d

    real_init, real_new_group = c10d.init_process_group, c10d.new_group

    def init_process_group(
        backend: Any = None, init_method: Any = None, timeout: Any = None, world_size: int = -1, rank: int = -1,
        *args: Any, **kwargs: Any,
    ) -> None:  # fmt: skip
        from torch.testing._internal.distributed.fake_pg import FakeStore

        size = world_size if world_size > 0 else int(os.environ.get("WORLD_SIZE", "1"))
        own = rank if rank >= 0 else int(os.environ.get("RANK", "0"))
        recorder.warn(_ONE_RANK_WARNING)
        recorder.header = replace(recorder.header, processes=size)
        real_init(backend="fake", store=FakeStore(), rank=own, world_size=size)
        groups.created(c10d._get_default_group(), backend)

    def new_group(ranks: Any = None, timeout: Any = None, backend: Any = None, *_: Any, **kwargs: Any) -> Any:
        made = real_new_group(ranks, timeout, **{**kwargs, "pg_options": None})  # like the default group, a fake one
        if made is not None and made is not c10d.GroupMember.NON_GROUP_MEMBER:
            groups.created(made, backend)
        return made

    def collective(*args: Any, **kwargs: Any) -> _CompletedWork:
        groups.used(*args, *kwargs.values())
        return _CompletedWork()

    def stand_in_for(original: Any) -> Any:
        # One of its own, with the original's signature: Dynamo has a table of what it compiles for each of them.
        @functools.wraps(original)
        def called(*args: Any, **kwargs: Any) -> _CompletedWork:
            return collective(*args, **kwargs)

        return called

    sent: list[Any] = []

    def send_objects(objects: list[Any], *_: Any, **__: Any) -> None:
        sent[:] = objects

    def receive_objects(objects: list[Any], *_: Any, **__: Any) -> int:
        """From another rank, which is assumed to send what this one sent."""
        if len(sent) == len(objects):
            objects[:] = sent
        return 0

    def gather_objects(objects: list[Any], value: Any, group: Any = None) -> None:
        objects[:] = [value] * len(objects)

    replaced: dict[str, Any] = {name: stand_in_for(getattr(c10d, name, collective)) for name in _COLLECTIVES}
    replaced.update(
        init_process_group=init_process_group,
        new_group=new_group,
        barrier=collective,
        monitored_barrier=collective,
        all_gather_object=gather_objects,
        broadcast_object_list=collective,
        send_object_list=send_objects,
        recv_object_list=receive_objects,
        is_nccl_available=lambda: True,
    )
    return patch_attributes(
        "torch.distributed.distributed_c10d", replaced, phase=Phase.DISTRIBUTED, also_in="torch.distributed",
        reason="It talks to other processes, which are not there.",
        source="torch/distributed/distributed_c10d.py, `init_process_group`", missing="some versions: names vary",
    )  # fmt: skip


def _pass_barrier(*_: Any, **__: Any) -> None:
    """A barrier that all ranks have reached."""


def _run_first(
    recorder: Any, fn: Any, args: Any = (), nprocs: int = 1, join: bool = True, daemon: bool = False,
    start_method: str = "spawn",
) -> None:  # fmt: skip
    """`spawn` and `start_processes` of `torch.multiprocessing`: run the first process here."""
    recorder.header = replace(recorder.header, processes=nprocs)
    with multiprocessing.noting_errors():
        fn(0, *args)
