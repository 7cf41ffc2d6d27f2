"""Device profiles: what an estimate must know of a GPU that is not here.

One file per card in `data/devices`, every figure with its source. A figure nobody has measured is absent, or
derived by a rule that is stated, and then marked so.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import resources
from typing import Any

from cotenant.core.errors import UnknownName, UsageError
from cotenant.core.units import MiB

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BARE_MIB_PER_SM = 3.0
LOADED_MIB_PER_SM = 4.85
MAX_MIB_PER_SM = 5.2
LOADED_LATER_MIB = 26
"""Rule for contexts that nobody measured; with lazy loading, the default since CUDA 12.2, size follows the SMs.

Bare: 426 MiB on the 142 SMs of an RTX 6000 Ada (torch 2.10.0+cu130, unsloth-zoo pull request 1053), 256 MiB on the 82
of an RTX 3090 (torch 2.7.1+cu128, InvokeAI issue 9413). With cuBLAS and cuDNN: 524 MiB on the 108 of an A100 (CARMA);
about 125 MiB on the 24 of an RTX 4060 (xMem), the most per SM. Kernels loaded while a job ran: 14 to 26 MiB (xMem).
"""

_MEMORY_TOLERANCE = 0.08
"""Drivers before 510 left out what they keep (16160 of 16384 MiB), and ECC takes 6 % where it lives in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextBytes:
    """Memory of a process outside the allocator: CUDA context, loaded kernels, library handles.

    Attributes:
        low_bytes, typical_bytes, high_bytes: interval to expect, and its middle for a job that uses cuBLAS or cuDNN.
        bare_bytes: a context alone; `cublas_bytes`: with cuBLAS; None where not measured.
        derived: by a rule or from a sibling, not measured on this card.
    """

    low_bytes: int
    typical_bytes: int
    high_bytes: int
    derived: bool
    source: str
    bare_bytes: int | None = None
    cublas_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """A MIG instance that the card can be cut into."""

    name: str
    memory_bytes: int
    sm_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """A GPU model, or one MIG instance of it.

    Attributes:
        memory_total_bytes: as NVML counts; `torch_total_bytes`: as CUDA and torch count, which leaves out what the
            driver keeps; None where not read.
        cublas_workspace_bytes: what torch allocates for a cuBLAS handle; part of the reserved bytes.
        context: with kernels loaded when first used, the default of every torch in question; `eager_context`: with
            all loaded at once, as a stack of 2024 still did; None where not measured.
        sources: where the figures come from, by field.
    """

    name: str
    aliases: tuple[str, ...]
    nvml_names: tuple[str, ...]
    memory_total_bytes: int
    torch_total_bytes: int | None
    sm_count: int
    compute_capability: tuple[int, int]
    cublas_workspace_bytes: int
    context: ContextBytes
    eager_context: ContextBytes | None = None
    mig: tuple[MigProfile, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)

    def instance(self, mig_name: str) -> GpuSpec:
        """Profile of one MIG instance, e.g. `3g.20gb`; its context is derived from its SMs.

        Raises:
            UnknownName: this card has no such profile, or none is known.
        """
        for each in self.mig:
            if each.name == mig_name.lower():
                return replace(
                    self,
                    name=f"{self.name}:{each.name}",
                    aliases=(),
                    nvml_names=tuple(f"{name} MIG {each.name}" for name in self.nvml_names),
                    # Sources of 7g and of the whole card differ; an instance has no more than its card.
                    memory_total_bytes=min(each.memory_bytes, self.torch_total_bytes or each.memory_bytes),
                    torch_total_bytes=None,
                    sm_count=each.sm_count,
                    context=derived_context(each.sm_count),
                    eager_context=None,
                    mig=(),
                    sources={
                        **self.sources,
                        **dict.fromkeys(("memory_total_bytes", "sm_count"), self.sources["mig"]),
                    },
                )
        raise UnknownName(f"MIG profile of {self.name}", mig_name, [each.name for each in self.mig])


def derived_context(sm_count: int) -> ContextBytes:
    """Context of a card with so many SMs, where nobody measured it."""
    return ContextBytes(
        low_bytes=round(BARE_MIB_PER_SM * sm_count) * MiB,
        typical_bytes=round(LOADED_MIB_PER_SM * sm_count) * MiB,
        high_bytes=round(MAX_MIB_PER_SM * sm_count + LOADED_LATER_MIB) * MiB,
        derived=True,
        source=f"rule: {sm_count} SMs of {BARE_MIB_PER_SM} to {MAX_MIB_PER_SM} MiB, {LOADED_LATER_MIB} MiB of kernels",
    )


def all_gpu_specs() -> tuple[GpuSpec, ...]:
    """All profiles, by name."""
    return _load()


def gpu_spec(name: str) -> GpuSpec:
    """The profile that goes by `name`: its own, an alias, or NVML's, in any case and with any separators.

    `A100-40GB:3g.20gb` is a MIG instance.

    Raises:
        UnknownName: there is none.
    """
    card, colon, mig_name = name.partition(":")
    wanted = _key(card)
    for each in _load():
        if wanted in {_key(known) for known in (each.name, *each.aliases, *each.nvml_names)}:
            return each.instance(mig_name) if colon else each
    raise UnknownName("device profile", name, [each.name for each in _load()])


def parse_gpu_spec(text: str) -> GpuSpec:
    """The profile in a file of the format of `data/devices`, as `cotenant calibrate` writes it.

    Raises:
        UsageError: it is none.
    """
    try:
        return _read(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"no device profile: {type(error).__name__}: {error}") from error


def gpu_spec_for_nvml(name: str, memory_total_bytes: int) -> GpuSpec | None:
    """The profile of a GPU that NVML calls `name`; None if there is none with about that memory.

    The memory tells a 12 GB card from one of 8 GB that has the same name.
    """
    card, _, mig_name = name.partition(" MIG ")
    for each in _load():
        if _key(card) not in {_key(known) for known in each.nvml_names}:
            continue
        found: GpuSpec | None = each
        if mig_name:
            known_instance = any(instance.name == mig_name for instance in each.mig)
            found = each.instance(mig_name) if known_instance else None
        if found is None:
            return None
        total = found.memory_total_bytes
        if abs(total - memory_total_bytes) <= _MEMORY_TOLERANCE * total:
            return found
    return None


def _key(name: str) -> str:
    """Letters and digits of a name, without its maker and its brand."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return re.sub(r"^(nvidia)?(geforce|tesla)?", "", plain)


@lru_cache(maxsize=1)
def _load() -> tuple[GpuSpec, ...]:
    folder = resources.files("cotenant.estimators") / "data" / "devices"
    files = [each for each in folder.iterdir() if each.name.endswith(".toml")]
    found = [_read(tomllib.loads(each.read_text(encoding="utf-8"))) for each in files]
    return tuple(sorted(found, key=lambda each: each.name))


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
        eager_context=ContextBytes(**data["eager_context"]) if "eager_context" in data else None,
        mig=tuple(MigProfile(**each) for each in data.get("mig", ())),
        sources={**sources, "context": context.source},
    )
