"""The groups of GPUs that use NCCL, which allocates buffers for a group at its first use.

Source: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, `getNCCLComm`. torch.distributed.device_mesh also makes groups
that are never used. Not modeled: with `device_id` of `init_process_group` the first group has its buffers at once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from cotenant.core.trace import NcclUsage

_MAX_CHANNELS = ("NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS")
_BUFFER_BYTES = ("NCCL_BUFFSIZE",)
"""Environment variables that change what NCCL allocates; the first one that is set counts."""


class NcclGroups:
    """Writes the size of each group that is used into the header of a recorder, once."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._recorded: set[str] = set()
        self._gloo: set[str] = set()  # groups that use the network

    def created(self, group: Any, backend: object) -> None:
        """A group was created; `backend` as a script names it."""
        if "gloo" in str(backend) and "nccl" not in str(backend):
            self._gloo.add(group.group_name)

    def used(self, *arguments: Any) -> None:
        """A collective uses the group among its arguments, or else the default group."""
        import torch.distributed.distributed_c10d as c10d

        found = next((group for group in arguments if isinstance(group, c10d.ProcessGroup)), None)
        if found is None and c10d.is_initialized():
            found = c10d._get_default_group()
        if found is not None:
            self._record_once(found.group_name)

    def used_by_operator(self, namespace: str, args: Any) -> None:
        """The same for an operator: a functional collective names its group, others pass it as a script object."""
        if namespace == "_c10d_functional":
            if args and isinstance(args[-1], str):
                self._record_once(args[-1])
            return
        for arg in args:
            if isinstance(arg, torch.ScriptObject):
                try:
                    found = torch.distributed.ProcessGroup.unbox(arg)
                except RuntimeError:  # another class, such as `ReduceOp`
                    continue
                self._record_once(found.group_name)

    def used_by_data_parallel(self, gpus: int) -> None:
        """`DataParallel` broadcasts to this many GPUs."""
        self._record(f"in one process: {gpus}", gpus)

    def _record_once(self, name: str) -> None:
        import torch.distributed.distributed_c10d as c10d

        if name not in self._recorded and name not in self._gloo:
            self._record(name, c10d._resolve_process_group(name).size())

    def _record(self, name: str, size: int) -> None:
        self._recorded.add(name)
        if size < 2:
            return
        header = self._recorder.header
        before = header.nccl.group_sizes if header.nccl is not None else ()
        usage = NcclUsage(
            group_sizes=(*before, size), max_channels=_setting(_MAX_CHANNELS), buffer_bytes=_setting(_BUFFER_BYTES)
        )
        self._recorder.header = replace(header, nccl=usage)


def _setting(variables: Sequence[str]) -> int | None:
    value = next((os.environ[name] for name in variables if name in os.environ), "")
    return int(value) if value.isdecimal() else None
