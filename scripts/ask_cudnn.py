"""Asks cuDNN for the workspace of each convolution of common networks, on a GPU that is not there.

Writes one file of `src/cotenant/estimators/data/cudnn`. Needs, beside torch, timm and torchvision, the packages
nvidia-cudnn-cu12 (or -cu13) and nvidia-cublas-cu12 (or nvidia-cublas); no driver, no GPU:

    python scripts/ask_cudnn.py --capability 80 --batches 8,32,64,128,256 --out sm80_float32.csv.gz

The first plan of the heuristics in mode A is what torch runs with `cudnn.benchmark` off
(aten/src/ATen/native/cudnn/Conv_v8.cpp). Of the device, cuDNN looks at the compute capability alone.
"""

from __future__ import annotations

import argparse
import gzip
import sys
from collections.abc import Iterator
from pathlib import Path

from cotenant.estimators.cudnn.query import installed_cudnn
from cotenant.estimators.cudnn.worker import CudnnBackend

OPS = ("conv_forward", "conv_dgrad", "conv_wgrad")
ITEM_BYTES = 4
SMALL_BYTES = 1 << 18
CLOSE = 0.03

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


def library(capability: int) -> CudnnBackend:
    """The heuristics of cuDNN for one compute capability."""
    for folder in sys.path:
        found = installed_cudnn(str(Path(folder) / "torch"))
        if found is not None:
            return CudnnBackend(str(found.graph), [str(each) for each in found.preload], capability)
    sys.exit("no cuDNN of 9.8 or later is installed here")


def query(cudnn: CudnnBackend, op: str, batch: int, geometry: Geometry) -> int | None:
    """Bytes of workspace; None if cuDNN has no plan."""
    c, k, h, w, r, s, *window, p, q = geometry
    return cudnn.workspace_bytes(
        {
            "kind": op,
            "dtype": "float32",
            "channels_last": False,
            "tf32": True,
            "deterministic": False,
            "x": (batch, c, h, w),
            "w": (k, c, r, s),
            "y": (batch, k, p, q),
            "stride": window[0:2],
            "padding": window[2:4],
            "dilation": window[4:6],
        }
    )


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


def rows(cudnn: CudnnBackend, batches: list[int]) -> Iterator[str]:
    """A line for each geometry: its numbers, then for each operation the codes of all batches."""
    for geometry in geometries():
        codes = [" ".join(encode(query(cudnn, op, n, geometry), n, geometry) for n in batches) for op in OPS]
        yield ",".join([*map(str, geometry), *codes])


def main() -> None:
    """Ask, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capability", type=int, default=80, help="compute capability, e.g. 80")
    parser.add_argument("--batches", default="8,32,64,128,256")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    batches = [int(each) for each in args.batches.split(",")]
    cudnn = library(args.capability)
    head = f"# cuDNN {cudnn.version}, sm{args.capability}, float32, batches {args.batches}\n"
    body = "".join(f"{row}\n" for row in rows(cudnn, batches))
    args.out.write_bytes(gzip.compress((head + body).encode(), mtime=0))


if __name__ == "__main__":
    main()
