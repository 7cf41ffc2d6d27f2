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
    warnings = [text for text in trained(tmp_path, SIZES).warnings if "reads " in text]
    lines = {int(text.partition(", line ")[2].partition(",")[0]) for text in warnings}
    text = (tmp_path / "train.py").read_text().splitlines()
    names = ["def cut()", "return x[:, : n + 1]", "count = (where > 0.5)", "read_within", "count = int", "times ="]
    assert lines == {next(i for i, line in enumerate(text, 1) if name in line) for name in names}


def test_other_numbers_are_not(tmp_path):
    assert not [text for text in trained(tmp_path, OTHERS).warnings if "reads a size" in text]


SELECTED = """
x, where = torch.rand(64, 777, device="cuda"), torch.rand(9, device="cuda")
few = torch.zeros(9, dtype=torch.bool, device="cuda")
few[torch.randperm(9)[:2].cuda()] = True
def selected(mask):
    count = mask.sum().item()
    return torch.cat([x[:9][mask], torch.ones(count, 777, device="cuda")])
selected(where > 0.5)
selected(few)
times = (where > 0.5).sum().item()
loops = [x * 2 for _ in range(times)]
"""


def test_as_many_elements_are_read_as_a_mask_selects(tmp_path):
    trace = trained(tmp_path, SELECTED)
    row = 4 * 777
    made = [event.bytes // row for event in trace.events if event.action == "alloc" and event.bytes % row == 0]
    assert {18, 4} <= set(made)
    assert made.count(64) == 2  # x, and one round of the loop
    assert [text.split(", ", 2)[2][:50] for text in trace.warnings if "reads" in text] == [
        "reads how many elements a mask selects; not comput",
        "reads a size that is not computed; assumed: 1, so ",
    ]
