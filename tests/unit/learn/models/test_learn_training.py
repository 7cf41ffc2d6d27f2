"""Models are trained, written and read back; margins and reports."""
# ruff: noqa: E402 - what is imported last needs what may not be installed

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os

import pytest

from cotenant.core.errors import DatasetError, UnknownName, UsageError
from cotenant.core.units import MiB
from learn_rows import cnn_row, mlp_row

np = pytest.importorskip("numpy")
if importlib.util.find_spec("sklearn") is None:
    pytest.skip("scikit-learn is not installed", allow_module_level=True)

from cotenant.estimators.learned import weights as learned_weights
from cotenant.learn.datasets.dataset_files import read_families, write_dataset
from cotenant.learn.datasets.feature_table import table_of
from cotenant.learn.models import export
from cotenant.learn.models.conformal import upper_quantile
from cotenant.learn.models.cross_validation import kfold_command
from cotenant.learn.models.training import test_command as try_command
from cotenant.learn.models.training import train, train_command
from cotenant.learn.models.utilization import utilization_command
from cotenant.learn.reports import analysis
from cotenant.learn.synthetic_traces.simulation import simulate

OUTSIDE_MIB = 1400


def labeled(row, **changes):
    reserved = simulate(row).replays.reserved_bytes
    return dataclasses.replace(row, peak_bytes=reserved + OUTSIDE_MIB * MiB, **changes)


ROWS = [
    labeled(mlp_row((width, width, 10), batch=batch, activation=activation), group=activation, smact=width / 6000)
    for width in (100, 900, 1800, 2700, 3600, 4500)
    for batch in (16, 64, 256)
    for activation in ("relu", "gelu")
]


