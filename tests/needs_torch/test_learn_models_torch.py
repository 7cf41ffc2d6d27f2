"""The paper's neural networks: inputs, size, training, and the same predictions without torch."""
# ruff: noqa: E402 - what is imported last needs what may not be installed

from __future__ import annotations

import dataclasses

import pytest

from apart import apart
from learn_rows import measured, mlp_row

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from cotenant.estimators.learned import weights
from cotenant.learn.datasets.feature_table import table_of
from cotenant.learn.models import ensembles
from cotenant.learn.models.regressors import make_model
from cotenant.learn.models.training import export_ensemble, predict_bytes

ROWS = [
    measured(mlp_row((width, width, 10), batch=batch, activation=activation), 1400 + width * batch / 400)
    for width in (100, 900, 1800, 2700)
    for batch in (16, 64, 256)
    for activation in ("relu", "identity")  # of different length: the shorter are padded
]


@pytest.fixture(scope="module")
def table():
    torch.set_num_threads(1)  # a thread pool does not survive a fork
    return table_of(ROWS)


@pytest.mark.parametrize("sequence", [False, True], ids=["mlp ensemble", "sequence ensemble"])
@apart
def test_weights_predict_the_same_without_torch(table, tmp_path, sequence):
    kind = ensembles.SequenceEnsemble if sequence else ensembles.MlpEnsemble
    model = kind(ensembles.TrainingSettings(epochs=4))
    model.fit(table, seed=0)
    path = weights.write_weights(tmp_path / "net", export_ensemble(model, table, 0))
    predicted = predict_bytes(weights.read_weights(path), table)
    assert predicted.classes.tolist() == model.predict(table).classes.tolist()


@apart
def test_attention_is_over_layers_and_not_over_the_batch(table):
    model = ensembles.SequenceEnsemble(ensembles.TrainingSettings(epochs=1))
    model.fit(table, seed=0)
    inputs = model._inputs(table)
    model.net.eval()
    with torch.no_grad():
        together = model.net(*inputs)
        alone = torch.cat([model.net(*model._inputs(table.take(np.array([i])))) for i in range(len(table))])
    assert torch.allclose(together, alone, atol=1e-5)


@apart
def test_networks_of_different_length_are_encoded_in_groups_as_each_alone():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    encoder = ensembles.LayerEncoder(inputs=3, width=4, layers=2).double()
    lengths = torch.tensor([7, 2, 9, 1, 5, 5, 3])
    layers = torch.randn(len(lengths), 9, 3, dtype=torch.float64)
    absent = torch.arange(9)[None] >= lengths[:, None]

    def pooled_and_gradient(pooled):
        encoder.zero_grad()
        pooled.square().sum().backward()
        return pooled, encoder.embed.weight.grad.clone()

    grouped = pooled_and_gradient(encoder(layers, absent))
    alone = [encoder(layers[i : i + 1, :length], absent[i : i + 1, :length]) for i, length in enumerate(lengths)]
    torch.testing.assert_close(grouped, pooled_and_gradient(torch.cat(alone)))


@apart
def test_training_stops_when_the_validation_loss_stalls(table):
    model = ensembles.MlpEnsemble(ensembles.TrainingSettings(epochs=100, patience=2, rate=0.0))
    model.fit(table, seed=0)
    best = model.losses.index(min(model.losses))
    assert len(model.losses) == best + 1 + 3 < 100


@apart
def test_training_returns_the_best_weights(table):
    how = ensembles.TrainingSettings(epochs=12, patience=12, rate=0.3)
    model = ensembles.MlpEnsemble(how)
    model.fit(table, seed=1)
    assert min(model.losses) < model.losses[-1]
    validation, _ = ensembles.split_off(len(table), how, 1)
    model.net.eval()
    with torch.no_grad():
        logits = model.net(*model._inputs(table))[validation]
    true = torch.tensor(np.searchsorted(model.classes, table.classes()))[validation]
    assert float(torch.nn.functional.cross_entropy(logits, true)) == pytest.approx(min(model.losses), rel=1e-5)


@apart
def test_the_ensemble_of_the_thesis_has_13_members_and_its_validation_share(table):
    model = make_model("gpumemnet-mlp-13", validation=0.5)
    model.schedule = dataclasses.replace(model.schedule, epochs=2)
    model.fit(table, seed=0)
    assert (model.name, model.schedule.validation) == ("gpumemnet-mlp-13", 0.5)
    assert model.net.head.shape[0] == 13
    assert model.net.get_buffer("active6").sum() == 1
    assert model.net.get_buffer("active5").sum() == 3
    assert model.predict(table).classes.shape == (len(table),)


@pytest.mark.parametrize(
    ("features", "classes", "parameters"),
    [
        pytest.param(8, 5, 1495, id="MLPs"),
        pytest.param(10, 6, 1646, id="CNNs"),
        pytest.param(9, 6, 1590, id="Transformers"),
    ],
)
def test_the_ensemble_has_the_published_number_of_parameters(features, classes, parameters):
    net = ensembles.Perceptrons(features, classes)
    used = 0
    for member, depth in enumerate(ensembles.DEPTHS):
        width = features
        for level in range(depth):
            out = int(net.get_buffer(f"used{level}")[member].sum())
            used += out * (width + 1) + 2 * out
            width = out
        used += classes * (width + 1)
    assert used == parameters
