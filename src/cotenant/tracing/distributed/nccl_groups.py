"""The groups of GPUs between which NCCL is used: it makes buffers for a group when the group is first used.

Source: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, `getNCCLComm`; torch.distributed.device_mesh makes groups that
nobody uses. A `device_id` given to `init_process_group` makes those of the first group at once, which is not modeled.
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
    """Notes in the header of a recorder, once for each group that is used, how many GPUs it has."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._noted: set[str] = set()
        self._without: set[str] = set()  # of processes that talk over the network, by Gloo

    def made(self, group: Any, backend: object) -> None:
        """A group came to life; `backend` as a script names it."""
        if "gloo" in str(backend) and "nccl" not in str(backend):
            self._without.add(group.group_name)

    def used(self, *given: Any) -> None:
        """A group among the arguments of a collective call, or else the default one, is used."""
        import torch.distributed.distributed_c10d as c10d

        found = next((each for each in given if isinstance(each, c10d.ProcessGroup)), None)
        if found is None and c10d.is_initialized():
            found = c10d._get_default_group()
        if found is not None:
            self._note(found.group_name)

    def used_by_operator(self, namespace: str, args: Any) -> None:
        """The same for an operator: a functional collective names its group, the others hold it in a box."""
        if namespace == "_c10d_functional":
            if args and isinstance(args[-1], str):
                self._note(args[-1])
            return
        for each in args:
            if isinstance(each, torch.ScriptObject):
                try:
                    found = torch.distributed.ProcessGroup.unbox(each)
                except RuntimeError:  # another class, such as the kind of a sum
                    continue
                self._note(found.group_name)

    def used_by_data_parallel(self, gpus: int) -> None:
        """`DataParallel` joins this many GPUs."""
        self._tell(f"in one process: {gpus}", gpus)

    def _note(self, name: str) -> None:
        import torch.distributed.distributed_c10d as c10d

        if name not in self._noted and name not in self._without:
            self._tell(name, c10d._resolve_process_group(name).size())

    def _tell(self, name: str, size: int) -> None:
        self._noted.add(name)
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
