"""The dispatch mode under which a script runs: CUDA tensors are fake, CPU tensors stay real.

Every operator of the script arrives here. One that touches no CUDA tensor is executed as it stands. One that does
is answered by shape alone: by a function of `shapes` where speed or fidelity asks for one, by PyTorch's meta kernel,
or by `FakeTensorMode`. Each new CUDA storage is told to the recorder, and each library call that takes a workspace.
"""

from __future__ import annotations

import inspect
import threading
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode

from cotenant.tracing import places
from cotenant.tracing.distributed.groups import Groups
from cotenant.tracing.operators import (
    calls,
    convolutions,
    counts,
    dynamic,
    insides,
    layout,
    loops,
    losses,
    no_meta,
    plain,
    reads,
    reductions,
    rnn,
    routing,
    shapes,
    sparse,
    tokens,
    truth,
)
from cotenant.tracing.operators.meta import fake_mode, in_kernel
from cotenant.tracing.operators.remembered import Remembered
from cotenant.tracing.operators.values import DRAWN, GENERATED, Values
from cotenant.tracing.recorder import Recorder
from cotenant.tracing.training import moving
from cotenant.tracing.training.sums import Sums
from cotenant.tracing.untraceable import Untraceable

_aten = torch.ops.aten
_DEVICE = torch.ops.prim.device.default
_ADD = torch.ops.aten.add.Tensor
_make_subclass: Any = torch.Tensor._make_subclass  # as it is before `moving` replaces it for the script
_FAKE = torch._C._TorchDispatchModeKey.FAKE
_thinks_of_shapes = torch._C._get_dispatch_mode  # a library's own fake mode, which comes after this one

# Big random tensors on the CPU cost seconds and nobody looks at their values: memory stays untouched, so it is free.
_RANDOM = {
    _aten.uniform_.default,
    _aten.normal_.default,
    _aten.exponential_.default,
    _aten.cauchy_.default,
    _aten.log_normal_.default,
    _aten.geometric_.default,
}
_RANDOM_NUMEL = 1 << 16
_COMPOSITE = torch._C.DispatchKey.CompositeExplicitAutograd


class _Way(NamedTuple):
    """How one operator is answered, as far as its name says.

    Attributes:
        is_composite: whether it is made of other operators. Under `torch.inference_mode` it arrives here undivided.
        opened: the dispatch key of the kernel to run instead, whose operators come here.
        handler: answers it, or with NotImplemented.
        for_sparse: the same where an argument is a sparse tensor.
        is_factory: whether it makes tensors of numbers alone.
        kind: records the result and what was called.
    """

    is_composite: bool
    opened: Any
    handler: Any
    for_sparse: Any
    is_factory: bool
    kind: Any


