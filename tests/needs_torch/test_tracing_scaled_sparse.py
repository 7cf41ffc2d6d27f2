"""Sparse matrices times numbers, as where a script drops a part of a graph's edges."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="traces scripts")

from traced_scripts import traced

DROPPED_EDGES = """
import torch
edges = torch.stack([torch.arange(50), torch.arange(50)])
near = torch.sparse_coo_tensor(edges, torch.ones(50, dtype=torch.float64), (64, 64)).to("cuda")
before = torch.cuda.memory_allocated()
half, more = near * 0.5, near / torch.tensor(4.0)
assert half.is_sparse and half._nnz() == 50 and more.dtype == torch.float64
assert torch.cuda.memory_allocated() - before == 2 * (1024 + 512)  # indices and values of their own
weight = torch.nn.Parameter(torch.zeros(64, 8, device="cuda", dtype=torch.float64))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    torch.sparse.mm(2 * half, weight).sum().backward()
    assert weight.grad.shape == (64, 8)
    optimizer.step()
"""


def test_a_sparse_matrix_times_a_number_has_its_own_indices_and_values(tmp_path):
    assert not traced(tmp_path, DROPPED_EDGES).partial
