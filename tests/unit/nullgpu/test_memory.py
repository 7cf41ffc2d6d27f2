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
    # Each copy of the library has an arena, and a process has 128 TiB of addresses.
    subprocess.run(
        ["cc", "-DARENA_BYTES=((size_t)1<<40)", "-shared", "-fPIC", "-pthread", "-o", str(library), *sources],
        check=True,
    )
    return library


@pytest.fixture
def gpu(compiled, tmp_path, monkeypatch):
    """A null GPU of 100 MiB, of which its context takes 20; a copy of the library has state of its own."""
    monkeypatch.setenv("COTENANT_NULL_GPU", f"name=test;total_bytes={100 * MIB};context_bytes={20 * MIB}")
    own = tmp_path / "memory.so"
    shutil.copy(compiled, own)
    library = ctypes.CDLL(str(own))
    for name in ("null_allocate", "null_reserve_addresses", "null_pin_new", "null_manage"):
        getattr(library, name).restype = ctypes.c_void_p
    for name in ("null_free_bytes", "null_allocation_of", "null_outside_bytes", "null_managed_bytes"):
        getattr(library, name).restype = ctypes.c_size_t
    library.null_allocate.argtypes = [ctypes.c_size_t, ctypes.c_void_p]
    library.null_commit.argtypes = library.null_uncommit.argtypes = [ctypes.c_size_t, ctypes.c_int]
    library.null_manage.argtypes = [ctypes.c_size_t]
    library.null_outside_file.restype = ctypes.c_char_p
    library.allocate = lambda size: library.null_allocate(size, None)
    library.null_reserve_addresses.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
    library.null_release.argtypes = library.null_is_device.argtypes = library.null_is_pinned.argtypes = [
        ctypes.c_void_p
    ]
    library.null_is_managed.argtypes = [ctypes.c_void_p]
    library.null_unpin.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.null_stub.argtypes = [ctypes.c_char_p]
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
    address = gpu.allocate(requested)
    assert gpu.null_free_bytes() == 80 * MIB - taken
    assert gpu.null_release(address) == 0
    assert gpu.null_free_bytes() == 80 * MIB


def test_full_gpu_allocates_nothing_until_something_is_released(gpu):
    first = gpu.allocate(60 * MIB)
    assert gpu.allocate(22 * MIB) is None
    second = gpu.allocate(20 * MIB)
    assert gpu.null_free_bytes() == 0
    assert gpu.null_release(first) == 0
    assert gpu.allocate(60 * MIB) == first, "the first gap is taken again"
    assert gpu.null_is_device(second)


def test_allocations_do_not_overlap(gpu):
    sizes = [3 * MIB, 700, 2 * MIB, 512, 9 * MIB]
    spans = sorted((gpu.allocate(size), size) for size in sizes)
    assert all(begin + size <= following for (begin, size), (following, _) in itertools.pairwise(spans))


def test_releasing_an_unknown_address_fails_and_changes_nothing(gpu):
    address = gpu.allocate(4 * MIB)
    assert gpu.null_release(address + 512) == 1
    assert gpu.null_release(None) == 0
    assert gpu.null_free_bytes() == 76 * MIB


def test_reserved_addresses_take_no_memory_until_bytes_are_committed(gpu):
    address = gpu.null_reserve_addresses(1000 * MIB, 0)
    assert (address % (2 * MIB), gpu.null_free_bytes()) == (0, 80 * MIB)
    assert gpu.null_commit(80 * MIB, 0) == 0
    assert gpu.null_commit(2 * MIB, 0) == 1
    gpu.null_uncommit(80 * MIB, 0)
    assert gpu.null_free_bytes() == 80 * MIB


def test_allocation_is_found_by_any_address_in_it(gpu):
    base = ctypes.c_void_p()
    address = gpu.allocate(4 * MIB)
    assert gpu.null_allocation_of(ctypes.c_void_p(address + 5), ctypes.byref(base)) == 4 * MIB
    assert base.value == address
    assert gpu.null_allocation_of(ctypes.c_void_p(address + 4 * MIB), ctypes.byref(base)) == 0


