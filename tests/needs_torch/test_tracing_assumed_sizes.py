"""Whole numbers that a script reads from the GPU and takes for a size: a warning names the line."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from traced_scripts import trained

SIZES = """
x, where = torch.rand(64, 8, device="cuda"), torch.rand(9, device="cuda")
def cut(): return x[:(where * 9).long().sum()]
def cut_columns():
    n = (where * 9).long().max()
    return x[:, : n + 1]
def read():
    if len(x):
        count = (where > 0.5).sum().item()
        return x[:count]
def read_within(): return x[: int((where > 0.5).sum())]
def made():
    count = int((where > 0.5).sum())
    return torch.zeros(count, 8, device="cuda")
def repeated():
    times = (where > 0.5).sum().item()
    return [x * 2 for _ in range(times)]
cut(); cut_columns(); read(); read_within(); made(); repeated()
"""
OTHERS = """
x, where = torch.rand(64, 8, device="cuda"), torch.rand(9, device="cuda")
k = 3
def counted(): return (x[:k] > 0.5).sum().item()
def patch():
    start = (where * 9).long()[0].item()
    return x[start : start + 8]
def element(): return x[(where * 9).long()[0]]
def printed():
    right = (where > 0.5).sum().item()
    print(f"{right} of {len(x[:k])}")
def given(n): return x[:n]
counted(); patch(); element(); printed(); given(int((where * 0).isnan().sum()))
"""


def test_each_size_that_is_not_computed_is_named(tmp_path):
    warnings = [text for text in trained(tmp_path, SIZES).warnings if "reads a size" in text]
    lines = {int(text.partition(", line ")[2].partition(",")[0]) for text in warnings}
    text = (tmp_path / "train.py").read_text().splitlines()
    names = ["def cut()", "return x[:, : n + 1]", "count = (where > 0.5)", "read_within", "count = int", "times ="]
    assert lines == {next(i for i, line in enumerate(text, 1) if name in line) for name in names}


def test_other_numbers_are_not(tmp_path):
    assert not [text for text in trained(tmp_path, OTHERS).warnings if "reads a size" in text]
