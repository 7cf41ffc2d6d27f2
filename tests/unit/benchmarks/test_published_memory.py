"""Rows of peaks that repositories print become jobs, and say which quantity was printed and how exactly."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

from apart import apart

ROOT = Path(__file__).parents[3]
JOBS = ROOT / "benchmarks" / "estimator" / "jobs"
MIB, GIB = 2**20, 2**30

SEGMENTATION = {
    "config": "configs/pspnet/pspnet_r50-d8_512x1024_40k_cityscapes.py",
    "batch_per_gpu": "2",
    "image": "RandomCrop.crop_size=(512, 1024); Pad.size=(512, 1024)",
    "peak_gib": "6.1",
}
BERT = {
    "optimizer": "adafactor",
    "options": "grad_accum=4; gradient_checkpointing=1",
    "batch_per_gpu": "1",
    "dtype": "fp16 AMP",
    "peak_as_printed": "4847 MB",
}
LITGPT = {
    "recipe": "config_hub/finetune/llama-2-7b/lora.yaml",
    "peak_as_printed": "19.77 GB",
    "n_gpus": "1",
    "batch_per_gpu": "2",
}


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.estimator.published_memory_rows")


def test_a_rounded_number_of_two_units_has_four_ends(tables):
    row = tables.mmsegmentation_row(SEGMENTATION)
    assert row.quantity == "allocated"
    assert row.measured_bytes == 6100 * MIB
    assert row.readings == (6050 * MIB, round(6.15 * GIB))


def test_whole_mib_are_exact_to_half_of_one(tables):
    row = tables.bert_row(BERT)
    assert row.quantity == "reserved"
    assert row.measured_bytes == 4847 * MIB
    assert row.readings == (4847 * MIB - MIB // 2, 4847 * MIB + MIB // 2)
    assert {"--checkpointing", "--fp16", "adafactor"} <= set(row.args)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("pspnet/pspnet_r50-d8_512x1024_40k_cityscapes", "pspnet/pspnet_r50-d8_?xb?-40k_cityscapes*512x1024"),
        ("unet/fcn_unet_s5-d16_64x64_40k_drive", "unet/unet-s5-d16_fcn_?xb?-40k_drive*64x64"),
        ("resnest/pspnet_s101-d8_512x512_160k_ade20k", "resnest/resnest_s101-d8_pspnet_?xb?-160k_ade20k*512x512"),
        ("ocrnet/ocrnet_r101-d8_512x1024_80k_b16_cityscapes", "ocrnet/ocrnet_r101-d8_?xb?-80k_cityscapes*512x1024"),
        ("fcn/fcn_r50-d8_480x480_40k_pascal_context", "fcn/fcn_r50-d8_?xb?-40k_pascal-context*480x480"),
    ],
)
def test_configurations_have_the_names_of_the_version_that_is_installed(tables, old, new):
    assert tables.mmsegmentation_config(f"configs/{old}.py") == f"{new}.py"


def test_adapters_are_those_of_the_repositorys_configuration(tables):
    text = " ".join(tables.litgpt_row(LITGPT).args)
    assert "--rank 32 --dropout 0.05 --parts query value --accumulate 4" in text
    full = tables.litgpt_row({**LITGPT, "recipe": "config_hub/finetune/tiny-llama/full.yaml", "batch_per_gpu": "4"})
    assert " ".join(full.args).endswith("--rank 0 --accumulate 8")


@pytest.mark.parametrize(
    ("function", "cells", "reason"),
    [
        ("bert_row", {**BERT, "optimizer": ""}, "no training"),
        ("litgpt_row", {**LITGPT, "peak_as_printed": "OOM"}, "ran out of memory"),
        ("litgpt_row", {**LITGPT, "recipe": "config_hub/finetune/phi-2/qlora.yaml"}, "bitsandbytes"),
        (
            "litgpt_row",
            {**LITGPT, "recipe": "extensions/thunder/pretrain.py"},
            "thunder: compiled, or settings not said",
        ),
        ("torchao_row", {"options": "FSDP=4 compile"}, "compiled"),
        ("mmsegmentation_row", {**SEGMENTATION, "config": "configs/ccnet/x.py"}, "operators of mmcv's CUDA extension"),
        ("mmsegmentation_row", {**SEGMENTATION, "config": "configs/fp16/fcn_x_fp16_y.py"}, "mmcv's own fp16 training"),
        ("mmsegmentation_row", {**SEGMENTATION, "image": ""}, "no fixed crop"),
    ],
)
def test_a_row_that_is_left_out_says_why(tables, function, cells, reason):
    assert getattr(tables, function)(cells) == reason


def test_the_printed_quantity_is_compared(tables):
    scores = importlib.import_module("benchmarks.estimator.ground_truth_scores")
    results = [
        scores.Result(row=row, reserved_bytes=9000 * MIB, allocated_bytes=6100 * MIB)
        for row in (tables.mmsegmentation_row(SEGMENTATION), tables.bert_row(BERT))
    ]
    assert [result.peak_bytes for result in results] == [6100 * MIB, 9000 * MIB]
    text = "\n".join(scores.score_lines(results, {"": 0}))
    assert "Within what the printed number may mean: 1 of 2." in text


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the functions are PyTorch's")
@apart
def test_old_softmax_keeps_its_input_and_has_the_same_gradients(monkeypatch):
    import torch

    monkeypatch.syspath_prepend(str(JOBS))
    functional = torch.nn.functional
    for name in ("softmax", "cross_entropy"):
        monkeypatch.setattr(functional, name, getattr(functional, name))
    logits, labels = torch.randn(6, 5), torch.tensor([0, 1, 2, 3, 4, 9])

    def gradients():
        found, saved = [], []
        for function in (
            lambda x: functional.softmax(x, dim=-1).square().sum(),
            lambda x: functional.cross_entropy(x, labels, ignore_index=9),
        ):
            leaf = logits.clone().requires_grad_()
            with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.data_ptr()) or t, lambda t: t):
                result = function(leaf)
            result.backward()
            found.append(leaf.grad)
            saved.append(leaf.data_ptr() in saved)
        return found, [flag for flag in saved if flag is True]

    new, kept = gradients()
    assert kept == []
    importlib.import_module("old_torch").use_old_softmax()
    old, kept = gradients()
    sys.modules.pop("old_torch")
    assert len(kept) == 2
    for mine, theirs in zip(old, new, strict=True):
        torch.testing.assert_close(mine, theirs)
