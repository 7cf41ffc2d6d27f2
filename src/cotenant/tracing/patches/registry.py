"""The table of everything that a trace replaces in PyTorch, in libraries and in Python itself.

An entry names its target, the reason, and the source file that makes it necessary. `PatchTable.apply` goes through the
entries by phase; an entry for a module that is not loaded waits for its import. `PatchTable.undo` restores what was
there. Needs no torch.
"""

from __future__ import annotations

import enum
import functools
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from cotenant.tracing.loaded_modules import loaded_with_prefix
from cotenant.tracing.patches.import_hooks import when_imported
from cotenant.tracing.patches.keyword_names import with_names_of

if TYPE_CHECKING:
    from cotenant.core.ports import TraceOptions
    from cotenant.tracing.device.cuda_api import FakeGpuSpec
    from cotenant.tracing.distributed.nccl_groups import NcclGroups
    from cotenant.tracing.mode import TraceMode
    from cotenant.tracing.recorder import TraceRecorder
    from cotenant.tracing.sandbox.overlay import Overlay
    from cotenant.tracing.training.training_observer import TrainingObserver


class Phase(enum.IntEnum):
    """Groups of patches, in the order in which they are applied."""

    SANDBOX = 0
    """Files and paths, before torch is imported."""
    DEVICE = 1
    """The simulated GPU: libtorch, `torch.cuda`, storages, generators."""
    OPERATORS = 2
    """Kernels and Python functions that compute."""
    TRAINING = 3
    """Modules, autograd, optimizers, compilers."""
    DISTRIBUTED = 4
    """Process groups, DDP, processes that a script starts."""
    LIBRARIES = 5
    """Libraries around torch, as they are imported."""
    DATA = 6
    """Data loaders, checkpoints, synthetic data."""


class Warns(Protocol):
    """What takes sentences for the user: a recorder, or a session on the null GPU."""

    def warn(self, sentence: str) -> None:
        """Add a warning, once."""


@dataclass(frozen=True, kw_only=True)
class AbsenceContext:
    """What patches for things that are not on this machine, such as data and models, need of a session."""

    options: TraceOptions
    recorder: Warns
    overlay: Overlay


