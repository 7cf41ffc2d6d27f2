"""Reads the files of `data/`, one per GPU, and finds a GPU by its name, an alias or the name NVML gives.

Every figure in a file has its source. A figure that was not measured is absent, or derived by a rule and marked so.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from typing import Any

from cotenant.core.errors import UnknownName, UsageError
from cotenant.gpu_specs.spec import ContextBytes, GpuSpec, MigProfile, derived_context

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_MEMORY_TOLERANCE = 0.08
"""Drivers before 510 excluded their own memory (16160 of 16384 MiB); ECC takes 6 % where it is stored in memory."""


@lru_cache(maxsize=1)
def all_gpu_specs() -> tuple[GpuSpec, ...]:
    """All GPUs, by name."""
    folder = resources.files("cotenant.gpu_specs") / "data"
    files = [file for file in folder.iterdir() if file.name.endswith(".toml")]
    specs = [_read(tomllib.loads(file.read_text(encoding="utf-8"))) for file in files]
    return tuple(sorted(specs, key=lambda spec: spec.name))


@lru_cache(maxsize=1)
def gpu_specs_by_name() -> Mapping[str, GpuSpec]:
    """All GPUs by the one name of each, such as `A100-40GB`; aliases are left to `gpu_spec`."""
    return {spec.name: spec for spec in all_gpu_specs()}


def gpu_spec(name: str) -> GpuSpec:
    """The GPU called `name`: its own name, an alias, or NVML's, in any case and with any separators.

    `A100-40GB:3g.20gb` is a MIG instance. A name that GPUs of several sizes share, such as `A100`, is an alias of the
    smallest; see `sizes_of`.

    Raises:
        UnknownName: there is none.
    """
    gpu_name, colon, mig_name = name.partition(":")
    wanted = _key(gpu_name)
    for spec in all_gpu_specs():
        if wanted in {_key(known) for known in (spec.name, *spec.aliases, *spec.nvml_names)}:
            return spec.instance(mig_name) if colon else spec
    names = [spec.name for spec in all_gpu_specs()]
    size = re.fullmatch(r"(\d+)gi?b?", wanted)  # no spelling of a name: the nearest one has another size
    if size is None:
        raise UnknownName("GPU", name, names)
    of_size = [known for known in names if known.endswith(f"-{size[1]}GB")]
    hint = f"a GPU is named by its model; of {size[1]} GB: {', '.join(of_size)}" if of_size else None
    raise UnknownName("GPU", name, names, hint=hint or "a GPU is named by its model")


def sizes_of(name: str) -> tuple[str, ...]:
    """The GPUs of several sizes that `name` may mean, as `A100` does; empty for the name of one GPU."""
    wanted = _key(name.partition(":")[0])
    sizes = [spec.name for spec in all_gpu_specs() if re.fullmatch(rf"{re.escape(wanted)}\d+gb", _key(spec.name))]
    return tuple(sizes) if len(sizes) > 1 else ()


def parse_gpu_spec(text: str) -> GpuSpec:
    """The GPU in a file of the format of `data/`, as `cotenant calibrate` writes it.

    Raises:
        UsageError: the text is not one.
    """
    try:
        return _read(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"not a GPU specification: {type(error).__name__}: {error}") from error


@lru_cache(maxsize=256)
def gpu_spec_for_nvml(name: str, memory_total_bytes: int) -> GpuSpec | None:
    """The GPU that NVML calls `name`; None if none of about that memory is known.

    A simulated GPU has the name of the table. The memory distinguishes GPUs of the same name, such as the RTX 3060 of
    12 GB and that of 8 GB.
    """
    gpu_name, _, mig_name = name.partition(" MIG ")
    for spec in all_gpu_specs():
        if _key(gpu_name) not in {_key(known) for known in (spec.name, *spec.nvml_names)}:
            continue
        if mig_name and all(profile.name != mig_name for profile in spec.mig):
            return None
        found = spec.instance(mig_name) if mig_name else spec
        if abs(found.memory_total_bytes - memory_total_bytes) <= _MEMORY_TOLERANCE * found.memory_total_bytes:
            return found
    return None


def _key(name: str) -> str:
    """Letters and digits of a name, without maker and brand."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return re.sub(r"^(nvidia)?(geforce|tesla)?", "", plain)


def _read(data: Mapping[str, Any]) -> GpuSpec:
    figures = {key: value for key, value in data.items() if isinstance(value, dict) and "value" in value}
    sources = {key: value["source"] for key, value in figures.items()}
    if "mig" in data:
        sources["mig"] = data["mig_source"]
    sm_count = figures["sm_count"]["value"]
    context = ContextBytes(**data["context"]) if "context" in data else derived_context(sm_count)
    major, minor = figures["compute_capability"]["value"]
    return GpuSpec(
        name=data["name"],
        aliases=tuple(data["aliases"]),
        nvml_names=tuple(data["nvml_names"]),
        memory_total_bytes=figures["memory_total_bytes"]["value"],
        torch_total_bytes=figures.get("torch_total_bytes", {}).get("value"),
        sm_count=sm_count,
        compute_capability=(major, minor),
        cublas_workspace_bytes=figures["cublas_workspace_bytes"]["value"],
        context=context,
        board_power_w=figures.get("board_power_w", {}).get("value"),
        eager_context=ContextBytes(**data["eager_context"]) if "eager_context" in data else None,
        mig=tuple(MigProfile(**profile) for profile in data.get("mig", ())),
        sources={**sources, "context": context.source},
    )
