"""What `unique`, `median`, `mode` and `topk` allocate, as PyTorch's CUDA build does on a null A100 (torch 2.13).

A null GPU reads counts as zeros. What depends on them, the last entries of `mode` and of `unique` along a dimension, is
by the source, for values that are all different.
"""

from __future__ import annotations

import pytest

from traced_calls import requests_of_calls

torch = pytest.importorskip("torch", reason="tracing needs torch")

INTEGERS = "x = torch.ones(100_000, device='cuda', dtype=torch.long)"
NUMBERS = "x = torch.ones(4_000_000, device='cuda')"
HALVES = "x = torch.ones(300_000, device='cuda').half()"
BOOLEANS = "x = torch.ones(300_000, device='cuda').bool()"
TRANSPOSED = "x = torch.ones(300, 400, device='cuda').t()"
BOTH = "return_inverse=True, return_counts=True"
CALLS = {
    "inverse": (INTEGERS, "torch.unique(x, return_inverse=True)"),
    "counts": (INTEGERS, "torch.unique(x, return_counts=True)"),
    "both": (INTEGERS, f"torch.unique(x, {BOTH})"),
    "inverse of numbers": (NUMBERS, "torch.unique(x, return_inverse=True)"),
    "counts of numbers": (NUMBERS, "torch.unique(x, return_counts=True)"),
    "both of few": ("x = torch.ones(500, device='cuda')", f"torch.unique(x, {BOTH})"),
    "both of a transpose": (TRANSPOSED, f"torch.unique(x, {BOTH})"),
    "both in half precision": (HALVES, f"torch.unique(x, {BOTH})"),
    "booleans": (BOOLEANS, f"torch.unique(x, {BOTH})"),
    "booleans alone": (BOOLEANS, "torch.unique(x)"),
    "consecutive": ("x = torch.ones(300_000, device='cuda').long()", "torch.unique_consecutive(x)"),
    "consecutive, both": (
        "x = torch.ones(300_000, device='cuda').long()",
        f"torch.unique_consecutive(x, {BOTH})",
    ),
    "rows": ("x = torch.ones(30_000, 3, device='cuda').long()", "torch.unique(x, dim=0)"),
    "rows, both": ("x = torch.ones(300_000, 2, device='cuda')", f"torch.unique(x, dim=0, {BOTH})"),
    "columns, inverse": ("x = torch.ones(2, 300_000, device='cuda')", "torch.unique(x, dim=1, return_inverse=True)"),
    "consecutive rows": (
        "x = torch.ones(300_000, 2, device='cuda')",
        f"torch.unique_consecutive(x, dim=0, {BOTH})",
    ),
    "median": ("x = torch.ones(300, 500, device='cuda')", "x.median()"),
    "median of a transpose": ("x = torch.ones(300, 500, device='cuda').t()", "x.median()"),
    "median of few": ("x = torch.ones(500, device='cuda')", "x.median()"),
    "median of integers": ("x = torch.ones(50_000, device='cuda').long()", "x.median()"),
    "median but for nan": ("x = torch.ones(50_000, device='cuda')", "x.nanmedian()"),
    "medians of columns": ("x = torch.ones(300, 500, device='cuda').t()", "x.median(0)"),
    "third": ("x = torch.ones(300, 500, device='cuda').t()", "x.kthvalue(3, 0)"),
    "many of a row": ("x = torch.ones(100_000, device='cuda')", "x.topk(5000)"),
    "many of few rows": ("x = torch.ones(8, 100_000, device='cuda')", "x.topk(5000)"),
    "many of many rows": ("x = torch.ones(200, 10_000, device='cuda')", "x.topk(5000)"),
    "many of columns": ("x = torch.ones(100_000, 8, device='cuda')", "x.topk(5000, 0)"),
    "many, not sorted": ("x = torch.ones(8, 100_000, device='cuda')", "x.topk(5000, sorted=False)"),
    "most of a short row": ("x = torch.ones(5000, device='cuda')", "x.topk(4500)"),
    "mode of short rows": ("x = torch.ones(300, 500, device='cuda')", "x.mode(1)"),
    "mode of short columns": ("x = torch.ones(300, 500, device='cuda')", "x.mode(0)"),
    "mode of a row": ("x = torch.ones(5000, device='cuda')", "x.mode(0)"),
    "mode of integers": ("x = torch.ones(2, 50_000, device='cuda').long()", "x.mode(1)"),
    "mode in half precision": ("x = torch.ones(50_000, device='cuda').half()", "x.mode(0)"),
}  # fmt: skip
FEW_ROWS = [160_000, 320_000, 32, 64, 64, 323_584, 8192, 2528, 2528, 1279, 1279]
SORTED = [320_000, 320_000, 160_000, 503_039, 13_823]
WANTED = {
    "inverse": [800_000, 800_000, 800_000, 1_644_543, 800_000, 800_000, 1023, 800_000, 8, 1279],
    "counts": [800_000, 844_543, 800_000, 8, 800_000, 3071],
    "both": [800_000, 800_000, 800_000, 1_644_543, 800_000, 800_000, 1023, 800_000, 8, 800_000, 3071],
    "inverse of numbers": [
        *(16_000_000, 32_000_000, 32_000_000, 49_342_975, 32_000_000, 32_000_000, 9215, 16_000_000, 8, 7935),
    ],
    "counts of numbers": [16_000_000, 16_517_631, 16_000_000, 8, 32_000_000, 84_223],
    "both of few": [2000, 4000, 4000, 1, 4000, 4000, 1023, 2000, 8, 4000, 1023],
    "both of a transpose": [
        *(480_000, 480_000, 960_000, 960_000, 1_489_663, 960_000, 960_000, 1023, 480_000, 8, 960_000, 3327),
    ],
    "both in half precision": [
        *(600_000, 2_400_000, 2_400_000, 7_469_055, 2_400_000, 2_400_000, 1535, 600_000, 8, 2_400_000, 7167),
    ],
    "booleans": [4, 17_663, 2, 16, 2_400_000],
    "booleans alone": [4, 17_663, 2, 16],
    "consecutive": [2_400_000, 8, 2047],
    "consecutive, both": [2_400_000, 1_200_000, 1535, 2_400_000, 8, 2_400_000, 7167],
    "rows": [240_000, 240_639, 2047, 720_000],
    "rows, both": [
        *(2_400_000, 2_401_023, 2_400_000, 2_400_000, 255, 2559, 2_400_008, 3071, 2_400_000, 255, 2_400_000),
    ],
    "columns, inverse": [2_400_000, 2_400_000, 2_401_023, 2_400_000, 2_400_000, 255, 2559, 8959, 2_400_000],
    "consecutive rows": [2_400_000, 2_400_000, 2_400_000, 255, 2559, 2_400_008, 3071, 2_400_000, 255, 2_400_000],
    "median": [600_000, 1_200_000, 1_200_000, 1_859_071, 1, 4],
    "median of a transpose": [600_000, 600_000, 1_200_000, 1_200_000, 1_859_071, 1, 4],
    "median of few": [2000, 4000, 4000, 1, 4],
    "median of integers": [400_000, 400_000, 400_000, 831_487, 1, 8],
    "median but for nan": [200_000, 400_000, 400_000, 626_431, 50_000, 8, 400_000, 8, 4, 8, 4],
    "medians of columns": [600_000, 1200, 2400],
    "third": [600_000, 1200, 2400],
    "many of a row": [
        *(20_000, 40_000, 4, 8, 8, 50_176, 1024, 392, 392, 1279, 1279, 40_000, 20_000, 40_000, 71_167, 40_000),
    ],
    "many of few rows": [*FEW_ROWS, 320_000, 160_000, *SORTED, 320_000],
    "many of many rows": [
        *(4_000_000, 8_000_000, 800, 1600, 1600, 409_600, 204_800, 3200, 3200, 1279, 1279),
        *(8_000_000, 4_000_000, 8_000_000, 12_000_255, 8_000_000),
    ],
    "many of columns": [*FEW_ROWS, 320_000, 160_000, 160_000, 160_000, 320_000, *SORTED, 320_000],
    "many, not sorted": FEW_ROWS,
    "most of a short row": [18_000, 36_000, 36_000, 18_000, 36_000, 65_023, 36_000],
    "mode of short rows": [1200, 2400],
    "mode of short columns": [2000, 4000, 600_000],
    "mode of a row": [4, 8, 20_000, 40_000, 70_911, 17_667, 20_000, 40_000, 1535, 767, 69_391],
    "mode of integers": [
        *(16, 16, 800_000, *(400_000, 831_231, 17_667, 400_000, 400_000, 1791, 767, 69_391) * 2),
    ],
    "mode in half precision": [2, 8, 100_000, 400_000, 500_735, 17_667, 100_000, 400_000, 1791, 767, 69_391],
}


@pytest.fixture(scope="module")
def requests_of(tmp_path_factory):
    return requests_of_calls(tmp_path_factory.mktemp("selections"), CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_requests_are_those_of_a_cuda_build(requests_of, name):
    assert requests_of[name] == WANTED[name]
