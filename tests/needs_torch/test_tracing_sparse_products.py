"""Sparse matrices: what PyTorch 2.13 requests on a null A100, up to the number of different indices, 0 there.

Behind that, the rows of the source: `coalesce_sparse_cuda`, `s_addmm_out_sparse_dense_cuda`.
"""

from __future__ import annotations

import pytest

from traced_calls import requests_of_calls

pytest.importorskip("torch", reason="tracing needs torch")

SETUP = """
edges = torch.stack([torch.arange(30_000) // 15, torch.arange(30_000) % 15]).cuda()
near = torch.sparse_coo_tensor(edges, torch.ones(30_000, device="cuda"), (2000, 2000))
sorted_ = near.coalesce()
rows = torch.sparse_coo_tensor(edges[:1, :5000].clone(), torch.ones(5000, 8, device="cuda"), (2000, 8))
weight = made(2000, 64).detach()
"""
PLACES, SORT, UNIQUE, RESULT = 30_000 * 8, 480_767, 1_535, 2000 * 64 * 4
COALESCED = [PLACES, PLACES, PLACES, SORT, UNIQUE, 30_000 * 4, 2 * PLACES]
COMPRESSED = [2001 * 4, 30_000 * 4, 30_000 * 4, RESULT]
CALLS = {
    "coalesce": ("near.coalesce()", COALESCED),
    "coalesce again": ("sorted_.coalesce()", []),
    # 334 different rows of 5,000; the places are the indices of the result.
    "rows": ("rows.coalesce()", [40_000, 40_000, 40_000, 80_895, UNIQUE, 334 * 8 * 4]),
    "product": ("torch.sparse.mm(near, weight)", [RESULT, RESULT, *COALESCED, *COMPRESSED]),
    "operator": ("near @ weight", [RESULT, RESULT, *COALESCED, *COMPRESSED]),
    "product of coalesced": ("torch.sparse.mm(sorted_, weight)", [RESULT, RESULT, *COMPRESSED]),
    "copy of coalesced": ("torch.sparse.mm(sorted_.detach(), weight)", [RESULT, RESULT, *COMPRESSED]),
    "sum": ("torch.sparse.addmm(weight, sorted_, weight)", [RESULT, *COMPRESSED]),
    "transposed": ("near.t()", [30_000 * 4, 2 * PLACES, PLACES]),
    "dense": ("near.to_dense()", [2000 * 2000 * 4, PLACES]),
}


@pytest.fixture(scope="module")
def requests_of(tmp_path_factory):
    calls = {name: ("", call) for name, (call, _) in CALLS.items()}
    first = next(iter(calls))
    calls[first] = (SETUP, calls[first][1])
    return requests_of_calls(tmp_path_factory.mktemp("sparse"), calls)


@pytest.mark.parametrize("name", CALLS)
def test_sparse_matrices_allocate_what_the_cuda_build_allocates_around_them(requests_of, name):
    assert requests_of[name] == CALLS[name][1]
