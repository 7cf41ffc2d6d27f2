"""Writes modules of a library, retyped small, beside a script that imports them."""

from __future__ import annotations

import textwrap
from pathlib import Path


def package(folder: Path, name: str, source: str) -> None:
    """A module `a.b.c` with its packages."""
    path = folder.joinpath(*name.split("."))
    path.parent.mkdir(parents=True, exist_ok=True)
    for parent in path.relative_to(folder).parents:
        if parent != Path():
            (folder / parent / "__init__.py").touch()
    path.with_suffix(".py").write_text(textwrap.dedent(source))
