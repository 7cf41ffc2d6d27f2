"""`estimate --model`: the shipped script trains a model by its configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="tracing needs torch")
pytest.importorskip("transformers", reason="the models are those of transformers")

from cotenant.core.units import MiB
from cotenant.estimators import train_model
from cotenant.estimators.config_formula import first_peak_bytes
from traced_scripts import by_category, failing, peak, traced

SMALL = {
    "llama": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
              "num_key_value_heads": 2, "vocab_size": 128, "tie_word_embeddings": True},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128, "n_positions": 64},
    "bert": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
             "vocab_size": 128},
    "vit": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
            "image_size": 32, "patch_size": 8},
    "falcon": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128,
               "alibi": True, "multi_query": False},
    "whisper": {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
                "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "vocab_size": 128,
                "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
                "suppress_tokens": None, "begin_suppress_tokens": None},
    "gemma3": {"text_config": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16,
                               "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128,
                               "pad_token_id": 0},
               "vision_config": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
                                 "num_attention_heads": 4, "image_size": 32, "patch_size": 8}},
}  # fmt: skip
LLAMA_PARAMETERS = 128 * 64 + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96 + 2 * 64) + 64


def trained(tmp_path, model_type, task, length=32, **changed):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": model_type, **SMALL.get(model_type, {}), **changed}))
    source = Path(train_model.__file__).read_text()
    words = {"--config": config, "--task": task, "--batch-size": 2, "--length": length}
    return traced(tmp_path, source, *(str(word) for pair in words.items() for word in pair))


def test_all_parameters_of_a_tied_model_have_two_states(tmp_path):
    totals = by_category(trained(tmp_path, "llama", "sft"))
    assert totals["parameter"] == 4 * LLAMA_PARAMETERS
    assert totals["optimizer state"] == 2 * 4 * LLAMA_PARAMETERS


def test_adapters_have_the_only_states(tmp_path):
    totals = by_category(trained(tmp_path, "llama", "lora"))
    widths = 2 * (2 * (64 + 64) + 2 * (64 + 32) + 3 * (64 + 96))
    assert totals["optimizer state"] == 2 * 4 * 16 * widths
    assert totals["parameter"] == 2 * LLAMA_PARAMETERS + 4 * 16 * widths


@pytest.mark.parametrize(
    ("model_type", "task"),
    [
        ("gpt2", "lora"),
        ("bert", "pretrain"),
        ("vit", "classify"),
        ("vit", "lora"),
        ("falcon", "lora"),
        ("whisper", "sft"),
        ("gemma3", "sft"),
    ],
)
def test_other_models_and_tasks(tmp_path, model_type, task):
    assert not trained(tmp_path, model_type, task).partial


def test_a_task_that_a_model_has_no_head_for_is_named(tmp_path):
    with failing(
        "raised", "transformers has no `CausalLM`, `MaskedLM` or `ImageTextToText` of the type `vit` for `sft`"
    ):
        trained(tmp_path, "vit", "sft")


@pytest.mark.parametrize(("model_type", "positions"), [("gpt2", 64), ("whisper", 448)])
def test_more_tokens_than_positions_are_refused(tmp_path, model_type, positions):
    words = f"`--length {positions + 1}` is more than the {positions} positions of `{model_type}`"
    with failing("raised", words):
        trained(tmp_path, model_type, "sft", length=positions + 1)


@pytest.mark.parametrize(
    ("model_type", "task", "vocab_size"),
    [("llama", "pretrain", 8000), ("llama", "sft", 128), ("llama", "lora", 8000), ("qwen3", "pretrain", 128)],
)
def test_the_first_number_is_near_the_trace(tmp_path, model_type, task, vocab_size):
    changed = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "vocab_size": vocab_size}
    config = {**SMALL["llama"], **changed, "head_dim": 32, "num_hidden_layers": 4}
    found = first_peak_bytes({"model_type": model_type, **config}, task, 2, 2048)
    trace = trained(tmp_path, model_type, task, length=2048, **config)
    assert found - 16 * MiB == pytest.approx(peak(trace), rel=0.06), "cuBLAS's workspace is not in a trace"


TRAINER = """
import json
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, Trainer, TrainingArguments

config = AutoConfig.for_model(**json.load(open("config.json")))
model = (AutoModelForMaskedLM if config.model_type == "bert" else AutoModelForCausalLM).from_config(config)
class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        tokens = torch.zeros(32, dtype=torch.long)
        return {"input_ids": tokens, "attention_mask": torch.ones(32, dtype=torch.long), "labels": tokens}
settings = TrainingArguments("out", per_device_train_batch_size=2, bf16=True, report_to=[], save_strategy="no")
Trainer(model=model, args=settings, train_dataset=Texts()).train()
"""


@pytest.mark.parametrize("model_type", ["bert", "llama"])
def test_the_peak_is_that_of_the_trainer_of_transformers(tmp_path, model_type):
    """Most of it is logits here: the `Trainer` has them in bf16 and in fp32 at once."""
    pytest.importorskip("accelerate", reason="the `Trainer` needs accelerate")
    shipped = peak(trained(tmp_path, model_type, "pretrain", vocab_size=8000, hidden_size=32))
    assert shipped == pytest.approx(peak(traced(tmp_path, TRAINER)), rel=0.001)
