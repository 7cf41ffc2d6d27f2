"""Memory of NCCL outside the allocator, for the process groups of a traced process.

A communicator has channels. For each neighbor and direction a channel has a buffer, in whole pages of 2 MiB
(`p2pSendSetup` and `p2pRecvSetup` in src/transport/p2p.cc of NCCL; sizes of the protocols: `computeBuffSizes` in
src/init.cc: 4 MiB simple, 4.69 MiB LL128, 0.5 MiB LL): 6 MiB for sending and 6 MiB for receiving where the receiver
reads (A100 with NVLink), else 2 and 10 MiB. A ring sends to one neighbor and receives from the other; the tree of a
machine, a chain, does both with each: two buffers for a channel in a group of two GPUs; in larger groups three at the
chain's ends, four within, and two while no tree is used (NCCL 2.22 connects an algorithm at its first use).

Besides, the proxy has one buffer for sends over the network, though a machine alone has none: 16 steps of 512 KiB for
each channel (128 KiB unless NVLink joins all GPUs; an eighth of NCCL_BUFFSIZE at most), the channels rounded up to a
power of two (`sharedNetBuffersInit` in src/transport/net.cc, `computeBuffSizes`, `ncclTopoComputeP2pChannels` in
src/graph/paths.cc). From NCCL 2.22 on it is made at the first send over a network where the driver has cuMem
(`runtimeConn` in src/init.cc), otherwise with the communicator.

Both agree with what was measured: four A100s joined by NVLink took 544 MiB for a group of two GPUs and 688 MiB for one
of three or four (NVIDIA/nccl issue 964, PyTorch, 24 channels): 288 and 432 MiB of buffers, and 32 x 16 x 512 KiB. A
group of one GPU took 512 MiB on a B300 (issue 2363) and on an RTX 3090 (pull request 2366): 64 channels. Without NVLink
there are 2 channels (pytorch issue threads show `Channel 00/02`), 8 at most.

Not modeled: several machines, whose buffers depend on their network; all-to-all, which connects every pair (3.3 GB on
8 x H100, issue 1685); NVLS; communicators that share their buffers (`ncclCommSplit`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cotenant.core.trace import NcclUsage, TraceHeader
from cotenant.core.units import KiB, MiB, format_bytes
from cotenant.gpu_specs import GpuSpec

_PAGE_BYTES = 2 * MiB
_SIMPLE_BYTES = 4 * MiB
_OTHER_BYTES = 640 * 120 * 8 * 8 + 512 * 8 * 8 * 16
"""Of the protocols LL128 and LL: threads, elements or lines of each, steps, bytes."""

_FLAGS_BYTES = 4096
"""Room for the heads and tails of a buffer's queue, `ncclSendMem` and `ncclRecvMem`."""

_STEPS, _SHARED_STEPS = 8, 16
"""Of a buffer's queue, and of the proxy's shared buffer for each channel."""
_NVLINK_CHUNK_BYTES, _PCI_CHUNK_BYTES = 512 * KiB, 128 * KiB
_WITH_NVLINK = frozenset({(7, 0), (8, 0), (9, 0), (10, 0)})


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclPart:
    """A part of NCCL's memory: a range, the expected value, and where that is known from."""

    name: str
    source: str
    low_bytes: int
    typical_bytes: int
    high_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclBytes:
    """Memory of a process's communicators on one GPU: a range, and the expected value.

    Attributes:
        group_sizes: GPUs of each communicator.
        low_channels, typical_channels, high_channels: of a communicator; the links between the GPUs decide.
    """

    group_sizes: tuple[int, ...]
    low_channels: int
    typical_channels: int
    high_channels: int
    parts: tuple[NcclPart, ...]

    @property
    def low_bytes(self) -> int:
        """The least of all parts."""
        return sum(part.low_bytes for part in self.parts)

    @property
    def typical_bytes(self) -> int:
        """What is expected of all parts."""
        return sum(part.typical_bytes for part in self.parts)

    @property
    def high_bytes(self) -> int:
        """The most of all parts."""
        return sum(part.high_bytes for part in self.parts)

    @property
    def interval(self) -> str:
        """The range, and why it is one."""
        return f"{format_bytes(self.low_bytes)} to {format_bytes(self.high_bytes)} by the links between the GPUs"

    @property
    def sentence(self) -> str:
        """For those who see the context as one number."""
        return f"the context holds {format_bytes(self.typical_bytes)} for NCCL, by its source; {self.interval}"


def nccl_bytes(header: TraceHeader, gpu: GpuSpec) -> NcclBytes | None:
    """For the process groups in a trace's header; None without any of more than one GPU."""
    usage = header.nccl
    if usage is None or not usage.group_sizes:
        return None
    nvlink = gpu.compute_capability in _WITH_NVLINK and ":" not in gpu.name
    low, typical, high = (min(count, usage.max_channels or 32) for count in ((2, 24, 32) if nvlink else (1, 2, 8)))
    buffers = NcclPart(
        name="buffers",
        source="`computeBuffSizes` in src/init.cc, `p2pSendSetup` and `p2pRecvSetup` in src/transport/p2p.cc of NCCL",
        low_bytes=low * _buffer_bytes(usage, 2),
        typical_bytes=typical * _buffer_bytes(usage, 3),
        high_bytes=high * _buffer_bytes(usage, 4),
    )
    shared = NcclPart(
        name="shared buffer",
        source="`sharedNetBuffersInit` in src/transport/net.cc of NCCL; none from 2.22 on where the driver has cuMem",
        low_bytes=0,
        typical_bytes=_shared_bytes(usage, typical, _NVLINK_CHUNK_BYTES if nvlink else _PCI_CHUNK_BYTES),
        high_bytes=_shared_bytes(usage, high, _NVLINK_CHUNK_BYTES),
    )
    return NcclBytes(
        group_sizes=usage.group_sizes,
        low_channels=low,
        typical_channels=typical,
        high_channels=high,
        parts=(buffers, shared),
    )


def with_nccl(gpu: GpuSpec, header: TraceHeader) -> GpuSpec:
    """`gpu` with NCCL's memory added to its context."""
    more = nccl_bytes(header, gpu)
    if more is None:
        return gpu
    return replace(gpu, context=gpu.context.plus(more.low_bytes, more.typical_bytes, more.high_bytes))


def nccl_warnings(header: TraceHeader, gpu: GpuSpec) -> tuple[str, ...]:
    """NCCL's part of the context as a sentence, if it has one."""
    found = nccl_bytes(header, gpu)
    return () if found is None else (found.sentence,)


def _buffer_bytes(usage: NcclUsage, in_larger_groups: int) -> int:
    """Of one channel of each group: two buffers between two GPUs, and `in_larger_groups`, half of them for sending."""
    simple = _SIMPLE_BYTES if usage.buffer_bytes is None else usage.buffer_bytes
    pair = sum(-(-(size + _FLAGS_BYTES) // _PAGE_BYTES) * _PAGE_BYTES for size in (simple, _OTHER_BYTES))
    return sum(pair * (2 if size == 2 else in_larger_groups) // 2 for size in usage.group_sizes)


def _shared_bytes(usage: NcclUsage, channels: int, chunk_bytes: int) -> int:
    """Of the proxies of all groups."""
    if usage.buffer_bytes is not None:
        chunk_bytes = min(chunk_bytes, usage.buffer_bytes // _STEPS)
    return len(usage.group_sizes) * (1 << (channels - 1).bit_length()) * _SHARED_STEPS * chunk_bytes
