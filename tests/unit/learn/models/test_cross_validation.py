"""Splits, scores, and cross-validation of models."""
# ruff: noqa: E402 - what is imported last needs what may not be installed

from __future__ import annotations

import dataclasses
import importlib.util

import pytest

from cotenant.core.errors import DatasetError, UnknownName, UsageError
from learn_rows import mlp_row

np = pytest.importorskip("numpy")
if importlib.util.find_spec("sklearn") is None:
    pytest.skip("scikit-learn is not installed", allow_module_level=True)

from cotenant.learn.datasets.feature_table import classes_of, table_of
from cotenant.learn.models.cross_validation import Split, configuration_key, cross_validate, splits, validate_once
from cotenant.learn.models.metrics import Prediction, macro_f1, r2, score, weighted
from cotenant.learn.models.regressors import MODELS, make_model
from cotenant.learn.synthetic_traces.simulation import simulate

OUTSIDE_MIB = 1400.0


def simulated_peak(row, error_mib: float = 0.0):
    reserved = simulate(row).replays.reserved_bytes
    return dataclasses.replace(row, peak_bytes=int(reserved + (OUTSIDE_MIB + error_mib) * 2**20))


ROWS = [
    dataclasses.replace(simulated_peak(mlp_row((width, width, 10), batch=batch)), group=group)
    for width, group in ((256, "pyramid"), (1500, "uniform"), (2600, "bottleneck"), (4300, "gradual"))
    for batch in (32, 64, 128, 256, 512)
]


@pytest.fixture(scope="module")
def table():
    return table_of(ROWS)


def test_no_configuration_is_on_both_sides():
    rows = [*ROWS, dataclasses.replace(ROWS[0], config_id="the same job again")]
    keys = [configuration_key(row) for row in rows]
    seen: list[int] = []
    for train, test in splits(rows, folds=4, seed=1):
        assert not {keys[i] for i in train} & {keys[i] for i in test}
        seen += list(test)
    assert sorted(seen) == list(range(len(rows)))


def test_by_shape_each_fold_tests_one_shape():
    for train, test in splits(ROWS, folds=99, seed=0, by="shape"):
        assert len({ROWS[i].group for i in test}) == 1
        assert not {ROWS[i].group for i in train} & {ROWS[i].group for i in test}


def test_splits_are_seeded():
    assert [list(test) for _, test in splits(ROWS, folds=4, seed=1)] == [
        list(test) for _, test in splits(ROWS, folds=4, seed=1)
    ]
    assert [list(test) for _, test in splits(ROWS, folds=4, seed=1)] != [
        list(test) for _, test in splits(ROWS, folds=4, seed=2)
    ]


def test_too_few_configurations_cannot_be_split():
    with pytest.raises(UsageError, match="1 different by config, wanted 3 or more"):
        splits(ROWS[:1], folds=3, seed=0)


def test_a_fresh_model_for_every_fold_learns_from_its_training_part_only(table):
    fitted = []

    class Spy:
        name = "spy"

        def fit(self, part, seed):
            assert not hasattr(self, "ids")
            self.ids = {row.config_id for row in part.rows}
            fitted.append(self.ids)

        def predict(self, part):
            assert not self.ids & {row.config_id for row in part.rows}
            return Prediction(classes=np.zeros(len(part), dtype=int))

    (*_, found) = cross_validate(table, ["spy"], folds=4, make=lambda _: Spy())
    assert found.model == "spy"
    assert [len(rows) for rows in fitted[-4:]] == [15, 15, 15, 15]
    assert found.overall.mae_mib is None


def test_results_have_baselines_and_the_simulation_predicts_its_own_rows(table):
    majority, line, simulation = cross_validate(table, ["simulation"], folds=4)
    assert (majority.model, line.model) == ("majority", "line")
    assert majority.overall.accuracy == majority.overall.majority
    assert simulation.overall.mae_mib == pytest.approx(0.0, abs=1e-6)
    assert simulation.overall.accuracy == 1.0
    assert line.overall.mae_mib > 1


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_model_predicts_every_row(table, name):
    model = make_model(name)
    model.fit(table, seed=0)
    found = model.predict(table)
    assert found.classes.shape == (len(table),)
    if found.mib is not None:
        assert (found.mib > 0).all()


