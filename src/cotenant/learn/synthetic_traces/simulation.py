"""Peak memory of a data set's row, from its synthetic trace: no script, no torch, milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from cotenant.core.errors import UsageError
from cotenant.core.trace import MemoryTrace
from cotenant.estimators.learned.network_features import Replays, conv_features, replays_of
from cotenant.estimators.replay_input import (
    ReplayInput,
    SoftwareStack,
    make_replay_input,
    make_software_stack,
)
from cotenant.gpu_specs import gpu_spec
from cotenant.learn.datasets.dataset_row import DatasetRow
from cotenant.learn.synthetic_traces.mlp_cnn import layer_list_job
from cotenant.learn.synthetic_traces.synthetic_job import SyntheticJob, trace_of
from cotenant.learn.synthetic_traces.transformer import encoder_job, encoder_of

TORCH = "2.4.1"
"""The version whose allocator rules apply to the published runs. Theirs is not recorded; they are of 2024."""
GPU = "A100-40GB"
_MODELED = {"optimizer": ("adam", "adamw"), "precision": ("fp32",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """Replays of a synthetic job with unlimited memory; of the allocator only, without the context.

    Attributes:
        conv: `conv_features`; None for a network that does not convolve.
    """

    replays: Replays
    conv: Mapping[str, float] | None


def job_of(row: DatasetRow) -> SyntheticJob:
    """The synthetic job of a row.

    Raises:
        UsageError: it lacks information, or its network or training is not modeled.
    """
    for name, modeled in _MODELED.items():
        value = row.extras.get(name)
        if value is not None and str(value) not in modeled:
            raise UsageError(f"row `{row.config_id}` is trained with {name} `{value}`, which is not simulated")
    if row.family == "transformer":
        return encoder_job(encoder_of(row), row.batch, int(row.extras.get("last_batch", 0)))
    return layer_list_job(row)


def synthetic_trace(row: DatasetRow) -> MemoryTrace:
    """The synthetic trace of a row; raises as `job_of` does."""
    return trace_of(job_of(row), torch=TORCH)


def simulate(row: DatasetRow, gpu: str = GPU) -> Simulated:
    """The peaks of the row's job; raises as `job_of` does."""
    recorded = synthetic_trace(row)
    replay_input = replay_input_for(recorded, gpu)
    replays = replays_of(recorded, replay_input)
    return Simulated(replays=replays, conv=conv_features(recorded, replays))


def reserved_within(row: DatasetRow, outside_bytes: int, gpu: str = GPU) -> int | None:
    """Peak reserved bytes on a GPU of which `outside_bytes` are used by others; None: out of memory."""
    known = gpu_spec(gpu)
    replay_input = replay_input_for(synthetic_trace(row), gpu)
    result = replay_input.replay(max(0, known.usable_bytes - outside_bytes))
    return None if result.oom is not None else result.peak_reserved_bytes


def replay_input_for(recorded: MemoryTrace, gpu: str = GPU) -> ReplayInput:
    """A trace on `gpu`, by the rules of the torch version in its header."""
    return make_replay_input(recorded, gpu_spec(gpu), _stack(recorded.header.torch_version))


@lru_cache(maxsize=8)
def _stack(version: str) -> SoftwareStack:
    return make_software_stack(version, "")
