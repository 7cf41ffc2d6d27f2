"""A data set as matrices: features and targets of the models, row by row. Needs numpy."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cotenant.core.errors import DatasetError, UsageError
from cotenant.core.units import MiB
from cotenant.estimators.learned.network_features import (
    CONV_FEATURES,
    Network,
    NetworkLayer,
    activation_of,
    byte_features,
    layer_sequence,
    paper_features,
    positions_of,
    training_features,
)
from cotenant.learn.datasets.dataset_row import DatasetRow, Layer
from cotenant.learn.synthetic_traces.simulation import Simulated, reserved_within, simulate

Matrix: TypeAlias = NDArray[np.float64]
FeatureSet: TypeAlias = Literal["paper", "bytes", "simulation"]
CLASS_MIB = {"mlp": 1000, "cnn": 8000, "transformer": 8000}
"""Widths of the memory classes of the published accuracies."""
TOP_MIB = 40000
"""Where the last class begins, as published: jobs that fill an A100 of 40 GB."""
_STATE_COPIES = {"sgd": 0.0, "momentum": 1.0, "rmsprop": 1.0, "adam": 2.0, "adamw": 2.0}


def network_of_row(row: DatasetRow) -> Network:
    """The network of a row, in the form of the learned estimators."""
    network = network_of_layers(row.layers, row.batch)
    activation = row.extras.get("activation")
    return replace(
        network,
        activation=activation_of(str(activation)) if activation else network.activation,
        state_copies=_STATE_COPIES.get(str(row.extras.get("optimizer", "adam")), 2.0),
        half=row.extras.get("precision", "fp32") != "fp32",
    )


def network_of_layers(layers: Sequence[Layer], batch: int) -> Network:
    """The network of a list of layers, trained in fp32 with Adam."""
    named = next((layer.name for layer in layers if layer.kind == "activation"), "relu")
    return Network(
        batch=batch,
        layers=tuple(
            NetworkLayer(
                kind=layer.kind,
                outputs=layer.outputs,
                parameters=layer.parameters,
                positions=positions_of(layer.kind, layer.output_shape),
                name=layer.name,
            )
            for layer in layers
        ),
        activation=activation_of(named),
        state_copies=_STATE_COPIES["adam"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureTable:
    """Rows and their features.

    Attributes:
        features: one matrix for each set of features, a line for each row; `names`: of its columns.
        simulated: None where the job could not be simulated.
        peak_mib: NaN for jobs out of memory.
        class_mib: width of the memory classes.
    """

    rows: tuple[DatasetRow, ...]
    features: Mapping[str, Matrix]
    names: Mapping[str, tuple[str, ...]]
    sequences: tuple[Sequence[tuple[int, float, float]], ...]
    simulated: tuple[Simulated | None, ...]
    peak_mib: Matrix
    oom: NDArray[np.bool_]
    family: str
    class_mib: int

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, places: NDArray[np.intp]) -> FeatureTable:
        """The rows at `places`, in that order."""
        return FeatureTable(
            rows=tuple(self.rows[i] for i in places),
            features={name: matrix[places] for name, matrix in self.features.items()},
            names=self.names,
            sequences=tuple(self.sequences[i] for i in places),
            simulated=tuple(self.simulated[i] for i in places),
            peak_mib=self.peak_mib[places],
            oom=self.oom[places],
            family=self.family,
            class_mib=self.class_mib,
        )

    @property
    def known(self) -> NDArray[np.intp]:
        """Indices of rows whose peak is the job's need: they trained, and the GPU was not full."""
        full = np.array([row.extras.get("flag") == "near_capacity" for row in self.rows], dtype=bool)
        return np.flatnonzero(~np.isnan(self.peak_mib) & ~full & ~self.oom)

    @property
    def is_simulated(self) -> bool:
        """Whether all rows are simulated."""
        return all(result is not None for result in self.simulated)

    @property
    def reserved_mib(self) -> Matrix:
        """Simulated reserved MiB; NaN where a row cannot be simulated."""
        return self.features["simulation"][:, 0]

    def classes(self) -> NDArray[np.intp]:
        """The memory class of each row; rows out of memory are in the class above the last."""
        return classes_of(self.peak_mib, self.oom, self.class_mib)

    def class_name(self, place: int) -> str:
        """The MiB that a class begins and ends at."""
        if place == top_class(self.class_mib):
            return "above or OOM"
        return f"{place * self.class_mib}-{min((place + 1) * self.class_mib, TOP_MIB)} MiB"


