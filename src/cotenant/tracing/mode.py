"""The dispatch mode under which a script runs: CUDA tensors are fake, CPU tensors are real.

Every operator of the script arrives here. Without a CUDA argument it runs as it is. With one, only the shape of the
result is computed: by a registered shape function where PyTorch's own is slow or differs from CUDA (see
`operators.registry`), else by the meta kernel, else by `FakeTensorMode`. The recorder gets each new CUDA storage, and
each library call that allocates a workspace.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode

from cotenant.core.errors import PluginError, TraceError
from cotenant.tracing import script_location
from cotenant.tracing.assumptions import booleans, chosen_elements, deferred_values, equal_contents, mask_counts
from cotenant.tracing.assumptions.data_dependent_loops import DataDependentLoops
from cotenant.tracing.assumptions.generated_tokens import GeneratedTokens
from cotenant.tracing.assumptions.host_reads import HostReads
from cotenant.tracing.assumptions.known_values import ALL_FOUND, GENERATED_TEXT, RANDOM_CHOICE, KnownValues
from cotenant.tracing.distributed.nccl_groups import NcclGroups
from cotenant.tracing.errors import Untraceable
from cotenant.tracing.kernel_work import COUNTED_STEPS
from cotenant.tracing.operators import custom_operators, fast_paths, strides
from cotenant.tracing.operators.builtin import PLUGIN_GROUP, all_operators
from cotenant.tracing.operators.dispatch_plan import DispatchPlan, decomposition_of, plan_of
from cotenant.tracing.operators.meta_kernels import MetaCache, make_fake_mode, run_meta_kernel
from cotenant.tracing.operators.registry import Args, Kwargs
from cotenant.tracing.patches import initializations
from cotenant.tracing.recorder import TraceRecorder
from cotenant.tracing.training import module_to_device
from cotenant.tracing.training.inplace_grad_accumulation import InplaceGradAccumulation
from cotenant.tracing.training.written_views import WrittenViews

_DEVICE = torch.ops.prim.device.default
_ADD, _INDEX = torch.ops.aten.add.Tensor, torch.ops.aten.index.Tensor
_make_subclass: Any = torch.Tensor._make_subclass  # as it is before `module_to_device` replaces it for the script
_FAKE = torch._C._TorchDispatchModeKey.FAKE
_active_dispatch_mode = torch._C._get_dispatch_mode

_COMPOSITE_EXPLICIT = torch._C.DispatchKey.CompositeExplicitAutograd


class TraceMode(TorchDispatchMode):
    """One for each traced process, entered once, around the whole script. It is the `OpContext` of shape functions.

    Attributes:
        groups: process groups whose collectives the script may call as operators.
        composites: implementations of composite operators that CUDA divides differently, by operator.
        grad_accumulation: gradients that are added in place.
        written_views: views that operators have written.
        adds_in_place: sums replace their first operand, while attention adds its mask.
    """

    def __init__(self, recorder: TraceRecorder) -> None:
        """Raises `TraceError`, kind `unsupported`, if the operators of a plug-in cannot be registered."""
        super().__init__()
        try:
            self._operators = all_operators()
        except PluginError as error:
            raise TraceError("unsupported", error.message, hint=error.hint) from error
        self.recorder = recorder
        self.fake = make_fake_mode()
        self.known_values = KnownValues()
        self.meta_cache = MetaCache()
        self.loops = DataDependentLoops(recorder)
        self.host_reads = HostReads()
        self.generated_tokens = GeneratedTokens()
        self.grad_accumulation = InplaceGradAccumulation()
        self.written_views = WrittenViews()
        self.adds_in_place = False
        self.groups: NcclGroups | None = None
        self.composites: dict[OpOverload, Callable[..., Any]] = {}
        self._templates: dict[torch.device, dict[str, Any]] = {}
        self._main = threading.get_ident()
        # Autograd has a thread for each GPU (`start_device_threads` of torch/csrc/autograd/engine.cpp), and the state
        # of fake tensors is not thread-safe.
        self._lock = threading.RLock()
        self._has_meta: dict[OpOverload, bool] = {}
        self._operator_scratch: list[FakeTensor] = []
        self._plain_classes: set[type] = {torch.Tensor}
        self._library_subclasses: set[type] = set()
        self._plans: dict[OpOverload, DispatchPlan] = {}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Dynamo compiles nothing below other modes: torch/_dynamo/convert_frame.py, `CatchErrorsWrapper.__call__`."""
        return True

    # -- making tensors ---------------------------------------------------------------------------------------

    def wrap(self, meta: torch.Tensor, device: torch.device) -> FakeTensor:
        """See `OpContext`. The constructor of `FakeTensor` runs once for each device; its attributes are copied."""
        template = self._templates.get(device)
        if template is None:
            first = FakeTensor(self.fake, meta, device)
            if device.index is not None:
                self._templates[device] = dict(vars(first))
            return first
        # As `FakeTensor.__new__`: over meta data, with the GPU's dispatch keys, and `.device` comes to the mode.
        made: FakeTensor = _make_subclass(
            FakeTensor, meta, meta.requires_grad, dispatch_device=True, device_for_backend_keys=device
        )
        # Compiled code that takes the address raises instead of writing to address 0; from `FakeTensor.__new__`, too.
        torch._C._set_throw_on_mutable_data_ptr(made)
        vars(made).update(template)
        return made

    def empty_strided(
        self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device
    ) -> FakeTensor:
        """See `OpContext`."""
        return self.wrap(torch.empty_strided(size, stride, dtype=dtype, device="meta"), device)

    def empty_like(self, tensor: torch.Tensor, dtype: torch.dtype | None = None) -> FakeTensor:
        """See `OpContext`."""
        return self.empty_strided(tensor.shape, strides.preserved_strides(tensor), dtype or tensor.dtype, tensor.device)

    # -- dispatch ---------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for cls in types:
            if cls is not FakeTensor and cls not in self._plain_classes and not self._is_plain_class(cls):
                return NotImplemented  # a wrapper subclass such as DTensor: the tensors inside come back here
            if cls in self._library_subclasses:
                with module_to_device.as_plain_fake_tensors((*args, *kwargs.values())):
                    return self.__torch_dispatch__(func, (), args, kwargs)
        # `tensor.device` is an operator for tensors that were made with `dispatch_device`.
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device
        # Inside of a function that PyTorch compiles a sum is out of place, for its tensors are fake in CUDA builds too.
        by_attention = self.adds_in_place and _active_dispatch_mode(_FAKE) is None
        if func is _ADD and (by_attention or self.grad_accumulation.is_in_place(args)):
            equal_contents.forget(args[0])
            return args[0]
        if _active_dispatch_mode(_FAKE) is not None:  # a library's own fake mode, entered after this one
            return func(*args, **kwargs)
        # Pinning is a call of the CUDA driver, and only CPU tensors can be pinned.
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        device = _cuda_device(args)
        if device is None and "device" not in kwargs:
            if initializations.is_skipped(func, args):
                return args[0]
            return func(*args, **kwargs)
        if device is None:
            wanted = kwargs["device"]
            if wanted is None or torch.device(wanted).type != "cuda":
                return func(*args, **kwargs)
            device = _with_index(wanted)
        if threading.get_ident() != self._main and not torch._C._only_lift_cpu_tensors():
            # Thread-local: see `patches.fake_mode`. Checkpointed functions run again on autograd's thread.
            torch._C._set_only_lift_cpu_tensors(True)
        with self._lock:
            return self._on_cuda(func, args, kwargs, device)

    def _is_plain_class(self, cls: Any) -> bool:
        """Whether a tensor class leaves operators to PyTorch; the answer is cached."""
        if issubclass(cls, FakeTensor):
            self._plain_classes.add(cls)
            if module_to_device.is_library_subclass(cls):
                self._library_subclasses.add(cls)
            return True
        dispatch = getattr(cls, "__torch_dispatch__", None)
        plain = dispatch in (None, torch.Tensor.__torch_dispatch__, torch._C._disabled_torch_dispatch_impl)
        if plain:
            self._plain_classes.add(cls)
        return plain

    def _on_cuda(self, func: OpOverload, args: Args, kwargs: Kwargs, device: torch.device) -> Any:
        plan = self._plans.get(func)
        if plan is None:
            plan = self._plans[func] = plan_of(func, self._operators, replaced=func in self.composites)
        is_composite, decomposed_by, shape, sparse_shape, is_factory, assumptions, recorder, check, chooses = plan
        if is_composite:
            with self:
                return self.composites.get(func, decomposition_of(func))(*args, **kwargs)
        if decomposed_by is not None:
            with self:
                return func._op_dk(decomposed_by, *args, **kwargs)
        if check is not None:
            check(func, args, kwargs)
        out = NotImplemented
        if sparse_shape is not None and _any_sparse(args):
            shape = sparse_shape
        if shape is not None:
            out = shape(self, func, args, kwargs)
        elif is_factory:
            out = fast_paths.factory(self, func, args, kwargs, device)
        if out is NotImplemented:
            out = self.run_fake(func, args, kwargs, device)
        for assume in assumptions:
            assume(self, func, args, kwargs, out)
        self.known_values.propagate(func, args, kwargs, out)
        deferred_values.propagate(func, args, kwargs, out, self.known_values.peek)
        self._note_truth(func, args, out, chooses=chooses)
        if recorder is not None:
            recorder(self, func, args, kwargs, out)
        else:
            self.record(out)
        self._count_kernels(func, args, out, device)
        if self.recorder.graph_seeds is not None and torch.Tag.nondeterministic_seeded in func.tags:
            with self:
                self.recorder.graph_seeds()
        self._operator_scratch.clear()
        self.written_views.note(args, out)
        return out

    def _note_truth(self, func: OpOverload, args: Args, out: Any, *, chooses: bool) -> None:
        if chooses:
            chosen_elements.propagate(func, args, out)
        if not isinstance(out, FakeTensor):
            return
        if out.dtype in mask_counts.MASK_DTYPES:
            booleans.propagate(func, args, out)
            mask_counts.propagate(func, args, out, self.known_values.peek)
        elif func._opname in booleans.COUNTS:
            booleans.propagate_count(args, out)
            mask_counts.note_count(args, out)

    def _count_kernels(self, func: OpOverload, args: Args, out: Any, device: torch.device) -> None:
        recorder = self.recorder
        if recorder.steps < COUNTED_STEPS and recorder.phase != "load" and not device.index:
            recorder.kernels.count(recorder.steps, func, args, out)

    def run_fake(self, func: OpOverload, args: Args, kwargs: Kwargs, device: torch.device) -> Any:
        """See `OpContext`."""
        if func.namespace != "aten" and (out := custom_operators.run(self, func, args, kwargs)) is not NotImplemented:
            return out
        if self.groups is not None and func.namespace in ("c10d", "_c10d_functional"):
            self.groups.used_by_operator(func.namespace, args)
        if "device" not in kwargs and self._has_usable_meta_kernel(func):
            out = self._run_meta(func, args, kwargs, device)
            if out is not NotImplemented:
                return out
        if "device" in kwargs:
            kwargs = {**kwargs, "device": device}
        # Of numbers alone, whose shapes decide: with masks it raises, and nothing is cached.
        key = self.meta_cache.key_of(func, args, kwargs, device) if func is _INDEX else None
        if key is not None and (out := self.meta_cache.find(self, key, args, device)) is not NotImplemented:
            return out
        try:
            out = self.fake.dispatch(func, (FakeTensor,), _without_subclasses(args), kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException, NotImplementedError) as error:
            if _is_composite_explicit(func):
                with self:
                    return func._op_dk(_COMPOSITE_EXPLICIT, *args, **kwargs)
            raise Untraceable(f"`{func.name()}` cannot be traced: its result is not known from shapes alone") from error
        except UnsupportedOperatorException as error:
            raise Untraceable(
                f"`{func.name()}` cannot be traced: it has no meta kernel, and no shape function in `{PLUGIN_GROUP}`"
            ) from error
        if key is not None:
            self.meta_cache.put(key, args, out)
        return out

    def _run_meta(self, func: OpOverload, args: Args, kwargs: Kwargs, device: torch.device) -> Any:
        """The result of the meta kernel, cached by shapes; NotImplemented where the kernel refuses the call."""
        key = self.meta_cache.key_of(func, args, kwargs, device)
        if key is not None:
            out = self.meta_cache.find(self, key, args, device)
            if out is not NotImplemented:
                return out
        try:
            out = run_meta_kernel(self.fake, func, *args, **kwargs)
        except (RuntimeError, NotImplementedError, TypeError):
            # Usually tensors of several devices: `FakeTensorMode` knows the rules, and raises PyTorch's own error.
            return NotImplemented
        out = self._wrap_outputs(out, device)
        if key is not None:
            self.meta_cache.put(key, args, out)
        return out

    def _has_usable_meta_kernel(self, func: OpOverload) -> bool:
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
            return type(out)([self._wrap_outputs(item, device) for item in out])
        return out

    # -- recording --------------------------------------------------------------------------------------------

    def record(self, out: Any) -> None:
        """See `OpContext`."""
        if isinstance(out, FakeTensor):
            if out.fake_device.type == "cuda":
                self.recorder.record_storage(out)
        elif isinstance(out, (list, tuple)):
            for item in out:
                self.record(item)

    def record_call(self, kind: str, device: torch.device, **params: object) -> None:
        """See `OpContext`."""
        thread = "main" if threading.get_ident() == self._main else "autograd"
        if self.recorder.capture_stream is not None and kind.startswith("gemm"):
            params["capture_stream"] = self.recorder.capture_stream
        self.recorder.record_call(kind, thread, params, device.index or 0)

    def scratch(self, nbytes: int, device: torch.device) -> FakeTensor:
        """See `OpContext`."""
        made = self.empty_strided((nbytes,), (1,), torch.uint8, device)
        self.record(made)
        return made

    def keep_until_done(self, tensors: Iterable[FakeTensor]) -> None:
        """See `OpContext`."""
        self._operator_scratch += tensors

    def warn_assumed(self, why: str) -> None:
        """See `OpContext`. Of generated tokens there is one warning, with the script's line."""
        if why in (RANDOM_CHOICE, ALL_FOUND):
            return
        if why != GENERATED_TEXT:
            self.recorder.warn(why)
        elif not self.generated_tokens.warned:
            self.generated_tokens.warned = True
            place = script_location.call_location()
            self.recorder.warn(f"{why}, and so are rewards of them{f' ({place})' if place else ''}")


