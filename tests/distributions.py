"""Writes fake installed distributions: a module and its `.dist-info` folder."""

from __future__ import annotations

import textwrap


def a_distribution(folder, *, module, source, entry_points, name="acme-plugins", version="1.0"):
    """Put `module` with `source` into `folder`, declared as `entry_points`: {group: {name: target}}.

    The distribution counts as installed where `folder` is on the path, by `monkeypatch.syspath_prepend` or PYTHONPATH.
    """
    (folder / f"{module}.py").write_text(textwrap.dedent(source))
    declare(folder, entry_points, name=name, version=version)
    return folder


def declare(folder, entry_points, *, name="acme-plugins", version="1.0"):
    """Declare the modules in `folder` as a distribution with `entry_points`: {group: {name: target}}."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = []
    for group, targets in entry_points.items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in targets.items()), ""]
    (info / "entry_points.txt").write_text("\n".join(lines))
