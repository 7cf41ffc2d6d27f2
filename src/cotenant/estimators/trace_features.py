"""Parameters, layers and batch of a script, read from its trace, for published and learned estimators. Pure.

Those estimators read a model object, a summary of its layers, or an exported graph. A trace has the same facts in
another form; each estimator states what it lacks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cotenant.core.trace import MemoryEvent, MemoryTrace

_ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
_BATCH_OPTIONS = re.compile(r"--?(?:per[-_]device[-_])?(?:train[-_]|training[-_])?(?:batch[-_]?size|bs|b)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleShape:
    """One call of a module in the forward pass, without the storages of its submodules.

    Attributes:
        module: dotted name; empty for the outermost module and for the training loop itself.
        saved_bytes: of each of its storages that was live when the next module began.
        item_bytes: of an element of its matrix product or convolution; None if it has none.
        leaf: it has no submodules.
    """

    module: str
    saved_bytes: tuple[int, ...]
    item_bytes: int | None
    leaf: bool

    @property
    def output_bytes(self) -> int:
        """Bytes of its largest saved storage; of a max pooling those are its indices."""
        return max(self.saved_bytes, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """A training script in a few numbers, for its first GPU.

    Attributes:
        parameter_bytes, gradient_bytes, state_bytes: of each storage in the first optimizer step; trained ones only.
        buffer_bytes: of buffers and frozen weights, on the GPU from before training.
        item_bytes: of one parameter.
        input_bytes: of a batch.
        layers: the forward pass of one step, in order.
        batch: samples of a step, from the first convolution or an option of the command; None if unknown.
        devices: GPUs that the script sees.
    """

    parameter_bytes: tuple[int, ...]
    gradient_bytes: tuple[int, ...]
    state_bytes: tuple[int, ...]
    buffer_bytes: int
    item_bytes: int
    input_bytes: int
    layers: tuple[ModuleShape, ...]
    batch: int | None
    devices: int

    @property
    def weight_bytes(self) -> int:
        """Of all trained parameters."""
        return sum(self.parameter_bytes)

    @property
    def parameters(self) -> int:
        """Count of trained parameters."""
        return self.weight_bytes // self.item_bytes


def features_of(trace: MemoryTrace, command: Sequence[str] = ()) -> Features:
    """The features of a trace; `command` is searched for the batch size where the trace has none."""
    first_step = _step_ends(trace.events)[:1]
    before = trace.events[: first_step[0]] if first_step else trace.events
    sizes = {category: _sizes(before, category) for category in ("parameter", "gradient", "optimizer state")}
    forward = _forward_pass(trace.events)
    input_bytes, layers = _layers(forward, trace)
    calls = [trace.ops[event.op_id] for event in forward if event.action == "op"]
    convolutions = [call for call in calls if call.kind == "conv_forward"]
    return Features(
        parameter_bytes=sizes["parameter"],
        gradient_bytes=sizes["gradient"],
        state_bytes=sizes["optimizer state"],
        buffer_bytes=sum(_sizes(before, "buffer")),
        item_bytes=_weight_item_bytes(sizes["parameter"], layers),
        input_bytes=input_bytes,
        layers=layers,
        batch=_batch_of(convolutions[0].params) if convolutions else batch_option(command),
        devices=trace.header.gpus or 1,
    )


def batch_option(command: Sequence[str]) -> int | None:
    """The batch size in `--batch-size 32`, `--per_device_train_batch_size=8` and their like; None if there is none."""
    for i, word in enumerate(command):
        option, equals, value = word.partition("=")
        if not _BATCH_OPTIONS.fullmatch(option):
            continue
        text = value if equals else command[i + 1] if i + 1 < len(command) else ""
        if text.isascii() and text.isdigit() and int(text) > 0:
            return int(text)
    return None


def live_peak(events: Iterable[MemoryEvent], *, granule_bytes: int = 1) -> tuple[int, Mapping[str, int]]:
    """Peak bytes of live storages on GPU 0, each rounded up to `granule_bytes`, and by category at the peak."""
    live: dict[int, tuple[int, str]] = {}
    by_category: dict[str, int] = {}
    total = peak = 0
    at_peak: dict[str, int] = {}
    for event in events:
        if event.action == "alloc" and event.device == 0:
            size = -(-event.bytes // granule_bytes) * granule_bytes
            live[event.storage_id] = (size, event.category)
            by_category[event.category] = by_category.get(event.category, 0) + size
            total += size
            if total > peak:
                peak, at_peak = total, dict(by_category)
        elif event.action == "free" and event.storage_id in live:
            size, category = live.pop(event.storage_id)
            by_category[category] -= size
            total -= size
    return peak, {category: size for category, size in at_peak.items() if size}


def first_backward_end(events: Sequence[MemoryEvent]) -> int:
    """Index behind the first backward pass; the length of `events` if there is none, or it is the last phase."""
    began = False
    for i, event in enumerate(events):
        if event.action == "phase":
            if began and event.phase != "backward":
                return i
            began = began or event.phase == "backward"
    return len(events)


def _sizes(events: Iterable[MemoryEvent], category: str) -> tuple[int, ...]:
    return tuple(
        event.bytes for event in events if event.action == "alloc" and event.category == category and event.device == 0
    )


def _step_ends(events: Sequence[MemoryEvent]) -> list[int]:
    """Indices of the first event behind each optimizer step."""
    phases = [(i, event.phase) for i, event in enumerate(events) if event.action == "phase"]
    following = [*(i for i, _ in phases[1:]), len(events)] if phases else []
    return [end for (_, phase), end in zip(phases, following, strict=True) if phase == "step"]


def _forward_pass(events: Sequence[MemoryEvent]) -> Sequence[MemoryEvent]:
    """The forward pass of the second step, since a trial run may precede the first; else that of the first."""
    ends = _step_ends(events)
    for start in (*ends[:1], 0):
        window = events[start:]
        for i, event in enumerate(window):
            if event.action == "phase" and event.phase == "backward":
                return [event for event in window[:i] if event.phase == "forward"]
    return []


def _layers(forward: Sequence[MemoryEvent], trace: MemoryTrace) -> tuple[int, tuple[ModuleShape, ...]]:
    """Bytes of the inputs, allocated before the first module, and the module calls that follow."""
    names = {call.module for call in forward if call.action in ("alloc", "op")}
    parents = {name.rpartition(".")[0] for name in names} | {""}
    parents |= {parent[: dot.start()] for parent in parents for dot in re.finditer(r"\.", parent)}
    layers: list[ModuleShape] = []
    run: dict[int, int] = {}
    module, item = "", None

    def close() -> None:
        if run:
            saved = tuple(run.values())
            leaf = module not in parents or names == {""}
            layers.append(ModuleShape(module=module, saved_bytes=saved, item_bytes=item, leaf=leaf))
            run.clear()

    for event in forward:
        if event.action in ("alloc", "op") and event.module != module:
            close()
            module, item = event.module, None
        if event.action == "alloc" and event.device == 0:
            run[event.storage_id] = event.bytes
        elif event.action == "free":
            run.pop(event.storage_id, None)
        elif event.action == "op":
            item = _ITEM_BYTES.get(str(trace.ops[event.op_id].params.get("dtype")), item)
    close()
    has_inputs = bool(layers) and not layers[0].module and len(layers) > 1
    inputs = sum(layers[0].saved_bytes) if has_inputs else 0
    return inputs, tuple(layers[1:] if has_inputs else layers)


def _weight_item_bytes(parameters: Sequence[int], layers: Sequence[ModuleShape]) -> int:
    """Bytes of a parameter: as its layers multiply, unless most multiply a copy of half the size (autocast)."""
    items = [layer.item_bytes for layer in layers if layer.item_bytes]
    item = max(set(items), key=items.count) if items else 4
    if item != 2:
        return item
    halves = {size // 2 for size in parameters}
    copies = sum(layer.item_bytes == 2 and not halves.isdisjoint(layer.saved_bytes) for layer in layers)
    return 4 if 2 * copies >= len(items) else 2


def _batch_of(params: Mapping[str, object]) -> int | None:
    shape = params.get("x")
    return _int(shape[0]) if isinstance(shape, (tuple, list)) and shape else None


def _int(value: object) -> int | None:
    return value if isinstance(value, int) else None
