"""Models fitted to a table: baselines, trees, and the simulation with and without a learned residual.

`fit` discards what a model learned before. The paper's neural networks are in `ensembles`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cotenant.core.errors import UnknownName, UsageError
from cotenant.core.units import MiB
from cotenant.estimators.learned.hybrid import FLOOR_BYTES
from cotenant.estimators.learned.network_features import CONV_FEATURES
from cotenant.gpu_specs import gpu_spec
from cotenant.learn.datasets.feature_table import TOP_MIB, FeatureSet, FeatureTable, Matrix, classes_of, tight_mib
from cotenant.learn.models.metrics import Prediction, by_bytes
from cotenant.learn.synthetic_traces.simulation import GPU, Simulated

RESIDUAL_FLOOR_MIB = FLOOR_BYTES / MiB


class Model(Protocol):
    """The interface that cross-validation and training use."""

    name: str

    def fit(self, table: FeatureTable, seed: int) -> None:
        """Fit to all rows of `table`; an earlier fit is discarded."""
        ...

    def predict(self, table: FeatureTable) -> Prediction:
        """The prediction for each row."""
        ...


def import_sklearn() -> Any:
    """`sklearn.ensemble`.

    Raises:
        UsageError: scikit-learn is not installed.
    """
    try:
        from sklearn import ensemble
    except ImportError as error:
        raise UsageError(
            "training needs scikit-learn, which is not installed", hint="`pip install cotenant[learn]`"
        ) from error
    return ensemble


def outside_mib(table: FeatureTable) -> float:
    """Memory outside the allocator in the rows' environment: the median of peak minus simulation.

    Raises:
        UsageError: nothing could be simulated.
    """
    known = table.known[~np.isnan(table.reserved_mib[table.known])]
    if not len(known):
        raise UsageError(
            "none of these networks can be simulated, so the memory outside the allocator is unknown",
            hint="use rows of `cotenant learn run`, which record it, or chains of layers trained with Adam in fp32",
        )
    return float(np.median(table.peak_mib[known] - table.reserved_mib[known]))


def environment_mib(table: FeatureTable) -> float:
    """Memory outside the allocator: as recorded by the runs, or else by `outside_mib`.

    Raises:
        UsageError: no run recorded it, and none could be simulated.
    """
    recorded = [table.rows[i].context_bytes for i in table.known]
    known = [nbytes / MiB for nbytes in recorded if nbytes is not None]
    return float(np.median(known)) if known else outside_mib(table)


# -- baselines --------------------------------------------------------------------------------------------------------


class Majority:
    """The most frequent class, and the median of peaks."""

    name = "majority"

    def fit(self, table: FeatureTable, seed: int) -> None:  # noqa: ARG002 - nothing is drawn
        self.kind = int(np.bincount(table.classes()).argmax())
        self.median = float(np.median(table.peak_mib[table.known]))

    def predict(self, table: FeatureTable) -> Prediction:
        return Prediction(classes=np.full(len(table), self.kind), mib=np.full(len(table), self.median))


class TwoTermLine:
    """A constant, weights, and outputs of a batch: three numbers, by least squares."""

    name = "line"

    def fit(self, table: FeatureTable, seed: int) -> None:  # noqa: ARG002
        known = table.known
        self.factors = np.linalg.lstsq(self._terms(table)[known], table.peak_mib[known], rcond=None)[0]

    def predict(self, table: FeatureTable) -> Prediction:
        mib = self._terms(table) @ self.factors
        return by_bytes(table, mib, mib > usable_mib())

    def _terms(self, table: FeatureTable) -> Matrix:
        columns = [table.names["bytes"].index(name) for name in ("weights_mib", "outputs_mib")]
        return np.column_stack([np.ones(len(table)), table.features["bytes"][:, columns]])


# -- trees ------------------------------------------------------------------------------------------------------------

FOREST_TREES = 100


def _extra_trees(seed: int) -> Any:
    return import_sklearn().ExtraTreesRegressor(FOREST_TREES, random_state=seed, min_samples_leaf=1)


def _random_forest(seed: int) -> Any:
    return import_sklearn().RandomForestRegressor(FOREST_TREES, random_state=seed)


def _boosting(seed: int) -> Any:
    return import_sklearn().HistGradientBoostingRegressor(
        max_iter=300, learning_rate=0.06, max_leaf_nodes=31, min_samples_leaf=10, random_state=seed
    )


def _extra_trees_classes(seed: int) -> Any:
    return import_sklearn().ExtraTreesClassifier(FOREST_TREES, random_state=seed)


class Trees:
    """A tree regressor over one set of features; with jobs out of memory in the data, also a classifier for those."""

    def __init__(self, name: str, make: Callable[[int], Any], features: FeatureSet) -> None:
        self.name = name
        self.make = make
        self.features = features

    def fit(self, table: FeatureTable, seed: int) -> None:
        known = table.known
        matrix = table.features[self.features]
        self.regressor = self.make(seed).fit(matrix[known], table.peak_mib[known])
        self.fails = _extra_trees_classes(seed).fit(matrix, table.oom) if table.oom.any() else None

    def predict(self, table: FeatureTable) -> Prediction:
        matrix = table.features[self.features]
        oom = None if self.fails is None else self.fails.predict(matrix).astype(bool)
        return by_bytes(table, self.regressor.predict(matrix), oom)


SCHEDTUNE_FEATURES = ("weights_mib", "outputs_mib", "batch")
"""What a list of layers has of SchedTune's features: bytes of parameters and of activations, and the batch size."""


