"""Small downloads that scripts make before they train: lists of a hub, and encodings of tiktoken.

An encoding that is not on this machine is replaced by one of bytes, with the special tokens and so the number of tokens
of the real one. A text has about four times as many tokens, which matters only where its length is not fixed.
Source: tiktoken_ext/openai_public.py of tiktoken 0.12.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from cotenant.tracing.patches.registry import Patch, PatchContext, Phase

_END, _MORE = "<|endoftext|>", ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
_SPECIAL_TOKENS = {
    "gpt2": {_END: 50256},
    "r50k_base": {_END: 50256},
    "p50k_base": {_END: 50256, "": 50280},
    "p50k_edit": {_END: 50256, **dict(zip(_MORE, range(50281, 50284), strict=True))},
    "cl100k_base": {_END: 100257, **dict(zip(_MORE, range(100258, 100261), strict=True)), "<|endofprompt|>": 100276},
    "o200k_base": {_END: 199999, "<|endofprompt|>": 200018},
}


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
            if encoding_name not in _SPECIAL_TOKENS:
                raise
        recorder.warn(f"the encoding `{encoding_name}` is not on this machine: bytes are its tokens")
        return importlib.import_module("tiktoken.core").Encoding(
            name=encoding_name,
            pat_str=r"\S+|\s+",
            mergeable_ranks={bytes([value]): value for value in range(256)},
            special_tokens={name or f"<|{index}|>": index for name, index in _SPECIAL_TOKENS[encoding_name].items()},
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
