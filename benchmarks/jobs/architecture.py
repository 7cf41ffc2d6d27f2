"""Two training steps of one architecture of torchvision, timm or transformers, with random weights and a small batch.

    python benchmarks/jobs/architecture.py torchvision resnet18
    python benchmarks/jobs/architecture.py transformers BertForMaskedLM

A model of transformers has two layers of each kind; its other sizes are its configuration's own.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

CLASSES = 10
LENGTH = 32
LAYERS = frozenset(
    (
        *("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers", "depth"),
        *("num_encoder_layers", "num_decoder_layers", "encoder_num_layers", "decoder_num_layers", "num_blocks"),
        *("encoder_num_hidden_layers", "decoder_num_hidden_layers", "l_layers", "x_layers", "r_layers"),
    )
)
"""What configurations call how deep a model is."""
Loss = Callable[[], torch.Tensor]


def of_torchvision(name: str, batch: int) -> tuple[nn.Module, Loss]:
    """Of any of its packages, by what the model asks for."""
    from torchvision import models

    package = models.get_model_builder(name).__module__
    flow, detects = "optical_flow" in package, "detection" in package
    model = models.get_model(name, **({} if flow else {"num_classes": CLASSES, "weights": None}))
    kind = package.split(".")[2]
    size = {"video": (3, 16, 224, 224), "optical_flow": (3, 128, 128), "detection": (3, 320, 320)}.get(
        kind, (3, 299, 299) if "inception" in name else (3, 224, 224)
    )
    images = torch.rand(batch, *size)
    if flow:
        return model, lambda: sum(each.abs().mean() for each in model(images.cuda(), images.cuda()))
    if detects:
        return model, lambda: sum(model(list(images.cuda()), [_objects() for _ in images]).values())
    return model, lambda: _classified(model(images.cuda()))


def _objects() -> dict[str, torch.Tensor]:
    boxes = torch.tensor([[10.0, 10.0, 60.0, 60.0], [20.0, 20.0, 90.0, 80.0]])
    masks, points = torch.zeros(2, 320, 320, dtype=torch.uint8), torch.ones(2, 17, 3)
    found = {"boxes": boxes, "labels": torch.ones(2, dtype=torch.long), "masks": masks, "keypoints": points}
    return {name: each.cuda() for name, each in found.items()}


def _classified(out: Any) -> torch.Tensor:
    """Of one result or several: pictures get one class, or one for each place."""
    if isinstance(out, torch.Tensor):
        return functional.cross_entropy(out, torch.zeros(out.shape[:1] + out.shape[2:], dtype=torch.long).cuda())
    several = out.values() if isinstance(out, dict) else out
    return sum(_classified(each) for each in several if each is not None)


def of_timm(name: str, batch: int) -> tuple[nn.Module, Loss]:
    """At its own input size."""
    import timm

    model = timm.create_model(name, num_classes=CLASSES)
    images = torch.rand(batch, *model.default_cfg["input_size"])
    return model, lambda: _classified(model(images.cuda()))


def of_transformers(name: str, batch: int) -> tuple[nn.Module, Loss]:
    """By the class's name, with labels where it takes them."""
    import transformers

    kind = getattr(transformers, name)
    config = kind.config_class(**_shallow(kind.config_class))
    model = kind(config)
    given = _batch(kind, config, batch)

    def loss() -> torch.Tensor:
        out = model(**_on_gpu(given))
        found = getattr(out, "loss", None)
        return sum(each.float().mean() for each in _trained(dict(out))) if found is None else found.mean()

    return model, loss


def _shallow(kind: Any) -> dict[str, Any]:
    """What makes a configuration small."""
    defaults = {
        name: each.default
        for base in reversed(kind.__mro__)
        if "__init__" in vars(base)
        for name, each in inspect.signature(base.__init__).parameters.items()
    }
    made: dict[str, Any] = {
        name: 2 for name, each in defaults.items() if name in LAYERS and isinstance(each, int) and each > 2
    }
    parts = kind.sub_configs if isinstance(getattr(kind, "sub_configs", None), dict) else {}
    made.update({name: _shallow(part) for name, part in parts.items() if part.__name__ != "AutoConfig"})
    return made


def _of(config: Any, *names: str, default: Any = None) -> Any:
    """The first of these settings that it, or a part of it, has."""
    parts = [each for each in vars(config).values() if type(each).__name__.endswith("Config")]
    known = (getattr(part, name, None) for part in (config, *parts) for name in names)
    return next((each for each in known if each is not None), default)


def _batch(kind: Any, config: Any, batch: int) -> dict[str, Any]:
    """Inputs by the name of the first one, labels by the name of the class."""
    accepted = inspect.signature(kind.forward).parameters
    main, name = kind.main_input_name, kind.__name__
    side = _of(config, "image_size", default=224)
    height, width = side if isinstance(side, (list, tuple)) else (side, side)
    words = (torch.arange(batch * LENGTH) % 90 + 5).reshape(batch, LENGTH)
    made: dict[str, Any] = {
        "input_ids": words,
        "attention_mask": torch.ones_like(words),
        "pixel_values": torch.rand(batch, _of(config, "num_channels", default=3), height, width),
        "input_values": torch.randn(batch, 16_000),
        "input_features": torch.randn(batch, _of(config, "num_mel_bins", default=80), 3000),
        "labels": _labels(name, words, height, width),
    }
    wanted = {main, "labels"} | ({"attention_mask"} if main == "input_ids" else set())
    if "decoder_input_ids" in accepted and "labels" not in accepted:
        made["decoder_input_ids"] = words
        wanted.add("decoder_input_ids")
    return {each: made[each] for each in made if each in wanted and each in accepted}


def _labels(name: str, words: torch.Tensor, height: int, width: int) -> Any:
    if "Detection" in name:
        boxes = torch.full((3, 4), 0.3)
        return [{"class_labels": torch.ones(3, dtype=torch.long), "boxes": boxes} for _ in words]
    if "SemanticSegmentation" in name:
        return torch.zeros(len(words), height, width, dtype=torch.long)
    if ("Classification" in name and "Token" not in name) or "MultipleChoice" in name:
        return torch.zeros(len(words), dtype=torch.long)
    return words.clone() if "CTC" not in name else words[:, :5].clone()


def _on_gpu(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _on_gpu(each) for name, each in value.items()}
    return [_on_gpu(each) for each in value] if isinstance(value, list) else value.cuda()


def _trained(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value] if value.requires_grad else []
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [found for each in inner for found in _trained(each)]


LIBRARIES = {"torchvision": of_torchvision, "timm": of_timm, "transformers": of_transformers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=sorted(LIBRARIES))
    parser.add_argument("name")
    parser.add_argument("--batch", type=int, default=2)
    args = parser.parse_args()
    model, loss = LIBRARIES[args.library](args.name, args.batch)
    model.cuda().train()
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.01, momentum=0.9)
    for _ in range(2):
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
