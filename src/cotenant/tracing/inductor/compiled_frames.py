"""Calls of compiled functions: Dynamo reads them, and Inductor compiles a graph for each part between graph breaks.

Dynamo works as on a GPU: it breaks graphs, compiles again for other shapes, reads steps of optimizers, and divides a
graph by the buckets of DDP. While it reads a frame, PyTorch is as without the tracer (see `plain_torch`), and guards of
what the tracer replaces afterwards are left out. The trace's mode is off then, and on when the code runs.
Source: torch/_dynamo/convert_frame.py, `CatchErrorsWrapper`; torch/_dynamo/eval_frame.py, `optimize`;
torch/_inductor/compile_fx.py, `compile_fx`.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.inductor.cpu_build import INDUCTOR_SETTINGS
from cotenant.tracing.inductor.plain_torch import (
    OWN_PACKAGE,
    Attribute,
    name_originals,
    plain_torch,
    read_attributes,
)
from cotenant.tracing.patches.registry import Entry, KernelPatch, Patch, PatchContext, Phase
from cotenant.tracing.sandbox.overlay import real_open

FUNCTORCH_SETTINGS: dict[str, Any] = {
    "enable_autograd_cache": False,
    # What fails in backward must show before the script gets the forward pass.
    "force_non_lazy_backward_lowering": True,
    # It clones the GPU's generators, of which there are none.
    "graphsafe_rng_functionalization": False,
}
"""Settings of `torch._functorch.config`, over those of the script."""

_IDENTITY_GUARDS = frozenset(
    ("ID_MATCH", "TYPE_MATCH", "FUNCTION_MATCH", "CLOSURE_MATCH", "BUILTIN_MATCH", "CLASS_MATCH", "MODULE_MATCH",
     "NN_MODULE", "WEAKREF_ALIVE", "HASATTR", "DICT_VERSION", "DICT_CONTAINS", "DICT_NOT_CONTAINS", "DICT_KEYS_MATCH",
     "MAPPING_KEYS_CHECK", "SEQUENCE_LENGTH", "EMPTY_NN_MODULE_HOOKS_DICT")
)  # fmt: skip
"""Kinds of guards that a patched module or function fails."""

_RNG_STATE_BYTES = 16  # aten/src/ATen/cuda/CUDAGeneratorImpl.cpp, `CUDAGeneratorImpl::get_state`
_running: list[CompiledFrames] = []
_originals: list[Attribute] = []
_dispatch_keys: list[Any] = []  # included and excluded ones of a thread that is in no operator
_excluded_around: list[Any] = []  # those excluded where the frames that Dynamo reads run, the innermost last
_backends: dict[tuple[int, str, bool | None], Callable[..., Any]] = {}


class CompiledFrames:
    """A function or the forward pass of a module, compiled as it is called.

    Attributes:
        reason: why a part of it runs eagerly that is compiled on a GPU; empty while none does.
    """

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any], context: PatchContext) -> None:
        self._function = function
        self._options = options
        self._context = context
        self._run: Callable[..., Any] | None = None
        self.reason = ""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the function."""
        if self._run is None:
            try:
                self._run = self._optimized()
            except Exception as error:  # noqa: BLE001 - another version of torch raises anything
                self.reason = one_line(error)
                self._run = self._function
        _running.append(self)
        try:
            return self._run(*args, **kwargs)
        finally:
            _running.pop()

    def _optimized(self) -> Callable[..., Any]:
        from torch._dynamo import optimize
        from torch._inductor import list_mode_options

        _leave_tracer_alone()
        name_originals(_originals)
        if self._context.compiled_mark is not None:
            # The script's `open` is redirected to its overlay.
            os.close(real_open(self._context.compiled_mark, os.O_WRONLY | os.O_CREAT, 0o600))
        mode = self._options.get("mode")
        wanted = {**(list_mode_options(mode) if mode else {}), **(self._options.get("options") or {})}
        dynamic = self._options.get("dynamic")
        backend = _backend_of(self._context, {**wanted, **INDUCTOR_SETTINGS}, dynamic=dynamic)
        # Not `fullgraph`: hooks of the tracer around an optimizer's step break its graph.
        optimized: Callable[..., Any] = optimize(backend, dynamic=dynamic, guard_filter_fn=_lasting_guards)(
            _plain_function(self._function)
        )
        return optimized


def _backend_of(context: PatchContext, settings: Mapping[str, Any], *, dynamic: bool | None) -> Callable[..., Any]:
    """The compiler of graphs with these settings of Inductor.

    It is one object for equal settings, as `_TorchCompileInductorWrapper` of torch/__init__.py is equal to another one
    with the same: blocks that are compiled one by one share their code, and Dynamo compiles it again for another
    compiler.
    """
    key = (id(context), repr(sorted(settings.items())), dynamic)
    if key not in _backends:
        _backends[key] = functools.partial(_compile, context, settings)
    return _backends[key]


