"""The first number of `estimate --model`: a formula of the configuration."""

from __future__ import annotations

import json

import pytest

from cotenant.cli.main import main
from cotenant.core.units import GiB
from cotenant.estimators.config_formula import DecoderSizes, first_peak_bytes

LLAMA = {"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
         "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256,
         "tie_word_embeddings": True}  # fmt: skip


def test_parameters_are_those_of_the_published_model():
    shape = DecoderSizes.of(LLAMA)
    assert shape.parameters == pytest.approx(1_235_814_400, rel=0.001)
    untied = DecoderSizes.of({**LLAMA, "tie_word_embeddings": False})
    assert untied.parameters - shape.parameters == 128256 * 2048


def test_a_task_with_frozen_weights_needs_less_and_a_longer_text_more():
    sft, lora = (first_peak_bytes(LLAMA, task, 4, 2048) for task in ("sft", "lora"))
    assert 27 * GiB < sft < 28 * GiB
    assert lora < 0.7 * sft
    assert first_peak_bytes(LLAMA, "sft", 1, 64) == pytest.approx(20 * 1_235_814_400, rel=0.01), "the optimizer's step"
    assert first_peak_bytes(LLAMA, "pretrain", 4, 2048) > sft


@pytest.mark.parametrize(
    "changed",
    [
        {"model_type": "gpt2"},
        {"hidden_size": "2048"},
        {"num_hidden_layers": -1},
        {"num_key_value_heads": "8"},
        {"vocab_size": None},
        {"num_attention_heads": True},
    ],
    ids=str,
)
def test_what_the_formula_does_not_know_has_no_number(changed):
    assert first_peak_bytes({**LLAMA, **changed}, "sft", 1, 64) is None


def test_a_task_without_logits_has_no_number():
    assert first_peak_bytes(LLAMA, "classify", 1, 64) is None


def test_the_number_is_on_stderr_before_the_script_runs(tmp_path, capsys):
    """The interpreter that would run it does not exist."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    words = ["estimate", "--model", str(tmp_path), "--batch-size", "4", "--length", "2048", "--python", "/no/python"]
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("about 27.2 GiB of tensors at the peak, by the configuration alone")
    assert main([*words, "--json"]) == 2
    assert "about" not in capsys.readouterr().err
