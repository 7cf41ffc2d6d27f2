"""Collects what happens to CUDA storages, and turns it into a `MemoryTrace` at the end.

While a storage lives it is identified by the address of its C++ object, and in the trace by a number. A weak reference
to the Python `UntypedStorage` reports its end: PyTorch keeps that object alive exactly as long as the C++ one.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from cotenant.allocator.rounding import block_bytes
from cotenant.core.trace import LayerCall, MemoryTrace, TraceHeader
from cotenant.tracing.allocation_lines import AllocationLines
from cotenant.tracing.finished_events import finished_events, with_replaced_calls
from cotenant.tracing.kernel_work import KernelCounter
from cotenant.tracing.library_call_table import LibraryCallTable
from cotenant.tracing.module_stack import ModuleStack
from cotenant.tracing.process.garbage_collection import collect_as_usual
from cotenant.tracing.recorded_span import (
    CarriedStorage,
    LiveStorage,
    PausedSpan,
    RecordedAction,
    RecordedSpan,
    ReplacedCall,
)
from cotenant.tracing.step_memory import LiveRange

SPARSE_PARTS_ATTRIBUTE = "_cotenant_parts"


class TraceRecorder:
    """Events so far. One for each traced process; the main and the autograd thread call it, never at the same time.

    Attributes:
        header: what was true when the trace was recorded; `steps` and `layers` are filled in at the end.
        limit: called before a storage of so many bytes on a GPU; raises where it does not fit.
        phase: of the training loop: `load`, `forward`, `backward`, `step`, ...
        streams: the current stream of each GPU where it is not the default one.
        pools: the negative number of the pool (`torch.cuda.MemPool`) that a thread allocates from, by GPU and thread.
        capture_stream: the stream that the script chose for the CUDA graph that it captures now.
        graph_seeds: allocates the seed and the offset of that graph, at its first random operator; None: not needed.
        warnings: sentences for the user; a dict, as an ordered set.
        steps: optimizer steps so far.
        cuda_used: whether any CUDA storage was recorded.
        live_bytes, peak_bytes: of the blocks of live storages, now and at most, by GPU; `live_range`: of all GPUs.
        layers: calls of layers, by the optimizer steps before them.
        kernels: those of the first optimizer steps.
        modules: those whose forward runs.
        library_calls: the distinct ones so far.
        replaced_calls: those that have their events at the end, by the number of events before them.
    """

    def __init__(self) -> None:
        self.header = TraceHeader(torch_version=torch.__version__)
        self.limit: Callable[[int, int], None] | None = None
        self.live_range = LiveRange()
        self._begin()

    def reset(self, header: TraceHeader) -> None:
        """Forget all events, and take `header`; storages that live now are no part of the trace."""
        self.header = header
        self.live_range.clear()
        self._begin()

    def _begin(self) -> None:
        self.phase = "load"
        self.streams: dict[int, int] = {}
        self.pools: dict[tuple[int, int], int] = {}
        self.capture_stream: int | None = None
        self.graph_seeds: Callable[[], None] | None = None
        self.warnings: dict[str, None] = {}
        self.steps = 0
        self.cuda_used = False
        self.live_bytes: Counter[int] = Counter()
        self.peak_bytes: Counter[int] = Counter()
        self.layers: dict[int, list[LayerCall]] = {}
        self.kernels = KernelCounter()
        self.modules = ModuleStack()
        self.library_calls = LibraryCallTable()
        self._actions: list[RecordedAction] = []
        self._ids: dict[int, int] = {}  # of live storages, by address
        self._live: set[int] = set()  # the same ids
        self._refs: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._devices: list[int] = []  # these three by id
        self._sizes: list[int] = []
        self._category: dict[int, str] = {}
        self._lines = AllocationLines()
        self._paused: PausedSpan | None = None
        self._carried: list[CarriedStorage] = []  # after the last pause
        self.replaced_calls: dict[int, ReplacedCall] = {}

    # -- storages ---------------------------------------------------------------------------------------------

    def record_storage(self, tensor: torch.Tensor) -> None:
        """Record the storage of a fake CUDA tensor if it is new; of a sparse tensor, those of its parts."""
        if tensor.layout is not torch.strided:
            for part in sparse_parts(tensor):
                self.record_storage(part)
            return
        storage = tensor.untyped_storage()
        storage_id = self._ids.get(storage._cdata)
        if storage_id is not None:
            if self._sizes[storage_id] < storage.nbytes():  # an operator with `out=` made room
                self.record_resize(storage)
            return
        if self._paused is not None:
            self._paused.add(storage, tensor.device.index or 0)
        else:
            self._record_alloc(storage, tensor.device.index or 0)

    def _record_alloc(self, storage: torch.UntypedStorage, device: int) -> None:
        storage_id = len(self._sizes)
        nbytes = storage.nbytes()
        if self.limit is not None:
            self.limit(nbytes, device)
        if not self.cuda_used:
            self.cuda_used = True
            collect_as_usual()
        self._sizes.append(nbytes)
        self._devices.append(device)
        self._count_bytes(storage_id, 1)
        self.peak_bytes[device] = max(self.peak_bytes[device], self.live_bytes[device])
        self._bind(storage, storage_id)
        module = self.modules.innermost
        self._lines.add(storage_id, nbytes, self.phase, module)
        stream = self.streams.get(device, 0)
        if self.pools:
            stream = self.pools.get((device, threading.get_ident()), stream)
        self._actions.append(("alloc", storage_id, nbytes, self.phase, module, stream, device))

    def _bind(self, storage: torch.UntypedStorage, storage_id: int) -> None:
        self._ids[storage._cdata] = storage_id
        self._live.add(storage_id)
        self._watch(storage)

    def _watch(self, storage: torch.UntypedStorage) -> None:
        address = storage._cdata
        self._refs[address] = weakref.ref(storage, lambda _: self._record_free(address))

    def _record_free(self, address: int) -> None:
        storage_id = self._ids.pop(address, -1)
        self._refs.pop(address, None)
        self._live.discard(storage_id)
        if storage_id >= 0 and self._paused is not None:
            self._paused.freed.append(storage_id)
        elif storage_id >= 0:
            self._append_free(storage_id)

    def _count_bytes(self, storage_id: int, sign: int) -> None:
        nbytes = sign * (block_bytes(size) if (size := self._sizes[storage_id]) else 0)  # as the allocator counts
        self.live_bytes[self._devices[storage_id]] += nbytes
        self.live_range.add(nbytes)

    def _append_free(self, storage_id: int) -> None:
        device = self._devices[storage_id]
        self._count_bytes(storage_id, -1)
        self._actions.append(("free", storage_id, 0, self.phase, "", self.streams.get(device, 0), device))

    def record_resize(self, storage: torch.UntypedStorage) -> None:
        """Record that a known storage changed its size in place: its block is freed and another allocated."""
        address = storage._cdata
        storage_id = self._ids.get(address)
        if storage_id is None or self._sizes[storage_id] == storage.nbytes():
            return
        category = self._category.get(storage_id)
        self._record_free(address)
        if self._paused is not None:
            self._paused.add(storage, self._devices[storage_id])
            return
        self._record_alloc(storage, self._devices[storage_id])
        if category:
            self._category[self._ids[address]] = category

    def classify(self, tensor: object, category: str, *, again: bool = True) -> None:
        """Set the category of a tensor's storage; unknown storages and CPU tensors are ignored.

        `again`: also where it has one.
        """
        tensor = getattr(tensor, "_local_tensor", tensor)  # a DTensor's shard on this process
        if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cuda":
            return
        if tensor.layout is not torch.strided:
            for part in sparse_parts(tensor):
                self.classify(part, category, again=again)
            return
        storage_id = self._ids.get(tensor.untyped_storage()._cdata)
        if storage_id is not None and (again or storage_id not in self._category):
            self._category[storage_id] = category

    def storage_id(self, tensor: torch.Tensor) -> int | None:
        """The number of a tensor's storage in the trace; None if it is not recorded."""
        return self._ids.get(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else None

    def any_live(self, storages: set[int]) -> bool:
        """Whether one of these numbers is that of a live storage."""
        return bool(storages) and not storages.isdisjoint(self._live)

    def position(self) -> tuple[int, int]:
        """Where the trace is now, for `events_since`."""
        return len(self._actions), len(self._sizes)

    def live_since(self, first: int) -> set[int]:
        """Numbers of live storages that are `first` or more."""
        return self._live.intersection(range(first, len(self._sizes)))  # not all: a rollout keeps thousands

    def pause(self) -> None:
        """Record no events until `resume`."""
        self._paused = PausedSpan(self.phase)

    def resume(self, span: RecordedSpan | None = None) -> None:
        """Record events again, and first those of `span`, which are as those that were not recorded.

        Storages that are new since `pause` are those that live after the span; without one, they take the place of
        storages of their size that were freed. What does not match is recorded as allocated and freed now.
        """
        paused, self._paused = self._paused, None
        if paused is None:
            return
        if span is not None:
            self._carried = self._append_span(span, sorted(paused.freed), paused.live())
            return
        if paused.phase != self.phase:
            self._actions.append(("phase", -1, 0, self.phase, "", 0, 0))
        self._carried = self._match(sorted(paused.freed), paused.live())

    def repeat(self, span: RecordedSpan) -> None:
        """Record a span once more, with the storages that lived after the last one."""
        live = [(storage, device) for ref, device in self._carried if (storage := ref()) is not None]
        freed = [self._ids.pop(storage._cdata) for storage, _ in live]
        self._live.difference_update(freed)
        self._carried = self._append_span(span, freed, live)

    def span_since(self, position: tuple[int, int]) -> RecordedSpan:
        """The events since a position."""
        actions, first = position
        return RecordedSpan(self._actions[actions:], first, len(self._sizes), sorted(self.live_since(first)))

    def note_replaced(self, position: tuple[int, int], span: RecordedSpan, results: list[int]) -> bool:
        """Take the events since a position as the results of a call like that of `span`; whether they can be."""
        at, end = position[0], len(self._actions)
        has_results_alone = [action[0] for action in self._actions[at:]] == ["alloc"] * len(results)
        if results and has_results_alone:
            self.replaced_calls[at] = ReplacedCall(at, end, span, results)
        return at in self.replaced_calls

    def _append_span(self, span: RecordedSpan, freed: list[int], live: list[LiveStorage]) -> list[CarriedStorage]:
        """Record the events of `span` for other storages: of `freed` those that it frees, `live` those that it leaves.

        Returns the latter.
        """
        shift = len(self._sizes) - span.first
        self._sizes += self._sizes[span.first : span.end] if span.sizes is None else span.sizes
        self._devices += self._devices[span.first : span.end]
        for number in range(span.first, span.end):
            if (category := self._category.get(number)) is not None:
                self._category[number + shift] = category
        for entry in span.actions:
            action, number = entry[:2]
            if action not in ("alloc", "free"):
                self._actions.append(entry)
            elif number >= span.first:
                self._actions.append((action, number + shift, *entry[2:]))
            elif (match := self._like(number, freed)) is not None:
                freed.remove(match)
                self._count_bytes(match, -1)
                self._actions.append((action, match, *entry[2:]))
        left = [number + shift for number in span.left]
        for number in left:
            self._count_bytes(number, 1)
        return self._match([*freed, *left], live)

    def _match(self, numbers: list[int], live: list[LiveStorage]) -> list[CarriedStorage]:
        """Give numbers to live storages of the same size, in order; the rest is recorded as freed and allocated."""
        unmatched = []
        for storage, device in live:
            kind = (storage.nbytes(), device)
            match = next((number for number in numbers if self._kind(number) == kind), None)
            if match is None:
                unmatched.append((storage, device))
            else:
                numbers.remove(match)
                self._bind(storage, match)
        for number in numbers:
            self._append_free(number)
        for storage, device in unmatched:
            self._record_alloc(storage, device)
        return [(weakref.ref(storage), device) for storage, device in live]

    def _like(self, number: int, others: list[int]) -> int | None:
        return next((other for other in others if self._kind(other) == self._kind(number)), None)

    def _kind(self, number: int) -> tuple[int, int]:
        return self._sizes[number], self._devices[number]

    @property
    def is_paused(self) -> bool:
        """Whether no events are recorded."""
        return self._paused is not None

    def events_since(
        self, position: tuple[int, int], *, older: bool = False
    ) -> tuple[tuple[object, ...] | None, set[int]]:
        """(events with storages numbered from 0, new storages that live); no events if an older one was freed.

        `older`: give the frees of older storages by size instead.
        """
        actions, first = position
        new = self.live_since(first)
        events: list[tuple[object, ...]] = []
        for action, number, nbytes, _, module, stream, device in self._actions[actions:]:
            is_storage = action in ("alloc", "free")
            if is_storage and number < first:
                if not older:
                    return None, new
                events.append((action, None, self._sizes[number], module, stream, device))
                continue
            events.append((action, number - first if is_storage else number, nbytes, module, stream, device))
        return tuple(events), new

    # -- everything else --------------------------------------------------------------------------------------

    def record_call(self, kind: str, thread: str, params: Mapping[str, object], device: int) -> None:
        """Record a library call whose workspace depends on the GPU; the parameters are those of `LibraryCall`."""
        number = self.library_calls.number(kind, thread, params)
        if self._paused is None:
            stream = self.streams.get(device, 0)
            self._actions.append(("op", number, 0, self.phase, self.modules.innermost, stream, device))

    def note_runs_otherwise(self, kind: str) -> None:
        """On a GPU the script runs something of `kind` that the trace does not; see `TraceHeader.runs_otherwise`."""
        if kind not in self.header.runs_otherwise:
            self.header = replace(self.header, runs_otherwise=(*self.header.runs_otherwise, kind))

    def note_compiled(self) -> None:
        """Code of the script runs as PyTorch's compiler made it; see `TraceHeader.compiled`."""
        self.header = replace(self.header, compiled=True)

    def enter_phase(self, phase: str) -> str:
        """Begin a phase; returns the one before."""
        before, self.phase = self.phase, phase
        self._lines.enter_phase(phase)
        if before != phase and self._paused is None:
            self._actions.append(("phase", -1, 0, phase, "", 0, 0))
        return before

    def empty_cache(self) -> None:
        """Record `torch.cuda.empty_cache()`."""
        if self._paused is None:
            self._actions.append(("empty_cache", -1, 0, self.phase, "", 0, 0))

    def warn(self, sentence: str) -> None:
        """Add a sentence for the user, unless it was added before."""
        self.warnings.setdefault(sentence)

    @property
    def is_aside(self) -> bool:
        """Whether the script works on a stream of its own."""
        return max(self.streams.values(), default=0) > 0

    # -- the result -------------------------------------------------------------------------------------------

    @property
    def event_count(self) -> int:
        """Events so far."""
        return len(self._actions)

    def trace(self, *, partial: bool) -> MemoryTrace:
        """The trace so far."""
        actions = tuple(self._actions)  # a copy: the thread of `deadline` calls this while the script goes on
        calls = tuple(self.replaced_calls.values())
        expanded = with_replaced_calls(actions, calls, len(self._sizes), self.header.epoch_end)
        events = tuple(finished_events(expanded, self._category))
        layers = self.layers.get(1) or self.layers.get(0, [])
        return MemoryTrace(
            events=events,
            ops=self.library_calls.all(),
            header=replace(
                self.header,
                steps=self.steps,
                epoch_end=expanded.position,
                layers=tuple(layers),
                lines=self._lines.by_part(events),
                kernels=self.kernels.groups(self.steps),
            ),
            warnings=tuple(self.warnings),
            partial=partial,
        )


def sparse_parts(tensor: Any) -> tuple[torch.Tensor, ...]:
    """Indices and values of a fake sparse tensor; empty for layouts that are not modeled."""
    return getattr(tensor, SPARSE_PARTS_ATTRIBUTE, ())
