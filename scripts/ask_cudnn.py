"""Queries cuDNN for the workspace of each convolution of common networks, on a GPU that is not there.

Writes one file of `src/cotenant/estimators/data/cudnn`. Needs, beside torch, timm and torchvision, a C compiler and
NVIDIA's wheels, as a CUDA build of torch from pip has them; no driver, no GPU:

    python scripts/ask_cudnn.py --geometries-out geometries.csv
    python scripts/ask_cudnn.py --geometries geometries.csv --gpu A100-40GB --out sm80_92000_float32.csv.gz

`--site` is the folder of the wheels, if it is not that of torch. The first plan of the heuristics in mode A is what
torch runs with `cudnn.benchmark` off (aten/src/ATen/native/cudnn/Conv_v8.cpp).
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cotenant.estimators.cudnn.query import installed_cudnn
from cotenant.estimators.cudnn.worker import CudnnBackend
from cotenant.gpu_specs import gpu_spec
from cotenant.nullgpu.build import build_for_cudnn
from cotenant.nullgpu.device import cudnn_device, device_text
from cotenant.nullgpu.wheels import wheels_in

OPS = ("conv_forward", "conv_dgrad", "conv_wgrad")
ITEM_BYTES = 4
SMALL_BYTES = 1 << 18
CLOSE = 0.03

Geometry = tuple[int, ...]
"""C, K, H, W, kernel (2), stride (2), padding (2), dilation (2), output H and W; number of groups, if there are any."""


def geometries() -> list[Geometry]:
    """2-D convolutions, except depthwise ones, of torchvision's and timm's classifiers, at their sizes and at 32."""
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):  # a CUDA build of torchvision beside a CPU build of torch lacks them
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import timm
    import torchvision

    found: set[Geometry] = set()

    def note(module: torch.nn.Conv2d, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        x = inputs[0]
        if module.groups < max(2, x.shape[1]) and x.dim() == 4 and not isinstance(module.padding, str):
            groups = (module.groups,) if module.groups > 1 else ()
            shape = (x.shape[1], output.shape[1], x.shape[2], x.shape[3], *module.kernel_size, *module.stride)
            found.add((*shape, *module.padding, *module.dilation, output.shape[2], output.shape[3], *groups))

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


def library(gpu: str, site: Path) -> CudnnBackend:
    """The heuristics of the cuDNN in `site` for one model of GPU, with what it needs of the null GPU loaded."""
    found, spec = installed_cudnn(str(site / "torch")), gpu_spec(gpu)
    if found is None or found.wheels is None:
        sys.exit(f"{site} has no cuDNN of 9.8 or later in NVIDIA's wheels")
    os.environ.update({"COTENANT_NULL_GPU": device_text(spec), "COTENANT_NULL_GPU_LOG": "0"})
    wheels = wheels_in([found.wheels], python=str(site))
    device = cudnn_device(spec, cuda_major=wheels.cuda_major)
    with tempfile.TemporaryDirectory(prefix="ask-cudnn-") as folder:
        # A library that is loaded stays mapped without its file, and cuDNN finds it by its soname.
        preload = list(map(str, build_for_cudnn(wheels, Path(folder))))
        return CudnnBackend(str(found.graph), preload, device, skips_engines=found.skips_engines)


def query(cudnn: CudnnBackend, op: str, batch: int, geometry: Geometry) -> int | None:
    """Bytes of workspace; None if cuDNN has no plan."""
    c, k, h, w, r, s, *window, p, q = geometry[:14]
    groups = geometry[14] if len(geometry) > 14 else 1
    plans = cudnn.workspaces(
        {
            "kind": op,
            "dtype": "float32",
            "channels_last": False,
            "tf32": True,
            "deterministic": False,
            "x": (batch, c, h, w),
            "w": (k, c // groups, r, s),
            "y": (batch, k, p, q),
            "stride": window[0:2],
            "padding": window[2:4],
            "dilation": window[4:6],
        }
    )
    return next(iter(plans), None)


def encode(nbytes: int | None, batch: int, geometry: Geometry) -> str:
    """`nbytes` as copies of input, output and weight: `xy3` is one, one and three; else the number itself.

    `n` is a copy of the weight for each image, as of a product of matrices for each.
    """
    if nbytes is None:
        return "?"
    if nbytes <= SMALL_BYTES:
        return "0"
    c, k, h, w, r, s, *_, p, q = geometry[:14]
    groups = geometry[14] if len(geometry) > 14 else 1
    x, y, weight = (ITEM_BYTES * size for size in (batch * c * h * w, batch * k * p * q, k * c // groups * r * s))
    if nbytes == batch * weight:
        return "n"
    best = (CLOSE, str(nbytes))
    for name, base in (("", 0), ("x", x), ("y", y), ("xy", x + y)):
        copies = max(0, round((nbytes - base) / weight))
        error = abs(nbytes - base - copies * weight) / nbytes + 0.0005 * copies
        best = min(best, (error, f"{name}{copies or ''}" if name else f"w{copies}"))
    return best[1]


def rows(cudnn: CudnnBackend, batches: list[int], shapes: list[Geometry]) -> Iterator[str]:
    """A line for each geometry: its numbers, then for each operation the codes of all batches."""
    for geometry in shapes:
        codes = [" ".join(encode(query(cudnn, op, n, geometry), n, geometry) for n in batches) for op in OPS]
        yield ",".join([*map(str, geometry), *codes])


def main() -> None:
    """Write the geometries, or a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--geometries-out", type=Path, help="only list the geometries, a line for each")
    parser.add_argument("--geometries", type=Path, help="such a list (default: look at all networks)")
    parser.add_argument("--gpu", default="A100-40GB", help="model of GPU")
    parser.add_argument("--site", type=Path, help="folder with NVIDIA's wheels (default: that of torch)")
    parser.add_argument("--batches", default="8,32,128")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.geometries_out is not None:
        args.geometries_out.write_text("".join(f"{','.join(map(str, shape))}\n" for shape in geometries()))
        return
    if args.out is None:
        parser.error("needs --out or --geometries-out")
    if args.geometries is None:
        shapes = geometries()
    else:
        shapes = [tuple(map(int, line.split(","))) for line in args.geometries.read_text().split()]
    batches = [int(part) for part in args.batches.split(",")]
    torch = importlib.util.find_spec("torch")
    folder = args.site or (Path(torch.origin).parents[1] if torch is not None and torch.origin else Path())
    cudnn = library(args.gpu, folder)
    major, minor = gpu_spec(args.gpu).compute_capability
    head = f"# cuDNN {cudnn.version}, sm{major}{minor}, float32, batches {args.batches}\n"
    body = "".join(f"{row}\n" for row in rows(cudnn, batches, shapes))
    args.out.write_bytes(gzip.compress((head + body).encode(), mtime=0))


if __name__ == "__main__":
    main()
