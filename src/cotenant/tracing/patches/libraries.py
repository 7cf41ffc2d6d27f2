"""Libraries around torch: small changes without which ordinary scripts do not import or run under a trace.

No patch here imports a library that the script does not import.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from cotenant.tracing.operators import torchvision_ops
from cotenant.tracing.patches.import_hooks import before_import, when_imported
from cotenant.tracing.patches.registry import (
    Entry,
    HookPatch,
    ImportPatch,
    Patch,
    PatchContext,
    Phase,
    patch_attributes,
)


def patches(context: PatchContext) -> list[Entry]:
    """Of torchvision, transformers, safetensors, Lightning, torchmetrics, scikit-learn, tqdm and others."""
    return [
        HookPatch(
            target="torchvision", phase=Phase.LIBRARIES,
            register=lambda: before_import("torchvision", load_torchvision_operators),
            reason="A CUDA build of torchvision beside a CPU build of torch fails at import.",
            source="torchvision/_meta_registrations.py",
        ),
        Patch(
            target="transformers.utils.import_utils:is_fake_tensor", phase=Phase.LIBRARIES,
            replacement=lambda x: False, also_in="transformers", missing="before 4.56",
            reason="transformers skips the values of a fake mask; a trace knows them.",
            source="transformers/utils/import_utils.py, `is_fake_tensor`",
        ),
        Patch(
            target="transformers.utils.import_utils:is_torch_tf32_available", phase=Phase.LIBRARIES,
            replacement=lambda: torch.cuda.get_device_properties(0).major >= 8, also_in="transformers",
            reason="It requires a CUDA build of torch; the simulated GPU decides.",
            source="transformers/utils/import_utils.py, `is_torch_tf32_available`",
        ),
        *tracker_patches(),
        *saving_patches(),
        *_metric_patches(context),
        ImportPatch(
            target="tqdm.notebook", phase=Phase.LIBRARIES, expand=_bars_of_text,
            reason="Without ipywidgets its bars raise.", source="tqdm/notebook.py, `status_printer`",
        ),
    ]  # fmt: skip


def tracker_patches() -> list[Patch]:
    """Of trackers of experiments, which are off: on a null GPU, too."""
    return [
        Patch(
            target="transformers.integrations.integration_utils:get_reporting_integration_callbacks",
            phase=Phase.LIBRARIES, replacement=lambda report_to: [], also_in="transformers",
            missing="transformers before 4.34",
            reason="Trackers are off in a trace, and the callback of one that is off raises.",
            source="transformers/integrations/integration_utils.py, `WandbCallback.__init__`",
        ),
        Patch(
            target="wandb.sdk.wandb_init:init", phase=Phase.LIBRARIES, replacement=_without_run, wraps=True,
            also_in="wandb", reason="A run that the script wants, whatever WANDB_MODE says, is written by a service.",
            source="wandb/sdk/wandb_init.py, `init`",
        ),
    ]  # fmt: skip


def saving_patches() -> list[Patch]:
    """Of safetensors, which writes past the sandbox. A null GPU does not compute the values either.

    `accelerate launch` has imported the function by another name before it starts the script.
    """
    common: dict[str, Any] = {
        "phase": Phase.LIBRARIES, "replacement": lambda *args, **kwargs: None,
        "reason": "Fake tensors have no data to write, and it writes past the sandbox.",
    }  # fmt: skip
    return [
        *(
            Patch(target=f"safetensors.torch:{name}", source="safetensors/torch.py, `save_file`", **common)
            for name in ("save_file", "save_model")
        ),
        Patch(
            target="accelerate.utils.other:safe_save_file",
            missing="accelerate before 0.21",
            source="accelerate/utils/other.py, `save`",
            **common,
        ),
    ]


def _metric_patches(context: PatchContext) -> list[Entry]:
    """Of scikit-learn and torchmetrics."""
    return [
        *(
            Patch(
                target=f"sklearn.metrics.{target}", phase=Phase.LIBRARIES, wraps=True, also_in="sklearn",
                replacement=functools.partial(_scoring_one_class, context.recorder),
                reason="Labels that come from a GPU are all alike, for which a score of classes is not defined.",
                source=f"sklearn/metrics/{target.replace(':', '.py, `')}`",
            )
            for target in ("_classification:log_loss", "_ranking:roc_auc_score", "_ranking:average_precision_score")
        ),
        *(
            ImportPatch(
                target=f"torchmetrics.functional.classification.{name}", phase=Phase.LIBRARIES, expand=_validations,
                reason="It counts the different values of a tensor, which are not known.",
                source=f"torchmetrics/functional/classification/{name}.py, `_*_tensor_validation`",
            )
            for name in ("stat_scores", "confusion_matrix", "precision_recall_curve")
        ),
    ]  # fmt: skip


def _bars_of_text(module: ModuleType) -> list[Entry]:
    """Bars of text in place of those of a notebook, where these cannot be made."""
    if module.IProgress is not None:
        return []
    bars = {"tqdm_notebook": module.std_tqdm, "tqdm": module.std_tqdm}
    ranges = dict.fromkeys(("tnrange", "trange"), importlib.import_module("tqdm.std").trange)
    return list(
        patch_attributes(
            "tqdm.notebook", {**bars, **ranges}, phase=Phase.LIBRARIES, reason="Nobody looks at bars of a notebook.",
            source="tqdm/notebook.py",
        )
    )  # fmt: skip


def _scoring_one_class(recorder: Any, original: Any) -> Any:
    @functools.wraps(original)
    def score(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except ValueError as error:
            recorder.warn(f"`{original.__name__}` of scikit-learn has no value here ({error}); it counts as 0")
            return 0.0

    return score


def _validations(module: ModuleType) -> list[Patch]:
    """The functions of torchmetrics that check the values of their tensors."""
    own = [name for name in vars(module) if name.endswith("_tensor_validation")]
    return [
        Patch(
            target=f"{module.__name__}:{name}", phase=Phase.LIBRARIES, replacement=_accepting_values, wraps=True,
            also_in="torchmetrics", reason="Values of a GPU are not known.", source=module.__name__,
        )
        for name in own
        if vars(module)[name].__module__ == module.__name__
    ]  # fmt: skip


def _accepting_values(original: Any) -> Any:
    @functools.wraps(original)
    def validate(*args: Any, **kwargs: Any) -> None:
        try:
            original(*args, **kwargs)
        except RuntimeError:
            if not any(isinstance(arg, torch.Tensor) and arg.is_cuda for arg in (*args, *kwargs.values())):
                raise

    return validate


def _without_run(original: Any) -> Any:
    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **{**kwargs, "mode": "disabled"})

    return init


def load_torchvision_operators() -> None:
    """Load or declare its compiled operators before it is imported; see `torchvision_ops`."""
    spec = importlib.util.find_spec("torchvision")
    folder = Path(spec.origin).parent if spec is not None and spec.origin else None
    if torchvision_ops.load_or_declare(folder):
        when_imported("torchvision.extension", torchvision_ops.mark_operators_present)