def test_copy_from_the_device_is_what_was_copied_there_until_a_kernel_runs(gpu):
    device = gpu.allocate(4096)
    host = ctypes.create_string_buffer(8)
    gpu.null_copy(device + 16, ctypes.create_string_buffer(b"abcdefgh"), 8)
    gpu.null_copy(host, device + 18, 4)
    assert host.raw == b"cdef" + bytes(4)
    gpu.null_copy(host, device, 8)
    assert host.raw == bytes(8), "another part was never copied"
    gpu.null_count_launch()
    gpu.null_copy(host, device + 16, 8)
    assert host.raw == bytes(8), "a kernel may have written there"


def test_answer_is_for_one_copy_of_its_size_of_what_is_not_known(gpu):
    device, known = gpu.allocate(512), gpu.allocate(512)
    host = ctypes.create_string_buffer(8)
    gpu.null_copy(known, ctypes.create_string_buffer(b"abcd"), 4)
    gpu.null_answer(ctypes.create_string_buffer(b"wxyz"), ctypes.c_size_t(4))
    gpu.null_copy(host, device, 8)
    assert host.raw == bytes(8), "of another size"
    gpu.null_copy(host, known, 4)
    assert host.raw[:4] == b"abcd"
    gpu.null_copy(host, device, 4)
    assert host.raw[:4] == b"wxyz"
    gpu.null_copy(host, device, 4)
    assert host.raw[:4] == bytes(4), "once"


def test_answer_can_be_taken_back(gpu):
    device, host = gpu.allocate(512), ctypes.create_string_buffer(4)
    gpu.null_answer(ctypes.create_string_buffer(b"wxyz"), ctypes.c_size_t(4))
    gpu.null_answer(None, ctypes.c_size_t(0))
    gpu.null_copy(host, device, 4)
    assert host.raw == bytes(4)


def test_kernels_are_foreign_unless_they_are_in_a_library_of_pytorchs_name(compiled, tmp_path, monkeypatch):
    monkeypatch.setenv("COTENANT_NULL_GPU", f"name=test;total_bytes={100 * MIB}")
    for name, foreign in (("libtorch_cuda_linalg.so", 1), ("libextension.so", 2)):
        own = tmp_path / name
        shutil.copy(compiled, own)
        library = ctypes.CDLL(str(own))
        library.null_foreign_launches.restype = ctypes.c_ulong
        library.null_launch.argtypes = [ctypes.c_void_p]
        library.null_launch(ctypes.cast(library.null_launch, ctypes.c_void_p))
        library.null_launch(None)
        assert library.null_foreign_launches() == foreign


def test_memory_is_outside_unless_pytorchs_allocator_takes_it(compiled, tmp_path, monkeypatch):
    monkeypatch.setenv("COTENANT_NULL_GPU", f"name=test;total_bytes={100 * MIB}")
    for name, outside in (("libc10_cuda.so", 4), ("libextension.so", 10)):
        own = tmp_path / name
        shutil.copy(compiled, own)
        library = ctypes.CDLL(str(own))
        library.null_allocate.restype, library.null_allocate.argtypes = (
            ctypes.c_void_p,
            [ctypes.c_size_t, ctypes.c_void_p],
        )
        library.null_release.argtypes = [ctypes.c_void_p]
        library.null_outside_file.restype = ctypes.c_char_p
        code = ctypes.cast(library.null_allocate, ctypes.c_void_p)
        first = library.null_allocate(6 * MIB, code)
        library.null_release(library.null_allocate(4 * MIB, None))
        library.null_release(first)
        assert library.null_outside_bytes() == outside * MIB, "the most at a time"
        assert library.null_outside_file().decode() == (str(own) if outside == 10 else "")


