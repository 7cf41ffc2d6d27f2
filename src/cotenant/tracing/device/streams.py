"""Streams and events of the simulated GPUs, in place of those of `torch.cuda`.

Nothing runs, so that a stream orders nothing and an event is complete. As in PyTorch they are a `torch.Stream` and a
`torch.Event`. Source: torch/cuda/streams.py.
"""

from __future__ import annotations

from typing import Any

import torch

from cotenant.tracing.device import libtorch_patch

_CUDA = 1
"""c10::DeviceType::CUDA"""


def device_index(device: object) -> int:
    """The index of a GPU given as number, name or device; without an index, the current GPU."""
    if isinstance(device, int):
        return device
    if isinstance(device, torch.cuda.device):
        return int(device.idx)
    index = None if device is None else torch.device(device).index
    return libtorch_patch.current_device() if index is None else int(index)


_STREAM: Any = torch.Stream
_EVENT: Any = getattr(torch, "Event", object)  # from torch 2.5 on


class FakeStream(_STREAM):
    """Replaces `torch.cuda.Stream`. It orders nothing; the allocator has blocks of each stream, by `number`."""

    _next = 1

    def __new__(cls, device: object = None, priority: int = 0, *, number: int | None = None, **_: object) -> FakeStream:
        """A stream with `stream_id`, `device_index` and `device_type`, of which libraries make it again."""
        if number is None:
            number, FakeStream._next = FakeStream._next, FakeStream._next + 1
        place = max(0, device_index(device))
        return super().__new__(cls, stream_id=number, device_index=place, device_type=_CUDA)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The lowest and the highest. Source: c10/cuda/CUDAStream.h, `max_compile_time_stream_priorities`."""
        return 0, -3

    def __init__(self, device: object = None, priority: int = 0, **_: object) -> None:
        self.number = self.cuda_stream = int(self.stream_id)
        self.priority = priority
        self._contexts: list[Any] = []

    def synchronize(self) -> None:
        """Nothing runs, so there is nothing to wait for."""

    def wait_stream(self, stream: object) -> None:
        """Nothing runs, so there is nothing to wait for."""

    def wait_event(self, event: object) -> None:
        """Nothing runs, so there is nothing to wait for."""

    def record_event(self, event: Any = None) -> Any:
        """The given event, or a new one."""
        return event if event is not None else FakeEvent()

    def query(self) -> bool:
        """All work is done."""
        return True

    def is_capturing(self) -> bool:
        """No CUDA graph is being captured."""
        return False

    def __enter__(self) -> FakeStream:
        """It is the current stream until `__exit__`."""
        context = torch.cuda.stream(self)
        context.__enter__()
        self._contexts.append(context)
        return self

    def __exit__(self, *error: Any) -> None:
        self._contexts.pop().__exit__(*error)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FakeStream) and (other.number, other.device) == (self.number, self.device)

    def __hash__(self) -> int:
        return hash((self.number, self.device))


class _ExternalStream(FakeStream):
    """The stream of a number, which `cuda_stream` gives, in place of one that another library made."""

    def __new__(cls, stream_ptr: int, device: object = None, **_: object) -> _ExternalStream:
        return super().__new__(cls, device, number=int(stream_ptr))

    def __init__(self, stream_ptr: int, device: object = None, **_: object) -> None:
        super().__init__(device)


class FakeEvent(_EVENT):
    """Replaces `torch.cuda.Event`; it is always complete."""

    cuda_event = 0

    def __new__(cls, *_: object, **__: object) -> FakeEvent:
        return object.__new__(cls) if _EVENT is object else super().__new__(cls, "cuda")

    def __init__(self, *_: object, **__: object) -> None: ...

    def record(self, stream: object = None) -> None:
        """Nothing to record."""

    def wait(self, stream: object = None) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        """It is complete."""
        return True

    def synchronize(self) -> None:
        """It is complete."""

    def elapsed_time(self, end: object) -> float:
        """1.0 ms: scripts divide by it."""
        return 1.0


STREAM_CLASSES: dict[str, Any] = {"Stream": FakeStream, "ExternalStream": _ExternalStream, "Event": FakeEvent}
"""By name, in `torch.cuda` and where they are defined."""
