"""Files of molecules that are not on this machine."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.tracing.data.text.molecule_files import _molecule
from traced_scripts import trained


def test_a_file_of_molecules_has_one_on_each_line(tmp_path):
    source = """
    atoms = set("CNOc1()=")
    with open("data/filtered.smi") as file:
        molecules = [line.split()[0] for line in file]
    assert all(set(molecule) <= atoms and len(molecule) == 100 for molecule in molecules)
    assert len(set(molecules)) == len(molecules) == 10_000
    assert not os.path.exists("results/sampled.smi")
    """
    trained(tmp_path, source, synthetic_data=["100:int64:40"])


@pytest.mark.parametrize("length", [1, 3, 12, 45])
def test_a_molecule_is_as_long_as_a_sample_and_closes_its_rings(length):
    molecules = [_molecule(row, length) for row in (0, 9_999)]
    assert all(1 <= len(molecule) <= length for molecule in molecules)
    assert all(molecule.count("1") % 2 == 0 and molecule.count("(") == molecule.count(")") for molecule in molecules)
