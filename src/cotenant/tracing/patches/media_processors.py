"""What processors of images beside text need from a model's configuration: sizes, and names for its media tokens.

How many tokens an image becomes decides a vision-language model's memory, so nothing here is left to the defaults of
a processor's class where the configuration says otherwise.
Source: transformers/models/{llava,idefics3,gemma3,qwen2_vl}/processing_*.py (4.57 to 5.23).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_MEDIA_TOKEN = re.compile(r"(image|video|audio|vision_start|vision_end|boi|eoi)_token_(?:id|index)", re.ASCII)
_QWEN_NAMES = {
    "image": "<|image_pad|>",
    "video": "<|video_pad|>",
    "audio": "<|AUDIO|>",
    "vision_start": "<|vision_start|>",
    "vision_end": "<|vision_end|>",
}
_FROM_VISION_CONFIG = (
    ("patch_size", "patch_size"),
    ("temporal_patch_size", "temporal_patch_size"),
    ("merge_size", "spatial_merge_size"),
    ("max_image_size", "max_image_size"),
    ("size", "size"),
)
"""(option of an image processor, what a vision configuration calls it)"""


def media_tokens(config: Any, size: int) -> dict[str, tuple[str, int]]:
    """(name, index) of the tokens that stand for media in texts, by kind, of a model of `size` tokens."""
    is_qwen = str(getattr(config, "model_type", "")).startswith("qwen")
    found = {}
    for attribute, index in vars(config).items():
        match = _MEDIA_TOKEN.fullmatch(attribute)
        if match and isinstance(index, int) and 0 <= index < size:
            kind = match[1]
            found[kind] = (_QWEN_NAMES[kind] if is_qwen and kind in _QWEN_NAMES else f"<{kind}>", index)
    return found


def chat_template(tokens: Mapping[str, tuple[str, int]]) -> str:
    """A template of messages whose contents are texts, or lists of texts and media."""
    parts = "".join(
        f"{{% elif part['type'] == '{kind}' %}}{_placeholder(kind, tokens)}" for kind in ("image", "video", "audio")
    )
    content = (
        "{% if message['content'] is string %}{{ message['content'] }} {% else %}{% for part in message['content'] %}"
        f"{{% if part['type'] == 'text' %}}{{{{ part['text'] }}}} {parts}{{% endif %}}{{% endfor %}}{{% endif %}}"
    )
    return (
        "{% for message in messages %}{{ message['role'] }} " + content + "{% endfor %}"
        "{% if add_generation_prompt %}assistant {% endif %}"
    )


def _placeholder(kind: str, tokens: Mapping[str, tuple[str, int]]) -> str:
    """What a processor replaces by a medium's tokens: its own token, or, as of Gemma 3, the one that begins images."""
    if kind == "image" and "boi" in tokens:
        return tokens["boi"][0]
    name = tokens[kind][0] if kind in tokens else ""
    if name and kind in ("image", "video") and {"vision_start", "vision_end"} <= tokens.keys():
        return f"{tokens['vision_start'][0]}{name}{tokens['vision_end'][0]}"
    return name


def set_image_sizes(processor: Any, config: Any) -> None:
    """Give an image processor the sizes of the configuration's images."""
    vision = getattr(config, "vision_config", None) or config
    for option, name in _FROM_VISION_CONFIG:
        value, own = _value(vision, name), getattr(processor, option, None)
        if isinstance(value, dict) and own is not None:
            setattr(processor, option, _like(own, value))
        elif isinstance(value, int) and isinstance(own, int):
            setattr(processor, option, value)
    size, own = _value(vision, "image_size"), getattr(processor, "size", None)
    if not isinstance(size, int) or own is None or not hasattr(own, "get"):
        return
    square = {"height": size, "width": size}
    if own.get("height") is not None:
        processor.size = _like(own, square)
    elif (
        own.get("shortest_edge") is not None
        and getattr(processor, "crop_size", None) is not None
        and vision is not config
    ):
        processor.size = _like(own, {"shortest_edge": size})
        processor.crop_size = _like(processor.crop_size, square)


def set_media_options(processor: Any, config: Any) -> None:
    """Give a processor of images and texts what decides how many tokens an image becomes."""
    vision = getattr(config, "vision_config", None)
    if vision is None:
        return
    patch, image = _value(vision, "patch_size"), _value(vision, "image_size")
    if getattr(processor, "patch_size", 0) is None:
        processor.patch_size = patch
        strategy = getattr(config, "vision_feature_select_strategy", None)
        processor.vision_feature_select_strategy = strategy
        processor.num_additional_image_tokens = 1  # of CLIP's class token, which `default` leaves out again
    scale = getattr(config, "scale_factor", None)
    if hasattr(processor, "image_seq_len") and all(isinstance(value, int) for value in (scale, patch, image)):
        processor.image_seq_len = (image // patch // scale) ** 2
    if hasattr(processor, "image_seq_length") and isinstance(_value(config, "mm_tokens_per_image"), int):
        processor.image_seq_length = config.mm_tokens_per_image


def _value(config: Any, name: str) -> Any:
    return getattr(config, name, None)


def _like(own: Any, values: dict[str, int]) -> Any:
    """The values as the type of the processor's own: transformers 5 has a class for sizes beside dictionaries."""
    return values if isinstance(own, dict) else type(own)(**values)
