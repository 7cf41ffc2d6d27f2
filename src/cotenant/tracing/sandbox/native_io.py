"""Libraries that open files by compiled code, led to the scratch folder where a script's files are in it.

Tokenizers of Hugging Face, which every checkpoint of a `Trainer` saves, and tables of Arrow, which `datasets` maps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cotenant.tracing.patches.import_hooks import when_imported
from cotenant.tracing.sandbox.overlay import Overlay


def install(overlay: Overlay) -> None:
    """Redirect them once a script imports them."""
    when_imported("tokenizers", lambda module: _patch_tokenizers(overlay, module))
    when_imported("pyarrow", lambda module: _patch_arrow(overlay, module))


def _patch_tokenizers(overlay: Overlay, module: Any) -> None:
    kind = module.Tokenizer
    save, from_file = kind.save, kind.from_file

    def save_(self: Any, path: Any, *args: Any, **kwargs: Any) -> None:
        save(self, str(overlay.for_writing(path, fresh=True)), *args, **kwargs)

    kind.save = save_
    kind.from_file = staticmethod(lambda path: from_file(str(overlay.seen(path))))


def _patch_arrow(overlay: Overlay, module: Any) -> None:
    module.memory_map = _opened(overlay, module.memory_map)


def _opened(overlay: Overlay, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        is_read = mode in ("r", "rb")
        place = overlay.seen(path) if is_read else overlay.for_writing(path, fresh="w" in mode)
        return original(place, mode, *args, **kwargs)

    return call
