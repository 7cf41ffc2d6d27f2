"""Every example is traced completely at a small size; each row of the coverage table has one."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from traced_scripts import allocations, by_category, peak, traced

torch = pytest.importorskip("torch", reason="tracing needs torch")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SMALL = ("--width", "48", "--layers", "2", "--length", "16")
MiB = 2**20


def example(folder, name, *args, **more):
    return traced(folder, (EXAMPLES / name).read_text(), *args, **more)


def needs(*names):
    for name in names:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name}")


NEEDED = {
    "hf_trainer_bf16.py": ("transformers", "accelerate"),
    "llama.py": ("transformers",),
    "xlnet.py": ("transformers", "accelerate"),
}


@pytest.mark.parametrize(
    "words",
    [
        "mlp.py --inputs 32 --hidden 64 64 --classes 10 --batch-size 8 --batch-norm --dropout 0.1",
        "amp_gradscaler.py --batch-size 2 --image-size 32 --width 8",
        "accumulate_checkpoint.py --width 64 --layers 2 --heads 4 --vocabulary 100 --seq-len 16 --batch-size 2",
        "llama.py --variant tiny --seq-len 16",
        "xlnet.py --size tiny --seq-len 16 --batch-size 2",
        "hf_trainer_bf16.py --hidden-size 64 --layers 1 --seq-len 16 --batch-size 2 --gradient-checkpointing",
    ],
)
def test_remaining_examples_are_traced(tmp_path, words):
    name, *args = words.split()
    needs(*NEEDED.get(name, ()))
    trace = example(tmp_path, name, *args)
    reads_ahead = name in ("hf_trainer_bf16.py", "xlnet.py")  # transformers' Trainer
    assert (trace.partial, trace.header.steps) == (False, 4 if reads_ahead else 3)


def test_the_decoder_example_on_several_gpus_is_traced(tmp_path):
    launcher = ["torchrun", "--nproc-per-node", "4"]
    copied = example(tmp_path, "ddp.py", *SMALL, launcher=launcher)
    sharded = example(tmp_path, "ddp.py", *SMALL, "--shard", launcher=launcher)
    assert (copied.partial, sharded.partial, copied.header.processes) == (False, False, 4)
    states = by_category(copied)["optimizer state"], by_category(sharded)["optimizer state"]
    assert states[0] == pytest.approx(4 * states[1], rel=0.01)


def test_the_detector_example_is_traced(tmp_path):
    needs("torchvision")
    trace = example(tmp_path, "detection.py", "--side", "96", "--model", "ssdlite320_mobilenet_v3_large")
    assert (trace.partial, trace.header.steps) == (False, 3)


def test_rare_rows_of_dlrm_have_sparse_gradients(tmp_path):
    """A dense gradient of the tables would be as large as they are."""
    small = ("--batch-size", "16", "--bottom", "16", "--top", "16", "--width", "8")
    few, many = (by_category(example(tmp_path, "dlrm.py", *small, "--max-rows", rows)) for rows in ("100", "100000"))
    assert many["parameter"] > 50 * few["parameter"]
    assert many["gradient"] == few["gradient"] > 0


def test_a_validation_with_its_graph_holds_two_graphs(tmp_path):
    needs("torchvision")
    args = ("--batch-size", "2", "--image-size", "256", "--images", "5", "--workers", "0")
    traces = [example(tmp_path, "unet.py", *args, *more) for more in ((), ("--validate-with-graph",))]
    assert [trace.partial for trace in traces] == [False, False]
    assert peak(traces[1]) > peak(traces[0])


TIMM = ("--model", "resnet18", "--side", "64", "-b", "16", "-vb", "32", "--classes", "10")


def test_amp_and_channels_last_reduce_the_activations_of_timm(tmp_path):
    needs("timm", "torchvision")
    plain = example(tmp_path, "timm_train.py", *TIMM, "--tf32", "--opt", "sgd")
    half = example(tmp_path, "timm_train.py", *TIMM, "--amp", "bfloat16", "--channels-last", "--opt", "sgd")
    assert (plain.partial, half.partial) == (False, False)
    first = 4 * 16 * 64 * 32 * 32  # what the first convolution gives
    assert allocations(plain, "forward").count(first) > 0
    assert allocations(half, "forward").count(first // 2) > 0
    calls = [op.params for op in half.ops if op.kind.startswith("conv")]
    assert all(params["channels_last"] and params["dtype"] == "bfloat16" for params in calls)
    assert [op.params["allow_tf32"] for op in plain.ops if op.kind.startswith("conv")].count(False) == 0
    # Validation has batches of twice the size, the last one smaller; no graph is kept.
    assert allocations(plain, "forward").count(2 * first) > 0


def test_averaged_weights_of_timm_are_held_as_a_copy(tmp_path):
    needs("timm", "torchvision")
    optimizer = ("--opt", "sgd", "--amp", "float16")
    without = example(tmp_path, "timm_train.py", *TIMM, *optimizer)
    averaged = example(tmp_path, "timm_train.py", *TIMM, *optimizer, "--model-ema")
    weights = by_category(without)["parameter"]
    assert peak(averaged) - peak(without) == pytest.approx(weights, rel=0.05)


def test_the_segmentation_example_is_traced(tmp_path):
    needs("torchvision")
    small = ("--model", "lraspp_mobilenet_v3_large", "--side", "64", "--batch-size", "2")
    trace = example(tmp_path, "segmentation.py", *small)
    assert not trace.partial
    # Labels are known, and so is which of them count; what was found is not.
    assert [warning.split("`")[1] for warning in trace.warnings] == ["bincount"]


LLM = ("--width", "128", "--layers", "2", "--words", "1000", "--length", "64", "--batch-size", "2")


def test_the_language_model_example_is_traced_in_bf16(tmp_path):
    needs("transformers")
    trace = example(tmp_path, "finetune_llm.py", *LLM, "--no-checkpointing")
    saving = example(tmp_path, "finetune_llm.py", *LLM)
    weights = by_category(trace)["parameter"]
    assert by_category(trace)["optimizer state"] == 2 * weights  # bf16 as well
    assert by_category(saving)["activation"] < 0.5 * by_category(trace)["activation"]


def test_a_language_model_is_traced_without_its_weights(tmp_path):
    needs("transformers")
    config = {"model_type": "llama", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 4, "vocab_size": 1000, "architectures": ["LlamaForCausalLM"]}
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    trace = example(tmp_path, "finetune_llm.py", *LLM, "--checkpoint", "model", "--optimizer", "adafactor")
    assert by_category(trace)["parameter"] == 2 * (2 * 1000 * 128 + 2 * (4 * 128**2 + 3 * 128 * 256 + 2 * 128) + 128)
    assert "the weights of `model` are not here" in trace.warnings[0]


def test_only_adapters_have_gradients_and_states(tmp_path):
    needs("transformers", "peft")
    trace = example(tmp_path, "finetune_llm.py", *LLM, "--lora")
    assert by_category(trace)["optimizer state"] < 0.2 * by_category(trace)["parameter"]


def test_optimizer_states_can_have_8_bits(tmp_path):
    needs("bitsandbytes")
    small = ("--width", "512", "--layers", "4", "--batch-size", "2")
    whole = example(tmp_path, "optimizers.py", *small)
    eighth = example(tmp_path, "optimizers.py", *small, "--optimizer", "adamw8bit")
    states = by_category(whole)["optimizer state"], by_category(eighth)["optimizer state"]
    assert states[1] == pytest.approx(states[0] / 4, rel=0.1)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_the_translation_example_is_traced(tmp_path, cell):
    small = ("--words", "500", "--width", "32", "--layers", "1", "--batch-size", "8", "--cell", cell)
    trace = example(tmp_path, "translate_rnn.py", *small)
    assert not trace.partial
    table = 4 * 500 * 32
    assert allocations(trace, category="optimizer state").count(table) == 4  # of both embeddings, the tied one once
    assert allocations(trace, category="parameter").count(table) == 2
    assert any("recurrent" in warning for warning in trace.warnings)
    assert any("vary in length" in warning for warning in trace.warnings)


def test_the_speech_example_is_traced_at_maximum_length(tmp_path):
    trace = example(
        tmp_path, "speech.py", "--width", "32", "--layers", "1", "--batch-size", "4", sequence_lengths="longest"
    )
    assert not trace.partial
    assert 4 * 4 * 16_000 * 12 in allocations(trace, category="input")  # four of twelve seconds
    assert any("recurrent" in warning for warning in trace.warnings)


def test_the_video_example_is_traced(tmp_path):
    trace = example(tmp_path, "video.py", "--width", "8", "--frames", "16", "--side", "64", "--batch-size", "2")
    assert not trace.partial
    groups = {op.params["groups"] for op in trace.ops if op.kind == "conv_forward"}
    assert groups == {1, 4, 8, 16, 32}
    assert all(op.params["channels_last"] for op in trace.ops if op.kind == "conv_forward")


def test_the_gan_example_has_two_optimizers(tmp_path):
    trace = example(tmp_path, "gan.py", "--width", "8", "--side", "16", "--batch-size", "4", steps=6)
    assert (trace.partial, trace.header.steps) == (False, 8)
    assert any(op.params["transposed"] for op in trace.ops if op.kind == "conv_dgrad")
    # Both optimizers were made while the weights were on the CPU; spectral norm's two vectors are buffers.
    assert by_category(trace)["optimizer state"] == 2 * by_category(trace)["parameter"]


def test_experts_get_equal_numbers_of_tokens(tmp_path):
    small = ("--width", "64", "--layers", "1", "--length", "16", "--batch-size", "4", "--words", "100")
    trace = example(tmp_path, "moe.py", *small, "--experts", "4", "--chosen", "2")
    hidden = 4 * (4 * 16) * 2 // 4 * (4 * 64)  # two of four experts for 64 tokens: 32 of them each
    assert allocations(trace, "forward").count(hidden) == 3 * 4 * 2  # steps, experts, before and after the gelu
    assert any("every expert gets the same number of tokens" in warning for warning in trace.warnings)


@pytest.mark.parametrize("how", ["zero1", "zero2", "zero3", "fsdp1", "fsdp2", "tp", "ddp-static", "ddp-unused"])
def test_a_sharded_model_is_divided_over_four_gpus(tmp_path, how):
    pytest.importorskip("torch.distributed.tensor", reason="needs a torch with DTensor")
    small = ("--width", "256", "--layers", "2", "--batch-size", "4", "--how", how)
    trace = example(tmp_path, "sharded.py", *small, launcher=["torchrun", "--nproc-per-node", "4"])
    assert (trace.partial, trace.header.processes) == (False, 4)
    assert trace.header.nccl.group_sizes == (4,)
    weights = 4 * 2 * (8 * 256**2 + 7 * 256)
    shares = 1 if how.startswith("ddp") else 4
    found = by_category(trace)["optimizer state"]
    tolerance = (
        0.15 if how == "zero1" else 0.02
    )  # ZeRO-1 gives whole parameters away; `tp` leaves norms and biases whole
    assert found == pytest.approx(2 * weights / shares, rel=tolerance)


def test_fsdp_gathers_the_weights_of_one_block_at_a_time(tmp_path):
    small = ("--width", "256", "--layers", "2", "--batch-size", "4")
    launcher = ["torchrun", "--nproc-per-node", "4"]
    block = 4 * (8 * 256**2 + 7 * 256)
    retained = example(tmp_path, "sharded.py", *small, "--how", "zero2", launcher=launcher)
    freed = example(tmp_path, "sharded.py", *small, "--how", "zero3", launcher=launcher)
    # Steps, blocks; and once more each where the first forward pass prepares the room.
    assert allocations(freed, "forward").count(block) == 3 * 2 + 2
    assert allocations(freed, "backward").count(block) > allocations(retained, "backward").count(block)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_deepspeed_example_is_traced(tmp_path, stage):
    needs("deepspeed")
    small = ("--width", "256", "--layers", "4", "--batch-size", "2", "--bucket", "2000000", "--stage", str(stage))
    trace = example(tmp_path, "deepspeed_zero.py", *small, launcher=["deepspeed", "--num_gpus", "4"])
    assert (trace.partial, trace.header.processes) == (False, 4)
    numbers = 4 * (256**2 + 256)
    assert by_category(trace)["optimizer state"] == pytest.approx(2 * 4 * numbers / 4, rel=0.01)  # fp32, a quarter
    assert 2 * 2_000_000 in allocations(trace)  # a bucket, however few gradients there are


def test_the_example_that_spawns_processes_is_traced(tmp_path):
    trace = example(tmp_path, "sharded.py", "--width", "64", "--layers", "1", "--how", "spawn", gpus=2)
    assert (trace.partial, trace.header.processes, trace.header.nccl.group_sizes) == (False, 2, (2,))


def test_the_data_parallel_example_is_traced(tmp_path):
    trace = example(tmp_path, "sharded.py", "--width", "64", "--layers", "1", "--how", "data-parallel", gpus=2)
    assert (trace.partial, trace.header.nccl.group_sizes) == (False, (2,))
    assert {event.device for event in trace.events} == {0, 1}


OPTIMIZERS = {
    "sgd": 1,
    "adam": 2,
    "adamw": 2,
    "amsgrad": 3,
    "rmsprop": 3,
    "adagrad": 1,
    "adadelta": 2,
    "nadam": 2,
    "lion": 1,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_have_their_documented_states(tmp_path, name):
    trace = example(tmp_path, "optimizers.py", "--width", "64", "--layers", "2", "--optimizer", name)
    weights = 4 * 2 * (64 * 64 + 64)
    assert by_category(trace)["optimizer state"] == OPTIMIZERS[name] * weights


def test_adafactor_has_factored_states(tmp_path):
    trace = example(tmp_path, "optimizers.py", "--width", "64", "--layers", "2", "--optimizer", "adafactor")
    assert by_category(trace)["optimizer state"] == 4 * 2 * (64 + 64 + 64)  # rows, columns, biases


@pytest.mark.parametrize(
    ("kind", "more"),  # all that is as big as the weights, beside weights, gradients and states, at the peak of a step
    [("for-loop", 2 / 8), ("foreach", 1), ("fused", 0)],
)
def test_optimizer_steps_have_their_temporary_memory(tmp_path, kind, more):
    small = ("--width", "256", "--layers", "8", "--batch-size", "1", "--kind", kind)
    trace = example(tmp_path, "optimizers.py", *small, "--zero-grad", "to-zero")
    weights = 4 * 8 * (256**2 + 256)
    assert peak(trace, "step") == pytest.approx((4 + more) * weights, rel=0.03)


def test_gradients_zeroed_in_place_are_live_in_forward(tmp_path):
    def lowest(when):
        small = ("--width", "256", "--layers", "8", "--batch-size", "1", "--zero-grad", when)
        trace = example(tmp_path, "optimizers.py", *small)
        ends = [i for i, event in enumerate(trace.events) if event.action == "phase" and event.phase == "backward"]
        live = 0
        sizes = {}
        for event in trace.events[: ends[-1]]:
            if event.action == "alloc":
                sizes[event.storage_id] = event.bytes
                live += event.bytes
            elif event.action == "free":
                live -= sizes.pop(event.storage_id)
        return live

    weights = 4 * 8 * (256**2 + 256)
    assert lowest("to-zero") - lowest("after") == pytest.approx(weights, rel=0.01)


@pytest.mark.parametrize(
    ("how", "dtype", "quadratic"),
    [
        ("causal", "bfloat16", False),
        ("causal", "float32", False),
        ("padded", "bfloat16", False),
        ("efficient", "float32", False),
        ("math", "bfloat16", True),
        ("grouped", "bfloat16", False),
        ("grouped", "float32", True),
        ("window", "bfloat16", False),
    ],
)
def test_the_attention_kernel_decides_saved_bytes(tmp_path, how, dtype, quadratic):
    small = ("--width", "256", "--layers", "1", "--length", "512", "--batch-size", "2", "--how", how, "--dtype", dtype)
    trace = example(tmp_path, "attention.py", *small, "--compile", compiled_code="eager")
    assert not trace.partial
    scores = 2 * 4 * 512 * 512  # a number for each pair of positions, in each head
    assert any(nbytes >= 2 * scores for nbytes in allocations(trace, "forward")) == quadratic
    assert any("torch.compile" in warning for warning in trace.warnings)


def test_the_lightning_example_is_traced(tmp_path):
    needs("lightning")
    trace = example(tmp_path, "lightning_mlp.py", "--width", "64")
    assert (trace.partial, trace.warnings) == (False, ())  # early stopping found what validation logged


def test_the_accelerate_example_is_traced(tmp_path):
    needs("accelerate", "transformers")
    launcher = ["accelerate", "--multi_gpu", "--num_processes", "2", "--mixed_precision", "bf16"]
    small = ("--layers", "1", "--width", "64", "--length", "16", "--batch-size", "4")
    trace = example(tmp_path, "accelerate_bert.py", *small, launcher=launcher)
    assert (trace.partial, trace.header.processes, trace.header.nccl.group_sizes) == (False, 2, (2,))


def test_the_example_with_a_replay_buffer_is_traced(tmp_path):
    trace = example(tmp_path, "dqn.py", "--width", "16", "--batch-size", "8")
    assert not trace.partial
    weights = 4 * (2 * 16 + 16 + 16 * 2 + 2)
    assert by_category(trace)["optimizer state"] == 3 * weights


def test_the_example_that_searches_its_batch_size_is_traced(tmp_path):
    trace = example(tmp_path, "largest_batch.py", "--width", "1024", "--share", "0.1")
    assert not trace.partial
    assert trace.header.memory_fraction == 0.1
    assert trace.header.oom_raised
    assert 2 * 2**30 < peak(trace) <= 4 * 2**30