def _compile(
    context: PatchContext, settings: Mapping[str, Any], graph: torch.fx.GraphModule, inputs: Sequence[Any]
) -> Callable[..., Any]:
    """The compiled code of a graph. Where that fails, Dynamo goes on with the frames below this one."""
    from torch._functorch import config as functorch_config
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    def compile_and_try(part: Any, given: Any, **more: Any) -> Any:
        made = compile_fx_inner(part, given, **more)
        if not any(isinstance(value, torch.SymInt) for value in given):
            with context.mode.fake, torch.no_grad():
                made(list(map(_twin, given)))
        return made

    with config.patch(dict(settings)), functorch_config.patch(FUNCTORCH_SETTINGS):
        known = list(map(_as_read, inputs))
        compiled: Callable[..., Any] = compile_fx(graph, known, inner_compile=compile_and_try)
    context.recorder.note_compiled()
    return compiled


def patches(context: PatchContext) -> list[Entry]:
    """What Dynamo needs while it reads; none where compiled code is traced eagerly."""
    if context.options.compiled_code == "eager":
        return []
    _originals[:] = read_attributes()
    _dispatch_keys[:] = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    common: dict[str, Any] = {"phase": Phase.TRAINING, "missing": "other versions than the tried ones"}
    return [
        Patch(
            target="torch._dynamo.convert_frame:CatchErrorsWrapper.__call__", wraps=True,
            replacement=functools.partial(_reading_plain_torch, context),
            reason="Dynamo would read the tracer's functions into the graph.",
            source="torch/_dynamo/convert_frame.py, `CatchErrorsWrapper.__call__`", **common,
        ),
        Patch(
            target="torch._dynamo.guards:CheckFunctionManager.__init__", wraps=True,
            replacement=_with_keys_of_the_frame,
            reason="A guard of a tensor compares its dispatch keys, less those that are excluded where it was made.",
            source="torch/csrc/dynamo/guards.cpp, `TensorCheck::check`", **common,
        ),
        Patch(
            target="torch._dynamo.variables.optimizer:OptimizerVariable.call_method", wraps=True,
            replacement=functools.partial(_making_states, context),
            reason="Dynamo makes an optimizer's states on the GPU while it reads its step.",
            source="torch/_dynamo/variables/optimizer.py, `OptimizerVariable.call_method`", **common,
        ),
        Patch(
            target="torch._dynamo.variables.optimizer:_is_static_for_cudagraphs", replacement=lambda tensor: False,
            reason="It imports CUDA graphs, which a CPU build does not have.",
            source="torch/_dynamo/variables/optimizer.py, `_is_static_for_cudagraphs`", **common,
        ),
        Patch(
            target="torch._dynamo.variables.functions:_traceable_collective_remaps", wraps=True,
            replacement=_with_replaced_collectives,
            reason="It has the collectives that were there when it was imported, maybe before the tracer's.",
            source="torch/distributed/_functional_collectives.py, `traceable_collective_remaps`", **common,
        ),
        Patch(
            target="torch._dynamo.backends.distributed:DDPOptimizer.compile_fn", wraps=True, replacement=_dividing,
            reason="It runs parts of the graph on fake tensors of Dynamo's, and versions before 2.13 have others.",
            source="torch/_dynamo/backends/distributed.py, `DDPOptimizer.compile_fn`", **common,
        ),
        KernelPatch(
            target="aten::_scaled_mm.out", phase=Phase.OPERATORS, key="Meta", kernel=lambda *_, out, **__: out,
            reason="Inductor calls it for products in fp8, and it has no meta kernel.",
            source="aten/src/ATen/native/native_functions.yaml",
        ),
    ]  # fmt: skip


def one_line(error: Exception) -> str:
    """What an error says, as a reason in a warning."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text[:120]}" if text else type(error).__name__


def _with_replaced_collectives(original: Any) -> Any:
    @functools.cache
    def remaps() -> dict[Any, Any]:
        from torch.distributed import distributed_c10d

        found: dict[Any, Any] = dict(original())
        return {**found, **{getattr(distributed_c10d, old.__name__, old): new for old, new in found.items()}}

    return remaps


def _dividing(original: Any) -> Any:
    @functools.wraps(original)
    def compile_fn(self: Any, graph: Any, inputs: Sequence[Any]) -> Any:
        return original(self, graph, list(map(_as_read, inputs)))

    return compile_fn


def _as_read(value: Any) -> Any:
    """An input as Dynamo's own fake tensor: versions before 2.13 hand on the script's, as if it were a real one.

    Source: torch/_functorch/_aot_autograd/frontend_utils.py, `process_inputs`.
    """
    tracing = torch._guards.TracingContext.try_get()
    if tracing is None or not isinstance(value, FakeTensor) or value.fake_mode is tracing.fake_mode:
        return value
    symbolic = tracing.tensor_to_context.get(value)
    source = symbolic.tensor_source if symbolic is not None else None
    return tracing.fake_mode.from_tensor(
        value, static_shapes=symbolic is None, symbolic_context=symbolic, source=source
    )


def _plain_function(function: Any) -> Any:
    """What `OptimizedModule` of torch/_dynamo/eval_frame.py runs, or a function without the tracer's."""
    if isinstance(function, torch.nn.Module):
        from torch._dynamo import external_utils, trace_rules

        # Dynamo skips the frames of PyTorch's own modules, and reads them below a function.
        if trace_rules.check(function.forward):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that there are global hooks: the tracer's
                return external_utils.wrap_inline(function)
        return function._wrapped_call_impl
    return vars(function).get("_torchdynamo_inline", function) if hasattr(function, "__dict__") else function


