"""GPU memory from a printed summary: what is simulated, what is assumed, and how far it is from measured jobs."""

from __future__ import annotations

import json

import pytest

from shared_data import SHARED_DATA

pytest.importorskip("numpy")

from cotenant.cli.main import main
from cotenant.core.errors import UsageError
from cotenant.core.ports import EstimateRequest
from cotenant.core.units import MiB
from cotenant.gpu_specs import gpu_spec
from cotenant.learn.datasets.dataset_row import Layer
from cotenant.learn.model_summaries.estimator import SummaryEstimator, learned, read_model
from cotenant.learn.synthetic_traces.layer_chain import layer_chain
from cotenant.learn.synthetic_traces.simulation import replay_input_for
from cotenant.learn.synthetic_traces.synthetic_job import trace_of

SUMMARIES = SHARED_DATA / "gpumemnet" / "summaries" / "gpumemnet"
LINEAR = """\
        Layer (type)               Output Shape         Param #
================================================================
            Linear-1                 [-1, 4096]       4,198,400
              ReLU-2                 [-1, 4096]               0
            Linear-3                   [-1, 10]          40,970
================================================================
"""
TREE = """\
Model(
  (words): Embedding(1000, 64), 64,000 params
  (places): Embedding(256, 64), 16,384 params
  (query): Linear(in_features=64, out_features=64, bias=True), 4,160 params
  (norm): LayerNorm((64,), eps=1e-05, elementwise_affine=True), 128 params
  (head): Linear(in_features=64, out_features=1000, bias=False), 64,000 params
), 148,672 params
"""


def request(folder, text, **more):
    (folder / "m.txt").write_text(text)
    return EstimateRequest(command=("m.txt",), workdir=str(folder), gpu="A100-40GB", model_summary="m.txt", **more)


def peaks(layers, batch):
    return replay_input_for(trace_of(layer_chain(layers, batch).job)).replay()


def layer(kind, shape, parameters=0, name=""):
    return Layer(kind=kind, output_shape=shape, parameters=parameters, name=name)


def test_weights_count_four_times_under_adam(tmp_path):
    estimate = SummaryEstimator().estimate(request(tmp_path, LINEAR, batch_size=2))
    weights = 4 * 4_239_370
    # In the step: weights, gradients, two states, and the copies of a foreach step.
    assert 4 * weights <= estimate.peak_allocated_bytes - 17 * MiB <= 6 * weights
    assert "Adam and fp32 are assumed" in estimate.warnings[0]
    assert estimate.bound_bytes >= 1.2 * estimate.peak_reserved_bytes


def test_what_is_saved_for_the_backward_pass_is_named_activation(tmp_path):
    found = SummaryEstimator().estimate(request(tmp_path, LINEAR, batch_size=4096)).breakdown_bytes
    saved_bytes = 4 * 4096 * 4096  # what ReLU gives, which its own derivative and the next layer read
    assert saved_bytes <= found["activation"] < 1.1 * saved_bytes + MiB


def test_a_batch_of_twice_the_size_holds_twice_the_activations():
    layers = [layer("conv", (64, 64, 64), 1728, "Conv2d"), layer("activation", (64, 64, 64), 0, "SiLU")] * 2
    small, large = (peaks([*layers[:2], layer("pool", (64, 1, 1), 0, "AdaptiveAvgPool2d")], n) for n in (32, 64))
    one = 4 * 64 * 64 * 64 * 32
    assert abs((large.peak_allocated_bytes - small.peak_allocated_bytes) / one - 3) < 0.2  # conv, SiLU, a gradient


def test_an_activation_that_saves_its_input_costs_one_more_tensor_than_relu():
    size = 4 * 64 * 128 * 128 * 16

    def live(name):
        layers = [
            layer("conv", (64, 128, 128), 1728, "Conv2d"),
            layer("batchnorm", (64, 128, 128), 128, "BatchNorm2d"),
            layer("activation", (64, 128, 128), 0, name),
            layer("conv", (64, 128, 128), 36864, "Conv2d"),
        ]
        return peaks(layers, 16).peak_allocated_bytes

    assert abs(live("ReLU6") - live("ReLU") - size) < size / 50
    assert abs(live("SiLU") - live("ReLU6")) < size / 50


