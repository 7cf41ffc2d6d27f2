"""Files of molecules (`.smi`) that are not on this machine: one molecule on each line, in the notation SMILES.

Words are no molecules: RDKit returns None for them, and a vocabulary of atoms lacks their letters. With a synthetic
text, a molecule is as long as its samples. They differ: a chain of carbon and nitrogen spells the number of the row.
A module of its own: the grammar of the one suffix, whose readers split lines as they like.
Source: Weininger, SMILES, 1988; OpenSMILES, "Atoms" and "Bonds".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from cotenant.tracing.data.data_options import SyntheticSample, first_text
from cotenant.tracing.data.sample_paths import samples_for_all
from cotenant.tracing.data.tables.synthetic_records import made_up
from cotenant.tracing.sandbox.overlay import Overlay

_SUFFIXES = (".smi", ".smiles")
_MOLECULES = 10_000
_LENGTH = 45
"""Characters of a molecule in ChEMBL, about."""
_GROUP = "c1ccc(O)cc1"


class MoleculeFiles:
    """Makes them. `is_data`: whether a path looks like data; `warn`: is called with its name."""

    def __init__(
        self,
        samples: Sequence[SyntheticSample],
        overlay: Overlay,
        warn: Callable[[str], None],
        is_data: Callable[[str], bool],
    ) -> None:
        text = first_text(samples_for_all(samples))
        self._length = _LENGTH if text is None else text.shape[0]
        self._overlay, self._warn, self._is_data = overlay, warn, is_data

    def make(self, path: str) -> bool:
        """Make the file `path` if it is one of molecules; whether it was made."""
        full = self._overlay.absent(path)
        if full is None or Path(full).suffix.lower() not in _SUFFIXES or not self._is_data(path):
            return False
        lines = (_molecule(row, self._length) + "\n" for row in range(_MOLECULES))
        self._overlay.new_file(full).write_text("".join(lines))
        self._warn(f"`{path}`")
        made_up.append(path)
        return True


def _molecule(row: int, length: int) -> str:
    """A molecule of as many characters; of very few, a chain that need not differ from others."""
    spelled = "".join("CN"[int(bit)] + "C" for bit in f"{row:b}")
    chain = spelled.rjust(length - len(_GROUP), "C")
    return chain + _GROUP if len(chain) + len(_GROUP) <= length else chain[:length] or "C"
