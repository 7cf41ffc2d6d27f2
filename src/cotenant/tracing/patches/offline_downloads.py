"""Small downloads that scripts make before they train: lists of a hub, and encodings of tiktoken.

An encoding that is not on this machine is replaced by one of bytes, with the special tokens and so the number of tokens
of the real one. A text has about four times as many tokens, which matters only where its length is not fixed.
Source: tiktoken_ext/openai_public.py of tiktoken 0.12.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from typing import Any

from cotenant.tracing.patches.registry import Patch, PatchContext, Phase

_END, _PREFIX, _MIDDLE, _SUFFIX = "<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"
_ENCODINGS: Mapping[str, tuple[int, Mapping[str, int]]] = {
    "gpt2": (50257, {_END: 50256}),
    "r50k_base": (50257, {_END: 50256}),
    "p50k_base": (50281, {_END: 50256}),
    "p50k_edit": (50284, {_END: 50256, _PREFIX: 50281, _MIDDLE: 50282, _SUFFIX: 50283}),
    "cl100k_base": (
        100277,
        {_END: 100257, _PREFIX: 100258, _MIDDLE: 100259, _SUFFIX: 100260, "<|endofprompt|>": 100276},
    ),
    "o200k_base": (200019, {_END: 199999, "<|endofprompt|>": 200018}),
}
"""Number of tokens and special tokens, by name."""
_BYTES = 256


def patches(context: PatchContext) -> list[Patch]:
    """Functions that download them."""
    return [
        Patch(
            target="tiktoken.registry:get_encoding", phase=Phase.LIBRARIES, wraps=True, also_in="tiktoken",
            replacement=functools.partial(_with_missing_encodings, context.recorder),
            reason="It downloads the merges of an encoding, and a trace has no network.",
            source="tiktoken/registry.py, `get_encoding`",
        ),
        Patch(
            target="torch.hub:list", phase=Phase.LIBRARIES, wraps=True,
            replacement=functools.partial(_with_empty_list, context.recorder),
            reason="Scripts ask for the models of a repository to list choices of an option.",
            source="torch/hub.py, `list`",
        ),
    ]  # fmt: skip


def _with_missing_encodings(recorder: Any, original: Any) -> Any:
    @functools.wraps(original)
    def get_encoding(encoding_name: str) -> Any:
        try:
            return original(encoding_name)
        except OSError:  # `requests` has its own subclass
            if encoding_name not in _ENCODINGS:
                raise
        recorder.warn(f"the encoding `{encoding_name}` is not on this machine: bytes are its tokens")
        size, special = _ENCODINGS[encoding_name]
        # Bytes are merged two by two, so no text has these tokens; a script may decode any.
        others = {b"\xff" + index.to_bytes(4, "big"): index for index in range(_BYTES, size)}
        return importlib.import_module("tiktoken.core").Encoding(
            name=encoding_name,
            pat_str=r"\S+|\s+",
            mergeable_ranks={bytes([value]): value for value in range(_BYTES)}
            | {token: index for token, index in others.items() if index not in special.values()},
            special_tokens=dict(special),
        )

    return get_encoding


def _with_empty_list(recorder: Any, original: Any) -> Any:
    @functools.wraps(original)
    def list_(github: str, *args: Any, **kwargs: Any) -> list[str]:
        try:
            found: list[str] = original(github, *args, **kwargs)
            return found
        except OSError:
            recorder.warn(f"the models of `{github}` are not listed: it is not on this machine")
            return []

    return list_
