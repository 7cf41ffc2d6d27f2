"""The vocabulary of characters beside files of tokens that are not on this machine, as nanoGPT's `meta.pkl`.

A script that finds it makes a model of as many tokens; without it, one of GPT-2's 50,304. It is made for a synthetic
sample that says how many tokens differ, and only for fewer than a vocabulary of parts of words has.
A module of its own: the one pickle whose content is known, by a path that neither images nor texts have.
Source: karpathy/nanoGPT, data/shakespeare_char/prepare.py, and train.py, `meta_path`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path

from cotenant.tracing.data.data_options import CLASSES, SyntheticSample
from cotenant.tracing.data.text.token_files import token_count
from cotenant.tracing.sandbox.overlay import Overlay

_NAME, _TOKENS = "meta.pkl", ".bin"
_MAX_CHARACTERS = 20_000
_SURROGATES = range(0xD800, 0xE000)  # no characters


class CharacterVocabulary:
    """Makes `meta.pkl`. `warn`: is called with its name."""

    def __init__(self, samples: Sequence[SyntheticSample], overlay: Overlay, warn: Callable[[str], None]) -> None:
        self._size = token_count(samples)
        self._overlay = overlay
        self._warn = warn

    def make(self, path: str) -> bool:
        """Make the file `path` if it is such a vocabulary, of tokens that are missing, too; whether it was made."""
        full = self._overlay.absent(path)
        if full is None or Path(full).name != _NAME:
            return False
        folder = str(Path(full).parent)
        has_tokens = self._overlay.exists(folder) and any(
            name.endswith(_TOKENS) for name in self._overlay.names(folder)
        )
        # The default says nothing of a text; with real tokens, the vocabulary would be there if there were one.
        if has_tokens or self._size == CLASSES or not 0 < self._size <= _MAX_CHARACTERS:
            return False
        self._overlay.new_file(full).write_bytes(pickle.dumps(_vocabulary(self._size)))
        self._warn(f"`{path}`, a vocabulary of {self._size} characters,")
        return True


def _vocabulary(size: int) -> dict[str, object]:
    codes = (code for code in range(ord("\n"), 2 * _MAX_CHARACTERS) if code not in _SURROGATES)
    characters = [chr(code) for code, _ in zip(codes, range(size), strict=False)]
    return {
        "vocab_size": size,
        "itos": dict(enumerate(characters)),
        "stoi": {character: index for index, character in enumerate(characters)},
    }
