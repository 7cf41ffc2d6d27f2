"""Labels configurations by the allocator's simulation of their layers: no script, no GPU, tenths of a second each.

What it knows of a network is `learn.synthetic_traces`: chains of layers and encoders, trained with Adam in fp32.
"""

from __future__ import annotations

import dataclasses
import gc
import time

from cotenant.core.errors import UsageError
from cotenant.gpu_specs import gpu_spec
from cotenant.learn.data_collection.configs import Config, config_id
from cotenant.learn.data_collection.run_log import LabelRecord, utc_now
from cotenant.learn.datasets.clean import row_of
from cotenant.learn.datasets.dataset_row import DatasetRow, layers_to_text
from cotenant.learn.networks.building import layers_of
from cotenant.learn.synthetic_traces.simulation import TORCH, reserved_within, simulate


class SimulatingLabeler:
    """Simulates each configuration on `gpu`, a name in `cotenant.gpu_specs`.

    Raises:
        UnknownName: no such GPU.
    """

    def __init__(self, gpu: str) -> None:
        self._gpu = gpu_spec(gpu)
        gc.freeze()  # a trace makes 10,000 objects: collections that visit those of torch take half of its time

    def label(self, config: Config) -> LabelRecord:
        """The record, with source `simulated`; a `crash` if the network or its training is not modeled."""
        began_s = time.monotonic()
        record = LabelRecord(
            config_id=config_id(config),
            status="crash",
            source="simulated",
            at=utc_now(),
            gpu=self._gpu.name,
            layers=layers_to_text(layers_of(config)),
            context_bytes=self._gpu.context.typical_bytes,
            capacity_bytes=self._gpu.memory_total_bytes,
            torch=TORCH,
        )
        try:
            record = self._simulated(record, row_of(record))
        except UsageError as error:
            record = dataclasses.replace(record, message=error.message)
        return dataclasses.replace(record, elapsed_s=round(time.monotonic() - began_s, 3))

    def _simulated(self, record: LabelRecord, row: DatasetRow) -> LabelRecord:
        replays = simulate(row, self._gpu.name).replays
        context_bytes = self._gpu.context.typical_bytes
        reserved_bytes: int | None = replays.reserved_bytes
        if replays.reserved_bytes + context_bytes > self._gpu.usable_bytes:
            reserved_bytes = reserved_within(row, context_bytes, self._gpu.name)
        if reserved_bytes is None:
            return dataclasses.replace(record, status="oom", message=f"needs more than {self._gpu.name} has")
        return dataclasses.replace(
            record,
            status="ok",
            peak_bytes=reserved_bytes + context_bytes,
            allocated_bytes=replays.allocated_bytes,
            reserved_bytes=reserved_bytes,
        )

    def close(self) -> None:
        """Let later collections visit all objects again."""
        gc.unfreeze()
