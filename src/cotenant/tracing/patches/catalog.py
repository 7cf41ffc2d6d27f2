"""All patches of a trace: the modules that provide them, and a list for people."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

from cotenant.core.ports import TraceOptions
from cotenant.tracing.patches import torch_import
from cotenant.tracing.patches.registry import AbsenceContext, Entry, PatchContext, PatchTable

_PROVIDERS = (
    "device.libtorch_patch",
    "device.cuda_api",
    "device.driver_queries",
    "device.fake_tensor_attrs",
    "device.rng",
    "device.legacy_tensor_types",
    "device.null_profilers",
    "patches.fake_mode",
    "operators.missing_cuda_kernels",
    "operators.attention",
    "operators.encoder_layers",
    "operators.rnn",
    "operators.losses",
    "operators.product_gradients",
    "operators.values_alone",
    "operators.flex_attention",
    "operators.nested_tensors",
    "assumptions.moe_routing",
    "training.torch_compile",
    "inductor.cpu_build",
    "inductor.compiled_frames",
    "inductor.cuda_graph_trees",
    "training.torchscript",
    "training.deepcopy",
    "training.autograd_thread",
    "training.training_observer",
    "training.library_optimizers",
    "training.library_validations",
    "training.lbfgs",
    "training.repeated_evaluation",
    "training.repeated_generation",
    "training.module_to_device",
    "distributed.process_groups",
    "distributed.local_rank_option",
    "patches.torch_functions",
    "patches.initializations",
    "patches.deferred_compiler",
    "patches.deferred_imports",
    "patches.deferred_dtensor",
    "patches.late_names",
    "patches.import_structures",
    "patches.distributions",
    "patches.libraries",
    "patches.deepspeed",
    "patches.compiled_optimizers",
    "patches.flash_attention",
    "patches.state_space_kernels",
    "patches.xformers",
    "patches.own_kernels",
    "patches.missing_weights",
    "patches.missing_hub_weights",
    "patches.hf_pretrained",
    "patches.diffusers_pretrained",
    "patches.missing_processors",
    "patches.missing_metrics",
    "patches.bitsandbytes",
    "patches.cpp_extensions",
    "sensors.nvml",
    "patches.image_transforms",
    "patches.graph_summaries",
    "patches.self_tests",
    "patches.terminal",
    "distributed.child_programs",
    "sandbox.torch_save",
    "data.loaders.dataloader",
    "data.synthetic_data",
)
"""Modules below `cotenant.tracing` with a function `patches(context)`. The session applies those of
`sandbox.overlay_hooks` and of `patches.torch_import` by itself, before it imports torch."""

_ABSENCE_PROVIDERS = (
    "patches.missing_weights",
    "patches.missing_hub_weights",
    "patches.hf_pretrained",
    "patches.diffusers_pretrained",
    "patches.missing_processors",
    "patches.missing_metrics",
    "patches.terminal",
    "patches.distributions",
    "data.synthetic_data",
)
"""Those for what is not there on the null GPU either: data, models, metrics, a terminal, and values to be checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchRow:
    """One patch, for people.

    Attributes:
        is_present: whether the installed version has the target; None: the module is not loaded.
    """

    phase: str
    target: str
    reason: str
    source: str
    missing: str
    is_present: bool | None


def all_patches(context: PatchContext) -> list[Entry]:
    """The entries for one session; imports all of the tracer."""
    return [entry for module in import_providers() for entry in module.patches(context)]


def absence_patches(context: AbsenceContext) -> list[Entry]:
    """The entries for what is not on this machine."""
    return [entry for module in import_providers(_ABSENCE_PROVIDERS) for entry in module.patches(context)]


def import_providers(names: Sequence[str] = _PROVIDERS) -> list[ModuleType]:
    """The modules that have the entries, imported."""
    return [importlib.import_module(f"cotenant.tracing.{name}") for name in names]


def list_patches() -> list[PatchRow]:
    """Every patch that a trace may apply in this interpreter, in order. Imports torch; applies nothing.

    Raises:
        ImportError: torch is not installed.
    """
    from cotenant.tracing.sandbox import overlay_hooks

    context = _unattached_context()
    table = PatchTable([*overlay_hooks.patches(context.overlay), *torch_import.patches(), *all_patches(context)])
    return [
        PatchRow(
            phase=entry.phase.name.lower(),
            target=entry.target,
            reason=entry.reason,
            source=entry.source,
            missing=entry.missing,
            is_present=entry.is_present(),
        )
        for entry in table
    ]


def _unattached_context() -> PatchContext:
    """A context as of a session with every option, which records nothing."""
    from cotenant.tracing.device.cuda_api import FakeGpuSpec
    from cotenant.tracing.distributed.nccl_groups import NcclGroups
    from cotenant.tracing.mode import TraceMode
    from cotenant.tracing.recorder import TraceRecorder
    from cotenant.tracing.sandbox.overlay import Overlay
    from cotenant.tracing.training.training_observer import TrainingObserver

    recorder = TraceRecorder()
    return PatchContext(
        options=TraceOptions(synthetic_data=("3x224x224",), compiled_code="inductor"),
        gpu=FakeGpuSpec(name="A100", total_bytes=40 << 30, capability=(8, 0), sm_count=108),
        recorder=recorder,
        mode=TraceMode(recorder),
        observer=TrainingObserver(recorder, steps=1, finish=lambda: None),
        overlay=Overlay(tempfile.gettempdir()),
        groups=NcclGroups(recorder),
    )
