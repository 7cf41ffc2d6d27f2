"""Fourier transforms: copies, second results and work areas, by the source of PyTorch's CUDA build.

cuFFT makes no plan on a null GPU, so that these sizes are counted by hand.
"""

from __future__ import annotations

import pytest

from traced_calls import requests_of_calls
from traced_scripts import work_area_warnings

torch = pytest.importorskip("torch", reason="tracing needs torch")

REAL = 4 * 6 * 64 * 32 * 4
HALF = 4 * 6 * 64 * 17 * 8
CALLS = {
    "rows": ("x = made(4, 6, 64, 32).detach()", "torch.fft.rfft(x)"),
    "rows of another length": ("", "torch.fft.rfft(x[..., :30])"),
    "columns": ("", "torch.fft.rfft(x, dim=2)"),
    "images": ("", "torch.fft.rfft2(x)"),
    "images whose batch is behind": ("", "torch.fft.rfft2(x, dim=(0, 1))"),
    "inverse of rows": ("f = torch.fft.rfft(x)", "torch.fft.irfft(f)"),
    "inverse of images": ("", "torch.fft.irfft2(f)"),
    "complex": ("", "torch.fft.fft(f, dim=2)"),
    "complex volumes": ("", "torch.fft.fftn(f, dim=(0, 1, 2, 3))"),
    "on the CPU": ("c = torch.randn(8, 8)", "torch.fft.rfft(c)"),
}
WANTED = {
    "rows": [HALF],
    # The slice has a batch that is one dimension of stride 32; the lengths are no power of 2.
    "rows of another length": [4 * 6 * 64 * 16 * 8, 4 * 6 * 64 * 16 * 8],
    "columns": [4 * 6 * 33 * 32 * 8, REAL],
    "images": [HALF, HALF],
    # The last dimension by itself, from a copy of its columns, with a work area for its 6 elements; then the other one,
    # from what the first left, into a second result.
    "images whose batch is behind": [4 * 4 * 64 * 32 * 8, REAL, 4 * 4 * 64 * 32 * 8, 4 * 4 * 64 * 32 * 8],
    "inverse of rows": [REAL, HALF],
    "inverse of images": [REAL, HALF, HALF],
    "complex": [HALF, HALF],
    "complex volumes": [HALF, HALF, HALF],  # three dimensions with a work area, then the fourth, of length 4
    "on the CPU": [],
}


@pytest.fixture(scope="module")
def requests_of(tmp_path_factory):
    return requests_of_calls(tmp_path_factory.mktemp("fourier"), CALLS)


@pytest.mark.parametrize("name", WANTED)
def test_transforms_allocate_what_the_cuda_build_allocates_around_them(requests_of, name):
    assert requests_of[name] == WANTED[name]


@pytest.mark.parametrize(
    ("call", "warning"),
    [
        ("torch.fft.rfft(x[:, :60])", "work areas of cuFFT are assumed"),
        ("torch.fft.rfft(x[:, :64])", ""),
    ],
)
def test_work_areas_that_a_gpu_alone_knows_are_warned_of(tmp_path, call, warning):
    found = work_area_warnings(tmp_path, call)
    assert len(found) == bool(warning)
    assert all(warning in one for one in found)
