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

from cotenant.tracing import script_location
from cotenant.tracing.assumptions import (
    booleans,
    data_dependent_loops,
    generated_tokens,
    host_reads,
    mask_counts,
    moe_routing,
)
from cotenant.tracing.assumptions.known_values import GENERATED_TEXT, RANDOM_CHOICE, KnownValues
from cotenant.tracing.distributed.nccl_groups import NcclGroups
from cotenant.tracing.errors import Untraceable
from cotenant.tracing.operators import (
    convolutions,
    dynamic_shapes,
    fast_paths,
    kernel_scratch,
    library_calls,
    losses,
    missing_meta_kernels,
    reductions,
    rnn,
    shape_functions,
    sparse,
    strides,
)
from cotenant.tracing.operators.meta_cache import MetaCache
from cotenant.tracing.operators.meta_kernels import make_fake_mode, run_meta_kernel
from cotenant.tracing.recorder import TraceRecorder
from cotenant.tracing.training import module_to_device
from cotenant.tracing.training.inplace_grad_accumulation import InplaceGradAccumulation

_aten = torch.ops.aten
_DEVICE = torch.ops.prim.device.default
_ADD = torch.ops.aten.add.Tensor
_make_subclass: Any = torch.Tensor._make_subclass  # as it is before `moving` replaces it for the script
_FAKE = torch._C._TorchDispatchModeKey.FAKE
_active_dispatch_mode = torch._C._get_dispatch_mode  # a library's own fake mode, which comes after this one

# Big random tensors on the CPU cost seconds and nobody looks at their values: memory stays untouched, so it is free.
_RANDOM_FILLS = {
    _aten.uniform_.default,
    _aten.normal_.default,
    _aten.exponential_.default,
    _aten.cauchy_.default,
    _aten.log_normal_.default,
    _aten.geometric_.default,
}
_MIN_SKIPPED_NUMEL = 1 << 16
_COMPOSITE_EXPLICIT = torch._C.DispatchKey.CompositeExplicitAutograd