@pytest.mark.parametrize(
    ("mib", "oom", "class_mib", "expected"),
    [
        pytest.param(1443.0, False, 1000, 1, id="from 1000"),
        pytest.param(2000.0, False, 1000, 2, id="the edge belongs to the class above"),
        pytest.param(7999.0, False, 8000, 0, id="below 8000"),
        pytest.param(39999.0, False, 8000, 4, id="the last of the card"),
        pytest.param(40100.0, False, 8000, 5, id="above it"),
        pytest.param(float("nan"), True, 8000, 5, id="out of memory"),
        pytest.param(39999.0, False, 3000, 13, id="the last of a width that does not divide the card"),
        pytest.param(40000.0, False, 3000, 14, id="above it, too"),
        pytest.param(-5.0, False, 8000, 0, id="a line may say less than nothing"),
    ],
)
def test_memory_classes_have_their_width(mib, oom, class_mib, expected):
    assert classes_of(np.array([mib]), np.array([oom]), class_mib).tolist() == [expected]


def test_precision_and_f1_are_weighted_by_the_rows_of_a_class():
    # Class 0: 3 rows, 2 found, 1 wrongly found beside them; class 1: 1 row, not found; class 2: never there.
    confusion = np.array([[2, 1, 0], [1, 0, 0], [0, 0, 0]])
    found = weighted(confusion)
    assert found["precision"] == pytest.approx(3 / 4 * 2 / 3)
    assert found["recall"] == pytest.approx(2 / 4)
    assert found["weighted_f1"] == pytest.approx(3 / 4 * 2 * 2 / 6)


def test_one_split_learns_from_two_parts_and_predicts_the_third(table):
    parts = {}

    class Spy:
        name = "spy"

        def fit(self, part, seed):
            parts["learned"] = {row.config_id for row in part.rows}

        def predict(self, part):
            parts["tested"] = {row.config_id for row in part.rows}
            return Prediction(classes=part.classes())

    def make(name, *, validation):
        assert validation == pytest.approx(2 / 9)
        return Spy()

    tested, (*_, found) = validate_once(table, ["spy"], Split.parse("70/20/10"), make=make)
    assert {row.config_id for row in tested.rows} == parts["tested"]
    assert parts["learned"].isdisjoint(parts["tested"])
    assert len(parts["learned"] | parts["tested"]) == len(table)
    assert len(tested) == 2
    assert found.overall.accuracy == 1.0


@pytest.mark.parametrize(
    "text", ["70/20", "70/20/20", "a/b/c", "100/0/0", "0/50/50", "70/20/10/0", "1e2/0/0", "nan/20/10"]
)
def test_a_text_that_is_no_split_is_refused(text):
    with pytest.raises(UsageError, match="wanted TRAINING/VALIDATION/TEST"):
        Split.parse(text)


def test_a_prediction_is_scored_by_class_and_mib(table):
    true = table.classes()
    predicted = true.copy()
    predicted[0] = true[0] - 1
    mib = table.peak_mib + 10
    mib[1] = table.peak_mib[1] * 0.9
    found = score(table, Prediction(classes=predicted, mib=mib))
    assert found.accuracy == 19 / 20
    assert found.below == 1 / 20
    assert found.recall == found.accuracy
    assert found.confusion.sum() == 20
    assert found.confusion[true[0], predicted[0]] == 1
    assert (found.underestimated, found.underestimated_5_percent) == (1 / 20, 1 / 20)


def test_macro_f1_weights_all_classes_equally():
    assert macro_f1(np.array([[8, 0, 0], [2, 0, 0], [0, 0, 0]])) == pytest.approx((16 / 18 + 0) / 2)


def test_r2_is_1_for_perfect_and_0_for_constant_predictions():
    true = np.array([1.0, 2.0, 3.0])
    assert r2(true, true) == 1
    assert r2(true, np.full(3, 2.0)) == 0


def test_a_table_of_two_families_is_refused():
    other = dataclasses.replace(ROWS[1], family="cnn")
    with pytest.raises(DatasetError, match="a table has one family, found cnn, mlp"):
        table_of([ROWS[0], other])


def test_an_unknown_model_is_refused():
    with pytest.raises(UnknownName, match="no model named `boost`"):
        make_model("boost")
