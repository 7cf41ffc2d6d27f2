"""Memory of NCCL outside the allocator, for the process groups of a traced process.

A communicator has channels, and each channel has buffers for its neighbors. Four A100s joined by NVLink were measured
(NVIDIA/nccl issue 964, PyTorch, a 4 MiB all-reduce in each group): 544 MiB for a group of two GPUs, 688 MiB for one of
three or four, with the 24 channels of that machine: 22.7 and 28.7 MiB for a channel. The buffers in NCCL's source
(src/init.cc and include/device.h: 4 MiB simple, 4.69 MiB LL128, 0.5 MiB LL; 10 MiB each in issue 1685) explain two of
them. Without NVLink there are 2 channels (pytorch issue threads show `Channel 00/02`), 8 at most.

Not modeled: several machines, whose buffers depend on their network; all-to-all, which connects every pair (3.3 GB on
8 x H100, issue 1685); NVLS; communicators that share their buffers (`ncclCommSplit`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cotenant.core.trace import NcclUsage, TraceHeader
from cotenant.core.units import MiB, format_bytes
from cotenant.gpu_specs import GpuSpec

_PAIR_BYTES, _MORE_BYTES = 544 * MiB // 24, 688 * MiB // 24  # for a channel
_BUFFERS_BYTES = (4 << 20) + 640 * 120 * 8 * 8 + 512 * 8 * 8 * 16
_SIMPLE_BYTES = 4 << 20
_WITH_NVLINK = frozenset({(7, 0), (8, 0), (9, 0), (10, 0)})


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclBytes:
    """Memory of a process's communicators on one GPU: a range, and the expected value."""

    low_bytes: int
    typical_bytes: int
    high_bytes: int


def nccl_bytes(header: TraceHeader, gpu: GpuSpec) -> NcclBytes | None:
    """For the process groups in a trace's header; None without any of more than one GPU."""
    usage = header.nccl
    if usage is None or not usage.group_sizes:
        return None
    max_channels = usage.max_channels or 32
    nvlink = gpu.compute_capability in _WITH_NVLINK and ":" not in gpu.name
    channels = (2, 24, 32) if nvlink else (1, 2, 8)
    low, typical, high = (_total(usage, min(count, max_channels)) for count in channels)
    return NcclBytes(low_bytes=low, typical_bytes=typical, high_bytes=high)


def with_nccl(gpu: GpuSpec, header: TraceHeader) -> GpuSpec:
    """`gpu` with NCCL's memory added to its context."""
    more = nccl_bytes(header, gpu)
    if more is None:
        return gpu
    context = replace(
        gpu.context,
        low_bytes=gpu.context.low_bytes + more.low_bytes,
        typical_bytes=gpu.context.typical_bytes + more.typical_bytes,
        high_bytes=gpu.context.high_bytes + more.high_bytes,
    )
    return replace(gpu, context=context)


def nccl_warnings(header: TraceHeader, gpu: GpuSpec) -> tuple[str, ...]:
    """NCCL's part of the context as a sentence, if it has one."""
    found = nccl_bytes(header, gpu)
    if found is None:
        return ()
    interval = f"{format_bytes(found.low_bytes)} to {format_bytes(found.high_bytes)} by the links between the GPUs"
    return (f"the context holds {format_bytes(found.typical_bytes)} for NCCL, by what four A100s took; {interval}",)


def _total(usage: NcclUsage, channels: int) -> int:
    scale = 1.0
    if usage.buffer_bytes is not None:
        scale = (_BUFFERS_BYTES - _SIMPLE_BYTES + usage.buffer_bytes) / _BUFFERS_BYTES
    return round(sum(channels * (_PAIR_BYTES if size == 2 else _MORE_BYTES) for size in usage.group_sizes) * scale)
