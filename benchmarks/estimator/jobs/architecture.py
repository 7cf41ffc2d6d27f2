"""Two training steps of one architecture of torchvision, timm or transformers, with random weights and a small batch.

    python benchmarks/estimator/jobs/architecture.py torchvision resnet18
    python benchmarks/estimator/jobs/architecture.py transformers BertForMaskedLM

Models of transformers are reduced to two layers of each kind in their configuration; other sizes are the defaults of
the configuration class, and `NEEDED` has the settings without a default.
"""

from __future__ import annotations

import argparse
import copy
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
"""Names of configuration settings for the depth of a model."""
FIRST = frozenset(("first_k_dense_replace",))
"""Further settings that count layers, without `layers` in their name."""
PRETRAINED = frozenset(("use_pretrained_backbone",))
"""Settings that download pretrained weights."""
_DECODER = {"model_type": "bert", "num_hidden_layers": 2, "is_decoder": True, "add_cross_attention": True}
_STARTS = {"decoder_start_token_id": 1, "pad_token_id": 0}
NEEDED: dict[str, dict[str, Any]] = {
    "BeitForSemanticSegmentation": {"out_indices": [3, 5, 7, 11]},
    "ChameleonConfig": {"vocabulary_map": {"<image>": 8711}},
    "Dots1Config": {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6},
    "Emu3Config": {"vocabulary_map": {"<image>": 151_646}},
    "EncoderDecoderConfig": {
        "encoder": {"model_type": "bert", "num_hidden_layers": 2},
        "decoder": _DECODER,
        **_STARTS,
    },
    "EsmConfig": {"vocab_size": 33, "mask_token_id": 32, "pad_token_id": 1},
    "GPTNeoConfig": {"attention_types": [[["global", "local"], 1]], "num_layers": 2},
    "GraniteMoeHybridConfig": {"layer_types": ["mamba", "attention"] * 16},
    "HieraConfig": {"decoder_hidden_size": 512, "decoder_depth": 8, "decoder_num_heads": 16},
    "MllamaTextConfig": {"rope_scaling": {"rope_type": "default"}},
    "NemotronConfig": {"num_key_value_heads": 8},
    "Phi4MultimodalConfig": {"vision_config": {}, "audio_config": {}},
    "ReformerModelWithLMHead": {"is_decoder": True},
    "SpeechEncoderDecoderConfig": {
        "encoder": {"model_type": "wav2vec2", "num_hidden_layers": 2},
        "decoder": _DECODER,
        **_STARTS,
    },
    "T5GemmaEncoderModel": {"is_encoder_decoder": False},
    "TimmBackboneConfig": {"backbone": "resnet18"},
    "TimmWrapperForImageClassification": {"architecture": "resnet18"},
    "TimmWrapperModel": {"architecture": "resnet18"},
    "VisionEncoderDecoderConfig": {
        "encoder": {"model_type": "vit", "num_hidden_layers": 2},
        "decoder": _DECODER,
        **_STARTS,
    },
    "Wav2Vec2BertConfig": {"vocab_size": 32},
    "Wav2Vec2ConformerConfig": {"vocab_size": 32},
}
"""Required settings without a default, by configuration or model class."""
KINDS = 6
"""Maximum number of layer kinds in a per-layer list; a list with more has a number per layer."""
Loss = Callable[[], torch.Tensor]


def of_torchvision(name: str, batch: int) -> tuple[nn.Module, Loss]:
    """A torchvision model with inputs for its package (classification, detection, video, ...)."""
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
        return model, lambda: sum(tensor.abs().mean() for tensor in model(images.cuda(), images.cuda()))
    if detects:
        return model, lambda: sum(model(list(images.cuda()), [_objects() for _ in images]).values())
    return model, lambda: _classified(model(images.cuda()))


def _objects() -> dict[str, torch.Tensor]:
    boxes = torch.tensor([[10.0, 10.0, 60.0, 60.0], [20.0, 20.0, 90.0, 80.0]])
    masks, points = torch.zeros(2, 320, 320, dtype=torch.uint8), torch.ones(2, 17, 3)
    found = {"boxes": boxes, "labels": torch.ones(2, dtype=torch.long), "masks": masks, "keypoints": points}
    return {name: tensor.cuda() for name, tensor in found.items()}


def _classified(out: Any) -> torch.Tensor:
    """Cross entropy of one or several outputs, with one class per image or per position."""
    if isinstance(out, torch.Tensor):
        return functional.cross_entropy(out, torch.zeros(out.shape[:1] + out.shape[2:], dtype=torch.long).cuda())
    several = out.values() if isinstance(out, dict) else out
    return sum(_classified(tensor) for tensor in several if tensor is not None)


