"""CUDA extensions that a script compiles on the null GPU: for its GPU alone, and with a time limit that starts again.

Most of the time goes into PyTorch's headers, which `nvcc` reads three times for each file and the host's compiler once:
1 minute 54 s of CPU time for a file with one kernel (CUDA 13.0, torch 2.13), and 2 minutes 44 s outside the sandbox on
a busier machine, so that it is not the sandbox.
Source: torch/utils/cpp_extension.py, `load`, `load_inline`, `_get_cuda_arch_flags`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, MutableMapping
from typing import Any

from cotenant.tracing.patches.registry import Patch, Phase

_ARCHITECTURES = "TORCH_CUDA_ARCH_LIST"
HINT = (
    "build it beforehand and install it, or estimate again, which goes on with the files that are left; "
    f"`{_ARCHITECTURES}` with one architecture and more `MAX_JOBS` shorten a build, `--timeout` raises the limit"
)


class ExtensionBuilds:
    """Builds of a script.

    Attributes:
        name: of the extension that is being built; empty where none is.
        count: builds that have ended.
    """

    def __init__(self) -> None:
        self.name = ""
        self.count = 0

    def patches(self) -> list[Patch]:
        """Functions that build and load."""
        return [
            Patch(
                target=f"torch.utils.cpp_extension:{name}", phase=Phase.LIBRARIES, replacement=self._watching,
                wraps=True, reason="A build takes minutes; where it does not end, the answer names it.",
                source=f"torch/utils/cpp_extension.py, `{name}`",
            )
            for name in ("load", "load_inline")
        ]  # fmt: skip

    def _watching(self, build: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(build)
        def call(name: str, *args: Any, **kwargs: Any) -> Any:
            self.name = name
            try:
                return build(name, *args, **kwargs)
            finally:
                self.name = ""
                self.count += 1

        return call


def narrow_architectures(env: MutableMapping[str, str], capability: tuple[int, int]) -> None:
    """Leave of `TORCH_CUDA_ARCH_LIST` only what is for `capability`, if anything is: no kernel runs on another GPU."""
    listed = re.split(r"[ ;]+", env.get(_ARCHITECTURES, ""))
    wanted = re.compile(rf"{capability[0]}\.{capability[1]}[af]?(\+PTX)?")
    own = [architecture for architecture in listed if wanted.fullmatch(architecture)]
    if own:
        env[_ARCHITECTURES] = ";".join(own)