class TraceMode(TorchDispatchMode):
    """One per traced process; entered once, around the whole script."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        FakeTensorMode.avoid_device_init = property(lambda self: True)
        for name in ("init_gpu_context", "init_cuda_context"):
            if hasattr(torch._subclasses.fake_tensor, name):
                setattr(torch._subclasses.fake_tensor, name, lambda *_: None)
        self.recorder = recorder
        self.fake = fake_mode()
        self.values = Values()
        self.remembered = Remembered()
        self._templates: dict[torch.device, dict[str, Any]] = {}
        self.loops = loops.Loops(recorder)
        self.reads = reads.Reads()
        self.tokens = tokens.Tokens()
        self._main = threading.get_ident()
        self._lock = threading.RLock()  # autograd has a thread for each GPU, and fake tensors are for one at a time
        self._has_meta: dict[Any, bool] = {}
        self._held: list[Any] = []
        self._plain_kinds: set[Any] = {torch.Tensor}
        self._with_methods: set[Any] = set()
        self._ways: dict[Any, _Way] = {}
        self.groups: Groups | None = None  # that functional collectives may use
        self.composites: dict[Any, Any] = {}  # what to do for one, instead of dividing it
        self._handlers = {
            **plain.HANDLERS,
            **shapes.HANDLERS,
            **convolutions.HANDLERS,
            **dynamic.HANDLERS,
            **rnn.HANDLERS,
            **losses.HANDLERS,
            **no_meta.HANDLERS,
            **sparse.HANDLERS,
            **routing.HANDLERS,
            **tokens.HANDLERS,
        }
        self._kinds: dict[Any, Any] = {**calls.KINDS, **insides.KINDS, **reductions.KINDS, **routing.KINDS}
        self.sums = Sums()
        torch._C._set_only_lift_cpu_tensors(True)

    # -- making tensors ---------------------------------------------------------------------------------------

    def wrap(self, meta: torch.Tensor, device: torch.device) -> FakeTensor:
        """A fake tensor on `device` over a meta tensor: as its class makes it, but for what is the same in all."""
        template = self._templates.get(device)
        if template is None:
            first = FakeTensor(self.fake, meta, device)
            if device.index is not None:
                self._templates[device] = dict(vars(first))
            return first
        made: FakeTensor = _make_subclass(
            FakeTensor, meta, meta.requires_grad, dispatch_device=True, device_for_backend_keys=device
        )
        torch._C._set_throw_on_mutable_data_ptr(made)
        vars(made).update(template)
        return made

    def empty_strided(self, size: Any, stride: Any, dtype: torch.dtype, device: torch.device) -> FakeTensor:
        """A new fake tensor."""
        return self.wrap(torch.empty_strided(size, stride, dtype=dtype, device="meta"), device)

    def empty_like(self, tensor: torch.Tensor, dtype: torch.dtype | None = None) -> FakeTensor:
        """A new fake tensor of the shape of `tensor`, laid out as CUDA kernels lay out their results."""
        return self.empty_strided(tensor.shape, layout.kept_strides(tensor), dtype or tensor.dtype, tensor.device)

    # -- dispatch ---------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for kind in types:
            if kind is not FakeTensor and kind not in self._plain_kinds and not self._is_plain(kind):
                return NotImplemented  # a tensor made of others, such as a DTensor: its parts come back here
            if kind in self._with_methods:
                with moving.without_own_methods((*args, *kwargs.values())):
                    return self.__torch_dispatch__(func, (), args, kwargs)
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device
        if func is _ADD and self.sums.are_in_place(args):
            return args[0]
        if _thinks_of_shapes(_FAKE) is not None:
            return func(*args, **kwargs)
        device = _cuda_device(args)
        if device is None and "device" not in kwargs:
            if func in _RANDOM and args[0].numel() > _RANDOM_NUMEL and args[0].device.type == "cpu":
                return args[0]
            return func(*args, **kwargs)
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        if device is None:
            wanted = kwargs["device"]
            if wanted is None or torch.device(wanted).type != "cuda":
                return func(*args, **kwargs)
            device = _indexed(wanted)
        with self._lock:
            return self._on_cuda(func, args, kwargs, device)

    def _is_plain(self, kind: Any) -> bool:
        """Whether a tensor class leaves operators to PyTorch; a class that is, is kept."""
        if issubclass(kind, FakeTensor):
            self._plain_kinds.add(kind)
            if moving.has_own_methods(kind):
                self._with_methods.add(kind)
            return True
        own = getattr(kind, "__torch_dispatch__", None)
        plain = own in (None, torch.Tensor.__torch_dispatch__, torch._C._disabled_torch_dispatch_impl)
        if plain:
            self._plain_kinds.add(kind)
        return plain

    def _on_cuda(self, func: Any, args: Any, kwargs: Any, device: torch.device) -> Any:
        way = self._ways.get(func)
        if way is None:
            way = self._ways[func] = self._way_of(func)
        is_composite, opened, handler, for_sparse, is_factory, kind = way
        if is_composite:
            with self:
                return self.composites.get(func, func.decompose)(*args, **kwargs)
        if opened is not None:
            with self:
                return func._op_dk(opened, *args, **kwargs)
        out = NotImplemented
        if for_sparse is not None and _any_sparse(args):
            handler = for_sparse
        if handler is not None:
            out = handler(self, func, args, kwargs)
        elif is_factory:
            out = plain.factory(self, func, args, kwargs, device)
        if out is NotImplemented:
            out = self.by_shape(func, args, kwargs, device)
        self.values.follow(func, args, kwargs, out)
        if isinstance(out, FakeTensor) and out.dtype in counts.KINDS:
            truth.follow(func, args, out)
            counts.follow(func, args, out, self.values.of)
        if kind is not None:
            kind(self, func, args, kwargs, out)
        else:
            self.note(out)
        if self._held:
            self._held.clear()
        return out

    def scratch(self, nbytes: int, device: torch.device) -> FakeTensor:
        """Memory that a kernel takes for itself; it is given back when nobody holds it."""
        made = self.empty_strided((nbytes,), (1,), torch.uint8, device)
        self.note(made)
        return made

    def hold(self, tensors: Any) -> None:
        """Keep what an operator needs beside its results alive until it is over, its workspace included."""
        self._held += tensors

    def _is_composite(self, func: Any) -> bool:
        known = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
        return known and func not in self._handlers

    def _way_of(self, func: Any) -> _Way:
        handler, is_composite = self._handlers.get(func), self._is_composite(func)
        if handler is None and func._opname.startswith(("_foreach_", "_fused_")):
            handler = shapes.foreach
        elif handler is None and func._opname == "nms" and func.namespace == "torchvision":
            handler = dynamic.nms
        is_factory = func._opname in plain.FACTORIES and func.namespace == "aten"
        opened, for_sparse = insides.OPENED.get(func), sparse.FOR_SPARSE.get(func)
        return _Way(is_composite, opened, handler, for_sparse, is_factory, self._kinds.get(func))

    def by_shape(self, func: Any, args: Any, kwargs: Any, device: torch.device) -> Any:
        """What `func` gives on fake tensors, by the meta kernel if there is one, else by FakeTensorMode."""
        if self.groups is not None and func.namespace in ("c10d", "_c10d_functional"):
            self.groups.used_by_operator(func.namespace, args)
        if "device" not in kwargs and self._meta_will_do(func):
            out = self._by_meta(func, args, kwargs, device)
            if out is not NotImplemented:
                return out
        if device.index is None or "device" in kwargs:
            kwargs = {**kwargs, "device": device} if "device" in kwargs else kwargs
        try:
            return self.fake.dispatch(func, (FakeTensor,), args, kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException, NotImplementedError) as error:
            if _is_written_in_operators(func):
                with self:
                    return func._op_dk(_COMPOSITE, *args, **kwargs)
            raise Untraceable(f"`{func.name()}` cannot be traced: its result is not known from shapes alone") from error

    def _by_meta(self, func: Any, args: Any, kwargs: Any, device: torch.device) -> Any:
        """What the meta kernel gives, or gave before; NotImplemented where it refuses."""
        key = self.remembered.key_of(func, args, kwargs, device)
        if key is not None:
            out = self.remembered.find(self, key, args, device)
            if out is not NotImplemented:
                return out
        try:
            out = in_kernel(self.fake, func, *args, **kwargs)
        except (RuntimeError, NotImplementedError, TypeError):
            # A mixture of devices, usually; FakeTensorMode knows the rules, and raises the proper error.
            return NotImplemented
        out = self._wrap_all(out, device)
        if key is not None:
            self.remembered.keep(key, args, out)
        return out

    def _meta_will_do(self, func: Any) -> bool:
        known = self._has_meta.get(func)
        if known is None:
            special = func in torch._subclasses.fake_impls.op_implementations_dict
            has_kernel = func.namespace == "aten" and any(
                torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)
                for key in ("Meta", "CompositeExplicitAutograd")
            )
            tags = torch.Tag.dynamic_output_shape in func.tags or torch.Tag.data_dependent_output in func.tags
            known = self._has_meta[func] = has_kernel and not special and not tags
        return known

    def _wrap_all(self, out: Any, device: torch.device) -> Any:
        if isinstance(out, torch.Tensor):
            return out if isinstance(out, FakeTensor) else self.wrap(out, device)
        if isinstance(out, (list, tuple)):
            return type(out)([self._wrap_all(each, device) for each in out])
        return out

    # -- threads ----------------------------------------------------------------------------------------------

    def cover_threads(self) -> None:
        """Let threads that the script starts see the same GPU: a mode is for one thread only."""
        begin: Any = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

        def begin_here(thread: threading.Thread) -> None:
            with self:
                begin(thread)

        threading.Thread._bootstrap_inner = begin_here  # type: ignore[attr-defined]

    # -- telling the recorder ---------------------------------------------------------------------------------

    def tell_belief(self, why: str) -> None:
        """Warn that values which are believed decide something; of generated tokens once, with the script's line."""
        if why == DRAWN:
            return
        if why != GENERATED:
            self.recorder.warn(why)
        elif not self.tokens.are_told:
            self.tokens.are_told = True
            place = places.of_call()
            self.recorder.warn(f"{why}, and so are rewards of them{f' ({place})' if place else ''}")

    def note(self, out: Any) -> None:
        """Record the storages of a result."""
        if isinstance(out, FakeTensor):
            if out.fake_device.type == "cuda":
                self.recorder.saw(out)
        elif isinstance(out, (list, tuple)):
            for each in out:
                self.note(each)

    def call(self, kind: str, device: torch.device, **params: object) -> None:
        """Record a library call."""
        thread = "main" if threading.get_ident() == self._main else "autograd"
        self.recorder.op(kind, thread, params, device.index or 0)


