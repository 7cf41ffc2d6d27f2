"""What the figures of a GPU are, and the rule for CUDA contexts that were not measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cotenant.core.errors import UnknownName
from cotenant.core.units import MiB

BARE_MIB_PER_SM = 3.0
LOADED_MIB_PER_SM = 4.85
MAX_MIB_PER_SM = 5.2
LOADED_LATER_MIB = 26
"""Size of a CUDA context where it was not measured. With lazy loading (the default since CUDA 12.2) it follows the SMs.

Bare: 426 MiB on the 142 SMs of an RTX 6000 Ada (torch 2.10.0+cu130, unsloth-zoo pull request 1053), 256 MiB on the 82
of an RTX 3090 (torch 2.7.1+cu128, InvokeAI issue 9413). With cuBLAS and cuDNN: 524 MiB on the 108 of an A100 (CARMA);
about 125 MiB on the 24 of an RTX 4060 (xMem), the most per SM. Kernels loaded while a job ran: 14 to 26 MiB (xMem).
"""

BARE_EAGER_MIB_PER_SM = 11.4
LOADED_EAGER_MIB_PER_SM = 15.9
MAX_EAGER_MIB_PER_SM = 22.8
LOADED_EAGER_MIB = 1358
MAX_EAGER_MIB = 1822
"""The same with all kernels loaded at once. Others measured three GPUs, with three versions of torch: 1237 MiB bare and
1718 with cuBLAS and cuDNN on the 108 SMs of an A100, 877 bare on the 68 of an RTX 2080 Ti, 1341 bare on the 80 of a
V100. Per SM, bare: 11.4, 12.9 and 16.8 MiB. The latter two with the A100's 481 MiB of libraries are `LOADED_EAGER_MIB`
and `MAX_EAGER_MIB`; code takes as much on a small GPU, so smaller ones are assumed to need no less.
"""

_DRIVER_SHARE = 0.015
_MIN_DRIVER_BYTES = 256 * MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextBytes:
    """Memory of a process outside the allocator: CUDA context, loaded kernels, library handles.

    Attributes:
        low_bytes, typical_bytes, high_bytes: the range to expect, and the value for a job that uses cuBLAS or cuDNN.
        bare_bytes: a context alone; `cublas_bytes`: with cuBLAS; None where not measured.
        derived: by the rule or from a sibling; not measured on this GPU.
    """

    low_bytes: int
    typical_bytes: int
    high_bytes: int
    derived: bool
    source: str
    bare_bytes: int | None = None
    cublas_bytes: int | None = None

    def plus(self, low_bytes: int, typical_bytes: int, high_bytes: int) -> ContextBytes:
        """The same context with more memory outside the allocator."""
        return replace(
            self,
            low_bytes=self.low_bytes + low_bytes,
            typical_bytes=self.typical_bytes + typical_bytes,
            high_bytes=self.high_bytes + high_bytes,
        )


def derived_context(sm_count: int) -> ContextBytes:
    """Context of a GPU with `sm_count` SMs where it was not measured."""
    return ContextBytes(
        low_bytes=round(BARE_MIB_PER_SM * sm_count) * MiB,
        typical_bytes=round(LOADED_MIB_PER_SM * sm_count) * MiB,
        high_bytes=round(MAX_MIB_PER_SM * sm_count + LOADED_LATER_MIB) * MiB,
        derived=True,
        source=f"rule: {sm_count} SMs of {BARE_MIB_PER_SM} to {MAX_MIB_PER_SM} MiB, {LOADED_LATER_MIB} MiB of kernels",
    )


def derived_eager_context(sm_count: int) -> ContextBytes:
    """Context with all kernels loaded at once, of a GPU with `sm_count` SMs where it was not measured."""
    return ContextBytes(
        low_bytes=round(BARE_EAGER_MIB_PER_SM * sm_count) * MiB,
        typical_bytes=max(LOADED_EAGER_MIB, round(LOADED_EAGER_MIB_PER_SM * sm_count)) * MiB,
        high_bytes=max(MAX_EAGER_MIB, round(MAX_EAGER_MIB_PER_SM * sm_count)) * MiB,
        derived=True,
        source=(
            f"rule: {sm_count} SMs of {BARE_EAGER_MIB_PER_SM} to {MAX_EAGER_MIB_PER_SM} MiB, with libraries at least "
            f"{LOADED_EAGER_MIB} and up to {MAX_EAGER_MIB} MiB"
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """A MIG instance that the GPU can be partitioned into."""

    name: str
    memory_bytes: int
    sm_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """A GPU model, or one MIG instance of it.

    Attributes:
        memory_total_bytes: as NVML counts; `torch_total_bytes`: as CUDA and torch count, which excludes what the
            driver reserves; None where not read.
        cublas_workspace_bytes: what torch allocates for a cuBLAS handle; part of the reserved bytes.
        board_power_w: power limit of the board; None where not read, and for a MIG instance.
        context: with lazy loading of kernels, the default of every supported torch; `eager_context`: with all kernels
            loaded at once, as a stack of 2024 still did; None where nothing is known (`with_eager_context`).
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
    board_power_w: float | None = None
    eager_context: ContextBytes | None = None
    mig: tuple[MigProfile, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def usable_bytes(self) -> int:
        """What all processes on this GPU can allocate together, contexts included: its memory as CUDA counts it.

        Where that number is unknown, the driver is assumed to reserve 1.5 % and at least 256 MiB: on ten GPUs it
        reserves 0.5 to 1.5 %, and 250 to 255 MiB of 8, 12 and 15 GiB (their files name the sources). The memory of a
        MIG instance is what is left after that.
        """
        if self.torch_total_bytes is not None:
            return self.torch_total_bytes
        if ":" in self.name:
            return self.memory_total_bytes
        return self.memory_total_bytes - max(_MIN_DRIVER_BYTES, int(self.memory_total_bytes * _DRIVER_SHARE))

    def with_eager_context(self) -> GpuSpec:
        """The GPU for a process that loads all kernels at once; where that was not measured, by a rule."""
        return replace(self, context=self.eager_context or derived_eager_context(self.sm_count))

    def instance(self, mig_name: str) -> GpuSpec:
        """One MIG instance, e.g. `3g.20gb`; its context is derived from its SMs.

        Raises:
            UnknownName: this GPU has no such MIG profile, or none is known.
        """
        found = next((profile for profile in self.mig if profile.name == mig_name.lower()), None)
        if found is None:
            raise UnknownName(f"MIG profile of {self.name}", mig_name, [profile.name for profile in self.mig])
        return replace(
            self,
            name=f"{self.name}:{found.name}",
            aliases=(),
            nvml_names=tuple(f"{name} MIG {found.name}" for name in self.nvml_names),
            # The figures of 7g and of the whole GPU come from different sources; an instance never exceeds its GPU.
            memory_total_bytes=min(found.memory_bytes, self.torch_total_bytes or found.memory_bytes),
            torch_total_bytes=None,
            sm_count=found.sm_count,
            context=derived_context(found.sm_count),
            board_power_w=None,
            eager_context=None,
            mig=(),
            sources={**self.sources, **dict.fromkeys(("memory_total_bytes", "sm_count"), self.sources["mig"])},
        )
