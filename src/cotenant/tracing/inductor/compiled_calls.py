"""Calls of compiled functions: a graph for each kind of arguments, compiled by Inductor, or the function as it is.

`torch.compile` reads bytecode, which under a trace would read the tracer's own hooks. Here the function runs once on
AOTAutograd's tensors instead, as `torch.export` does with `strict=False`. So there are no graph breaks: a function
whose Python code depends on values, or leaves tensors anywhere but in its result, runs eagerly.
Source: torch/_inductor/compile_fx.py, `compile_fx`; torch/_functorch/aot_autograd.py, `aot_module_simplified`.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from cotenant.tracing.inductor.cpu_build import INDUCTOR_SETTINGS
from cotenant.tracing.inductor.side_effects import (
    Attribute,
    NotCompilableError,
    StoredTensors,
    forbidden_calls,
    set_for_a_while,
    tensor_attributes,
)
from cotenant.tracing.patches.registry import PatchContext

MAX_COMPILATIONS = 8
"""Kinds of arguments that a function is compiled for, as `torch._dynamo.config.recompile_limit`."""

_TENSOR: Any = object()
_PLAIN = (type(None), bool, int, float, complex, str, torch.dtype, torch.device)


@dataclass(slots=True)
class _Compiled:
    """A compiled function.

    Attributes:
        outputs: `_TENSOR` for a tensor that `run` returns, and anything else as it is.
        stored: attributes that get the rest of what `run` returns.
    """

    run: Callable[..., Any]
    outputs: list[Any]
    spec: Any
    stored: list[Attribute]


class CompiledFunction:
    """A function or the forward pass of a module, compiled as it is called.

    Attributes:
        reason: why calls run eagerly; empty while none did.
    """

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any], context: PatchContext) -> None:
        self._function = function
        self._context = context
        self._options = {name: value for name, value in options.items() if name not in INDUCTOR_SETTINGS}
        self._compiled: dict[Any, _Compiled] = {}
        self.reason = ""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the function."""
        if self.reason or _is_compiling():
            return self._function(*args, **kwargs)
        leaves, spec = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        try:
            attributes = tensor_attributes(_module_of(self._function))
            tensors += [vars(part)[name] for part, name in attributes]
            compiled = self._compiled_for(leaves, spec, tensors, attributes)
        except Exception as error:  # noqa: BLE001 - the compiler raises anything, and the function itself may be right
            self.reason = _one_line(error)
            return self._function(*args, **kwargs)
        del leaves, args, kwargs
        results = iter(compiled.run(*tensors))
        outputs = [next(results) if out is _TENSOR else out for out in compiled.outputs]
        for (part, name), value in zip(compiled.stored, results, strict=True):
            part.__dict__[name] = value
        return pytree.tree_unflatten(outputs, compiled.spec)

    def _compiled_for(
        self, leaves: list[Any], spec: Any, tensors: list[torch.Tensor], attributes: list[Attribute]
    ) -> _Compiled:
        """`tensors`: those of `leaves`, then those of `attributes`."""
        names = tuple((id(part), name) for part, name in attributes)
        key = (_state_of(self._function), spec, tuple(map(_kind_of, leaves)), names, tuple(map(_kind_of, tensors)))
        found = self._compiled.get(key)
        if found is None:
            if len(self._compiled) >= MAX_COMPILATIONS:
                raise NotCompilableError(f"it was called with more than {MAX_COMPILATIONS} kinds of arguments")
            found = self._compiled[key] = self._compile(leaves, spec, tensors, attributes)
        return found

    def _compile(
        self, leaves: list[Any], spec: Any, tensors: list[torch.Tensor], attributes: list[Attribute]
    ) -> _Compiled:
        from torch._functorch import config as functorch_config
        from torch._inductor import config
        from torch._inductor.compile_fx import compile_fx, compile_fx_inner
        from torch.utils._python_dispatch import _disable_current_modes

        values = [_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        flat = _FlatModule(self._function, values, spec, attributes)
        for tensor in (*flat.parameters(), *tensors):
            if not isinstance(tensor, FakeTensor) and tensor.device.type != "cpu":
                raise NotCompilableError(f"a {type(tensor).__name__} is divided over processes")
        fake = self._context.mode.fake

        def compile_and_try(graph: Any, inputs: Any, **more: Any) -> Any:
            made = compile_fx_inner(graph, inputs, **more)
            # What fails in backward would fail in the script.
            with fake, torch.no_grad():
                made(list(map(_twin, inputs)))
            return made

        settings = {**self._options, **INDUCTOR_SETTINGS}
        functorch = {"enable_autograd_cache": False, "force_non_lazy_backward_lowering": True}
        with (
            _compiling(self._context),
            forbidden_calls(),
            _disable_current_modes(),
            fake,
            config.patch(settings),
            functorch_config.patch(functorch),
        ):
            run = compile_fx(flat, [_twin(tensor) for tensor in tensors], inner_compile=compile_and_try)
        return _Compiled(run=run, outputs=flat.outputs, spec=flat.out_spec, stored=flat.stored)


class _FlatModule(torch.nn.Module):
    """`function` as AOTAutograd wants it: tensors in, tensors out, and parameters that it finds.

    Tensors in `attributes` are the last inputs; those that the function stores in attributes are the last outputs.
    """

    def __init__(self, function: Callable[..., Any], leaves: list[Any], spec: Any, attributes: list[Attribute]) -> None:
        super().__init__()
        owner = _module_of(function)
        if owner is not None:
            self.owner = owner
        self.__dict__["function"] = function
        self.leaves = leaves
        self.spec = spec
        self.attributes = attributes
        self.stored: list[Attribute] = []
        self.outputs: list[Any] = []
        self.out_spec: Any = None

    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """The tensors of the result."""
        given = iter(tensors)
        leaves = [next(given) if leaf is _TENSOR else leaf for leaf in self.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        stored = StoredTensors(_module_of(self.function))
        with set_for_a_while(self.attributes, given):
            try:
                outputs, self.out_spec = pytree.tree_flatten(self.function(*args, **kwargs))
            finally:
                stored.take()
        for output in outputs:
            if not isinstance(output, (torch.Tensor, *_PLAIN)):
                raise NotCompilableError(f"its result has a {type(output).__name__}")
        self.outputs = [_TENSOR if isinstance(output, torch.Tensor) else output for output in outputs]
        self.stored = stored.attributes
        return [*(output for output in outputs if isinstance(output, torch.Tensor)), *stored.values]


def _module_of(function: Any) -> torch.nn.Module | None:
    """The module whose parameters a function uses.

    Raises:
        NotCompilableError: it uses tensors or modules that are neither its arguments nor those of its module.
    """
    owner = function if isinstance(function, torch.nn.Module) else getattr(function, "__self__", None)
    if isinstance(owner, torch.nn.Module):
        return owner
    if owner is not None:
        raise NotCompilableError(f"it is a method of a {type(owner).__name__}")
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    if code is None:
        raise NotCompilableError(f"it is a {type(function).__name__}")
    used = [function.__globals__.get(name) for name in code.co_names]
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty cell
            used.append(cell.cell_contents)
    for value in used:
        if isinstance(value, (torch.Tensor, torch.nn.Module, torch.optim.Optimizer)):
            raise NotCompilableError(f"it uses a {type(value).__name__} that is not among its arguments")
    return None


def _state_of(function: Any) -> tuple[Any, ...]:
    """What `torch.compile` guards besides arguments."""
    owner = function if isinstance(function, torch.nn.Module) else getattr(function, "__self__", None)
    return (
        getattr(owner, "training", None),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cuda"),
        torch.get_autocast_dtype("cuda"),
    )


def _kind_of(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad
    if isinstance(leaf, _PLAIN):
        return type(leaf), leaf
    raise NotCompilableError(f"an argument has a {type(leaf).__name__}")


def _twin(value: Any) -> Any:
    """A fake tensor of the same kind, which no trace knows."""
    if not isinstance(value, FakeTensor):
        return value
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return made.requires_grad_(value.requires_grad) if value.requires_grad else made


_compiling_now: list[None] = []


def _is_compiling() -> bool:
    """Whether a function is being compiled, of which this one is a part."""
    return bool(_compiling_now)


@contextlib.contextmanager
def _compiling(context: PatchContext) -> Iterator[None]:
    _compiling_now.append(None)
    context.observer.compiling = True
    try:
        yield
    finally:
        _compiling_now.pop()
        context.observer.compiling = False


def _one_line(error: Exception) -> str:
    if isinstance(error, NotCompilableError):
        return str(error)
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text[:120]}" if text else type(error).__name__
