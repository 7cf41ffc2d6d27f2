"""Trains a segmentation network of mmsegmentation by its configuration, as the measurements of its model zoo did.

One of several processes of `DistributedDataParallel` with synchronized batch norm, in fp32. `--old-torch` does as torch
1.5 did: `zero_grad` sets zeros, so that gradients live on; the optimizer updates one parameter after another; `softmax`
saves its input.
"""

from __future__ import annotations

import argparse
import sys
import types
from pathlib import Path

import old_torch
import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class NoOperators(types.ModuleType):
    """In place of mmcv's CUDA extension, whose operators no network of the rows needs; they are imported by name."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (nn.Module,), {})


sys.modules.setdefault("mmcv.ops", NoOperators("mmcv.ops"))
import mmseg.models  # noqa: E402 - registers the networks
from mmseg.models.decode_heads import decode_head  # noqa: E402
from mmseg.models.losses import accuracy  # noqa: E402
from mmseg.registry import MODELS  # noqa: E402

CONFIGURATIONS = Path(mmseg.__file__).parent / ".mim" / "configs"


class Samples(list[types.SimpleNamespace]):
    """The samples of a batch, without any field, and their labels as one tensor.

    The measured version had one tensor of labels for all heads; this one stacks them again in each head.
    """

    def __init__(self, labels: torch.Tensor) -> None:
        super().__init__(types.SimpleNamespace(metainfo={}) for _ in labels)
        self.labels = labels


class Losses(nn.Module):
    """The sum of a network's losses: what `DistributedDataParallel` is to see as the forward pass."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        found = self.network.loss(images, Samples(labels))
        return sum(value.mean() for name, value in found.items() if "loss" in name)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, help="of mmsegmentation; a pattern of file names")
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--crop", type=int, nargs=2, default=(512, 1024), metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--old-torch", action="store_true")
    parser.add_argument("--steps", type=int, default=4)
    return parser.parse_args()


def build_model(config: Config) -> nn.Module:
    init_default_scope("mmseg")
    config.model.pretrained = None
    config.model.data_preprocessor = None
    network = MODELS.build(config.model)
    for module in network.modules():
        if hasattr(module, "_stack_batch_gt"):
            module._stack_batch_gt = lambda samples: samples.labels
    # Nor did its accuracy leave out labels.
    decode_head.accuracy = lambda logits, labels, **_: accuracy(logits, labels)
    return Losses(network)


def build_optimizer(config: Config, model: nn.Module, *, one_by_one: bool) -> torch.optim.Optimizer:
    settings = dict(config.optim_wrapper.optimizer)
    kind = getattr(torch.optim, settings.pop("type"))
    return kind(model.parameters(), **settings, foreach=False if one_by_one else None)


def main() -> None:
    args = parse_args()
    if args.old_torch:
        old_torch.use_old_softmax()
    config = Config.fromfile(min(CONFIGURATIONS.glob(args.config)))
    torch.distributed.init_process_group("nccl", rank=0, world_size=args.processes, init_method="tcp://127.0.0.1:29511")
    model = build_model(config).cuda()
    wrapped = DistributedDataParallel(model, device_ids=[0], broadcast_buffers=False)
    optimizer = build_optimizer(config, wrapped, one_by_one=args.old_torch)
    wrapped.train()
    for step in range(args.steps):
        images = torch.zeros(args.batch_size, 3, *args.crop).cuda()
        labels = torch.zeros(args.batch_size, 1, *args.crop, dtype=torch.int64).cuda()
        loss = wrapped(images, labels)
        optimizer.zero_grad(set_to_none=not args.old_torch)
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