def top_class(class_mib: int) -> int:
    """The class for `TOP_MIB` and more, and for jobs out of memory."""
    return -(-TOP_MIB // class_mib)


def classes_of(mib: Matrix, oom: NDArray[np.bool_], class_mib: int) -> NDArray[np.intp]:
    """Memory classes of `mib`: `class_mib` wide, from 0; `top_class` is above all others."""
    top = top_class(class_mib)
    known = np.where(np.isnan(mib), 0, mib)
    found = np.where(known >= TOP_MIB, top, known // class_mib)
    return np.where(oom, top, np.maximum(found, 0)).astype(np.intp)


def table_of(
    rows: Sequence[DatasetRow], *, workers: int = 1, simulated: bool = True, class_mib: int | None = None
) -> FeatureTable:
    """The table of rows of one family; `workers`: number of processes for the simulation, which takes most of the time.

    `class_mib`: width of the memory classes; None: as published, `CLASS_MIB`.

    Only rows that trained or ran out of memory, and that have layers, are taken.

    Raises:
        DatasetError: there are none, or they are of several families.
    """
    taken = [row for row in rows if row.layers and row.status in ("ok", "oom")]
    families = {row.family for row in taken}
    if len(families) != 1:
        raise DatasetError(
            f"a table has one family, found {', '.join(sorted(families)) or 'no rows that trained'}",
            hint="train and test on one data set at a time",
        )
    (family,) = families
    networks = [network_of_row(row) for row in taken]
    found = _simulate_all(taken, workers) if simulated else [None] * len(taken)
    trainings = training_of(networks)
    features = {
        "paper": [paper_features(network) | more for network, more in zip(networks, trainings, strict=True)],
        "bytes": [byte_features(network) | more for network, more in zip(networks, trainings, strict=True)],
        "simulation": [_simulation_features(simulation) for simulation in found],
    }
    names = {name: tuple(lines[0]) for name, lines in features.items()}
    return FeatureTable(
        rows=tuple(taken),
        features={name: np.array([list(line.values()) for line in lines]) for name, lines in features.items()},
        names=names,
        sequences=tuple(layer_sequence(network) for network in networks),
        simulated=tuple(found),
        peak_mib=np.array([np.nan if row.peak_bytes is None else row.peak_bytes / MiB for row in taken]),
        oom=np.array([row.status == "oom" for row in taken], dtype=bool),
        family=family,
        class_mib=class_mib or CLASS_MIB[family],
    )


def training_of(networks: Sequence[Network]) -> list[dict[str, float]]:
    """`training_features` of each network where they differ; else nothing."""
    found = [training_features(network) for network in networks]
    return found if any(features != found[0] for features in found) else [{} for _ in networks]


def tight_mib(table: FeatureTable, places: Sequence[int], outside_mib: float) -> Matrix:
    """Simulated reserved MiB of rows on a full GPU; NaN where they run out of memory."""
    outside_bytes = round(outside_mib / 2) * 2 * MiB
    found = [_tight(table.rows[i], outside_bytes) for i in places]
    return np.array([np.nan if nbytes is None else nbytes / MiB for nbytes in found])


_tight_cache: dict[tuple[str, str, int, int], int | None] = {}


def _tight(row: DatasetRow, outside_bytes: int) -> int | None:
    key = (row.source, row.config_id, row.batch, outside_bytes)
    if key not in _tight_cache:
        _tight_cache[key] = reserved_within(row, outside_bytes)
    return _tight_cache[key]


def _simulate_all(rows: Sequence[DatasetRow], workers: int) -> list[Simulated | None]:
    if workers <= 1 or len(rows) < 100:
        return [_simulate(row) for row in rows]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        return pool.map(_simulate, rows, chunksize=16)


def _simulate(row: DatasetRow) -> Simulated | None:
    try:
        return simulate(row)
    except UsageError:
        return None


def _simulation_features(simulated: Simulated | None) -> dict[str, float]:
    if simulated is None:
        return dict.fromkeys(("reserved_mib", "allocated_mib", "bare_reserved_mib", *CONV_FEATURES), np.nan)
    replays = simulated.replays
    found = {
        "reserved_mib": replays.reserved_bytes / MiB,
        "allocated_mib": replays.allocated_bytes / MiB,
        "bare_reserved_mib": replays.bare_reserved_bytes / MiB,
    }
    conv = simulated.conv or dict.fromkeys(CONV_FEATURES, 0.0)
    return {**found, **conv}
