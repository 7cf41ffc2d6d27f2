"""Imported by every Python of a job on a simulated server before its script: gives torch the simulated GPUs.

The folder of this file is on the PYTHONPATH of those jobs only. Their Python need not have cotenant installed: the
package is made importable when torch is imported. A `sitecustomize` of the user still runs.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import pathlib
import sys
from types import ModuleType

_HERE = pathlib.Path(__file__).resolve().parent
_PACKAGE = _HERE.parents[2]
_MIN_PYTHON = (3, 10)


class _TorchFinder(importlib.abc.MetaPathFinder):
    """Makes cotenant importable, and runs `install` after torch has been imported."""

    def __init__(self) -> None:
        self.busy = False

    def find_spec(
        self,
        name: str,
        path: object = None,  # noqa: ARG002 (the signature is importlib's)
        target: object = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        if name == "cotenant":
            return importlib.util.spec_from_file_location(
                name, str(_PACKAGE / "__init__.py"), submodule_search_locations=[str(_PACKAGE)]
            )
        if name != "torch" or self.busy:
            return None
        self.busy = True
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    """Torch's own loader; afterwards `install` runs."""

    def __init__(self, inner: importlib.abc.Loader) -> None:
        self.inner = inner

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.inner.exec_module(module)
        from cotenant.simserver.torch.install import install

        install()


def _run_user_sitecustomize() -> None:
    other_entries = [entry for entry in sys.path if pathlib.Path(entry).resolve() != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", other_entries)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if os.environ.get("COTENANT_SIM_SERVER") and os.environ.get("CUDA_VISIBLE_DEVICES") and sys.version_info >= _MIN_PYTHON:
    sys.meta_path.insert(0, _TorchFinder())
_run_user_sitecustomize()
