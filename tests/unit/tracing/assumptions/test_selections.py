"""Questions of a script whether a mask selects anything, by its source."""

from __future__ import annotations

import textwrap

import pytest

from cotenant.tracing.assumptions import selections

YES = {
    "index": "if mask.any():\n    y = x[mask]",
    "index of several": "if mask.any() and n > 1:\n    y = x[:, mask, 0]",
    "function": "if torch.any(mask):\n    y = torch.masked_select(x, mask)",
    "number": "if mask.any().item():\n    i = mask.nonzero()",
    "comparison": "if (label > 0).any():\n    y = x[label > 0]",
    "attribute": "if self.mask.any():\n    x[self.mask] = 0",
    "else": "if not mask.any():\n    y = x\nelse:\n    y = x[mask]",
    "expression": "y = x[mask].mean() if mask.any() else x.sum() * 0",
    "rest": "if not mask.any():\n    continue\ny = x[mask]",
    "or": "if n == 0 or not mask.any():\n    continue\ny = x[mask]",
}
NO = {
    "accident": "if bad.any():\n    x = x.clamp(0)",
    "warning": "if bad.any():\n    print(bad.sum())\n    continue",
    "index before": "y = x[mask]\nif mask.any():\n    y = 0",
    "another mask": "if mask.any():\n    y = x[other]",
    "other branch": "if mask.any():\n    y = x\nelse:\n    y = x[mask]",
    "not left": "if not mask.any():\n    y = x\nz = x[mask]",
    "all": "if mask.all():\n    y = x[mask]",
}


@pytest.mark.parametrize(
    ("source", "expected"), [*((s, True) for s in YES.values()), *((s, False) for s in NO.values())]
)
def test_a_branch_selects_by_the_mask_it_asks_about(tmp_path, source, expected):
    script = tmp_path / "script.py"
    script.write_text("def step(x):\n    for n in x:\n" + textwrap.indent(source, " " * 8) + "\n")
    line = next(
        number for number, text in enumerate(script.read_text().splitlines(), 1) if "any(" in text or ".all(" in text
    )
    assert selections.is_selecting(str(script), line) is expected
