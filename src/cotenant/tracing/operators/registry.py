"""Which function answers an operator on fake CUDA tensors: tables that decorators fill, merged into one.

Each module of shape functions has one `OperatorTable`, named `operators`, and registers in it by the operator's name in
native_functions.yaml, e.g. `aten::add.Tensor`; `aten::_foreach_*` stands for all names that begin so. A name that the
installed torch does not have is never looked up, so one table serves all versions.

Another distribution adds a table by an entry point, for the operators of a library of its own:

    [project.entry-points."cotenant.shape_functions"]
    my-kernels = "my_package.cotenant_shapes:operators"

An operator has one shape function and one recorder. A second one is refused, unless it is registered with
`override=True`; then it replaces the other, whichever was registered first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from cotenant.core.errors import PluginError

if TYPE_CHECKING:
    from cotenant.tracing.assumptions.data_dependent_loops import DataDependentLoops
    from cotenant.tracing.assumptions.generated_tokens import GeneratedTokens
    from cotenant.tracing.assumptions.host_reads import HostReads
    from cotenant.tracing.assumptions.known_values import KnownValues
    from cotenant.tracing.operators.meta_kernels import MetaCache
    from cotenant.tracing.recorder import TraceRecorder

Args: TypeAlias = tuple[Any, ...]
Kwargs: TypeAlias = dict[str, Any]
ShapeFunction: TypeAlias = Callable[["OpContext", OpOverload, Args, Kwargs], Any]
"""(context, operator, arguments, keyword arguments) -> the result, on fake tensors; NotImplemented leaves the call to
PyTorch's meta kernel. It records scratch memory itself, and not its result."""
CallRecorder: TypeAlias = Callable[["OpContext", OpOverload, Args, Kwargs, Any], None]
"""The same, with the result: records it, and what the CUDA kernel allocates beside it, in the kernel's order."""
Assumption: TypeAlias = Callable[["OpContext", OpOverload, Args, Kwargs, Any], None]
"""The same: notes what is assumed about the values of the result, before known values are propagated to it."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


class OpContext(Protocol):
    """What shape functions, recorders and assumptions may use: the dispatch mode of the traced process.

    `with context:` lets operators that are called inside come back to the mode, which is off while it answers one.

    Attributes:
        recorder: collects the events of the trace.
        fake: PyTorch's own mode, for operators that nothing here answers.
        known_values: values of small tensors, as far as they are known.
        generated_tokens: vocabularies, and tokens assumed for texts that a model generates.
        loops: what unknown values are in conditions of loops.
        host_reads: where the script last read unknown values.
        meta_cache: results of meta kernels by shapes.
    """

    recorder: TraceRecorder
    fake: FakeTensorMode
    known_values: KnownValues
    generated_tokens: GeneratedTokens
    loops: DataDependentLoops
    host_reads: HostReads
    meta_cache: MetaCache

    def __enter__(self) -> Any: ...

    def __exit__(self, *_: Any) -> None: ...

    def wrap(self, meta: torch.Tensor, device: torch.device) -> FakeTensor:
        """A fake tensor on `device` over a meta tensor."""

    def empty_strided(
        self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device
    ) -> FakeTensor:
        """A new fake tensor."""

    def empty_like(self, tensor: torch.Tensor, dtype: torch.dtype | None = None) -> FakeTensor:
        """A new fake tensor of the shape of `tensor`, with the strides that elementwise CUDA kernels give results."""

    def scratch(self, nbytes: int, device: torch.device) -> FakeTensor:
        """Record memory that a kernel allocates for itself. It is freed when the last reference to it goes."""

    def keep_until_done(self, tensors: Iterable[FakeTensor]) -> None:
        """Keep tensors alive until the operator is over, the workspace of its library call included."""

    def run_fake(self, func: OpOverload, args: Args, kwargs: Kwargs, device: torch.device) -> Any:
        """The result by PyTorch's meta kernel, or else by its `FakeTensorMode`.

        Raises:
            Untraceable: neither knows the result.
        """

    def record(self, out: Any) -> None:
        """Record the CUDA storages of a result: a tensor, or a nested list of them."""

    def record_call(self, kind: str, device: torch.device, **params: object) -> None:
        """Record a library call whose workspace depends on the GPU: see `core.trace.LibraryCall`."""

    def warn_assumed(self, why: str) -> None:
        """Warn that a size depends on assumed values; `why` as `known_values.assumption_of` gives it."""


class OperatorTable:
    """What is registered for operators, by name.

    Attributes:
        shapes: shape functions.
        sparse_shapes: shape functions for calls with a sparse (COO) argument; they come before `shapes`.
        recorders: what records a call. Without one, the result is recorded and nothing else.
        assumptions: all that apply, in the order of registration.
        decomposed: operators of one implementation for all devices, which calls others; it runs instead.
    """

    def __init__(self) -> None:
        self.shapes: dict[str, ShapeFunction] = {}
        self.sparse_shapes: dict[str, ShapeFunction] = {}
        self.recorders: dict[str, CallRecorder] = {}
        self.assumptions: dict[str, tuple[Assumption, ...]] = {}
        self.decomposed: frozenset[str] = frozenset()
        self._overrides: set[tuple[str, str]] = set()

    def shape_of(self, *names: str, override: bool = False) -> Callable[[_Function], _Function]:
        """Register the decorated shape function for operators.

        Raises:
            PluginError: one of them has a shape function, and neither is an override.
        """
        return self._registering("shapes", names, override=override)

    def sparse_shape_of(self, *names: str, override: bool = False) -> Callable[[_Function], _Function]:
        """Register the decorated shape function for operators, where an argument is sparse.

        Raises:
            PluginError: as of `shape_of`.
        """
        return self._registering("sparse_shapes", names, override=override)

    def recorder_of(self, *names: str, override: bool = False) -> Callable[[_Function], _Function]:
        """Register the decorated recorder for operators.

        Raises:
            PluginError: as of `shape_of`.
        """
        return self._registering("recorders", names, override=override)

    def assumption_for(self, *names: str) -> Callable[[_Function], _Function]:
        """Register the decorated assumption for operators, after those that they have."""

        def register(function: _Function) -> _Function:
            for name in names:
                self.assumptions[name] = (*self.assumptions.get(name, ()), function)
            return function

        return register

    def decompose(self, *names: str) -> None:
        """Run operators by their implementation for all devices, so that the operators it calls are recorded."""
        self.decomposed |= frozenset(names)

    def add(self, other: OperatorTable) -> None:
        """Register all that another table holds.

        Raises:
            PluginError: as of `shape_of`.
        """
        for kind in ("shapes", "sparse_shapes", "recorders"):
            for name, function in getattr(other, kind).items():
                self._register(kind, name, function, override=(kind, name) in other._overrides)
        for name, functions in other.assumptions.items():
            self.assumptions[name] = (*self.assumptions.get(name, ()), *functions)
        self.decomposed |= other.decomposed

    def shape(self, func: OpOverload) -> ShapeFunction | None:
        """The shape function of an operator: by its name, or else by the longest `*` that stands for it."""
        name = func.name()
        found = self.shapes.get(name)
        if found is None:
            families = [pattern for pattern in self.shapes if pattern.endswith("*") and name.startswith(pattern[:-1])]
            found = self.shapes[max(families, key=len)] if families else None
        return found

    def _registering(self, kind: str, names: tuple[str, ...], *, override: bool) -> Callable[[_Function], _Function]:
        def register(function: _Function) -> _Function:
            for name in names:
                self._register(kind, name, function, override=override)
            return function

        return register

    def _register(self, kind: str, name: str, function: Callable[..., Any], *, override: bool) -> None:
        table: dict[str, Callable[..., Any]] = getattr(self, kind)
        first, was_override = table.get(name), (kind, name) in self._overrides
        if first is not None and override == was_override:
            raise PluginError(
                f"`{name}` has two {_KINDS[kind]}s: `{_where(first)}` and `{_where(function)}`",
                hint="register the one that is to count with `override=True`",
            )
        if first is None or override:
            table[name] = function
        if override:
            self._overrides.add((kind, name))


_KINDS = {"shapes": "shape function", "sparse_shapes": "sparse shape function", "recorders": "recorder"}


def _where(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def overload_names(name: str) -> tuple[str, ...]:
    """Names of all overloads of an operator such as `aten::rand`: `aten::rand`, `aten::rand.names`, ..."""
    namespace, _, packet_name = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), packet_name)
    return tuple(name if overload == "default" else f"{name}.{overload}" for overload in packet.overloads())
