"""Factorizations of matrices: what PyTorch 2.13 requests on a null A100, in this order, with assumed work areas."""

from __future__ import annotations

import pytest

from traced_calls import requests_of_calls
from traced_scripts import work_area_warnings

torch = pytest.importorskip("torch", reason="tracing needs torch")

SETUP = """
one_matrix, batch, small = (made(*shape).detach() for shape in ((200, 200), (16, 48, 48), (16, 30, 31)))
tall, tall_sides = made(4, 600, 40).detach(), made(4, 600, 7).detach()
side, sides = made(200, 7).detach(), made(16, 48, 7).detach()
x = made(200, 200)
def gradient(function):
    results = function(x)
    results = [part for part in (results if isinstance(results, tuple) else (results,)) if part.requires_grad]
    grads = [torch.ones_like(part) for part in results]
    return lambda: torch.autograd.grad(results, x, grads)
"""
N, B, TALL = 200 * 200 * 4, 16 * 48 * 48 * 4, 4 * 600 * 40 * 4
SIDE, SIDES, TALL_SIDES = 200 * 7 * 4, 16 * 48 * 7 * 4, 4 * 600 * 7 * 4
CALLS = {
    "cholesky": ("linalg.cholesky(one_matrix)", [N, 4, 1, 1]),
    "of a batch": ("linalg.cholesky(batch)", [B, 64, 128, 1]),
    "solution by cholesky": ("cholesky_solve(side, one_matrix)", [SIDE, 4, N]),
    "solutions by cholesky": ("cholesky_solve(sides, batch)", [SIDES, *[128] * 4]),
    "inverse by cholesky": ("cholesky_inverse(one_matrix)", [N, N, 4, N]),
    "eigenvectors": ("linalg.eigh(one_matrix)", [N, 800, 4, 4 * (1 + 6 * 200 + 2 * 200**2), 1, 1]),
    "eigenvalues": ("linalg.eigvalsh(batch)", [16 * 48 * 4, B, 64, 16 * 65_536 * 4, 1]),
    "svd": ("linalg.svd(tall, full_matrices=False)", [TALL, 4 * 40 * 40 * 4, 640, 16, TALL, 1]),
    "singular values": ("linalg.svdvals(tall)", [640, 16, TALL, 600 * 40 * 4, 40 * 40 * 4, 1]),
    "of small matrices": (
        "linalg.svd(small, full_matrices=False)",
        [16 * 30 * 30 * 4, 16 * 30 * 31 * 4, 1920, 64, 16 * 30 * 31 * 4, 16 * 31 * 31 * 4, 1],
    ),
    "their values": (
        "linalg.svdvals(small)",
        [1920, 64, 16 * 30 * 31 * 4, 16 * 30 * 30 * 4, 16 * 31 * 31 * 4, 1],
    ),
    "gesvd": ("linalg.svd(one_matrix, driver='gesvd')", [N, N, 800, 4, N, 1000 * 4, 800, N, 1, 1]),
    "qr": ("linalg.qr(tall)", [TALL, 4 * 40 * 40 * 4, 640, 4, *[5120] * 4, 4, *[5120] * 4]),
    "qr of a batch": ("linalg.qr(batch)", [B, B, 3072, 128, 128, 4, *[6144] * 16]),
    "complete qr": (
        "linalg.qr(tall, mode='complete')",
        [4 * 600 * 600 * 4, TALL, 640, 4, *[5120] * 4, 4, *[600 * 32 * 4] * 4],
    ),
    "r alone": ("linalg.qr(tall, mode='r')", [4 * 40 * 40 * 4, 640, TALL, 4, *[5120] * 4]),
    "lu": ("linalg.lu(batch)", [B, B, B, B, 3072, 64, 128, 384, 6144]),
    "lu factors": ("linalg.lu_factor(batch)", [B, 3072, 64, 128, 1]),
    "inverse": ("linalg.inv(one_matrix)", [N, 4, N, 800, 1600, 1600, 1600, N, 1, 1]),
    "inverse of a batch": (
        "linalg.inv(batch)",
        [B, 64, B, 3072, 128, 384, 6144, 384, 6144, B, 128, 128, 128, 128, 1],
    ),
    "solution": ("linalg.solve(one_matrix, side)", [SIDE, N, 800, 4, 1600, 1600, 1600, SIDE, 1, 1]),
    "of a batch of systems": ("linalg.solve(batch, sides)", [SIDES, B, 3072, 64, 128, 128, 128, 1]),
    "of a vector": (
        "linalg.solve(one_matrix, side[:, 0])",
        [800, N, 800, 4, 800, 1600, 1600, 1600, 800, 1, 1],
    ),
    "lstsq": (
        "linalg.lstsq(tall, tall_sides)",
        [16, TALL_SIDES, TALL, 640, 4, *[5120] * 4, 4, *[896] * 4, 32, 32, 4 * 7 * 4, 1],
    ),
    "lstsq of a batch": ("linalg.lstsq(batch, sides)", [64, SIDES, B, B, 128, 128, 1]),
    "lstsq of wide matrices": (
        "linalg.lstsq(tall.mT, tall_sides[:, :40])",
        [16, TALL_SIDES, TALL, 640, TALL, 4, *[5120] * 4, 32, 32, 4, *[896] * 4, 1],
    ),
    "determinant": ("linalg.det(batch)", [64, B, 3072, 64, 128, 64, 192, 768, 128, 6144]),
    "its logarithm": ("linalg.slogdet(one_matrix)", [4, 4, N, 800, 4, 800, 200, 8, 1600, 800, 4, 800]),
    "ldl": ("linalg.ldl_factor(one_matrix)", [N, 800, 4, 25600, 1, 1]),
    "triangular": ("linalg.solve_triangular(batch, sides, upper=True)", [SIDES, 128, 128]),
}
GRADIENTS = {
    "cholesky": [N] * 7,
    "svd": [*[N] * 4, 800, *[N] * 9],
    "pinv": [N] * 13,
    "lu_factor": [N, N, N, 1600, *[N] * 8],
    "lu": [N] * 8,
}


@pytest.fixture(scope="module")
def requests_of(tmp_path_factory):
    calls = {name: ("", f"torch.{call}") for name, (call, _) in CALLS.items()}
    calls |= {f"gradient of {name}": (f"call = gradient(torch.linalg.{name})", "call()") for name in GRADIENTS}
    first = next(iter(calls))
    calls[first] = (SETUP, calls[first][1])
    return requests_of_calls(tmp_path_factory.mktemp("factorizations"), calls)


@pytest.mark.parametrize("name", CALLS)
def test_factorizations_allocate_what_the_cuda_build_allocates_around_them(requests_of, name):
    assert requests_of[name] == CALLS[name][1]


@pytest.mark.parametrize("name", GRADIENTS)
def test_sums_in_gradients_of_factorizations_are_no_accumulation_in_place(requests_of, name):
    assert requests_of[f"gradient of {name}"] == GRADIENTS[name]


@pytest.mark.parametrize(
    ("call", "warning"),
    [
        ("torch.linalg.cholesky(x)", "the work area of `linalg_cholesky` is not counted"),
        ("torch.linalg.qr(x)[0]", "the work area of `linalg_qr` is assumed"),
        ("torch.linalg.qr(x[:64, :64])[0]", ""),
        ("torch.linalg.eigvalsh(x[:4, :4])", "the work area of `linalg_eigh` is assumed"),
    ],
)
def test_work_areas_that_a_gpu_alone_knows_are_warned_of(tmp_path, call, warning):
    found = work_area_warnings(tmp_path, call)
    assert len(found) == bool(warning)
    assert all(warning in one for one in found)
