"""Asks cuDNN for the workspace of each convolution of common networks, on a GPU that is not there.

Writes one file of `src/cotenant/estimators/data/cudnn`. Needs, beside torch, timm and torchvision, the packages
nvidia-cudnn-cu12 (or -cu13), nvidia-cublas-cu12 (or nvidia-cublas) and nvidia-cudnn-frontend; no driver, no GPU:

    python scripts/ask_cudnn.py --capability 80 --batches 8,32,64,128,256 --out sm80_float32.csv.gz

The first plan of the heuristics in mode A is what torch runs with `cudnn.benchmark` off
(aten/src/ATen/native/cudnn/Conv_v8.cpp). Of the device, cuDNN looks at the compute capability alone.
"""

from __future__ import annotations

import argparse
import ctypes
import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path

OPS = ("conv_forward", "conv_dgrad", "conv_wgrad")
ITEM_BYTES = 4
SMALL_BYTES = 1 << 18
CLOSE = 0.03

# Of an A100; every key must be there, but only `deviceVer` changes an answer.
DEVICE = {
    "cudaDeviceId": 0,
    "driverVer": 12080,
    "runtimeVer": 12080,
    "maxGridSize": [2147483647, 65535, 65535],
    "maxBlockSize": [1024, 1024, 64],
    "regsPerBlock": 65536,
    "multiProcessorCount": 108,
    "smCountOrigin": 0,
    "warpSize": 32,
    "maxSharedMemoryPerBlock": 49152,
    "maxSharedMemoryPerBlockOptin": 166912,
    "oversizedSharedMemoryPerBlock": 0,
    "reservedSharedMemoryPerBlock": 1024,
    "maxRegistersPerSM": 65536,
    "maxCtasPerSM": 32,
    "maxThreadsPerBlock": 1024,
    "maxThreadsPerSM": 2048,
    "pciDeviceId": 0,
    "isTccDriver": 0,
    "supportCoopLaunch": 1,
    "smClockRateKHz": 1410000,
    "memClockRateKHz": 1215000,
    "memoryBusWidth": 5120,
    "l2CacheSize": 41943040,
    "totalGlobalMem": 42505273344,
    "deviceName": "NVIDIA A100",
}

Geometry = tuple[int, ...]
"""C, K, H, W, kernel (2), stride (2), padding (2), dilation (2), output H and W."""


