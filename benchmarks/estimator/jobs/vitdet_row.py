"""Trains a detector of detectron2 by a configuration of its ViTDet project, as the measurements of that project did.

One of 64 processes of `DistributedDataParallel`, each with one image of 1024 x 1024, by automatic mixed precision.
`--old-torch` does as torch before 2.0 did: `zero_grad` sets zeros, so that gradients live on, and the optimizer updates
one parameter after another; `--old-softmax` as torch before 1.11, which saved the input of `softmax`.

Masks are made up where the heads crop them, since polygons are drawn by values of boxes that were computed.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import detectron2
import old_torch
import torch
from detectron2.config import LazyConfig, instantiate
from detectron2.structures import Boxes, Instances
from detectron2.utils.events import EventStorage
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

CONFIGURATIONS = Path(detectron2.__file__).parents[1] / "projects" / "ViTDet" / "configs"
LVIS_CLASSES = 1203


class MadeUpMasks:
    """Masks of objects, without polygons."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, chosen: Any) -> MadeUpMasks:
        return MadeUpMasks(len(torch.empty(self.count)[chosen.cpu()]))

    def to(self, *_: Any, **__: Any) -> MadeUpMasks:
        return self

    def crop_and_resize(self, boxes: torch.Tensor, side: int) -> torch.Tensor:
        return torch.zeros(len(boxes), side, side, dtype=torch.bool)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, help="below the project's folder of configurations")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--image-size", type=int, default=1024)
    parser.add_argument("--objects", type=int, default=7, help="in the image")
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--old-torch", action="store_true")
    parser.add_argument("--old-softmax", action="store_true")
    parser.add_argument("--steps", type=int, default=4)
    return parser.parse_args()


def an_image(size: int, objects: int) -> dict[str, Any]:
    found = Instances((size, size))
    corners = torch.rand(objects, 2) * size / 2
    found.gt_boxes = Boxes(torch.cat([corners, corners + size / 4], dim=1))
    found.gt_classes = torch.zeros(objects, dtype=torch.int64)
    found.gt_masks = MadeUpMasks(objects)
    return {"image": torch.zeros(3, size, size, dtype=torch.uint8), "instances": found, "height": size, "width": size}


def read_config(path: str) -> Any:
    """The configuration, with weights of classes that need no file of LVIS."""
    config = LazyConfig.load(str(CONFIGURATIONS / path))
    heads = config.model.roi_heads
    predictors = heads.box_predictors if "box_predictors" in heads else [heads.box_predictor]
    for predictor in predictors:
        if "get_fed_loss_cls_weights" in predictor:
            predictor.get_fed_loss_cls_weights = lambda: torch.ones(LVIS_CLASSES)
    return config


def build_optimizer(config: Any, model: nn.Module, *, one_by_one: bool) -> torch.optim.Optimizer:
    config.optimizer.params.model = model
    config.optimizer.foreach = False if one_by_one else None
    return instantiate(config.optimizer)


def main() -> None:
    args = parse_args()
    if args.old_softmax:
        old_torch.use_old_softmax()
    config = read_config(args.config)
    torch.distributed.init_process_group("nccl", rank=0, world_size=args.processes, init_method="tcp://127.0.0.1:29511")
    model = instantiate(config.model).cuda()
    optimizer = build_optimizer(config, model, one_by_one=args.old_torch)
    wrapped = DistributedDataParallel(model, device_ids=[0], broadcast_buffers=False)
    wrapped.register_comm_hook(None, fp16_compress_hook)
    scaler = torch.amp.GradScaler("cuda")
    wrapped.train()
    with EventStorage() as storage:
        for step in range(args.steps):
            images = [an_image(args.image_size, args.objects) for _ in range(args.batch_size)]
            with torch.autocast("cuda", dtype=torch.float16):
                loss = sum(wrapped(images).values())
            optimizer.zero_grad(set_to_none=not args.old_torch)
            scaler.scale(loss).backward()
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
            scaler.step(optimizer)
            scaler.update()
            storage.step()


if __name__ == "__main__":
    main()