def _is_composite_explicit(func: OpOverload) -> bool:
    """Whether a library's operator has one implementation for every device, which calls others."""
    return func.namespace != "aten" and torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), _COMPOSITE_EXPLICIT.name
    )


def _cuda_device(args: Args) -> torch.device | None:
    """The GPU that the arguments are on: of any fake tensor, since a copied one has a mode of its own."""
    for arg in args:
        if isinstance(arg, FakeTensor):
            if arg.fake_device.type == "cuda":
                return arg.fake_device
        elif isinstance(arg, (list, tuple)):
            for item in arg:
                if isinstance(item, FakeTensor):
                    if item.fake_device.type == "cuda":
                        return item.fake_device
                elif not isinstance(item, torch.Tensor) and item is not None:
                    break
        elif isinstance(arg, torch.device) and arg.type == "cuda":  # of `.to`, undivided under inference mode
            return _with_index(arg)
    return None


def _without_subclasses(values: Any) -> Any:
    """CPU tensors of subclasses as views of the base class: `FakeTensorMode` refuses them beside fake tensors."""
    return type(values)(
        [
            _without_subclasses(value) if type(value) in (list, tuple)
            else value.as_subclass(torch.Tensor) if _is_subclassed(value)
            else value
            for value in values
        ]
    )  # fmt: skip


def _is_subclassed(value: Any) -> bool:
    is_real = isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)
    return is_real and type(value) not in (torch.Tensor, torch.nn.Parameter)


def _any_sparse(args: Args) -> bool:
    return torch.sparse_coo in [arg.layout for arg in args if isinstance(arg, FakeTensor)]


def _with_index(device: Any) -> torch.device:
    device = torch.device(device)
    return device if device.index is not None else torch.device("cuda", torch.cuda.current_device())


# `TorchDispatchMode.__init_subclass__` wraps the method with `torch._disable_dynamo` (torch/utils/_python_dispatch.py),
# whose first call imports the compiler. No compiled code runs here.
TraceMode.__torch_dispatch__ = inspect.unwrap(TraceMode.__torch_dispatch__)  # type: ignore[method-assign]
