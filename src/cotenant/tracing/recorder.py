"""Collects what happens to CUDA storages, and turns it into a `MemoryTrace` at the end.

A storage is known by the address of its C++ object while it lives and by a number for ever. Its end is seen by a
weak reference to the Python `UntypedStorage`, which PyTorch keeps alive exactly as long as the C++ object.
"""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch

from cotenant.core.trace import LibraryCall, MemoryEvent, MemoryTrace


class TraceRecorder:
    """Events so far. One per traced process; called from the main and the autograd thread, never at once."""

    def __init__(self) -> None:
        self.phase = "load"
        self.streams: dict[int, int] = {}  # the current one of each GPU, where it is not the first
        self.warnings: dict[str, None] = {}
        self.header: dict[str, object] = {}
        self.steps = 0
        self.cuda_used = False
        self._actions: list[tuple[str, int, int, str, str, int, int]] = []
        self._live: dict[int, int] = {}
        self._devices: list[int] = []
        self._refs: dict[int, weakref.ref[Any]] = {}
        self._sizes: list[int] = []
        self._category: dict[int, str] = {}
        self.live_bytes: Counter[int] = Counter()  # by GPU
        self.peak_bytes: Counter[int] = Counter()
        self.limit: Callable[[int, int], None] | None = None  # asked before a storage of so many bytes, on a GPU
        self._ops: list[LibraryCall] = []
        self._op_ids: dict[object, int] = {}
        self._modules: list[str] = []
        self._names: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()
        self.layers: dict[int, list[list[object]]] = {}

    def reset(self, header: dict[str, object]) -> None:
        """Forget everything recorded; tensors that still live are no part of the trace."""
        limit = self.limit
        self.__init__()  # type: ignore[misc]
        self.header, self.limit = header, limit

    # -- storages ---------------------------------------------------------------------------------------------

    def record_storage(self, tensor: torch.Tensor) -> None:
        """Note the storage of a fake CUDA tensor, if it is new; of a sparse one, those of its parts."""
        if tensor.layout is not torch.strided:
            for part in sparse_parts(tensor):
                self.record_storage(part)
            return
        storage = tensor.untyped_storage()
        if storage._cdata not in self._live:
            self._record_alloc(storage, tensor.device.index or 0)

    def _record_alloc(self, storage: torch.UntypedStorage, device: int) -> None:
        key = storage._cdata
        number = len(self._sizes)
        nbytes = storage.nbytes()
        if self.limit is not None:
            self.limit(nbytes, device)  # may refuse
        self.cuda_used = True
        self._live[key] = number
        self._sizes.append(nbytes)
        self._devices.append(device)
        self.live_bytes[device] += nbytes
        self.peak_bytes[device] = max(self.peak_bytes[device], self.live_bytes[device])
        self._refs[key] = weakref.ref(storage, functools.partial(self._storage_freed, key))
        self._actions.append(("alloc", number, nbytes, self.phase, self._module(), self.streams.get(device, 0), device))

    def _storage_freed(self, key: int, _: object) -> None:
        self._record_free(key)

    def _record_free(self, key: int) -> None:
        number = self._live.pop(key, None)
        self._refs.pop(key, None)
        if number is not None:
            device = self._devices[number]
            self.live_bytes[device] -= self._sizes[number]
            self._actions.append(("free", number, 0, self.phase, "", self.streams.get(device, 0), device))

    def record_resize(self, storage: torch.UntypedStorage) -> None:
        """Note that a known storage changed its size in place: the old block goes, a new one comes."""
        key = storage._cdata
        number = self._live.get(key)
        if number is None or self._sizes[number] == storage.nbytes():
            return
        category = self._category.get(number)
        self._record_free(key)
        self._record_alloc(storage, self._devices[number])
        if category:
            self._category[self._live[key]] = category

    def classify(self, tensor: object, category: str, *, again: bool = True) -> None:
        """Say what a tensor's storage is for. Unknown and CPU tensors are ignored."""
        tensor = getattr(tensor, "_local_tensor", tensor)  # this process's piece of a tensor shared by many
        if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cuda":
            return
        if tensor.layout is not torch.strided:
            for part in sparse_parts(tensor):
                self.classify(part, category, again=again)
            return
        number = self._live.get(tensor.untyped_storage()._cdata)
        if number is not None and (again or number not in self._category):
            self._category[number] = category

    # -- everything else --------------------------------------------------------------------------------------

    def record_call(self, kind: str, thread: str, params: Mapping[str, object], device: int) -> None:
        """Note a library call whose workspace depends on the GPU."""
        key = (kind, thread, tuple(params.items()))
        number = self._op_ids.get(key)
        if number is None:
            number = self._op_ids[key] = len(self._ops)
            self._ops.append(LibraryCall(kind=kind, thread=thread, params=dict(params)))
        self._actions.append(("op", number, 0, self.phase, self._module(), self.streams.get(device, 0), device))

    def enter_phase(self, phase: str) -> str:
        """Begin a phase; gives the one before."""
        before, self.phase = self.phase, phase
        if before != phase:
            self._actions.append(("phase", -1, 0, phase, "", 0, 0))
        return before

    def empty_cache(self) -> None:
        """Note `torch.cuda.empty_cache()`."""
        self._actions.append(("empty_cache", -1, 0, self.phase, "", 0, 0))

    def warn(self, sentence: str) -> None:
        """Keep a sentence for the user, once."""
        self.warnings.setdefault(sentence)

    # -- modules ----------------------------------------------------------------------------------------------

    def enter_module(self, module: torch.nn.Module) -> None:
        """A module's forward begins."""
        name = self._names.get(module)
        if name is None:
            if not self._modules:
                for each_name, each in module.named_modules():
                    self._names.setdefault(each, each_name)
            name = self._names.setdefault(module, type(module).__name__)
        self._modules.append(name)

    def leave_module(self) -> None:
        """The innermost module's forward ended."""
        if self._modules:
            self._modules.pop()

    @property
    def in_module(self) -> bool:
        """Whether a module's forward runs."""
        return bool(self._modules)

    def _module(self) -> str:
        return self._modules[-1] if self._modules else ""

    # -- the result -------------------------------------------------------------------------------------------

    @property
    def event_count(self) -> int:
        """Events so far."""
        return len(self._actions)

    def trace(self, *, partial: bool) -> MemoryTrace:
        """What was recorded. Storages nobody classified are activations if they outlive their phase."""
        freed_in: dict[int, str] = {}
        actions = tuple(self._actions)  # another thread may be at it: see `deadline`
        for action, number, _, phase, *_ in actions:
            if action == "free":
                freed_in[number] = phase
        events = []
        for action, number, nbytes, phase, module, stream, device in actions:
            category = ""
            if action == "alloc":
                category = self._category.get(number) or _guess_category(phase, freed_in.get(number))
            events.append(MemoryEvent(action, number, nbytes, category, phase, module, stream, device))  # type: ignore[arg-type]
        header = {**self.header, "steps": self.steps, "layers": self.layers.get(1) or self.layers.get(0, [])}
        return MemoryTrace(
            events=tuple(events), ops=tuple(self._ops), header=header, warnings=tuple(self.warnings), partial=partial
        )


def sparse_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Indices and values of a sparse tensor; other layouts are not followed."""
    return getattr(tensor, "_cotenant_parts", ())


def _guess_category(born: str, died: str | None) -> str:
    if born == "forward" and died != "forward":
        return "activation"
    if born == "load" and died != "load":
        return "buffer"
    return "temporary"