def schedtune_matrix(table: FeatureTable) -> Matrix:
    """`SCHEDTUNE_FEATURES` of all rows."""
    return table.features["bytes"][:, [table.names["bytes"].index(name) for name in SCHEDTUNE_FEATURES]]


def schedtune_regressor(seed: int) -> Any:
    """A random forest, as SchedTune's; small, since it is shipped."""
    return import_sklearn().RandomForestRegressor(30, max_leaf_nodes=200, random_state=seed)


class SchedTune:
    """SchedTune's forest, as far as the rows have its features; see `estimators.learned.estimators`."""

    name = "schedtune"
    features: FeatureSet = "bytes"

    def fit(self, table: FeatureTable, seed: int) -> None:
        known = table.known
        self.regressor = schedtune_regressor(seed).fit(schedtune_matrix(table)[known], table.peak_mib[known])

    def predict(self, table: FeatureTable) -> Prediction:
        mib = self.regressor.predict(schedtune_matrix(table))
        return by_bytes(table, mib, mib > usable_mib())


class TreeClasses:
    """A tree classifier over one set of features; out of memory is a class."""

    def __init__(self, name: str, features: FeatureSet) -> None:
        self.name = name
        self.features = features

    def fit(self, table: FeatureTable, seed: int) -> None:
        self.classifier = _extra_trees_classes(seed).fit(table.features[self.features], table.classes())

    def predict(self, table: FeatureTable) -> Prediction:
        return Prediction(classes=self.classifier.predict(table.features[self.features]).astype(np.intp))


# -- the simulation ---------------------------------------------------------------------------------------------------


class SimulationModel:
    """The allocator's simulation plus one constant: the memory outside the allocator."""

    name = "simulation"

    def fit(self, table: FeatureTable, seed: int) -> None:  # noqa: ARG002
        self.outside = outside_mib(table)

    def predict(self, table: FeatureTable) -> Prediction:
        return on_gpu(table, table.reserved_mib, self.outside)


class Hybrid:
    """The simulation plus a learned residual for networks that convolve, whose workspaces are predicted by a rule.

    The residual is relative to the reserved bytes, fitted with absolute error, and 0 for other networks.
    """

    name = "hybrid"

    def fit(self, table: FeatureTable, seed: int) -> None:
        self.outside = outside_mib(table)
        known = np.array([i for i in table.known if _convolves(table.simulated[i])], dtype=np.intp)
        self.residual = None
        if len(known) >= 50:
            left = table.peak_mib[known] - self.outside - table.reserved_mib[known]
            matrix = conv_matrix(table)[known]
            self.residual = residual_regressor(seed).fit(
                matrix, left / (table.reserved_mib[known] + RESIDUAL_FLOOR_MIB)
            )

    def predict(self, table: FeatureTable) -> Prediction:
        reserved = table.reserved_mib
        if self.residual is not None:
            conv = np.array([_convolves(result) for result in table.simulated])
            shift = np.where(conv, self.residual.predict(conv_matrix(table)), 0.0)
            reserved = np.maximum(reserved + shift * (reserved + RESIDUAL_FLOOR_MIB), 2.0)
        return on_gpu(table, reserved, self.outside)


