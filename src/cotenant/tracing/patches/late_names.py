"""Names that a module takes from another at its import and uses later or never: a use of one imports the other.

torchmetrics, which Lightning imports, takes two classes of transformers for one metric of texts; versions before 1.0
take more. `evaluate` takes its table of pipelines, to check the name of a task. Importing these takes 1 to 2 s. All
models of transformers take a function of SciPy, for losses of object detection, in 0.25 s.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from typing import Any

from cotenant.tracing.patches.deferred_module import DeferredModule, defer
from cotenant.tracing.patches.import_hooks import before_import, when_imported
from cotenant.tracing.patches.registry import HookPatch, PatchContext, Phase

_MATCHING_LOSSES = tuple(
    f"transformers.loss.loss_{name}"
    for name in ("deformable_detr", "for_object_detection", "grounding_dino", "lw_detr", "rf_detr", "rt_detr")
)
"""Modules that every model of transformers imports, for losses of object detection, which match boxes by SciPy."""

_TAKEN_BY: Mapping[str, Sequence[str]] = {
    "torchmetrics.functional.multimodal.clip_score": ("transformers",),
    "torchmetrics.functional.text.bert": ("transformers",),
    "torchmetrics.functional.text.helper_embedding_metric": ("transformers",),
    "torchmetrics.functional.text.infolm": ("transformers",),
    "torchmetrics.multimodal.clip_score": ("transformers",),
    "torchmetrics.text.bert": ("transformers",),
    **dict.fromkeys(_MATCHING_LOSSES, ("scipy.optimize",)),
    "evaluate.evaluator": ("transformers.pipelines",),
    "evaluate.evaluator.base": ("scipy.stats", "transformers"),
}
"""By module: those that it takes names from, none of which it uses before it is imported."""


def patches(context: PatchContext) -> list[HookPatch]:
    """Stand-ins of modules for what takes names from them, and of one that scripts take a name from."""
    return [
        *(
            HookPatch(
                target=importer, phase=Phase.LIBRARIES, register=functools.partial(_let_names_wait, importer),
                reason="What it takes from these modules at its import serves metrics that few scripts compute.",
                source=f"{importer.replace('.', '/')}: {', '.join(modules)}",
            )
            for importer, modules in _TAKEN_BY.items()
        ),
        HookPatch(
            target="functorch", phase=Phase.LIBRARIES,
            register=lambda: when_imported("functorch", _defer_fusion),
            reason="timm's scripts take a function of it for an option, and it imports the compiler, which takes 1 s.",
            source="train.py of huggingface/pytorch-image-models, `has_functorch`",
        ),
    ]  # fmt: skip


def _defer_fusion(_: object) -> None:
    defer("functorch.compile", _fusion)


def _fusion(module: DeferredModule) -> Mapping[str, Any]:
    def memory_efficient_fusion(*args: Any, **kwargs: Any) -> Any:
        return module.load().memory_efficient_fusion(*args, **kwargs)

    return {"memory_efficient_fusion": memory_efficient_fusion}


def _let_names_wait(importer: str) -> Callable[[], None]:
    """Let `importer` find stand-ins of the modules that are not loaded when its import begins; how to undo that."""
    stand_ins: list[_ModuleForOne] = []

    def begin() -> None:
        for name in _TAKEN_BY[importer]:
            is_free = isinstance(sys.modules.get(name), (_ModuleForOne, types.NoneType))
            if is_free and importlib.util.find_spec(name.partition(".")[0]) is not None:
                stand_ins.append(_ModuleForOne(name, importer))
                sys.modules[name] = stand_ins[-1]

    def end(_: object = None) -> None:
        while stand_ins:
            stand_ins.pop().leave()

    undo = before_import(importer, begin), when_imported(importer, end)

    def undo_all() -> None:
        for step in (*undo, end):
            step()

    return undo_all


class _ModuleForOne(types.ModuleType):
    """Stands in `sys.modules` while `importer` is imported: it gets names that wait, all others the real module.

    An importer may import another one, whose stand-in takes the place meanwhile.
    """

    def __init__(self, name: str, importer: str) -> None:
        super().__init__(name)
        vars(self).update(_importer=importer, _before=sys.modules.get(name), __spec__=ModuleSpec(name, None))

    def leave(self) -> None:
        """Let the next import find the real module."""
        name, before = vars(self)["__name__"], vars(self)["_before"]
        if sys.modules.get(name) is self:
            del sys.modules[name]
            if before is not None:
                sys.modules[name] = before

    def load(self) -> types.ModuleType:
        """The real module."""
        name = vars(self)["__name__"]
        while isinstance(present := sys.modules.get(name), _ModuleForOne):
            present.leave()
        return importlib.import_module(name)

    def __getattr__(self, name: str) -> Any:
        frame = sys._getframe(1)
        if frame.f_globals.get("__name__") == vars(self)["_importer"] and frame.f_code.co_name == "<module>":
            if name.startswith("__"):  # `from module import name` asks whether it is a package
                raise AttributeError(name)
            return LateName(self, name)
        return getattr(self.load(), name)


class LateName:
    """A function, class or table of a module that is imported when it is called, read or compared with."""

    def __init__(self, module: _ModuleForOne, name: str) -> None:
        vars(self).update(_module=module, _name=name)

    def _real(self) -> Any:
        return getattr(vars(self)["_module"].load(), vars(self)["_name"])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._real()(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # `inspect` and others look such names up in all that a module has
            raise AttributeError(name)
        return getattr(self._real(), name)

    def __getitem__(self, key: Any) -> Any:
        return self._real()[key]

    def __contains__(self, key: Any) -> bool:
        return key in self._real()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._real())

    def __len__(self) -> int:
        return len(self._real())

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, self._real())

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._real(),)
