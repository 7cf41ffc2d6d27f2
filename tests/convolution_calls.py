"""A script that runs convolutions of many kinds, forward and backward; then one optimizer step, which ends a trace.

With the argument `benchmark`, twice with `cudnn.benchmark`.
"""

import sys

import torch

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
CALLS = [  # input, weight, stride, padding, groups, transposed, dtype, channels-last
    ((8, 3, 64, 64), (64, 3, 7, 7), 2, 3, 1, False, F32, False),
    ((8, 64, 28, 28), (128, 64, 3, 3), 1, 1, 1, False, F32, False),
    ((8, 64, 28, 28), (256, 64, 1, 1), 1, 0, 1, False, F32, False),
    ((8, 512, 7, 7), (256, 512, 1, 1), 1, 0, 1, False, F32, False),
    ((8, 64, 28, 28), (128, 64, 1, 1), 2, 0, 1, False, F32, False),
    ((8, 48, 35, 35), (64, 48, 5, 5), 1, 2, 1, False, F32, False),
    ((8, 128, 28, 28), (128, 4, 3, 3), 1, 1, 32, False, F32, False),
    ((8, 128, 28, 28), (128, 1, 3, 3), 1, 1, 128, False, F32, False),
    ((8, 128, 28, 28), (128, 1, 3, 3), 1, 1, 128, False, F32, True),
    ((8, 128, 28, 28), (128, 1, 3, 3), 1, 1, 128, False, F16, False),
    ((8, 128, 28, 28), (128, 1, 5, 5), 2, 2, 128, False, F16, False),
    ((8, 128, 28, 28), (128, 1, 7, 7), 1, 3, 128, False, F16, True),
    ((8, 64, 28, 28), (128, 64, 3, 3), 1, 1, 1, False, F16, False),
    ((8, 64, 28, 28), (128, 64, 3, 3), 1, 1, 1, False, F16, True),
    ((8, 128, 14, 14), (128, 64, 4, 4), 2, 1, 1, True, F32, False),
    ((2, 32, 8, 28, 28), (64, 32, 3, 3, 3), 1, 1, 1, False, F32, False),
    ((2, 32, 8, 28, 28), (64, 32, 3, 3, 3), 1, 1, 1, False, F16, True),
    ((8, 64, 400), (128, 64, 3), 1, 1, 1, False, F32, False),
    ((8, 3, 32, 32), (96, 3, 4, 4), 4, 0, 1, False, F32, False),
]


def main() -> None:
    torch.backends.cudnn.benchmark = "benchmark" in sys.argv
    for shape, kernel, stride, padding, groups, transposed, dtype, last in CALLS * (
        2 if torch.backends.cudnn.benchmark else 1
    ):
        layout = LAST[len(shape)] if last else torch.contiguous_format
        x, w = (
            torch.empty(size, device="cuda", dtype=dtype).contiguous(memory_format=layout) for size in (shape, kernel)
        )
        rest = ([stride], [padding], [1], transposed, [0], groups)
        y = torch.ops.aten.convolution(x, w, None, *rest)
        channels = [kernel[1] * groups if transposed else kernel[0]]
        grads = torch.ops.aten.convolution_backward(y, x, w, channels, *rest, [True, True, True])
        del x, w, y, grads
    weight = torch.nn.Parameter(torch.zeros(4, device="cuda"))
    weight.sum().backward()
    torch.optim.SGD([weight], lr=1.0).step()


if __name__ == "__main__":
    main()