def _is_written_in_operators(func: Any) -> bool:
    """Whether a library's operator has one implementation for every device, which calls others."""
    return func.namespace != "aten" and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), _COMPOSITE.name)


def _cuda_device(args: Any) -> torch.device | None:
    """The GPU that the arguments are on. Any fake tensor's: a copied one has a mode of its own."""
    for arg in args:
        if isinstance(arg, FakeTensor):
            if arg.fake_device.type == "cuda":
                return arg.fake_device
        elif isinstance(arg, (list, tuple)):
            for each in arg:
                if isinstance(each, FakeTensor):
                    if each.fake_device.type == "cuda":
                        return each.fake_device
                elif not isinstance(each, torch.Tensor) and each is not None:
                    break
        elif isinstance(arg, torch.device) and arg.type == "cuda":  # of `.to`, undivided under inference mode
            return _indexed(arg)
    return None


def _any_sparse(args: Any) -> bool:
    return any(isinstance(each, FakeTensor) and each.layout is torch.sparse_coo for each in args)


def _indexed(device: Any) -> torch.device:
    device = torch.device(device)
    return device if device.index is not None else torch.device("cuda", torch.cuda.current_device())


# The base class wraps the method for the compiler's sake, which imports the compiler. Nothing is compiled here.
TraceMode.__torch_dispatch__ = inspect.unwrap(TraceMode.__torch_dispatch__)  # type: ignore[method-assign]
