"""The picture of what was drawn."""

from __future__ import annotations

import pytest

from cotenant.cli.main import main
from cotenant.learn.configs import fields_of

pytest.importorskip("matplotlib", reason="drawing needs it")


@pytest.mark.parametrize("family", ["mlp", "transformer"])
def test_every_setting_has_a_panel(tmp_path, family, capsys):
    path = tmp_path / "spread.svg"
    assert main(["learn", "generate", family, "--count", "40", "--plot", str(path)]) == 0
    assert f"drawn in `{path}`" in capsys.readouterr().err
    text = path.read_text()
    assert all(f"<!-- {name} -->" in text for name in fields_of(family))


def test_a_format_that_is_not_known(tmp_path, capsys):
    assert main(["learn", "generate", "mlp", "--plot", str(tmp_path / "spread.doc")]) == 2
    assert "`spread.doc` names no known format" in capsys.readouterr().err
