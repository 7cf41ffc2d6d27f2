"""Word vectors that a script reads from a text and that are not on this machine, as of GloVe, fastText and word2vec.

A line has a word and its numbers: of each token of the synthetic texts, as many numbers as the name of the file says
(`glove.6B.100d.txt`), else as those files have that do not say it. fastText's files begin with both counts.

A module of its own: the names and the form of these files are those of three projects, not of a script.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from cotenant.tracing import script_location
from cotenant.tracing.data.data_options import SyntheticSample
from cotenant.tracing.data.text.token_files import token_count
from cotenant.tracing.data.text.vocabulary_files import tokens
from cotenant.tracing.sandbox.overlay import Overlay

_NAME = re.compile(
    r"(?:.*[-_.])?(?:glove|fasttext|word2?vec|w2v)[-_.](?:.*\.)?txt|glove\.txt|.*\.vec|sgns(?:\.\w+)+", re.IGNORECASE
)
_PACKED = (".bz2", ".gz", ".zip", ".npz", ".npy", ".pkl", ".bin", ".pt")
_NUMBERS = re.compile(r"(?<!\d)(\d{2,4})-?d(?:im)?(?![a-z])", re.IGNORECASE)
_USUAL = 300
"""Numbers of a vector of `wiki.en.vec`, `crawl-300d-2M.vec` and `glove.840B`. Source: fasttext.cc; nlp.stanford.edu."""
_HEADED = re.compile(r"\.vec$|(?:^|[-_.])sgns[-_.]", re.IGNORECASE)


class WordVectors:
    """Makes such files. `warn`: is called with their names."""

    def __init__(self, samples: Sequence[SyntheticSample], overlay: Overlay, warn: Callable[[str], None]) -> None:
        self._count = token_count(samples)
        self._overlay = overlay
        self._warn = warn

    def make(self, path: str) -> bool:
        """Make the vectors `path` that are missing; whether they were made."""
        full, name = self._overlay.absent(path), Path(path).name
        if full is None or not self._count or not _NAME.fullmatch(name) or name.endswith(_PACKED):
            return False
        found = _NUMBERS.search(name)
        numbers = int(found[1]) if found else _USUAL
        vector = " 0.1" * numbers
        with self._overlay.new_file(full).open("w", encoding="utf-8") as file:
            if _HEADED.search(name):
                file.write(f"{self._count} {numbers}\n")
            file.writelines(f"{token}{vector}\n" for token in tokens(self._count))
        self._warn(f"`{path}`, vectors of {numbers} numbers for {self._count} words,")
        return True

    def make_asked(self, path: str) -> bool:
        """The same where a script asks whether they are there, and fails if they are not."""
        return script_location.is_absence_an_error() and self.make(path)
