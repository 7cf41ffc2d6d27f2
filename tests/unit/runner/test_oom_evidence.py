"""What counts as proof that GPU memory ran out, what as a hint, and what as nothing."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

import pytest

from cotenant.runner.oom_evidence import evidence

GIB = 2**30
MIB = 2**20

FRAMES = 'Traceback (most recent call last):\n  File "train.py", line 81, in <module>\n    loss.backward()\n    ^^^^^\n'

TORCH_1_13 = (
    "RuntimeError: CUDA out of memory. Tried to allocate 392.00 MiB (GPU 0; 39.59 GiB total capacity; 36.93 GiB already"
    " allocated; 190.12 MiB free; 37.59 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try"
    " setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and"
    " PYTORCH_CUDA_ALLOC_CONF"
)
TORCH_2_4 = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.53 GiB. GPU 0 has a total capacity of 39.39 GiB of"
    " which 1.08 GiB is free. Including non-PyTorch memory, this process has 38.30 GiB memory in use. Of the allocated"
    " memory 37.20 GiB is allocated by PyTorch, and 606.42 MiB is reserved by PyTorch but unallocated. If reserved but"
    " unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
    "  See documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
TORCH_2_6_SHARED = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 39.39 GiB"
    " of which 12.81 MiB is free. Process 40417 has 21.50 GiB memory in use. Process 40533 has 10.02 GiB memory in use."
    " Including non-PyTorch memory, this process has 7.86 GiB memory in use. Of the allocated memory 7.31 GiB is"
    " allocated by PyTorch, and 44.70 MiB is reserved by PyTorch but unallocated."
)
TORCH_2_11 = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 39.49 GiB of"
    " which 1.27 GiB is free. this process has 38.20 GiB memory in use. Of the allocated memory 37.50 GiB is allocated"
    " by PyTorch, and 200.00 MiB is reserved by PyTorch but unallocated."
)
TORCH_UNKNOWN_USE = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 39.49"
    " GiB of which 1.27 GiB is free. Including non-PyTorch memory, this process has 17179869184.00 GiB memory in use."
    " Of the allocated memory 37.00 GiB is allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated."
)
JAX = (
    "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 68719476736"
    " bytes."
)
JAX_NEW = "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 68,719,476,736 bytes."
TENSORFLOW = (
    "tensorflow.python.framework.errors_impl.ResourceExhaustedError: Graph execution error:\n\nDetected at node"
    " 'model/conv2d/Conv2D' defined at (most recent call last):\n"
    + "".join(f'    File "train.py", line {i}, in call\n' for i in range(30))
    + "Node: 'model/conv2d/Conv2D'\nOOM when allocating tensor with shape[64,256,112,112] and type float"
)
CUPY = "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,589,934,592 bytes (allocated so far: 512 bytes)."
NCCL = (
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2006, unhandled cuda error (run with"
    " NCCL_DEBUG=INFO for details), NCCL version 2.21.5\nncclUnhandledCudaError: Call to CUDA function failed.\n"
    "Last error:\nCuda failure 2 'out of memory'"
)


@pytest.mark.parametrize(
    ("text", "tried", "in_use"),
    [
        pytest.param(TORCH_1_13, 392 * MIB, int(37.59 * GIB), id="torch 1.13"),
        pytest.param(TORCH_2_4, int(1.53 * GIB), int(38.30 * GIB), id="torch 2.4"),
        pytest.param(TORCH_2_6_SHARED, 20 * MIB, int(7.86 * GIB), id="torch 2.6, shared GPU"),
        pytest.param(TORCH_2_11, 2 * GIB, int(38.20 * GIB), id="torch 2.11"),
        pytest.param(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 420.00 MiB. GPU 0 has a total capacity of "
            "39.38 GiB of which 64 MiB is free. Including non-PyTorch memory, this process has 0 bytes memory in use.",
            420 * MIB,
            0,
            id="nothing held yet",
        ),
        pytest.param(TORCH_UNKNOWN_USE, 2 * GIB, 37 * GIB + 512 * MIB, id="driver does not tell the use"),
        pytest.param("RuntimeError: CUDA error: out of memory", None, None, id="no context"),
        pytest.param("torch.AcceleratorError: CUDA error: out of memory", None, None, id="torch 2.8, no context"),
        pytest.param(
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            None,
            None,
            id="cuBLAS",
        ),
        pytest.param("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", None, None, id="cuDNN"),
        pytest.param(JAX, 64 * GIB, None, id="jax"),
        pytest.param(JAX_NEW, 64 * GIB, None, id="jax, newer"),
        pytest.param(TENSORFLOW, None, None, id="tensorflow"),
        pytest.param(CUPY, 8 * GIB, None, id="cupy"),
        pytest.param(NCCL, None, None, id="nccl"),
        pytest.param("pycuda._driver.MemoryError: cuMemAlloc failed: out of memory", None, None, id="pycuda"),
        pytest.param("numba.cuda.CudaAPIError: [2] cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY", None, None, id="numba"),
    ],
)
def test_a_final_oom_exception_is_proof(text, tried, in_use):
    found = evidence(["epoch 1\n" + FRAMES + text + "\n"], failed=True)
    assert found == {"exception": True, "tried_bytes": tried, "in_use_bytes": in_use}


def ranks(text):
    return "".join(f"[rank1]: {line}\n" for line in text.splitlines())


@pytest.mark.parametrize(
    "output",
    [
        pytest.param(ranks(FRAMES + TORCH_2_4) + ranks("[W1121 Warning: destroy_process_group]"), id="marked by rank"),
        pytest.param(
            ranks(FRAMES + TORCH_2_4)
            + "".join(f"[rank0]: {line}\n" for line in (FRAMES + "RuntimeError: Connection reset").splitlines()),
            id="another rank fails in consequence",
        ),
        pytest.param(
            FRAMES
            + TORCH_2_4
            + "\nE1121 01:02:03.000000 77 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1)\n"
            + FRAMES
            + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
            + "=" * 60
            + "\ntrain.py FAILED\n"
            + "-" * 60
            + "\nRoot Cause (first observed failure):\n[0]:\n  rank      : 0 (local_rank: 0)\n",
            id="torchrun",
        ),
        pytest.param(
            FRAMES
            + "torch.multiprocessing.spawn.ProcessRaisedException: \n\n"
            + "-- Process 0 terminated with the following error:\n"
            + FRAMES
            + TORCH_2_4
            + "\n\n",
            id="torch.multiprocessing.spawn",
        ),
        pytest.param(
            FRAMES
            + "ValueError: first\n\nDuring handling of the above exception, another exception occurred:\n\n"
            + FRAMES
            + TORCH_2_4,
            id="end of a chain",
        ),
        pytest.param("10%|#         | 1/10\r20%|##        | 2/10\r" + FRAMES + TORCH_2_4, id="after a progress bar"),
        pytest.param(FRAMES.replace("\n", "\r\n") + TORCH_2_4 + "\r\n", id="carriage returns"),
        pytest.param("\x1b[31m" + FRAMES + TORCH_2_4 + "\x1b[0m", id="in color"),
        pytest.param(
            "terminate called after throwing an instance of 'c10::OutOfMemoryError'\n  what():  CUDA out of memory."
            " Tried to allocate 2.00 GiB.\nException raised from malloc at CUDACachingAllocator.cpp:1\n"
            + "".join(f"frame #{i}: c10::something + 0x1\n" for i in range(40))
            + "Aborted (core dumped)\n",
            id="C++",
        ),
        pytest.param(
            FRAMES + TORCH_2_4 + "\nException ignored in: <function f>\nwandb: done\nx.py:1: UserWarning: leak\n",
            id="noise of the shutdown",
        ),
    ],
)
def test_proof_is_found_behind_prefixes_colors_and_launchers(output):
    assert evidence([output], failed=True).get("exception") is True


@pytest.mark.parametrize(
    "output",
    [
        pytest.param("warning: CUDA out of memory, skipping the batch\n", id="a word in a log"),
        pytest.param("reading /data/OOM/part-1\n", id="a path"),
        pytest.param(
            FRAMES + TORCH_2_4 + "\n" + "".join(f"step {i}\n" for i in range(20)), id="caught, and the job went on"
        ),
        pytest.param(FRAMES + TORCH_2_4 + "\nskipped\n" + FRAMES + "KeyError: 'label'\n", id="caught; died of another"),
        pytest.param(
            FRAMES
            + TORCH_2_4
            + "\n\nDuring handling of the above exception, another exception occurred:\n\n"
            + FRAMES
            + "FileNotFoundError: checkpoint.pt\n",
            id="start of a chain",
        ),
        pytest.param(FRAMES + "ValueError: the worker said: CUDA out of memory\n", id="quoted by another exception"),
        pytest.param(FRAMES + "RuntimeError: a worker said: CUDA out of memory\n", id="quoted by the same exception"),
        pytest.param(
            FRAMES + "RuntimeError: [enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: out of memory\n",
            id="host memory",
        ),
        pytest.param(FRAMES + "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED\n", id="ambiguous"),
        pytest.param(
            FRAMES + "jaxlib.xla_extension.XlaRuntimeError: INTERNAL: out of memory or something\n", id="jax, internal"
        ),
        pytest.param(TORCH_2_4 + "\n", id="no traceback"),
    ],
)
def test_oom_words_elsewhere_are_only_a_hint(output):
    assert evidence([output], failed=True) == {"message": True}


@pytest.mark.parametrize(
    "output",
    [
        pytest.param("", id="silence"),
        pytest.param("epoch 1\nloss 0.1\n", id="plain output"),
        pytest.param(FRAMES + "ValueError: shapes do not match\n", id="another exception"),
        pytest.param("zoom level BOOM\n", id="letters inside words"),
        pytest.param("Traceback (most recent call last):", id="cut short"),
    ],
)
def test_other_output_is_no_evidence(output):
    assert evidence([output], failed=True) == {}


def test_a_job_that_succeeded_has_no_proof():
    assert evidence([FRAMES + TORCH_2_4], failed=False) == {"message": True}


def test_either_output_may_hold_the_proof():
    assert evidence(["epoch 1\n", FRAMES + TORCH_2_4], failed=True)["exception"]


def traceback(message):
    return f"{FRAMES}torch.OutOfMemoryError: CUDA out of memory. {message}\n"


HOSTILE = {
    "digits in a message": traceback("9" * 250_000),
    "digits on a line after it": traceback("x") + "9" * 250_000,
    "a number of many parts": traceback("Tried to allocate " + "1,1." * 60_000 + " GiB"),
    "words of the driver": FRAMES + "pycuda.Error: " + "cuMemAlloc" * 25_000,
    "words of NCCL": FRAMES + "x.DistBackendError: " + "Cuda failure " * 20_000,
    "many tracebacks": FRAMES * 2_000,
    "many launchers": (FRAMES + "x.ChildFailedError: y\n") * 2_000,
    "many ranks": "".join(f"[rank{i}]: Traceback (most recent call last):\n" for i in range(6_000)),
    "blank lines": FRAMES + "\n" * 250_000,
    "colors": "\x1b[" + "0;" * 120_000,
    "carriage returns": "\r" * 250_000,
    "names": FRAMES + "a." * 120_000,
    "equals signs": FRAMES + "torch.OutOfMemoryError: x\n" + "=" * 250_000 + "!",
    "percent signs": traceback("x") + "1%" * 120_000,
}


def test_hostile_output_costs_little_cpu_time():
    """The kernel ends the child after 20 s of CPU time; the pattern of sizes alone once took half an hour."""
    code = "import json, sys; from cotenant.runner.oom_evidence import evidence\nfor text in json.load(sys.stdin):\n"
    code += " evidence([text[-262144:]], failed=True)\n evidence([text[-262144:]], failed=False)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(list(HOSTILE.values())).encode(),
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (20, 20)),
    )
    assert done.returncode == 0


@pytest.mark.parametrize(
    "size",
    [
        pytest.param("9" * 400 + ".00 GiB", id="400 digits"),
        pytest.param("9" * 27 + ".00 TiB", id="more than a GPU has"),
        pytest.param("1" + ",000" * 100 + " GiB", id="with commas"),
        pytest.param("-5 GiB", id="negative"),
        pytest.param("nan GiB", id="no number"),
    ],
)
def test_a_size_out_of_range_is_not_known(size):
    text = traceback(f"Tried to allocate {size}. Including non-PyTorch memory, this process has {size} memory in use.")
    assert evidence([text], failed=True) == {"exception": True, "tried_bytes": None, "in_use_bytes": None}