def test_committed_bytes_are_outside_as_their_caller_says(gpu):
    gpu.null_commit(20 * MIB, 1)
    gpu.null_commit(30 * MIB, 0)
    gpu.null_uncommit(20 * MIB, 1)
    gpu.null_commit(10 * MIB, 1)
    assert gpu.null_outside_bytes() == 20 * MIB


def test_managed_memory_is_readable_and_not_of_the_gpu(gpu):
    address = gpu.null_manage(8192)
    ctypes.memset(address, 1, 8192)
    assert (gpu.null_free_bytes(), gpu.null_managed_bytes()) == (80 * MIB, 8192)
    assert gpu.null_is_managed(address + 8191)
    assert not gpu.null_is_pinned(address)
    gpu.null_unpin(address, 1)
    assert not gpu.null_is_managed(address)
    gpu.null_manage(4096)
    assert gpu.null_managed_bytes() == 8192, "the most at a time"


@pytest.mark.parametrize(
    "name", [pytest.param(b"cublasGemmEx", id="product"), pytest.param(b"cudaMemset2DAsync", id="memset")]
)
def test_stub_that_writes_to_the_device_makes_it_unknown(gpu, name):
    device, host = gpu.allocate(512), ctypes.create_string_buffer(4)
    gpu.null_copy(device, ctypes.create_string_buffer(b"abcd"), 4)
    gpu.null_stub(ctypes.c_char_p(b"cudaStreamSynchronize"))
    gpu.null_copy(host, device, 4)
    assert host.raw == b"abcd"
    gpu.null_stub(ctypes.c_char_p(name))
    gpu.null_copy(host, device, 4)
    assert host.raw == bytes(4)


def test_later_copy_replaces_the_part_that_it_covers(gpu):
    device, host = gpu.allocate(4096), ctypes.create_string_buffer(4)
    gpu.null_copy(device, ctypes.create_string_buffer(b"abcd"), 4)
    gpu.null_copy(device + 2, ctypes.create_string_buffer(b"xy"), 2)
    gpu.null_copy(host, device + 2, 2)
    assert host.raw[:2] == b"xy"
    gpu.null_copy(host, device, 4)
    assert host.raw == bytes(4), "the first is not known whole"


def test_large_copies_are_dropped_and_those_on_the_host_are_made(gpu):
    size = 65 << 10
    device, host = gpu.allocate(size), ctypes.create_string_buffer(b"x" * size)
    gpu.null_copy(device, host, size)
    gpu.null_copy(host, device, size)
    assert host.raw[:size] == bytes(size)
    gpu.null_copy(host, ctypes.create_string_buffer(b"wxyz"), 4)
    assert host.raw[:4] == b"wxyz"


def test_pinned_memory_is_known_until_it_is_released(gpu):
    address = gpu.null_pin_new(8192)
    assert gpu.null_is_pinned(address + 8191)
    assert not gpu.null_is_pinned(address + 8192)
    assert not gpu.null_is_device(address)
    gpu.null_unpin(address, 1)
    assert not gpu.null_is_pinned(address)


def test_limit_replaces_the_memory_that_can_be_allocated_but_not_what_is_shown(compiled, tmp_path, monkeypatch):
    text = f"name=test;total_bytes={100 * MIB};context_bytes={20 * MIB};limit_bytes={1000 * MIB};device_count=3"
    monkeypatch.setenv("COTENANT_NULL_GPU", text)
    own = tmp_path / "limit.so"
    shutil.copy(compiled, own)
    library = ctypes.CDLL(str(own))
    library.null_allocate.restype, library.null_allocate.argtypes = ctypes.c_void_p, [ctypes.c_size_t, ctypes.c_void_p]
    library.null_free_bytes.restype = ctypes.c_size_t
    assert library.null_device_count() == 3
    assert library.null_free_bytes() == 80 * MIB
    assert library.null_allocate(900 * MIB, None)
    assert library.null_free_bytes() == 0
    assert library.null_allocate(102 * MIB, None) is None
