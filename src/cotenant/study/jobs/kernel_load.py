"""One kernel on a GPU for some seconds: `python kernel_load.py --kernel square --blocks 108 --threads 256`.

Compiled by NVRTC through PyTorch (`torch.cuda._compile_kernel`, 2.9 and later) or CuPy; no nvcc. Prints one JSON line:
when launches began and ended, seconds since the epoch, and how many there were.

Kernels: `square` reads a float, squares and writes it, again and again, each block the same `threads` elements, as the
published micro-benchmark does (PMDLT, EuroMLSys 2023); `stream` does so once for each element of 256 MiB, so that DRAM
is busy; `fp32` keeps the FP32 units busy without memory; `tensor` multiplies bfloat16 matrices.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch

SOURCE = """
extern "C" __global__ void square(const float* in, float* out, long long n, int rounds) {
    long long i = threadIdx.x;
    for (int r = 0; r < rounds; ++r) { float x = in[i]; out[i] = x * x; }
}
extern "C" __global__ void stream(const float* in, float* out, long long n, int rounds) {
    long long step = (long long)gridDim.x * blockDim.x;
    for (int r = 0; r < rounds; ++r)
        for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) out[i] = in[i] * in[i];
}
extern "C" __global__ void fp32(const float* in, float* out, long long n, int rounds) {
    float x = in[threadIdx.x], y = 1.0001f;
    for (int r = 0; r < 1024 * rounds; ++r) x = x * y + 0.5f;
    if (x == 42.0f) out[threadIdx.x] = x;
}
"""
STREAM_ELEMENTS = 64 * 2**20
LAUNCHES_AHEAD = 64
"""Launches between two waits for the GPU: enough to hide the host, few enough to end in time."""


def main() -> None:
    """Launch until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernel", choices=("square", "stream", "fp32", "tensor"), default="square")
    parser.add_argument("--blocks", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--duty", type=float, default=1.0, help="share of each 100 ms in which kernels run")
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    launch = matmul(options.blocks) if options.kernel == "tensor" else compiled(options)
    launch()
    torch.cuda.synchronize()
    began_s, launches = time.time(), 0
    while time.time() < began_s + options.seconds:
        busy_until_s = time.time() + 0.1 * options.duty
        while time.time() < busy_until_s:
            for _ in range(LAUNCHES_AHEAD):
                launch()
            torch.cuda.synchronize()
            launches += LAUNCHES_AHEAD
        if options.duty < 1.0:
            time.sleep(0.1 * (1.0 - options.duty))
    print(json.dumps({"began_s": began_s, "ended_s": time.time(), "launches": launches}), flush=True)


def compiled(options: argparse.Namespace) -> Callable[[], object]:
    """A launch of a kernel of `SOURCE`."""
    elements = STREAM_ELEMENTS if options.kernel == "stream" else 1024
    data = torch.ones(elements, device="cuda")
    result = torch.empty_like(data)
    grid, block = (options.blocks, 1, 1), (options.threads, 1, 1)
    compile_kernel = getattr(torch.cuda, "compile_kernel", None) or getattr(torch.cuda, "_compile_kernel", None)
    if compile_kernel is not None:
        kernel = compile_kernel(SOURCE, options.kernel)
        args = [data, result, elements, 1]
        return lambda: kernel(grid=grid, block=block, args=args)
    import cupy

    kernel = cupy.RawModule(code=SOURCE).get_function(options.kernel)
    pointers = (data.data_ptr(), result.data_ptr(), cupy.int64(elements), cupy.int32(1))
    stream = cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)

    def launch() -> None:
        with stream:
            kernel(grid, block, pointers)

    return launch


def matmul(blocks: int) -> Callable[[], object]:
    """A product of square matrices of which about `blocks` tiles of 128 x 128 are computed."""
    size = max(128, 128 * round(blocks**0.5))
    left = torch.ones(size, size, device="cuda", dtype=torch.bfloat16)
    result = torch.empty_like(left)
    return lambda: torch.mm(left, left, out=result)


if __name__ == "__main__":
    main()
