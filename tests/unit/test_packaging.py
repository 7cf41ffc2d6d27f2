"""What is in the wheel: everything the installed package reads, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "cotenant"

pytest.importorskip("hatchling", reason="hatchling builds the wheel; `make setup` installs it")


@pytest.fixture(scope="module")
def names(tmp_path_factory) -> set[str]:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("cotenant-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_every_file_of_the_package_is_in_it(names):
    ours = {
        str(path.relative_to(ROOT / "src"))
        for package in (PACKAGE, PACKAGE.parent / "hydra_plugins")
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert ours - names == set()


def test_nothing_else_is_in_it(names):
    others = [
        name
        for name in names
        if not name.startswith(("cotenant/", "cotenant-", "hydra_plugins/hydra_cotenant_launcher/"))
    ]
    assert others == []


def test_it_is_typed_and_has_its_data_and_license(names):
    assert {"cotenant/py.typed", "cotenant/demo/data/demo_trace.csv"} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
