"""The count of device memory, compiled and called as the libraries of the null GPU call it."""

from __future__ import annotations

import ctypes
import itertools
import shutil
import subprocess

import pytest

from cotenant.nullgpu.build import SOURCES

MIB = 2**20

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    library = tmp_path_factory.mktemp("null-gpu") / "memory.so"
    sources = [str(SOURCES / name) for name in ("device.c", "memory.c")]
    subprocess.run(["cc", "-shared", "-fPIC", "-pthread", "-o", str(library), *sources], check=True)
    return library


@pytest.fixture
def gpu(compiled, tmp_path, monkeypatch):
    """A null GPU of 100 MiB, of which its context takes 20; a copy of the library has state of its own."""
    monkeypatch.setenv("COTENANT_NULL_GPU", f"name=test;total_bytes={100 * MIB};context_bytes={20 * MIB}")
    own = tmp_path / "memory.so"
    shutil.copy(compiled, own)
    library = ctypes.CDLL(str(own))
    for name in ("null_allocate", "null_reserve_addresses", "null_pin_new"):
        getattr(library, name).restype = ctypes.c_void_p
    for name in ("null_free_bytes", "null_allocation_of"):
        getattr(library, name).restype = ctypes.c_size_t
    library.null_allocate.argtypes = library.null_commit.argtypes = library.null_uncommit.argtypes = [ctypes.c_size_t]
    library.null_reserve_addresses.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
    library.null_release.argtypes = library.null_is_device.argtypes = library.null_is_pinned.argtypes = [
        ctypes.c_void_p
    ]
    library.null_unpin.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.null_copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    return library


def test_context_is_taken_before_anything_else(gpu):
    assert gpu.null_free_bytes() == 80 * MIB


@pytest.mark.parametrize(
    ("requested", "taken"),
    [
        pytest.param(1, 512, id="small: 512 bytes"),
        pytest.param(513, 1024, id="small: next 512"),
        pytest.param(MIB - 1, MIB, id="just below 1 MiB"),
        pytest.param(MIB, 2 * MIB, id="large: pages of 2 MiB"),
        pytest.param(5 * MIB, 6 * MIB, id="large: next page"),
    ],
)
def test_requests_are_rounded_as_the_driver_rounds_them(gpu, requested, taken):
    address = gpu.null_allocate(requested)
    assert gpu.null_free_bytes() == 80 * MIB - taken
    assert gpu.null_release(address) == 0
    assert gpu.null_free_bytes() == 80 * MIB


def test_full_gpu_allocates_nothing_until_something_is_released(gpu):
    first = gpu.null_allocate(60 * MIB)
    assert gpu.null_allocate(22 * MIB) is None
    second = gpu.null_allocate(20 * MIB)
    assert gpu.null_free_bytes() == 0
    assert gpu.null_release(first) == 0
    assert gpu.null_allocate(60 * MIB) == first, "the first gap is taken again"
    assert gpu.null_is_device(second)


def test_allocations_do_not_overlap(gpu):
    sizes = [3 * MIB, 700, 2 * MIB, 512, 9 * MIB]
    spans = sorted((gpu.null_allocate(size), size) for size in sizes)
    assert all(begin + size <= following for (begin, size), (following, _) in itertools.pairwise(spans))


def test_releasing_an_unknown_address_fails_and_changes_nothing(gpu):
    address = gpu.null_allocate(4 * MIB)
    assert gpu.null_release(address + 512) == 1
    assert gpu.null_release(None) == 0
    assert gpu.null_free_bytes() == 76 * MIB


def test_reserved_addresses_take_no_memory_until_bytes_are_committed(gpu):
    address = gpu.null_reserve_addresses(1000 * MIB, 0)
    assert (address % (2 * MIB), gpu.null_free_bytes()) == (0, 80 * MIB)
    assert gpu.null_commit(80 * MIB) == 0
    assert gpu.null_commit(2 * MIB) == 1
    gpu.null_uncommit(80 * MIB)
    assert gpu.null_free_bytes() == 80 * MIB


def test_allocation_is_found_by_any_address_in_it(gpu):
    base = ctypes.c_void_p()
    address = gpu.null_allocate(4 * MIB)
    assert gpu.null_allocation_of(ctypes.c_void_p(address + 5), ctypes.byref(base)) == 4 * MIB
    assert base.value == address
    assert gpu.null_allocation_of(ctypes.c_void_p(address + 4 * MIB), ctypes.byref(base)) == 0


def test_copies_from_the_device_are_zeros_and_copies_to_it_are_dropped(gpu):
    device = gpu.null_allocate(512)
    host = ctypes.create_string_buffer(b"abcd")
    gpu.null_copy(device, host, 4)
    assert host.raw[:4] == b"abcd"
    gpu.null_copy(host, device, 4)
    assert host.raw[:4] == bytes(4)
    other = ctypes.create_string_buffer(b"wxyz")
    gpu.null_copy(host, other, 4)
    assert host.raw[:4] == b"wxyz"


def test_pinned_memory_is_known_until_it_is_released(gpu):
    address = gpu.null_pin_new(8192)
    assert gpu.null_is_pinned(address + 8191)
    assert not gpu.null_is_pinned(address + 8192)
    assert not gpu.null_is_device(address)
    gpu.null_unpin(address, 1)
    assert not gpu.null_is_pinned(address)