def geometries() -> list[Geometry]:
    """Ungrouped 2-D convolutions of torchvision's and timm's convolutional classifiers, at their sizes and at 32."""
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):  # a CUDA build of torchvision beside a CPU build of torch lacks them
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import timm
    import torchvision

    found: set[Geometry] = set()

    def note(module: torch.nn.Conv2d, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        x = inputs[0]
        if module.groups == 1 and x.dim() == 4 and not isinstance(module.padding, str):
            shape = (x.shape[1], output.shape[1], x.shape[2], x.shape[3], *module.kernel_size, *module.stride)
            found.add((*shape, *module.padding, *module.dilation, output.shape[2], output.shape[3]))

    def look(name: str, size: int, **options: object) -> None:
        try:
            with torch.device("meta"):
                model = (
                    torchvision.models.get_model(name, weights=None, **options)
                    if name in plain
                    else timm.create_model(name, **options)
                ).train()
            for module in model.modules():
                if isinstance(module, torch.nn.Conv2d):
                    module.register_forward_hook(note)
            with torch.no_grad():
                model(torch.empty(2, 3, size, size, device="meta"))
        except (RuntimeError, TypeError, ValueError, AssertionError, NotImplementedError):
            return

    plain = set(torchvision.models.list_models(module=torchvision.models))
    for name in sorted(plain):
        options = {"init_weights": False} if name in {"inception_v3", "googlenet"} else {}
        look(name, 299 if "inception" in name else 224, **options)
    for name in timm.list_models():
        config = timm.get_pretrained_cfg(name)
        for size in {224, min(config.input_size[1], 384) if config else 224}:
            look(name, size)
    for name in ("resnet18", "resnet34", "resnet50", "efficientnet_b0", "mobilenetv3_small_100", "wide_resnet50_2"):
        look(name, 32, num_classes=100)
    return sorted(found)


class Asker:
    """cuDNN's heuristics for one compute capability."""

    def __init__(self, capability: int) -> None:
        for part in ("cublasLt.so.*", "cudnn_graph.so.9", "cudnn_ops.so.9", "cudnn_cnn.so.9", "cudnn.so.9"):
            for folder in sys.path:
                for file in Path(folder).glob(f"nvidia/*/lib/lib{part}"):
                    ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)
        import cudnn

        self.cudnn = cudnn
        self.capability = capability
        self.device = cudnn.create_device_properties(json.dumps({**DEVICE, "deviceVer": capability * 10}))

    def ask(self, op: str, batch: int, geometry: Geometry) -> int | None:
        """Bytes of workspace; None if cuDNN has no plan."""
        c, k, h, w, r, s, *window, p, q = geometry
        x, weight, y = (batch, c, h, w), (k, c, r, s), (batch, k, p, q)
        cudnn = self.cudnn
        graph = cudnn.pygraph(
            io_data_type=cudnn.data_type.FLOAT,
            intermediate_data_type=cudnn.data_type.FLOAT,
            compute_data_type=cudnn.data_type.FLOAT,
            device_property=self.device,
            sm_version=self.capability,
        )

        def tensor(name: str, shape: tuple[int, ...]) -> object:
            return graph.tensor(name=name, dim=list(shape), stride=_strides(shape), data_type=cudnn.data_type.FLOAT)

        options = {"stride": window[0:2], "padding": window[2:4], "dilation": window[4:6]}
        if op == "conv_forward":
            out, shape = graph.conv_fprop(image=tensor("x", x), weight=tensor("w", weight), **options), y
        elif op == "conv_dgrad":
            out, shape = graph.conv_dgrad(loss=tensor("y", y), filter=tensor("w", weight), **options), x
        else:
            out, shape = graph.conv_wgrad(image=tensor("x", x), loss=tensor("y", y), **options), weight
        out.set_output(True)
        out.set_dim(list(shape))
        out.set_stride(_strides(shape))
        out.set_data_type(cudnn.data_type.FLOAT)
        try:
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([cudnn.heur_mode.A])
            graph.build_plan_at_index(0)
        except RuntimeError:
            return None
        return graph.get_workspace_size_plan_at_index(0)


def _strides(shape: tuple[int, ...]) -> list[int]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return strides[::-1]


def encode(nbytes: int | None, batch: int, geometry: Geometry) -> str:
    """`nbytes` as copies of input, output and weight: `xy3` is one, one and three; else the number itself."""
    if nbytes is None:
        return "?"
    if nbytes <= SMALL_BYTES:
        return "0"
    c, k, h, w, r, s, *_, p, q = geometry
    x, y, weight = (ITEM_BYTES * each for each in (batch * c * h * w, batch * k * p * q, k * c * r * s))
    best = (CLOSE, str(nbytes))
    for name, base in (("", 0), ("x", x), ("y", y), ("xy", x + y)):
        copies = max(0, round((nbytes - base) / weight))
        error = abs(nbytes - base - copies * weight) / nbytes + 0.0005 * copies
        best = min(best, (error, f"{name}{copies or ''}" if name else f"w{copies}"))
    return best[1]


def rows(asker: Asker, batches: list[int]) -> Iterator[str]:
    """A line for each geometry: its numbers, then for each operation the codes of all batches."""
    for geometry in geometries():
        codes = [" ".join(encode(asker.ask(op, n, geometry), n, geometry) for n in batches) for op in OPS]
        yield ",".join([*map(str, geometry), *codes])


def main() -> None:
    """Ask, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capability", type=int, default=80, help="compute capability, e.g. 80")
    parser.add_argument("--batches", default="8,32,64,128,256")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    batches = [int(each) for each in args.batches.split(",")]
    asker = Asker(args.capability)
    head = f"# cuDNN {asker.cudnn.backend_version()}, sm{args.capability}, float32, batches {args.batches}\n"
    body = "".join(f"{row}\n" for row in rows(asker, batches))
    args.out.write_bytes(gzip.compress((head + body).encode(), mtime=0))


if __name__ == "__main__":
    main()
