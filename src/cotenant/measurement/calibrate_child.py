"""One step of a calibration: `python calibrate_child.py STEP ANSWER.json`.

Imports only the standard library and torch. After its answer the process keeps its memory until the parent has measured
it and closes the pipe.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import platform
import sys
from collections.abc import Callable
from typing import Any


def bare(torch: Any) -> None:
    """A context and a block of 512 bytes."""
    torch.empty(1, device="cuda")


def cublas(torch: Any) -> None:
    """One matrix product."""
    a = torch.zeros(256, 256, device="cuda")
    torch.mm(a, a)


def cublaslt(torch: Any) -> None:
    """A linear layer in bfloat16, which uses cuBLASLt."""
    layer = torch.nn.Linear(256, 256, device="cuda", dtype=torch.bfloat16)
    layer(torch.zeros(64, 256, device="cuda", dtype=torch.bfloat16)).sum().backward()


def cudnn(torch: Any) -> None:
    """A matrix product and a convolution, forward and backward."""
    cublas(torch)
    layer = torch.nn.Conv2d(64, 64, 3, padding=1).cuda()
    layer(torch.zeros(8, 64, 32, 32, device="cuda")).sum().backward()


def many(torch: Any) -> None:
    """Three training steps of a small network with many kinds of layers."""
    nn = torch.nn
    cublaslt(torch)
    body = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1, groups=32),
        nn.SiLU(),
        nn.Conv2d(64, 64, 1),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(8),
        nn.Flatten(2),
    ).cuda()
    encoder = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).cuda()
    recurrent = nn.LSTM(64, 64, batch_first=True).cuda()
    words = nn.Embedding(1000, 64).cuda()
    head = nn.Linear(64, 10).cuda()
    parts = (body, encoder, recurrent, words, head)
    optimizer = torch.optim.AdamW([parameter for part in parts for parameter in part.parameters()])
    for _ in range(3):
        with torch.autocast("cuda", torch.bfloat16):
            tokens = body(torch.randn(8, 3, 32, 32, device="cuda")).transpose(1, 2)
            tokens = encoder(tokens + words(torch.randint(0, 1000, (8, 64), device="cuda")))
            tokens, _ = recurrent(tokens)
            logits = head(nn.functional.dropout(tokens.mean(dim=1)))
            loss = nn.functional.cross_entropy(logits.float(), torch.randint(0, 10, (8,), device="cuda"))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(body.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()


STEPS: dict[str, Callable[[Any], None]] = {
    "bare": bare,
    "cublas": cublas,
    "cublaslt": cublaslt,
    "cudnn": cudnn,
    "many": many,
}


def main() -> None:
    """Run one step and write the answer."""
    sys.path.pop(0)  # this folder
    import torch

    cuda = torch.cuda
    cuda.init()
    step = sys.argv[1]
    with contextlib.suppress(Exception):
        cuda.memory._record_memory_history("all", context=None, max_entries=100_000)
    STEPS[step](torch)
    cuda.synchronize()
    free_bytes, total_bytes = cuda.mem_get_info()
    properties = cuda.get_device_properties(0)
    found: dict[str, Any] = {
        "gpu": properties.name,
        "capability": [properties.major, properties.minor],
        "sm_count": properties.multi_processor_count,
        "torch_total_bytes": properties.total_memory,
        "device_free_bytes": free_bytes,
        "device_total_bytes": total_bytes,
        "allocated_bytes": cuda.memory_allocated(),
        "reserved_bytes": cuda.memory_reserved(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        # `cudnn.version()` loads cuDNN, so the steps without it read the version of the package.
        "cudnn": torch.backends.cudnn.version() if step in ("cudnn", "many") else _cudnn_package(),
        "python": platform.python_version(),
    }
    with contextlib.suppress(Exception):
        sizes = [event["size"] for event in cuda.memory._snapshot()["device_traces"][0] if event["action"] == "alloc"]
        found["allocations"] = sizes[:200]
        found.update(workspaces(step, sizes))
    answer = pathlib.Path(sys.argv[2])
    scratch = answer.with_suffix(".part")
    scratch.write_text(json.dumps(found))
    scratch.replace(answer)
    with contextlib.suppress(OSError, KeyError, ValueError):
        os.read(int(os.environ["COTENANT_HOLD_FD"]), 1)
    os._exit(0)


def workspaces(step: str, sizes: list[int]) -> dict[str, int]:
    """Workspaces of cuBLAS: the only allocations of more than 1 MiB, since the operands are smaller."""
    large = [size for size in sizes if size > 2**20]
    if step == "cublas" and large:
        return {"handle_bytes": large[0]}
    if step == "cublaslt" and large:
        return {"lt_bytes": large[0]}
    return {}


def _cudnn_package() -> str:
    """The version of the package, without loading the library."""
    from importlib import metadata

    for name in ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12", "nvidia-cudnn-cu11"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return "unknown"


if __name__ == "__main__":
    main()
