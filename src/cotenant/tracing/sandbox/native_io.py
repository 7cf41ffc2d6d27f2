"""Libraries whose compiled code opens files itself: their paths are redirected to the overlay.

Hugging Face tokenizers, which every checkpoint of a `Trainer` saves, Arrow tables, which `datasets` maps, and storages.

A module of its own: these libraries are known by name and need not be installed.
"""

from __future__ import annotations

from typing import Any

from cotenant.tracing.patches.registry import Patch, Phase
from cotenant.tracing.sandbox.overlay import Overlay


def patches(overlay: Overlay) -> list[Patch]:
    """Functions that take a path."""

    def save(original: Any) -> Any:
        def call(self: Any, path: Any, *args: Any, **kwargs: Any) -> None:
            original(self, str(overlay.for_writing(path, fresh=True)), *args, **kwargs)

        return call

    def from_file(original: Any) -> Any:
        return staticmethod(lambda path: original(str(overlay.visible(path))))

    def memory_map(original: Any) -> Any:
        def call(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            reads = mode in ("r", "rb")
            redirected = overlay.visible(path) if reads else overlay.for_writing(path, fresh="w" in mode)
            return original(redirected, mode, *args, **kwargs)

        return call

    def map_storage(original: Any) -> Any:
        def call(filename: Any, shared: bool | None = False, *args: Any, **kwargs: Any) -> Any:
            redirected = overlay.for_writing(filename, fresh=False) if shared else overlay.visible(filename)
            return original(str(redirected), shared, *args, **kwargs)

        return call

    rust = "Tokenizers are Rust, which opens files without Python's functions."
    return [
        Patch(
            target="tokenizers:Tokenizer.save", phase=Phase.DATA, replacement=save, wraps=True,
            reason=rust, source="tokenizers/__init__.pyi, `Tokenizer.save`",
        ),
        Patch(
            target="tokenizers:Tokenizer.from_file", phase=Phase.DATA, replacement=from_file, wraps=True,
            reason=rust, source="tokenizers/__init__.pyi, `Tokenizer.from_file`",
        ),
        Patch(
            target="pyarrow:memory_map", phase=Phase.DATA, replacement=memory_map, wraps=True,
            reason="Arrow maps files in C++.", source="pyarrow/io.pxi, `memory_map`",
        ),
        Patch(
            target="torch:from_file", phase=Phase.DATA, replacement=map_storage, wraps=True,
            reason="PyTorch maps files in C++.", source="aten/src/ATen/native/TensorFactories.cpp, `from_file`",
        ),
    ]  # fmt: skip