def of_timm(name: str, batch: int) -> tuple[nn.Module, Loss]:
    """A timm model at its default input size."""
    import timm

    model = timm.create_model(name, num_classes=CLASSES)
    images = torch.rand(batch, *model.default_cfg["input_size"])
    return model, lambda: _classified(model(images.cuda()))


def of_transformers(name: str, batch: int) -> tuple[nn.Module, Loss]:
    """A transformers model by class name, with labels if its forward accepts them."""
    import transformers

    kind = getattr(transformers, name)
    config = _config(kind)
    model = kind(config)
    given = _batch(kind, config, batch)

    def loss() -> torch.Tensor:
        out = model(**_on_gpu(given))
        found = getattr(out, "loss", None)
        return sum(tensor.float().mean() for tensor in _trained(dict(out))) if found is None else found.mean()

    return model, loss


def _config(kind: Any) -> Any:
    """A shallow configuration for the model class."""
    needed = {**NEEDED.get(kind.config_class.__name__, {}), **NEEDED.get(kind.__name__, {})}
    plain = kind.config_class(**copy.deepcopy(needed))  # some classes modify the dictionaries they get
    config = kind.config_class(**{**copy.deepcopy(needed), **_shallow(plain)})
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 0
    if getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = 0  # sequence classification needs it for batches > 1; no token of the batch is 0
    return config


def _shallow(plain: Any) -> dict[str, Any]:
    """Settings that make a configuration like `plain` shallow.

    They keep two layers of each listed kind, at least two layers, and all layers up to the last output index.
    """
    known = _settings(plain)
    depths = {
        name: setting for name, setting in known.items() if name in LAYERS and type(setting) is int and setting > 2
    }
    made: dict[str, Any] = {name: False for name in PRETRAINED if known.get(name)}
    parts = {name: setting for name, setting in known.items() if type(setting).__name__.endswith("Config")}
    made.update({name: _part(setting) for name, setting in parts.items()})
    if "head_dim" in plain.__dict__ and known.get("head_dim", 0) is None:  # some models require it
        made["head_dim"] = known["hidden_size"] // known["num_attention_heads"]
    if not depths:
        return made
    deepest = max(depths.values())
    lists = {
        name: setting
        for name, setting in known.items()
        if isinstance(setting, (list, tuple)) and len(setting) == deepest
    }
    taken = [max(setting) + 1 for name, setting in known.items() if name.endswith("out_indices") and setting]
    retained = _retained_layers(lists, deepest, max([2, *taken, *_reached(plain, known)]))
    made.update({name: [setting[at] for at in retained] for name, setting in lists.items()})
    for name, setting in known.items():
        if name in depths:
            made[name] = min(setting, len(retained))
        elif type(setting) is int and len(retained) < setting <= deepest and ("layers" in name or name in FIRST):
            made[name] = max(1, setting * len(retained) // deepest)
    return made


def _settings(config: Any) -> dict[str, Any]:
    """Values of the named `__init__` parameters of the class and its bases, except the common base class."""
    parameters = [
        name
        for base in type(config).__mro__
        if "__init__" in vars(base) and base.__name__ not in ("PretrainedConfig", "PreTrainedConfig", "object")
        for name, parameter in inspect.signature(vars(base)["__init__"]).parameters.items()
        if name != "self" and parameter.kind is not parameter.VAR_KEYWORD
    ]
    return {name: getattr(config, name) for name in parameters if hasattr(config, name)}


def _reached(plain: Any, known: dict[str, Any]) -> list[int]:
    """Depth up to the first layer of each kind, for classes that compute the list of kinds themselves."""
    made = [getattr(plain, name, None) or [] for name in ("layers_block_type", "layer_types") if name not in known]
    return [layer_kinds.index(kind) + 1 for layer_kinds in made for kind in set(layer_kinds)]


def _part(config: Any) -> dict[str, Any]:
    """All settings of a sub-configuration including its type, since the parent may differ from the class defaults."""
    needed = NEEDED.get(type(config).__name__, {})
    return {**_settings(config), **needed, **_shallow(config), "model_type": config.model_type}


def _retained_layers(lists: dict[str, Any], deepest: int, least: int) -> list[int]:
    """Indices of the layers to retain: the first two of each kind, then others in order, at least `least`."""
    kinds: dict[str, list[int]] = {}
    for at in range(deepest):
        kinds.setdefault(repr([setting[at] for setting in lists.values()]), []).append(at)
    first = [at for found in kinds.values() for at in found[:2]] if 1 < len(kinds) <= KINDS else []
    others = [at for at in range(deepest) if at not in first]
    return sorted([*first, *others[: max(0, least - len(first))]])


def _of(config: Any, *names: str, default: Any = None) -> Any:
    """The first of these settings found in the configuration or its sub-configurations."""
    parts = [var for var in vars(config).values() if type(var).__name__.endswith("Config")]
    known = (getattr(part, name, None) for part in (config, *parts) for name in names)
    return next((value for value in known if value is not None), default)


def _batch(kind: Any, config: Any, batch: int) -> dict[str, Any]:
    """The main input, all required inputs, and labels that fit the task in the class name."""
    accepted = inspect.signature(kind.forward).parameters
    main, name = kind.main_input_name, kind.__name__
    side = _of(config, "image_size", default=224)
    height, width = side if isinstance(side, (list, tuple)) else (side, side)
    words = (torch.arange(batch * LENGTH) % 90 + 5).reshape(batch, LENGTH)
    texts = torch.stack([words, words], 1) if "MultipleChoice" in name else words
    made: dict[str, Any] = {
        "input_ids": texts,
        "attention_mask": torch.ones_like(texts),
        "pixel_values": torch.rand(batch, _of(config, "num_channels", default=3), height, width),
        "input_values": torch.randn(batch, 16_000),
        "input_features": torch.randn(batch, _of(config, "num_mel_bins", default=80), 3000),
        "labels": _labels(name, words, height, width),
    }
    required = {name for name, parameter in accepted.items() if parameter.default is parameter.empty}
    wanted = {*([main] if isinstance(main, str) else main), "labels", *required}
    if main == "input_ids":
        wanted.add("attention_mask")
    if "decoder_input_ids" in accepted and "labels" not in accepted:
        made["decoder_input_ids"] = words
        wanted.add("decoder_input_ids")
    return {name: made[name] for name in made if name in wanted and name in accepted}


def _labels(name: str, words: torch.Tensor, height: int, width: int) -> Any:
    if "Detection" in name:
        boxes = torch.full((3, 4), 0.3)
        return [{"class_labels": torch.ones(3, dtype=torch.long), "boxes": boxes} for _ in words]
    if "SemanticSegmentation" in name:
        return torch.zeros(len(words), height, width, dtype=torch.long)
    if ("Classification" in name and "Token" not in name) or "MultipleChoice" in name:
        return torch.zeros(len(words), dtype=torch.long)
    return words.clone() if "CTC" not in name else words[:, :5] % 20 + 1


def _on_gpu(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _on_gpu(tensor) for name, tensor in value.items()}
    return [_on_gpu(tensor) for tensor in value] if isinstance(value, list) else value.cuda()


def _trained(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value] if value.requires_grad else []
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [found for tensor in inner for found in _trained(tensor)]


LIBRARIES = {"torchvision": of_torchvision, "timm": of_timm, "transformers": of_transformers}


PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-4),
    "adamw-fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e-4, fused=True),
}