@pytest.fixture(scope="module")
def table():
    return table_of(ROWS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_dataset(folder, "mlp", ROWS, {}, {})
    return folder


@pytest.mark.parametrize("kind", ["forest", "boosting"])
def test_exported_trees_predict_as_scikit_learn_does(tmp_path, kind):
    from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor

    chance = np.random.default_rng(0)
    matrix = chance.normal(size=(300, 3)).astype(np.float32)
    true = matrix[:, 0] ** 2 + 5 * (matrix[:, 1] > 0.3)
    made = ExtraTreesRegressor(10) if kind == "forest" else HistGradientBoostingRegressor(max_iter=20)
    fitted = made.fit(matrix, true)
    meta = export.range_of(("a", "b", "c"), matrix)
    path = learned_weights.write_weights(tmp_path / "model", export.forest(fitted, meta))
    weights = learned_weights.read_weights(path)
    ours = [learned_weights.forest_predict(weights, line) for line in matrix]
    assert ours == pytest.approx(list(fitted.predict(matrix)), rel=1e-5, abs=1e-5)


class Evil:
    """Makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_pickles_in_a_file_of_weights_are_not_loaded(tmp_path):
    path = tmp_path / "evil.npz"
    np.savez(path, meta=np.array([Evil(str(tmp_path / "made"))], dtype=object))
    with pytest.raises(UsageError, match="holds no trained model"):
        learned_weights.read_weights(path)
    assert not (tmp_path / "made").exists()


def test_weights_of_another_version_are_refused(tmp_path):
    path = tmp_path / "old.npz"
    np.savez(path, meta=np.frombuffer(json.dumps({"version": 0}).encode(), dtype=np.uint8))
    with pytest.raises(UsageError, match="has version 0, wanted 1"):
        learned_weights.read_weights(path)


def test_features_outside_the_training_data_are_listed():
    weights = learned_weights.Weights({"features": ["a", "b"], "low": [0.0, 5.0], "high": [10.0, 5.0]}, {})
    assert weights.beyond({"a": 10.9, "b": 5.0}) == ()
    assert weights.beyond({"a": 11.1, "b": 5.0}) == ("a 11.1 (trained with 0 to 10)",)
    assert weights.beyond({"a": 0.0, "b": 4.9})[0].startswith("b 4.9")


@pytest.mark.parametrize(
    ("count", "coverage", "expected"),
    [
        pytest.param(99, 0.95, (95.0, 0.95), id="the 95th of 99"),
        pytest.param(100, 0.95, (96.0, 0.95), id="rounded up, for the new one counts"),
        pytest.param(10, 0.95, (10.0, 10 / 11), id="too few: the largest, and what they support"),
    ],
)
def test_the_margin_is_the_quantile_that_covers_a_new_error(count, coverage, expected):
    assert upper_quantile(np.arange(1.0, count + 1), coverage) == expected


def test_the_margin_is_never_negative():
    assert upper_quantile(np.full(50, -3.0), 0.9)[0] == 0


def test_a_trained_model_predicts_its_training_rows(table, folder, tmp_path):
    trained = train_command([folder / "mlp.csv"], model="extra-trees", out=tmp_path, folds=3)
    assert trained.weights.name == "extra-trees-mlp.npz"
    assert trained.weights.stat().st_size < 200 * 1024
    found = try_command(trained.weights, [folder / "mlp.csv"])
    assert (found.model, found.family, found.scores.rows) == ("extra-trees", "mlp", len(ROWS))
    assert found.scores.mape < 0.02
    card = trained.card.read_text()
    for word in (
        "| majority |",
        "| line |",
        "| extra-trees |",
        "## Limits",
        "| weights_mib |",
        "36 rows of family mlp",
    ):
        assert word in card
    assert [result.model for result in trained.validated] == ["majority", "line", "extra-trees"]


def test_hybrid_needs_all_families(table, tmp_path):
    with pytest.raises(UsageError, match="one data set of CNNs"):
        train([table], model="hybrid", out=tmp_path)


def test_training_an_unknown_model_is_refused(folder, tmp_path):
    with pytest.raises(UnknownName, match="no model named `lstm`"):
        train_command([folder / "mlp.csv"], model="lstm", out=tmp_path)


def test_data_without_rows_are_refused(tmp_path):
    with pytest.raises(DatasetError, match="no rows in no files"):
        kfold_command([], models=["line"])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        pytest.param(["mlp.csv", "mlp.csv"], "36 configurations are repeated", id="a table twice"),
        pytest.param(["missing.csv"], "missing.csv`: it is not there", id="no file"),
        pytest.param(["."], "it is a folder", id="a folder"),
        pytest.param(["notes.txt"], "no `notes.schema.json` beside it", id="no table"),
    ],
)
def test_invalid_data_are_refused(folder, names, message):
    (folder / "notes.txt").write_text("hello\n")
    with pytest.raises((DatasetError, UsageError)) as error:
        kfold_command([folder / name for name in names], models=["line"])
    assert message in error.value.message
    assert error.value.hint


def test_models_that_need_a_simulation_are_skipped_without_one(tmp_path):
    rows = [dataclasses.replace(row, extras={**row.extras, "optimizer": "sgd"}) for row in ROWS]
    write_dataset(tmp_path, "mlp", rows, {}, {})
    (found,) = kfold_command([tmp_path / "mlp.csv"], models=["extra-trees", "simulation"], folds=3)
    assert [result.model for result in found.results] == ["majority", "line", "extra-trees"]
    assert found.skipped == ("simulation: some of these networks cannot be simulated",)


def trained_in_ways(rows):
    """Each row once for each optimizer, with a peak that its states add to, and a recorded context."""
    copies = {"sgd": 0, "momentum": 1, "adam": 2}
    return [
        dataclasses.replace(
            row,
            config_id=f"{row.config_id}-{name}",
            source="traced",
            extras={**row.extras, "optimizer": name, "precision": "bf16", "gpu": "A100-40GB"},
            peak_bytes=600 * MiB + (4 + 4 * copies[name]) * row.parameters,
            context_bytes=500 * MiB,
        )
        for row in rows
        for name in copies
    ]


def test_models_of_own_runs_use_the_optimizer(tmp_path):
    write_dataset(tmp_path, "mlp", trained_in_ways(ROWS), {}, {})
    trained = train_command([tmp_path / "mlp.csv"], model="extra-trees", out=tmp_path, folds=3)
    weights = learned_weights.read_weights(trained.weights)
    assert weights.meta["outside_mib"] == 500
    assert weights.meta["features"][-2:] == ["state_copies", "half"]
    assert try_command(trained.weights, [tmp_path / "mlp.csv"]).scores.mape < 0.02
    card = trained.card.read_text()
    assert "gpu: A100-40GB; optimizer: adam, momentum, sgd; precision: bf16." in card
    assert "the model learned to reproduce an estimate" in card
    assert "A100-SXM4" not in card


def test_without_a_simulation_or_a_recorded_context_training_is_refused(tmp_path):
    rows = [dataclasses.replace(row, context_bytes=None) for row in trained_in_ways(ROWS)]
    rows = [row for row in rows if row.extras["optimizer"] != "adam"]
    write_dataset(tmp_path, "mlp", rows, {}, {})
    with pytest.raises(UsageError, match="can be simulated") as error:
        train_command([tmp_path / "mlp.csv"], model="extra-trees", out=tmp_path, folds=3)
    assert "cotenant learn run" in error.value.hint
    assert not list(tmp_path.glob("*.npz"))


def test_rows_out_of_memory_are_not_training_peaks():
    rows = [dataclasses.replace(row, status="oom") if i == 3 else row for i, row in enumerate(ROWS)]
    assert 3 not in table_of(rows).known


def test_utilization_needs_enough_rows(folder):
    with pytest.raises(DatasetError, match="no family has a measure of utilization in 100 rows"):
        utilization_command([folder / "mlp.csv"])


def test_utilization_is_learned_and_written(tmp_path):
    rows = [
        dataclasses.replace(row, config_id=f"{row.config_id}-{i}", batch=row.batch + i)
        for row in ROWS
        for i in range(3)
    ]
    write_dataset(tmp_path, "mlp", rows, {}, {})
    (found,) = utilization_command([tmp_path / "mlp.csv"], out=tmp_path / "weights", folds=3)
    assert (found.measure, found.rows) == ("smact", 108)
    assert found.r2 > 0.95
    assert found.mae < found.constant_mae / 3
    assert found.weights.with_suffix(".md").is_file()


def test_equal_values_share_a_rank_and_batches_are_grouped():
    assert analysis.ranks(np.array([5.0, 1.0, 5.0, 0.0, 5.0])).tolist() == [4.0, 2.0, 4.0, 1.0, 4.0]
    few = analysis._groups(np.array([8, 1, 8, 1, 2]))
    assert [row.tolist() for row in few] == [[1, 3], [4], [0, 2]]
    many = analysis._groups(np.arange(1000)[::-1])
    assert len(many) == analysis.MAX_GROUPS
    assert sum(map(len, many)) == 1000


def test_the_analysis_and_the_report_of_a_data_set_have_their_plots(folder, tmp_path):
    from cotenant.learn.reports.analysis import analyse_command
    from cotenant.learn.reports.model_report import report_command

    shown = analyse_command([folder / "mlp.csv"], tmp_path)
    page = shown.pages[0].read_text()
    features = len(table_of(read_families([folder / "mlp.csv"])[0], simulated=False).names["paper"])
    # Memory and each feature, groups, ranks, projections, two pairs of staircases, batches.
    assert page.count("<svg") == 1 + features + 1 + 1 + 2 + 2 * 2 + 1
    assert "PCA, " in page
    assert "36 jobs: 36 ok" in page
    report = report_command([folder / "mlp.csv"], tmp_path, models=["simulation", "extra-trees"], folds=3)
    page = report.pages[0].read_text()
    assert "No learned model beats the simulation" in page
    assert page.count("<svg") == 3 * 2  # of `line` too: a scatter plot and a confusion matrix each
    assert "98.4%" in page


def test_a_convolutional_row_has_its_own_features():
    found = simulate(cnn_row())
    assert found.conv is not None
    assert found.conv["widest_channels"] == 24
    assert found.conv["largest_in_channels"] == 16
    assert found.conv["convolutions"] == 2
    assert found.conv["largest_mib"] == pytest.approx(8 * (16 + 24) * 32 * 32 * 4 / MiB)