class _DispatchPlan(NamedTuple):
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

    def __init__(self, recorder: TraceRecorder) -> None:
        super().__init__()
        FakeTensorMode.avoid_device_init = property(lambda self: True)
        for name in ("init_gpu_context", "init_cuda_context"):
            if hasattr(torch._subclasses.fake_tensor, name):
                setattr(torch._subclasses.fake_tensor, name, lambda *_: None)
        self.recorder = recorder
        self.fake = make_fake_mode()
        self.values = KnownValues()
        self.meta_cache = MetaCache()
        self._templates: dict[torch.device, dict[str, Any]] = {}
        self.loops = data_dependent_loops.DataDependentLoops(recorder)
        self.reads = host_reads.HostReads()
        self.tokens = generated_tokens.GeneratedTokens()
        self._main = threading.get_ident()
        self._lock = threading.RLock()  # autograd has a thread for each GPU, and fake tensors are for one at a time
        self._has_meta: dict[Any, bool] = {}
        self._kept_until_done: list[Any] = []
        self._plain_classes: set[Any] = {torch.Tensor}
        self._with_own_methods: set[Any] = set()
        self._plans: dict[Any, _DispatchPlan] = {}
        self.groups: NcclGroups | None = None  # that functional collectives may use
        self.composites: dict[Any, Any] = {}  # what to do for one, instead of dividing it
        self._handlers = {
            **fast_paths.SHAPE_FUNCTIONS,
            **shape_functions.SHAPE_FUNCTIONS,
            **convolutions.SHAPE_FUNCTIONS,
            **dynamic_shapes.SHAPE_FUNCTIONS,
            **rnn.SHAPE_FUNCTIONS,
            **losses.SHAPE_FUNCTIONS,
            **missing_meta_kernels.SHAPE_FUNCTIONS,
            **sparse.SHAPE_FUNCTIONS,
            **moe_routing.SHAPE_FUNCTIONS,
            **generated_tokens.SHAPE_FUNCTIONS,
        }
        self._kinds: dict[Any, Any] = {
            **library_calls.RECORDERS,
            **kernel_scratch.RECORDERS,
            **reductions.RECORDERS,
            **moe_routing.RECORDERS,
        }
        self.sums = InplaceGradAccumulation()
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
        return self.empty_strided(tensor.shape, strides.preserved_strides(tensor), dtype or tensor.dtype, tensor.device)

    # -- dispatch ---------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for kind in types:
            if kind is not FakeTensor and kind not in self._plain_classes and not self._is_plain_class(kind):
                return NotImplemented  # a tensor made of others, such as a DTensor: its parts come back here
            if kind in self._with_own_methods:
                with module_to_device.as_plain_fake_tensors((*args, *kwargs.values())):
                    return self.__torch_dispatch__(func, (), args, kwargs)
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device
        if func is _ADD and self.sums.is_in_place(args):
            return args[0]
        if _active_dispatch_mode(_FAKE) is not None:
            return func(*args, **kwargs)
        device = _cuda_device(args)
        if device is None and "device" not in kwargs:
            if func in _RANDOM_FILLS and args[0].numel() > _MIN_SKIPPED_NUMEL and args[0].device.type == "cpu":
                return args[0]
            return func(*args, **kwargs)
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        if device is None:
            wanted = kwargs["device"]
            if wanted is None or torch.device(wanted).type != "cuda":
                return func(*args, **kwargs)
            device = _with_index(wanted)
        with self._lock:
            return self._on_cuda(func, args, kwargs, device)

    def _is_plain_class(self, kind: Any) -> bool:
        """Whether a tensor class leaves operators to PyTorch; a class that is, is kept."""
        if issubclass(kind, FakeTensor):
            self._plain_classes.add(kind)
            if module_to_device.is_library_subclass(kind):
                self._with_own_methods.add(kind)
            return True
        own = getattr(kind, "__torch_dispatch__", None)
        plain = own in (None, torch.Tensor.__torch_dispatch__, torch._C._disabled_torch_dispatch_impl)
        if plain:
            self._plain_classes.add(kind)
        return plain

    def _on_cuda(self, func: Any, args: Any, kwargs: Any, device: torch.device) -> Any:
        way = self._plans.get(func)
        if way is None:
            way = self._plans[func] = self._plan_for(func)
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
            out = fast_paths.factory(self, func, args, kwargs, device)
        if out is NotImplemented:
            out = self.run_fake(func, args, kwargs, device)
        self.values.propagate(func, args, kwargs, out)
        if isinstance(out, FakeTensor) and out.dtype in mask_counts.MASK_DTYPES:
            booleans.propagate(func, args, out)
            mask_counts.propagate(func, args, out, self.values.of)
        if kind is not None:
            kind(self, func, args, kwargs, out)
        else:
            self.note(out)
        if self._kept_until_done:
            self._kept_until_done.clear()
        return out

    def scratch(self, nbytes: int, device: torch.device) -> FakeTensor:
        """Memory that a kernel takes for itself; it is given back when nobody holds it."""
        made = self.empty_strided((nbytes,), (1,), torch.uint8, device)
        self.note(made)
        return made

    def keep_until_done(self, tensors: Any) -> None:
        """Keep what an operator needs beside its results alive until it is over, its workspace included."""
        self._kept_until_done += tensors

    def _is_composite(self, func: Any) -> bool:
        known = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
        return known and func not in self._handlers

    def _plan_for(self, func: Any) -> _DispatchPlan:
        handler, is_composite = self._handlers.get(func), self._is_composite(func)
        if handler is None and func._opname.startswith(("_foreach_", "_fused_")):
            handler = shape_functions.foreach
        elif handler is None and func._opname == "nms" and func.namespace == "torchvision":
            handler = dynamic_shapes.nms
        is_factory = func._opname in fast_paths.FACTORIES and func.namespace == "aten"
        opened, for_sparse = kernel_scratch.DECOMPOSED.get(func), sparse.SPARSE_SHAPE_FUNCTIONS.get(func)
        return _DispatchPlan(is_composite, opened, handler, for_sparse, is_factory, self._kinds.get(func))

    def run_fake(self, func: Any, args: Any, kwargs: Any, device: torch.device) -> Any:
        """What `func` gives on fake tensors, by the meta kernel if there is one, else by FakeTensorMode."""
        if self.groups is not None and func.namespace in ("c10d", "_c10d_functional"):
            self.groups.used_by_operator(func.namespace, args)
        if "device" not in kwargs and self._has_usable_meta_kernel(func):
            out = self._run_meta(func, args, kwargs, device)
            if out is not NotImplemented:
                return out
        if device.index is None or "device" in kwargs:
            kwargs = {**kwargs, "device": device} if "device" in kwargs else kwargs
        try:
            return self.fake.dispatch(func, (FakeTensor,), args, kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException, NotImplementedError) as error:
            if _is_composite_explicit(func):
                with self:
                    return func._op_dk(_COMPOSITE_EXPLICIT, *args, **kwargs)
            raise Untraceable(f"`{func.name()}` cannot be traced: its result is not known from shapes alone") from error

    def _run_meta(self, func: Any, args: Any, kwargs: Any, device: torch.device) -> Any:
        """What the meta kernel gives, or gave before; NotImplemented where it refuses."""
        key = self.meta_cache.key_of(func, args, kwargs, device)
        if key is not None:
            out = self.meta_cache.find(self, key, args, device)
            if out is not NotImplemented:
                return out
        try:
            out = run_meta_kernel(self.fake, func, *args, **kwargs)
        except (RuntimeError, NotImplementedError, TypeError):
            # A mixture of devices, usually; FakeTensorMode knows the rules, and raises the proper error.
            return NotImplemented
        out = self._wrap_outputs(out, device)
        if key is not None:
            self.meta_cache.keep(key, args, out)
        return out

    def _has_usable_meta_kernel(self, func: Any) -> bool:
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

    def _wrap_outputs(self, out: Any, device: torch.device) -> Any:
        if isinstance(out, torch.Tensor):
            return out if isinstance(out, FakeTensor) else self.wrap(out, device)
        if isinstance(out, (list, tuple)):
            return type(out)([self._wrap_outputs(each, device) for each in out])
        return out

    # -- threads ----------------------------------------------------------------------------------------------

    def enter_in_new_threads(self) -> None:
        """Let threads that the script starts see the same GPU: a mode is for one thread only."""
        begin: Any = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

        def begin_here(thread: threading.Thread) -> None:
            with self:
                begin(thread)

        threading.Thread._bootstrap_inner = begin_here  # type: ignore[attr-defined]

    # -- telling the recorder ---------------------------------------------------------------------------------

    def warn_assumed(self, why: str) -> None:
        """Warn that values which are believed decide something; of generated tokens once, with the script's line."""
        if why == RANDOM_CHOICE:
            return
        if why != GENERATED_TEXT:
            self.recorder.warn(why)
        elif not self.tokens.warned:
            self.tokens.warned = True
            place = script_location.call_location()
            self.recorder.warn(f"{why}, and so are rewards of them{f' ({place})' if place else ''}")

    def note(self, out: Any) -> None:
        """Record the storages of a result."""
        if isinstance(out, FakeTensor):
            if out.fake_device.type == "cuda":
                self.recorder.record_storage(out)
        elif isinstance(out, (list, tuple)):
            for each in out:
                self.note(each)

    def call(self, kind: str, device: torch.device, **params: object) -> None:
        """Record a library call."""
        thread = "main" if threading.get_ident() == self._main else "autograd"
        self.recorder.record_call(kind, thread, params, device.index or 0)


def _is_composite_explicit(func: Any) -> bool:
    """Whether a library's operator has one implementation for every device, which calls others."""
    return func.namespace != "aten" and torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), _COMPOSITE_EXPLICIT.name
    )


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
            return _with_index(arg)
    return None


def _any_sparse(args: Any) -> bool:
    return any(isinstance(each, FakeTensor) and each.layout is torch.sparse_coo for each in args)


def _with_index(device: Any) -> torch.device:
    device = torch.device(device)
    return device if device.index is not None else torch.device("cuda", torch.cuda.current_device())


# The base class wraps the method for the compiler's sake, which imports the compiler. Nothing is compiled here.
TraceMode.__torch_dispatch__ = inspect.unwrap(TraceMode.__torch_dispatch__)  # type: ignore[method-assign]