def use_checkpointing(model: nn.Module) -> None:
    """Activation checkpointing by the library's own switch, where the model has one."""
    for name in ("set_grad_checkpointing", "gradient_checkpointing_enable"):
        if hasattr(model, name):
            getattr(model, name)()
            return
    raise SystemExit(f"`{type(model).__name__}` has no switch for activation checkpointing")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=sorted(LIBRARIES))
    parser.add_argument("name")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--optimizer", choices=sorted(OPTIMIZERS), default="sgd")
    parser.add_argument("--precision", choices=sorted(PRECISIONS), default="fp32", help="of autocast")
    parser.add_argument("--no-tf32", action="store_true", help="convolutions in full float32")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--checkpoint", action="store_true", help="activation checkpointing")
    args = parser.parse_args()
    model, loss = LIBRARIES[args.library](args.name, args.batch)
    torch.backends.cudnn.allow_tf32 = not args.no_tf32
    model.cuda().train()
    if args.channels_last:
        model.to(memory_format=torch.channels_last)
    if args.checkpoint:
        use_checkpointing(model)
    optimizer = OPTIMIZERS[args.optimizer]([parameter for parameter in model.parameters() if parameter.requires_grad])
    low = PRECISIONS[args.precision]
    scaler = torch.amp.GradScaler("cuda", enabled=low is torch.float16)
    for _ in range(args.steps):
        with torch.autocast("cuda", dtype=low, enabled=low is not None):
            found = loss()
        scaler.scale(found).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
