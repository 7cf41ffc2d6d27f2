"""What `update_parameters` takes: submitit's own words, and those of a job here."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from cotenant.core.units import parse_bytes

SHARED = (
    "name",
    "timeout_min",
    "gpus_per_node",
    "stderr_to_stdout",
    "nodes",
    "tasks_per_node",
    "mem_gb",
    "cpus_per_task",
)
"""Submitit's words for all clusters."""
FIELDS: Mapping[str, str] = {
    "estimator": "estimator",
    "exclusive": "exclusive",
    "gpu_mem": "declared_bytes",
    "max_attempts": "max_attempts",
    "max_slowdown": "max_slowdown",
    "notify": "notify",
    "priority": "priority",
    "progress": "progress",
    "retries": "retries",
    "sharing": "sharing",
    "time_slice_min": "time_slice_s",
}
"""Field of a job for each word of our own. They mean what the options of `cotenant submit` mean."""
OWN = frozenset((*FIELDS, "signal_delay_s"))
SIGNAL_DELAY_S = 90.0
"""Before the time limit; the same as submitit requests of Slurm."""


def check_parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    """`given` without those that are None.

    Raises:
        ValueError: there is no such parameter, or its value cannot be had here; the message says which can.
        UsageError: `gpu_mem` is no amount of memory.
    """
    values = {name: value for name, value in given.items() if value is not None}
    unknown = sorted(values.keys() - OWN - set(SHARED))
    if unknown:
        raise ValueError(f"no such parameter: {', '.join(unknown)} (known: {', '.join(sorted((*OWN, *SHARED)))})")
    for name in ("nodes", "tasks_per_node"):
        if values.get(name, 1) != 1:
            raise ValueError(
                f"{name}={values[name]}, wanted 1: a job is one process on one machine, which may start more"
            )
    if values.get("gpus_per_node", 1) < 1:
        raise ValueError(f"gpus_per_node={values['gpus_per_node']}, wanted 1 or more: each job here has a GPU")
    for name in ("mem_gb", "cpus_per_task"):
        if name in values:
            warnings.warn(f"{name} has no effect: memory and CPUs of the host are not reserved", stacklevel=4)
    if "gpu_mem" in values:
        job_fields({"gpu_mem": values["gpu_mem"]})
    return values


def job_fields(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a job from checked parameters.

    Raises:
        UsageError: `gpu_mem` is no amount of memory.
    """
    found = {FIELDS[name]: value for name, value in parameters.items() if name in FIELDS}
    if isinstance(found.get("declared_bytes"), str):
        found["declared_bytes"] = parse_bytes(found["declared_bytes"])
    if "time_slice_s" in found:
        found["time_slice_s"] *= 60.0
    if "timeout_min" in parameters:
        found["time_limit_s"] = parameters["timeout_min"] * 60.0
    return {**found, "gpus": parameters.get("gpus_per_node", 1)}
