"""Splits of flash attention: sizes that PyTorch's CUDA build requested on a null A100-40GB (torch 2.13)."""

import pytest

from cotenant.core.trace import LibraryCall
from cotenant.estimators.attention_splits import split_buffers

A100 = 108


def buffers(query, keys, sm_count=A100):
    call = LibraryCall(kind="flash_attention", thread="main", params={"query": query, "keys": keys})
    return split_buffers(call, sm_count)


@pytest.mark.parametrize(
    ("query", "keys", "wanted"),
    [
        pytest.param((2, 4, 130, 80), 130, (8_320, 798_720), id="heads rounded up to 96"),
        pytest.param((2, 4, 128, 256), 128, (8_192, 2_097_152), id="wide heads"),
        pytest.param((1, 8, 1024, 64), 1024, (131_072, 8_388_608), id="four splits of four blocks"),
        pytest.param((1, 2, 4096, 128), 4096, (98_304, 12_582_912), id="three splits of 32 blocks"),
        pytest.param((1, 1, 1000, 40), 5000, (40_000, 2_560_000), id="cross attention"),
        pytest.param((1, 8, 700, 64), 700, (44_800, 2_867_200), id="an ineligible number"),
        pytest.param((2, 4, 128, 64), 128, (), id="one block of keys"),
        pytest.param((8, 12, 1024, 64), 1024, (), id="enough blocks without splits"),
    ],
)
def test_bytes_on_an_a100(query, keys, wanted):
    assert buffers(query, keys) == wanted


def test_a_gpu_of_fewer_multiprocessors_is_filled_without_splits():
    assert buffers((1, 8, 700, 64), 700, sm_count=28) == ()