def test_tokens_are_given_or_the_most_that_positions_allow(tmp_path):
    given = read_model(request(tmp_path, TREE, batch_size=4, tokens=128))
    assert (given.tokens, given.summary.layers[0].output_shape, given.warnings) == (128, (128, 64), ())
    assumed = read_model(request(tmp_path, TREE, batch_size=4))
    assert assumed.tokens == 256
    assert "256 tokens are assumed" in assumed.warnings[0]


def test_the_output_layer_of_a_language_model_shares_the_table():
    tied = [layer("embedding", (8, 64), 64_000), layer("linear", (8, 1000), 64_000)]
    job = layer_chain(tied, 1).job
    assert sum(parameter.bytes for parameter in job.order) == 4 * 64_000


def test_blocks_without_their_layers_make_it_a_lower_bound(tmp_path):
    text = LINEAR.replace(
        "              ReLU-2                 [-1, 4096]               0",
        "           MyBlock-2                 [-1, 4096]         900,000",
    )
    estimate = SummaryEstimator().estimate(request(tmp_path, text, batch_size=2))
    assert estimate.partial
    assert "layers inside of MyBlock are not shown" in estimate.warnings[-1]


def test_a_summary_of_the_batch_needs_none(tmp_path):
    assert read_model(request(tmp_path, LINEAR.replace("-1,", "48,"))).batch == 48
    with pytest.raises(UsageError, match="does not say how many samples"):
        read_model(request(tmp_path, LINEAR))


def test_learned_estimators_answer_for_the_same_layers(tmp_path):
    model = read_model(request(tmp_path, LINEAR, batch_size=64))
    found = {result.name: result for result in learned(model, gpu_spec("A100-40GB"))}
    assert {"boosting", "extra-trees", "gpumemnet-mlp", "gpumemnet-sequence"} <= found.keys()
    assert "hybrid" not in found  # it corrects a trace
    assert all(result.estimate.device_bytes > 400 * MiB for result in found.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["nope.txt", "--batch-size", "2"], "cannot read", id="no file"),
        pytest.param(["m.txt"], "does not say how many samples", id="no batch"),
        pytest.param(["m.txt", "--batch-size", "2", "--fits-on"], "`--fits-on` needs a trace", id="report"),
        pytest.param(
            ["m.txt", "--batch-size", "2", "--estimator", "horus"], "`horus` reads no summary", id="estimator"
        ),
    ],
)
def test_what_is_refused(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.txt").write_text(LINEAR)
    assert main(["estimate", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_json_of_the_verb(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.txt").write_text(LINEAR)
    assert main(["estimate", "m.txt", "--batch-size", "8", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["estimator"] == "summary"
    assert answer["summary"] == {
        "format": "torchsummary", "layers": 3, "parameters": 4_239_370, "batch_size": 8, "tokens": None,
    }  # fmt: skip
    assert {row["name"] for row in answer["learned"]} >= {"boosting", "gpumemnet-mlp"}
    assert main(["estimate", "m.txt", "--batch-size", "8", "--json", "--estimator", "boosting"]) == 0
    assert json.loads(capsys.readouterr().out)["estimator"] == "boosting"


@pytest.mark.skipif(not SUMMARIES.exists(), reason="the published summaries are not beside this checkout")
@pytest.mark.parametrize(
    ("name", "batch", "measured_mib"),
    [
        ("resnet50_128", 128, 13236),
        ("vgg_32", 32, 6684),
        ("mobilenet_128", 128, 11336),
        ("efficientnet_128", 128, 12666),
        ("inceptionv3_128", 128, 17830),
        ("BERT_base_bs32_sl512", 32, 19828),
        ("gpt2_xl_bs2_sl512", 2, 36206),
    ],
)
def test_published_jobs_are_within_a_sixth_and_below_the_bound(name, batch, measured_mib):
    tokens = 512 if "sl512" in name else None
    estimate = SummaryEstimator().estimate(
        EstimateRequest(
            command=(name,),
            workdir=str(SUMMARIES),
            gpu="A100-40GB",
            model_summary=f"{name}.txt",
            batch_size=batch,
            tokens=tokens,
        )
    )
    assert abs(estimate.device_bytes / MiB / measured_mib - 1) < 1 / 6
    assert estimate.bound_bytes > measured_mib * MiB
