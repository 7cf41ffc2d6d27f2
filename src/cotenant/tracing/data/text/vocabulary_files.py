"""Vocabularies, a token a line, that a script reads and that are not on this machine, such as `vocab.txt` of BERT.

They have as many tokens as the synthetic texts: the special tokens of well-known models, single characters and the
words of the made-up texts. The code that opens the file says whether a line has a number behind its token. A script
that asks whether there is one makes its own where there is none, unless it fails without.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from cotenant.tracing import script_location
from cotenant.tracing.data.data_options import SyntheticSample
from cotenant.tracing.data.text.text_contents import reader_source
from cotenant.tracing.data.text.token_files import synthetic_words, token_count
from cotenant.tracing.sandbox.overlay import Overlay

_NAME = re.compile(r"(?:.*[-_.])?vocab(?:ulary)?(?:[-_.](?!json|pkl|pickle|pt|pth|bpe|model|bin|np[yz]|h5)\w+)*", re.I)
_SPECIAL = (
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<pad>", "<unk>", "<s>", "</s>", "<mask>", "<bos>", "<eos>", "<sos>",
    "<PAD>", "<UNK>", "<BOS>", "<EOS>", "<SOS>",
)  # fmt: skip
_COLUMNS = (
    (re.compile(r"split\(\s*[\"']\\t[\"']"), "\t"),
    (re.compile(r"split\(\s*[\"'] [\"']|\w+\s*,\s*\w+\s*=\s*\w+(?:\.r?strip\(\))?\.split\(\s*\)"), " "),
)
"""What separates a token from its number, where a line is split."""


class VocabularyFiles:
    """Makes such files. `warn`: is called with their names."""

    def __init__(self, samples: Sequence[SyntheticSample], overlay: Overlay, warn: Callable[[str], None]) -> None:
        self._size = token_count(samples)
        self._overlay = overlay
        self._warn = warn

    def make(self, path: str) -> bool:
        """Make the vocabulary `path` that is missing; whether it was made."""
        full = self._overlay.absent(path)
        if full is None or not self._size or not _NAME.fullmatch(Path(full).name):
            return False
        source = reader_source(script_location.opening_frame())
        separator = next((sign for pattern, sign in _COLUMNS if pattern.search(source)), "")
        lines = (f"{token}{separator}{index if separator else ''}\n" for index, token in enumerate(tokens(self._size)))
        self._overlay.new_file(full).write_text("".join(lines), encoding="utf-8")
        self._warn(f"`{path}`, a vocabulary of {self._size} tokens,")
        return True

    def make_asked(self, path: str) -> bool:
        """The same where a script asks whether it is there, and fails if it is not."""
        return script_location.is_absence_an_error() and self.make(path)


def tokens(size: int) -> Iterator[str]:
    """Tokens that differ; no more than `size`."""
    characters = string.ascii_letters + string.digits + string.punctuation
    known = dict.fromkeys((*_SPECIAL, *characters, *(f"##{letter}" for letter in string.ascii_lowercase)))
    known |= dict.fromkeys(synthetic_words(size, 0, size))
    return (token for token, _ in zip(known, range(size), strict=False))
