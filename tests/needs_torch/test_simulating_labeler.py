"""Labels by simulation: what is modeled, what is not, and how far they are from traces."""

from __future__ import annotations

import contextlib

import pytest

pytest.importorskip("numpy")
pytest.importorskip("torch")

from cotenant.cli.main import main
from cotenant.core.units import GiB
from cotenant.estimators.traced import TracedEstimator, fake_gpu_of
from cotenant.gpu_specs import gpu_spec
from cotenant.learn.data_collection.configs import parse_id
from cotenant.learn.data_collection.simulating_labeler import SimulatingLabeler
from cotenant.learn.data_collection.tracing_labeler import TracingLabeler
from cotenant.learn.datasets.clean import row_of
from cotenant.learn.datasets.dataset_row import layers_to_text
from cotenant.learn.networks.building import Training, layers_of
from cotenant.tracing.process.trace_function import trace_function

MLP = "mlp_pyramid_batch64_classes10_relu_dropout250_adam_fp32_inputs2000_depth3_batchnorm"
ENCODER = (
    "transformer_encoder_batch8_classes5_relu_dropout100_adam_fp32_vocabulary50000_length128_width256_depth3_heads4"
    "_feedforward700"
)
CNN = (
    "cnn_{shape}_batch32_classes700_gelu_dropout{dropout}_adam_fp32_channels1_image80_depth{depth}_filters24_kernel5_{norm}"
    "_nopool"
)
BRANCHED = [
    pytest.param(CNN.format(shape="uniform", dropout=0, depth=2, norm="nonorm"), id="chain"),
    pytest.param(CNN.format(shape="residual", dropout=300, depth=5, norm="batchnorm"), id="residual"),
    pytest.param(CNN.format(shape="dense", dropout=0, depth=6, norm="batchnorm"), id="dense"),
]
LARGE = ENCODER.replace("vocabulary50000", "vocabulary9000000").replace("width256", "width2048")


@pytest.fixture
def labeler():
    made = SimulatingLabeler("A100-40GB")
    yield made
    made.close()


@pytest.fixture(scope="module")
def tracing():
    made = TracingLabeler("A100-40GB")
    yield made
    made.close()


@pytest.mark.parametrize("text", [MLP, ENCODER])
def test_a_simulated_peak_is_near_the_traced_one(labeler, tracing, text):
    found, traced = labeler.label(parse_id(text)), tracing.label(parse_id(text))
    assert (found.status, found.source, found.gpu) == ("ok", "simulated", traced.gpu)
    assert found.layers == traced.layers
    assert found.context_bytes == traced.context_bytes
    assert found.reserved_bytes == pytest.approx(traced.reserved_bytes, rel=0.03)
    assert found.peak_bytes == found.reserved_bytes + found.context_bytes


def traced_allocation(text, torch_version):
    """Bytes allocated at the peak of a trace, with the workspaces of `torch_version`."""
    gpu = gpu_spec("A100-40GB")
    recorded = trace_function(Training(parse_id(text), "cuda"), gpu=fake_gpu_of(gpu), steps=3, timeout_s=120)
    found = TracedEstimator(steps=3, torch_version=torch_version).on(recorded, gpu)
    return found.estimate.peak_allocated_bytes


@pytest.mark.parametrize("text", BRANCHED)
def test_a_simulated_cnn_allocates_what_the_traced_one_does(labeler, text):
    found = labeler.label(parse_id(text))
    assert (found.status, found.layers) == ("ok", layers_to_text(layers_of(parse_id(text))))
    assert found.allocated_bytes == pytest.approx(traced_allocation(text, found.torch), rel=0.002)


def test_a_network_that_does_not_fit_is_out_of_memory(labeler):
    found = labeler.label(parse_id(LARGE))
    assert (found.status, found.peak_bytes, found.message) == ("oom", None, "needs more than A100-40GB has")


def label_on(gpu, text):
    with contextlib.closing(SimulatingLabeler(gpu)) as labeler:
        return labeler.label(parse_id(text))


def test_a_job_that_needs_the_whole_gpu_releases_its_cache():
    """The peak on a GPU that it hardly fits on is below the one on a larger GPU."""
    text = ENCODER.replace("vocabulary50000", "vocabulary1200000").replace("width256", "width2048")
    small, large = (label_on(name, text) for name in ("A100-40GB", "H100-80GB"))
    assert large.reserved_bytes > 40 * GiB
    assert small.status == "oom" or small.reserved_bytes < large.reserved_bytes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(MLP.replace("_adam_", "_sgd_"), "trained with optimizer `sgd`, which is not simulated", id="sgd"),
        pytest.param(MLP.replace("_fp32_", "_bf16_"), "trained with precision `bf16`", id="precision"),
        pytest.param(
            CNN.format(shape="dense", dropout=0, depth=6, norm="nonorm").replace("nopool", "stride"),
            "a `dense` network with `stride` is not simulated, wanted `nopool`",
            id="branches that halve",
        ),
        pytest.param(ENCODER.replace("_encoder_", "_decoder_"), "is a `decoder`, of which no simulation", id="shape"),
    ],
)
def test_what_is_not_modeled_fails_with_its_reason(labeler, text, message):
    found = labeler.label(parse_id(text))
    assert (found.status, found.peak_bytes) == ("crash", None)
    assert message in found.message


def test_simulated_rows_are_marked(labeler):
    assert row_of(labeler.label(parse_id(ENCODER))).source == "simulated"


def test_the_verb_simulates_and_excludes_what_traces_have(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.txt").write_text(f"{MLP}\n{ENCODER}\n")
    assert main(["learn", "run", "one.txt", "--out", "runs", "--simulate"]) == 0
    assert "2 ok in" in capsys.readouterr().err
    assert main(["learn", "clean", "runs", "--out", "data"]) == 0
    assert (
        '"simulated"' in (tmp_path / "data" / "mlp.schema.json").read_text()
        or ",simulated," in (tmp_path / "data" / "mlp.csv").read_text()
    )
    for words in (["--trace"], ["--steps", "3"], ["--seconds", "3"]):
        assert main(["learn", "run", "one.txt", "--out", "other", "--simulate", *words]) == 2
        assert "`--simulate` has no steps" in capsys.readouterr().err