def residual_regressor(seed: int) -> Any:
    """Trees for the residual of the replay, fitted with absolute error: some rows are off by a whole workspace."""
    return import_sklearn().HistGradientBoostingRegressor(
        loss="absolute_error",
        max_iter=300,
        learning_rate=0.06,
        max_leaf_nodes=15,
        min_samples_leaf=10,
        random_state=seed,
    )


def _convolves(simulated: Simulated | None) -> bool:
    return simulated is not None and simulated.conv is not None


def conv_matrix(table: FeatureTable) -> Matrix:
    """`CONV_FEATURES` of all rows; zeros where nothing convolves."""
    columns = [table.names["simulation"].index(name) for name in CONV_FEATURES]
    return table.features["simulation"][:, columns]


def usable_mib() -> float:
    """Usable MiB of the GPU that the published jobs ran on."""
    return gpu_spec(GPU).usable_bytes / MiB


def on_gpu(table: FeatureTable, reserved: Matrix, outside: float) -> Prediction:
    """Device MiB from reserved MiB; a row that does not fit is replayed on the full GPU, and may run out of memory."""
    mib = reserved + outside
    over = np.flatnonzero(mib > usable_mib())
    oom: NDArray[np.bool_] = np.zeros(len(table), dtype=bool)
    if len(over):
        found = tight_mib(table, list(over), outside)
        oom[over] = np.isnan(found)
        # A job that fits after releasing its cache ends just below the whole GPU, and so does its class.
        mib[over] = np.where(np.isnan(found), mib[over], np.minimum(found + outside, TOP_MIB - 1.0))
    return Prediction(classes=classes_of(mib, oom, table.class_mib), mib=mib)


# -- registry ---------------------------------------------------------------------------------------------------------

NEURAL = ("gpumemnet-mlp", "gpumemnet-mlp-13", "gpumemnet-sequence", "gpumemnet-sequence-13")
"""The ensembles of the paper, of 7 networks, and of the thesis, of 13."""
MODELS: Mapping[str, Callable[[], Model]] = {
    "majority": Majority,
    "line": TwoTermLine,
    "extra-trees-paper": lambda: Trees("extra-trees-paper", _extra_trees, "paper"),
    "extra-trees": lambda: Trees("extra-trees", _extra_trees, "bytes"),
    "random-forest": lambda: Trees("random-forest", _random_forest, "bytes"),
    "boosting": lambda: Trees("boosting", _boosting, "bytes"),
    "schedtune": SchedTune,
    "extra-trees-classes": lambda: TreeClasses("extra-trees-classes", "bytes"),
    "extra-trees-simulation": lambda: Trees("extra-trees-simulation", _extra_trees, "simulation"),
    "simulation": SimulationModel,
    "hybrid": Hybrid,
}
"""The models that need no torch; the first two, the baselines, are part of every result."""
BASELINES = ("majority", "line")
SIMULATED = frozenset({"extra-trees-simulation", "simulation", "hybrid"})
"""Models that need the simulation of every row."""


def make_model(name: str, *, validation: float | None = None) -> Model:
    """A fresh model; `validation`: share of its rows by which a neural network decides when its training ends.

    Raises:
        UnknownName: there is none of that name.
        UsageError: it needs a library that is not installed.
    """
    if name in NEURAL:
        return _neural(name, validation)
    if name not in MODELS:
        raise UnknownName("model", name, (*MODELS, *NEURAL))
    return MODELS[name]()


def _neural(name: str, validation: float | None) -> Model:
    try:
        from cotenant.learn.models import ensembles
    except ImportError as error:
        raise UsageError(
            f"`{name}` needs torch, which is not installed", hint="pip install 'cotenant[torch]'"
        ) from error
    return ensembles.ensemble(name, validation=validation)
