"""Watches a training loop on a CUDA build: phases, optimizer steps, and what storages are.

Nothing that compiled code sees is replaced: hooks of `torch.nn.Module` would make it compile something else.
"""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from cotenant.tracing.cuda_build.memory_history import BACKWARD, EMPTY_CACHE, FORWARD, HistoryMark, StorageNames
from cotenant.tracing.patches.registry import Entry, HookPatch, Patch, Phase, patch_attributes
from cotenant.tracing.process.garbage_collection import collect_as_usual
from cotenant.tracing.training.training_progress import TrainingProgress

MAX_ENTRIES = 4_000_000
_STEP = "step"
_STEPS_NAMED = 2
"""The state is made in the first step, by some optimizers in the second."""


class CudaBuildObserver:
    """Marks for the memory history. `finish` is called once enough was run, and does not return.

    Attributes:
        progress: which steps are wanted, and whether they are done.
        steps: of all optimizers, so far.
        warnings: sentences for the user; a dict, as an ordered set.
        is_recording: whether the script has used CUDA, so that there is a history.
    """

    def __init__(self, steps: int, finish: Callable[[], object]) -> None:
        self.progress = TrainingProgress(self, steps=steps, finish=finish, per_optimizer=True)
        self.steps = 0
        self.warnings: dict[str, None] = {}
        self._named: Counter[int] = Counter()  # steps whose states were named, by the optimizer's `id`
        self._phase = ""
        self._in_parts = False
        self._parts_stepped = 0
        self.marks: list[HistoryMark] = []
        self.names = StorageNames()
        self.is_recording = False
        self._record_history = torch.cuda.memory._record_memory_history  # `patches` take it from the script

    def warn(self, sentence: str) -> None:
        """Add a warning, once."""
        self.warnings[sentence] = None

    @property
    def event_count(self) -> int:
        """Allocations and frees so far."""
        return sum(self.counts())

    def position(self) -> tuple[int, int]:
        """Allocations and frees so far."""
        return self.counts()

    @property
    def live_bytes(self) -> dict[int, int]:
        """Requested on the GPU now: blocks may be up to 1 MiB larger, and differ from batch to batch."""
        return {0: torch.cuda.memory_stats()["requested_bytes.all.current"]} if self.is_recording else {}

    @property
    def peak_bytes(self) -> dict[int, int]:
        """Allocated on it at most."""
        return {0: torch.cuda.max_memory_allocated()} if self.is_recording else {}

    @property
    def is_aside(self) -> bool:
        """Whether the script trains on a stream of its own."""
        return self.is_recording and torch.cuda.current_stream() != torch.cuda.default_stream()

    def start(self) -> None:
        """Record from the script's first use of CUDA on; before it, the script may still change the allocator."""
        torch.cuda._lazy_call(self._record)

    def _record(self) -> None:
        # Without stacks: they take most of the time, and a trace has no place for them.
        self._record_history("all", context=None, max_entries=MAX_ENTRIES)
        self.is_recording = True
        collect_as_usual()

    def patches(self) -> list[Entry]:
        """What begins a phase or empties the cache."""
        reason = "The memory history does not say it."
        return [
            Patch(
                target="torch.autograd:_engine_run_backward", phase=Phase.TRAINING, replacement=self._backward,
                wraps=True, also_in="torch.autograd", reason=reason,
                source="torch/autograd/graph.py, `_engine_run_backward`",
            ),
            *patch_attributes(
                "torch._C", {"_cuda_emptyCache": self._emptying(torch._C)}, phase=Phase.DEVICE, reason=reason,
                source="torch/cuda/memory.py, `empty_cache`",
            ),
            Patch(
                target="torch.cuda.memory:_record_memory_history", phase=Phase.DEVICE,
                replacement=lambda *_, **__: None,
                reason="There is one history: a script that records its own would end the one that answers.",
                source="torch/cuda/memory.py, `_record_memory_history`",
            ),
            HookPatch(
                target="torch.optim.optimizer", phase=Phase.TRAINING, register=self._register,
                reason="Steps are counted.", source="torch/optim/optimizer.py, `register_optimizer_step_post_hook`",
            ),
            *self.progress.schedule.patches(),
        ]  # fmt: skip

    def _register(self) -> Callable[[], None]:
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        def before(optimizer: Any, args: Any, kwargs: Any) -> None:
            self.before_step(optimizer)

        def after(optimizer: Any, args: Any, kwargs: Any) -> None:
            self.after_step(optimizer)

        # A compiled step leaves its graph for a hook (torch/_dynamo/trace_rules.py, `_torchdynamo_disable`).
        for hook in (before, after):
            hook._torchdynamo_disable = True  # type: ignore[attr-defined]
        handles = register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)

        def undo() -> None:
            for handle in handles:
                handle.remove()

        return undo

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            # A compiler traces the backward of fake tensors while the forward pass waits for its code.
            if torch._guards.TracingContext.try_get() is None:
                self._begin(BACKWARD)
                self.progress.backward_begins()
            return original(*args, **kwargs)

        return call

    def _emptying(self, module: Any) -> Callable[[], None]:
        original = module._cuda_emptyCache

        def empty() -> None:
            self._mark(EMPTY_CACHE)
            original()

        return empty

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer's step begins: its parameters have gradients."""
        if not self._in_parts:
            self.progress.step_begins(optimizer)
        self._name("gradient", (parameter.grad for parameter in _parameters(optimizer)))
        self._begin(_STEP)

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer's step has ended."""
        if self._named[id(optimizer)] < _STEPS_NAMED:
            self._name("parameter", _parameters(optimizer))
            self._name("optimizer state", _tensors(list(optimizer.state.values())))
        self._begin(FORWARD)
        if self._in_parts:
            self._parts_stepped += 1
        else:
            self._count_step(optimizer)

    @contextlib.contextmanager
    def step_in_parts(self, optimizer: torch.optim.Optimizer, *, counts: bool) -> Iterator[None]:
        """Steps of `optimizer` within count as one; without `counts` as none: they only create its states.

        A step that an engine skips, since gradients overflow by what it read, counts as none.
        """
        if counts:
            self.progress.step_begins(optimizer)
        self._in_parts, self._parts_stepped = True, 0
        try:
            yield
        finally:
            self._in_parts = False
        if counts and self._parts_stepped:
            self._count_step(optimizer)

    def _count_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._named[id(optimizer)] += 1
        self.progress.step_ends(optimizer)

    def name_modules(self) -> None:
        """Name what all modules hold that are alive; called once, since it looks at every object."""
        # `isinstance` would ask a weak proxy for the class of an object that may be gone.
        modules = [found for found in gc.get_objects() if issubclass(type(found), torch.nn.Module)]
        for category, members in (("parameter", "_parameters"), ("buffer", "_buffers")):
            held = [tensor for module in modules for tensor in vars(module).get(members, {}).values()]
            self._name(category, held)

    def counts(self) -> tuple[int, int]:
        """Allocations and frees so far."""
        if not self.is_recording:
            return 0, 0
        found = torch._C._cuda_memoryStats(0)["allocation"]["all"]
        return found["allocated"], found["freed"]

    def _begin(self, phase: str) -> None:
        if phase != self._phase:
            self._phase = phase
            self._mark(phase)

    def _mark(self, phase: str) -> None:
        allocations, frees = self.counts()
        self.marks.append(HistoryMark(allocations=allocations, frees=frees, phase=phase))

    def _name(self, category: str, tensors: Iterable[Any]) -> None:
        addresses = {address: category for tensor in tensors for address in _addresses(tensor)}
        self.names.add(self.counts()[0], addresses)


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[Any]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _tensors(value: Any) -> Iterator[Any]:
    """Tensors in nested lists and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for member in value:
            yield from _tensors(member)


def _addresses(tensor: Any) -> Iterator[int]:
    """The address of a tensor's block on a GPU; of a wrapper, those of what it wraps."""
    tensor = getattr(tensor, "_local_tensor", tensor)  # a DTensor's shard on this process
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cuda" or tensor.layout is not torch.strided:
        return
    flatten = getattr(type(tensor), "__tensor_flatten__", None)  # a subclass that wraps others, e.g. of torchao
    if flatten is not None:
        for name in flatten(tensor)[0]:
            yield from _addresses(getattr(tensor, name))
        return
    try:
        address = tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # a subclass without a storage
        return
    if address:
        yield address
