"""Small mends of libraries around torch, so that ordinary scripts import and run while traced."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._device import _device_constructors

from cotenant.tracing.operators import torchvision_ops
from cotenant.tracing.patches import bitsandbytes, cpp_extensions, hf_pretrained
from cotenant.tracing.patches.import_hooks import when_imported

_OVERFLOW_CHECKS = (
    ("zero.stage_1_and_2", "DeepSpeedZeroOptimizer"),
    ("zero.stage3", "DeepSpeedZeroOptimizer_Stage3"),
    ("utils", "CheckOverflow"),
)
"""Modules of DeepSpeed and their classes that skip a step where a gradient overflowed."""
_TRACER_MODULES = ("cotenant.tracing.", "torch._")
"""Beginnings of the names of modules that do what CUDA kernels would."""


def install(recorder: Any) -> None:
    """Apply them; none imports a library that the script does not."""
    sys.meta_path.insert(0, PreImportFinder("torchvision", _prepare_torchvision))
    when_imported("transformers.utils.import_utils", _patch_transformers)
    when_imported("safetensors.torch", _skip_safetensors_writes)
    for name in ("lightning.pytorch", "pytorch_lightning"):
        when_imported(f"{name}.loops.training_epoch_loop", _patch_lightning)
    when_imported("transformers.modeling_utils", hf_pretrained.install(recorder))
    for name, kind in _OVERFLOW_CHECKS:
        when_imported(f"deepspeed.runtime.{name}", functools.partial(_never_overflow, kind))
    when_imported("deepspeed.runtime.zero.partition_parameters", _patch_zero3_init)
    when_imported("evaluate.loading", functools.partial(_stub_missing_metrics, recorder))
    bitsandbytes.install(recorder)
    cpp_extensions.install(recorder)
    _ignore_pin_memory()
    _never_skip_scaler_steps()
    _assume_samples_in_support()
    _unwrap_dynamo_disable()


class PreImportFinder(importlib.abc.MetaPathFinder):
    """Calls a function when a module is about to be imported for the first time."""

    def __init__(self, name: str, call: Callable[[], None]) -> None:
        self._name = name
        self._call = call

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == self._name:
            sys.meta_path.remove(self)
            self._call()


def _patch_transformers(module: Any) -> None:
    """Transformers does not look at the values of a mask that is fake; here they are known (see `values`).

    It also wants a build of CUDA for TF32, which is the GPU's to have.
    """
    changes = {
        "is_fake_tensor": lambda x: False,
        "is_torch_tf32_available": lambda: torch.cuda.get_device_properties(0).major >= 8,
    }
    # Of a function, traced in a fork, other modules of the package may have been imported and have the names as well.
    loaded = [each for name, each in sys.modules.items() if name.partition(".")[0] == "transformers"]
    for name, change in changes.items():
        original = getattr(module, name, None)
        for each in (module, *loaded):
            if original is not None and vars(each).get(name) is original:
                setattr(each, name, change)


def _skip_safetensors_writes(module: Any) -> None:
    """A checkpoint of fake tensors has nothing to write."""
    for name in ("save_file", "save_model"):
        setattr(module, name, lambda *args, **kwargs: None)


def _patch_lightning(module: Any) -> None:
    """Lightning counts batches to know when to validate; here an epoch ends when its loader does."""
    kind = module._TrainingEpochLoop
    original = kind.run

    def run(self: Any, data_fetcher: Any) -> None:
        original(self, data_fetcher)
        if self.batch_progress.current.ready < self.trainer.num_training_batches and self._should_check_val_epoch():
            self.trainer.validating = True
            self.val_loop.run()
            self.trainer.training = True

    if hasattr(kind, "_should_check_val_epoch"):
        kind.run = run


def _prepare_torchvision() -> None:
    """See `vision`."""
    spec = importlib.util.find_spec("torchvision")
    if torchvision_ops.load_or_declare(Path(spec.origin).parent if spec is not None and spec.origin else None):
        when_imported("torchvision.extension", torchvision_ops.mark_operators_present)


def _never_skip_scaler_steps() -> None:
    """A GradScaler asks the GPU whether a gradient overflowed: none did."""

    def step(self: Any, optimizer: Any, optimizer_state: Any, *args: Any, **kwargs: Any) -> Any:
        return optimizer.step(*args, **kwargs)

    torch.amp.grad_scaler.GradScaler._maybe_opt_step = step


def _ignore_pin_memory() -> None:
    """`torch.tensor(..., pin_memory=True)` asks the GPU's driver for memory where no mode sees it.

    Source: torch/csrc/utils/tensor_new.cpp, `internal_new_from_data`.
    """
    make = torch.tensor
    _device_constructors()  # kept by PyTorch: a default device knows them by what they are now

    @functools.wraps(make)
    def tensor(*args: Any, **kwargs: Any) -> torch.Tensor:
        kwargs.pop("pin_memory", None)
        return make(*args, **kwargs)

    torch.tensor = tensor
    builtins = sys.modules.get("torch.jit._builtins")
    if builtins is not None and builtins._builtin_table is not None:
        builtins._register_builtin(tensor, "aten::tensor")


def _never_overflow(name: str, module: Any) -> None:
    """The same for DeepSpeed, which looks with tensors of its own."""
    kind = getattr(module, name, None)
    original = getattr(kind, "has_overflow", None)
    if kind is None or original is None:
        return

    def has_overflow(self: Any, *args: Any, **kwargs: Any) -> bool:
        original(self, *args, **kwargs)
        return False

    kind.has_overflow = has_overflow


def _patch_zero3_init(module: Any) -> None:
    """ZeRO-3 puts what `torch.empty` and its kin give on the GPU while a model is built: not what the tracer makes."""
    original = module.zero_wrapper_for_fp_tensor_constructor

    def wrapper(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
        for_scripts = original(function, *args, **kwargs)

        def construct(*args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1).f_globals.get("__name__", "")
            return (function if caller.startswith(_TRACER_MODULES) else for_scripts)(*args, **kwargs)

        return construct

    module.zero_wrapper_for_fp_tensor_constructor = wrapper


def _stub_missing_metrics(recorder: Any, module: Any) -> None:
    """A metric of `evaluate` is a script of the hub; where that is not on this machine, every result is 0."""
    load = module.load

    class Result(dict[str, float]):
        """Has any number that is asked for: `glue` gives an accuracy or an `f1`, as its part says."""

        def __missing__(self, name: str) -> float:
            return 0.0

    class Metric:
        """Takes what a metric takes, and gives its name with a 0."""

        def __init__(self, name: str) -> None:
            self.name = name

        def compute(self, *args: Any, **kwargs: Any) -> dict[str, float]:
            return Result({self.name: 0.0})

        def add(self, *args: Any, **kwargs: Any) -> None:
            return None

        add_batch = add

    def load_(path: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return load(path, *args, **kwargs)
        except (OSError, ImportError):
            if Path(path).suffix == ".py":
                raise
        recorder.warn(f"the metric `{path}` is not on this machine: it gives 0")
        return Metric(path)

    module.load = load_


def _assume_samples_in_support() -> None:
    """A distribution checks whether a sample could be its own, which a fake one cannot show."""
    kind: Any = torch.distributions.Distribution
    check = kind._validate_sample

    def check_as_far_as_known(self: Any, value: Any) -> None:
        try:
            check(self, value)
        except ValueError as error:
            if not isinstance(value, FakeTensor) or "within the support" not in str(error):
                raise

    kind._validate_sample = check_as_far_as_known


def _unwrap_dynamo_disable() -> None:
    """Keep optimizers and checkpoints from importing the compiler only to tell it to stay away (0.8 s)."""
    holders = [sys.modules["torch.optim.optimizer"].Optimizer, sys.modules.get("torch.utils.checkpoint")]
    for holder in holders:
        for value in list(vars(holder).values()) if holder is not None else ():
            plain = getattr(value, "__wrapped__", None)
            if plain is not None and getattr(value, "__code__", None) and "_compile.py" in value.__code__.co_filename:
                plain.__dynamo_disable = plain
