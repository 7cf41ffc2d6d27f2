"""Rows of published measurements of large models, and errors that other estimators publish beside theirs.

Short, because `test_published_memory.py` has the rules that all such rows share.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
QWEN = {
    "model": "Qwen3.5-0.8B",
    "seq_or_image": "16",
    "options": "LoRA r8 FSDP2; checkpointing=no; accum=1",
    "n_gpus": "4",
    "gpu": "RTX 3090 Ti (sm_86)",
    "torch_version": "2.12.1+cu130",
    "peak_as_printed": "1.594 GiB",
    "peer_estimate_error": ".380%",
}
COGVIDEOX = {
    "metric": "memory_before_validation; column not defined",
    "model": "THUDM/CogVideoX-5b",
    "batch_per_gpu": "4",
    "optimizer": "AdamW",
    "options": "LoRA finetuning; rank=64; gradient_checkpointing=True",
    "peak_as_printed": "47.805",
}


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.estimator.published_finetuning_rows")


def test_a_sharded_row_says_among_how_many_processes(tables):
    row = tables.fakegpu_row(QWEN)
    assert row.args == ("--model", "Qwen3.5-0.8B", "--length", "16", "--rank", "8", "--processes", "4")
    assert row.other_errors == {"FakeGPU 1.5.5": pytest.approx(0.0038)}
    assert row.torch == "2.12.1"


def test_training_of_all_parameters_has_no_rank(tables):
    row = tables.cogvideox_row({**COGVIDEOX, "options": "Full finetuning; rank=; gradient_checkpointing=True"})
    assert "--rank" not in row.args
    assert "--checkpointing" in row.args


def test_a_run_that_ran_out_of_memory_has_no_peak(tables):
    row = tables.cogvideox_row({**COGVIDEOX, "peak_as_printed": "OOM"})
    assert row.measured_oom
    assert row.readings is None


@pytest.mark.parametrize(
    ("function", "cells", "reason"),
    [
        pytest.param("fakegpu_row", {**QWEN, "options": "native NF4 QLoRA nested scales"}, "NF4", id="quantized"),
        pytest.param("fakegpu_row", {**QWEN, "options": "LoRA DeepSpeed ZeRO-3"}, "DeepSpeed", id="offloaded"),
        pytest.param("cogvideox_row", {**COGVIDEOX, "metric": "memory_after_testing"}, "stage", id="validation"),
        pytest.param("cogvideox_row", {**COGVIDEOX, "optimizer": "DeepSpeed"}, "host", id="states elsewhere"),
    ],
)
def test_a_row_that_is_left_out_says_why(tables, function, cells, reason):
    assert reason in getattr(tables, function)(cells)


def test_published_errors_stand_beside_ours_without_a_sign(tables):
    scores = importlib.import_module("benchmarks.estimator.ground_truth_scores")
    ran = [scores.Result(row=tables.fakegpu_row(QWEN))]
    (line,) = scores.other_error_lines(ran)
    assert line == "| FakeGPU 1.5.5, published | 1 | 0.38% | 0.38% | 0.38% | 0.38% | 0.38% | | |"