@dataclass(frozen=True, kw_only=True)
class PatchContext(AbsenceContext):
    """What patches need of the session that applies them."""

    recorder: TraceRecorder
    gpu: FakeGpuSpec
    mode: TraceMode
    observer: TrainingObserver
    groups: NcclGroups
    compiled_mark: Path | None = None
    """A file to make before anything is compiled."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry of the table.

    Attributes:
        target: `module:attribute.path` as of entry points, a module, or an operator such as `aten::linear`.
        reason: why a trace cannot leave it as it is.
        source: file and function that force it, where PyTorch or a library does.
        missing: which versions or builds do not have the target; empty: every supported one has it.
    """

    target: str
    phase: Phase
    reason: str
    source: str = ""
    missing: str = ""

    @property
    def module(self) -> str:
        """The module that has the target; empty for an operator."""
        return "" if "::" in self.target else self.target.partition(":")[0]

    def is_present(self) -> bool | None:
        """Whether the target exists; None while its module is not loaded."""
        if not self.module:
            return True
        module = sys.modules.get(self.module)
        if module is None:
            return None
        return not self.target.partition(":")[2] or _owner_of(self.target) is not None

    @property
    def waits_for_module(self) -> bool:
        """Whether the module must be imported before the entry can be applied."""
        return False

    def apply(self, table: PatchTable) -> None:
        """Change the target now, and register with `table` how to undo it."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Patch(Entry):
    """One attribute of a module or class gets another value.

    Attributes:
        replacement: the new value; with `wraps`, a function that makes it of the present one.
        create: whether to set it where it does not exist. Otherwise an absent target is skipped.
        also_in: beginning of the names of loaded modules that may hold the present value by the same name, too.
        stacks: whether it may follow another patch of the same target.
    """

    replacement: Any
    wraps: bool = False
    create: bool = False
    also_in: str = ""
    stacks: bool = False

    @property
    def waits_for_module(self) -> bool:
        """Whether the module is not loaded yet."""
        return self.module not in sys.modules

    def apply(self, table: PatchTable) -> None:
        """Set the attribute."""
        name = self.target.rpartition(":")[2].rpartition(".")[2]
        owner = _owner_of(self.target, create=self.create)
        if owner is None:
            return
        # Modules that ran `from x import f` hold a reference of their own, which setting an attribute of `x` does not
        # change.
        present = getattr(owner, name, None)
        new = self.replacement(present) if self.wraps else self.replacement
        if not name.startswith("__") or name == "__init__":  # operators, which call the others, give no names
            new = with_names_of(present, new)
        table.set(owner, name, new)
        table.register_builtin(present, new)
        if self.also_in:
            for module in table.loaded_modules(self.also_in):
                if vars(module).get(name) is present:
                    table.set(module, name, new)


@dataclass(frozen=True, kw_only=True)
class KernelPatch(Entry):
    """One operator gets a kernel for a dispatch key, for as long as the process lives.

    Attributes:
        divides: whether `TraceMode` calls the kernel where the operator arrives undivided, as in inference mode.
        with_keyset: whether the kernel gets the dispatch keys first, with which to call the next kernel.
    """

    key: str
    kernel: Callable[..., Any]
    divides: bool = False
    with_keyset: bool = False

    def apply(self, table: PatchTable) -> None:
        """Register it."""
        import torch

        namespace, _, name = self.target.partition("::")
        # The kernel is registered for as long as this object lives: torch/library.py, `Library._destroy`.
        library = torch.library.Library(namespace, "IMPL")
        with warnings.catch_warnings():
            # `registerKernel` of aten/src/ATen/core/dispatch/OperatorEntry.cpp warns of a kernel that it overrides.
            warnings.simplefilter("ignore")
            library.impl(name, self.kernel, self.key, with_keyset=self.with_keyset)
        table.on_undo(library._destroy)
        _hide_from_dynamo(self.kernel)


def _hide_from_dynamo(kernel: Callable[..., Any]) -> None:
    """Have Dynamo leave a kernel as it is, and what that calls: where compiled code runs eagerly, it reads each frame.

    Source: torch/csrc/dynamo/eval_frame.c, `set_code_exec_strategy`; from torch 2.7 on.
    """
    import torch

    frames: Any = torch._C._dynamo.eval_frame
    code = getattr(kernel, "__code__", None)
    if code is not None and hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))


@dataclass(frozen=True, kw_only=True)
class HookPatch(Entry):
    """Something that is registered, not replaced: module hooks, C++ vtables, the class of a registry.

    Attributes:
        register: does it; gives a function that undoes it, a handle with `remove`, or None for what stays.
    """

    register: Callable[[], Any]

    def apply(self, table: PatchTable) -> None:
        """Register it."""
        undo = self.register()
        if undo is not None:
            table.on_undo(getattr(undo, "remove", undo))


@dataclass(frozen=True, kw_only=True)
class ImportPatch(Entry):
    """Patches that only the module itself can name, once it is imported.

    Attributes:
        expand: gives them; their phase is that of this entry.
    """

    expand: Callable[[ModuleType], Iterable[Entry]]

    @property
    def waits_for_module(self) -> bool:
        """Whether the module is not loaded yet."""
        return self.module not in sys.modules

    def apply(self, table: PatchTable) -> None:
        """Apply what the loaded module needs."""
        for entry in self.expand(sys.modules[self.module]):
            entry.apply(table)


class PatchTable:
    """Entries by phase, and how to undo those that were applied."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._entries: list[Entry] = []
        self._applied = 0
        self._undo: list[Callable[[], None]] = []
        self._loaded: dict[str, list[ModuleType]] = {}  # by prefix, while entries are applied
        self.add(entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def add(self, entries: Iterable[Entry]) -> None:
        """Add `entries`, sorted by phase; their order within a phase stays.

        Raises:
            ValueError: a target is in the table already, and the entry does not say that it `stacks`.
        """
        known = {entry.target for entry in self._entries if isinstance(entry, Patch)}
        for entry in sorted(entries, key=lambda entry: entry.phase):
            if isinstance(entry, Patch):
                if entry.target in known and not entry.stacks:
                    raise ValueError(f"two patches of `{entry.target}`: the second must say `stacks=True`")
                known.add(entry.target)
            self._entries.append(entry)

    def apply(self) -> None:
        """Apply the entries that were not applied yet; those for modules that are not loaded, at their import."""
        pending, self._applied = self._entries[self._applied :], len(self._entries)
        for entry in pending:
            if entry.waits_for_module:
                self.on_undo(when_imported(entry.module, functools.partial(self._apply_late, entry)))
            else:
                entry.apply(self)
        self._loaded.clear()

    def loaded_modules(self, prefix: str) -> list[ModuleType]:
        """Modules that are loaded and whose names begin with `prefix`."""
        if prefix not in self._loaded:
            modules = [sys.modules.get(name) for name in loaded_with_prefix(prefix)]
            self._loaded[prefix] = [module for module in modules if module]
        return self._loaded[prefix]

    def _apply_late(self, entry: Entry, _: ModuleType) -> None:
        entry.apply(self)
        self._loaded.clear()

    def composites(self) -> dict[Any, Callable[..., Any]]:
        """Kernels that `TraceMode` calls for composite operators, by operator."""
        import torch

        found = {}
        for entry in self._entries:
            if isinstance(entry, KernelPatch) and entry.divides:
                namespace, _, name = entry.target.partition("::")
                packet, _, overload = name.partition(".")
                found[getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")] = entry.kernel
        return found

    def undo(self) -> None:
        """Restore what was there, last change first. Kernels and C++ objects of libtorch stay as they are."""
        while self._undo:
            self._undo.pop()()

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute, and remember what it was."""
        # An inherited attribute must be deleted again: setting it back would shadow later changes of the base class.
        if name in vars(owner):
            self._undo.append(functools.partial(setattr, owner, name, vars(owner)[name]))
        else:
            self._undo.append(functools.partial(delattr, owner, name))
        setattr(owner, name, value)

    def register_builtin(self, present: Any, new: Any) -> None:
        """Have TorchScript compile calls of `new` as it does those of `present`, if that is one of its operators.

        Libraries script functions at import: DeepSpeed's `sharded_moe.py` calls `one_hot` in one. TorchScript collects
        its operators by identity, once: torch/jit/_builtins.py, `_get_builtin_table`.
        """
        builtins = sys.modules.get("torch.jit._builtins")
        operators = None if builtins is None else builtins._builtin_table
        if builtins is not None and operators and id(present) in operators:
            builtins._register_builtin(new, operators[id(present)])
            self.on_undo(functools.partial(operators.pop, id(new), None))

    def on_undo(self, function: Callable[[], None]) -> None:
        """Have `undo` call a function."""
        self._undo.append(function)


def _owner_of(target: str, *, create: bool = False) -> Any:
    """The module or class whose attribute `target` is; None if it has none, unless the attribute is to be created."""
    module, _, path = target.partition(":")
    owner: Any = sys.modules.get(module)
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part, None)
    if owner is None or not (create or hasattr(owner, name)):
        return None
    return owner


def patch_attributes(owner: str, values: Mapping[str, Any], **common: Any) -> list[Patch]:
    """One patch for each attribute in `values` of a module (`torch.cuda`) or class (`torch:Tensor`)."""
    dot = "." if ":" in owner else ":"
    return [Patch(target=f"{owner}{dot}{name}", replacement=value, **common) for name, value in values.items()]