@functools.cache
def _leave_tracer_alone() -> None:
    """Has Dynamo skip the tracer's frames, and know its operators."""
    from torch._dynamo import allow_in_graph, disable, trace_rules
    from torch._prims import rng_prims

    from cotenant.tracing.mode import TraceMode
    from cotenant.tracing.patches import flash_attention

    trace_rules.add(OWN_PACKAGE)
    for function in (flash_attention.attention, flash_attention.varlen_attention):
        allow_in_graph(function)
    rng_prims.run_and_save_rng_state.py_impl(TraceMode)(_run_and_save_state)
    rng_prims.run_with_rng_state.py_impl(TraceMode)(_run_with_state)
    # Frames below an operator are those of meta kernels, which Dynamo would compile.
    TraceMode.__torch_dispatch__ = disable(TraceMode.__torch_dispatch__)  # type: ignore[method-assign]


def _reading_plain_torch(context: PatchContext, original: Any) -> Any:
    @functools.wraps(original)
    def convert(self: Any, frame: Any, cache_entry: Any, frame_state: Any) -> Any:
        from torch._dynamo.types import ConvertFrameReturn, FrameAction
        from torch.utils._python_dispatch import _disable_current_modes

        before, context.observer.compiling = context.observer.compiling, True
        reason = ""
        _excluded_around.append(torch._C._dispatch_tls_local_exclude_set())
        try:
            with plain_torch(_originals), _disable_current_modes(), _outside_of_operators():
                found = original(self, frame, cache_entry, frame_state)
            if found.frame_exec_strategy.cur_action == FrameAction.RUN_ONLY:
                reason = f"`{frame.f_code.co_name}` was compiled too often"
            return found
        except Exception as error:  # noqa: BLE001 - Dynamo raises anything, and the function itself may be right
            # Not the graph: some of its operators cannot run, such as `flex_attention` under a mode.
            reason = one_line(getattr(error, "inner_exception", error))
            return ConvertFrameReturn()
        finally:
            _excluded_around.pop()
            context.observer.compiling = before
            if reason and _running:
                _running[-1].reason = reason

    return convert


def _outside_of_operators() -> Any:
    """Dispatches as outside of any operator: a custom one may compile what it runs, and is below autograd then.

    There an operator of several others, such as the copy in `torch.tensor`, would reach a mode undivided.
    Source: c10/core/impl/LocalDispatchKeySet.h.
    """
    included, excluded = _dispatch_keys
    return torch._C._ForceDispatchKeyGuard(included, excluded & torch._C._dispatch_tls_local_exclude_set())


def _with_keys_of_the_frame(original: Any) -> Any:
    @functools.wraps(original)
    def make_guards(self: Any, *args: Any, **kwargs: Any) -> None:
        if not _excluded_around:
            return original(self, *args, **kwargs)
        included = torch._C._dispatch_tls_local_include_set()
        with torch._C._ForceDispatchKeyGuard(included, _excluded_around[-1]):
            return original(self, *args, **kwargs)

    return make_guards


def _making_states(context: PatchContext, original: Any) -> Any:
    @functools.wraps(original)
    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name != "_init_group":
            return original(self, tx, name, args, kwargs)
        with context.mode:
            return original(self, tx, name, args, kwargs)

    return call_method


def _run_and_save_state(mode: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
    """A checkpointed operator with random numbers; the state of the generator is a CPU tensor."""
    with mode:
        return torch.empty(_RNG_STATE_BYTES, dtype=torch.uint8), operator(*args, **kwargs)


def _run_with_state(mode: Any, state: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
    with mode:
        return operator(*args, **kwargs)


def _lasting_guards(entries: Sequence[Any]) -> list[bool]:
    """Whether a guard holds when the code runs, with the tracer's hooks and functions in place again."""
    return [
        not ((entry.is_global and entry.guard_type in _IDENTITY_GUARDS) or "_hooks" in entry.name) for entry in entries
    ]


def _twin(value: Any) -> Any:
    """A fake tensor of the same kind, which no trace knows."""
    if not isinstance(value, FakeTensor):
        return value
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return made.requires_grad_(value.requires_grad) if value.requires_grad else made
