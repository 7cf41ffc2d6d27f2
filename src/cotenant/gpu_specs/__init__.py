"""The one table of GPUs: estimates, the simulator and the simulated server read the same figures.

A new GPU is one file in `data/`, found without a line here.
"""

from cotenant.gpu_specs.spec import ContextBytes, GpuSpec, MigProfile, derived_context
from cotenant.gpu_specs.table import (
    all_gpu_specs,
    gpu_spec,
    gpu_spec_for_nvml,
    gpu_specs_by_name,
    parse_gpu_spec,
    sizes_of,
)

__all__ = [
    "ContextBytes",
    "GpuSpec",
    "MigProfile",
    "all_gpu_specs",
    "derived_context",
    "gpu_spec",
    "gpu_spec_for_nvml",
    "gpu_specs_by_name",
    "parse_gpu_spec",
    "sizes_of",
]
