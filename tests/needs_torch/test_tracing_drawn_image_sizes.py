"""Images whose size a script draws for each step: the peak is that of the largest, which may not have been traced."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from traced_scripts import traced

SCRIPT = """
import torch
import torch.nn.functional as F
model = torch.nn.Conv2d(3, 4, 3).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(9):
    images = torch.ones(2, 3, 16, 16, device="cuda")
    out = {step}
    out.sum().backward()
    optimizer.step()
"""
PYRAMID = "sum(model(F.interpolate(images, size=size)).sum() for size in (8, 16))"


@pytest.mark.parametrize(
    ("step", "warns"),
    [
        pytest.param('model(F.interpolate(images, size=8 + step, mode="bilinear"))', True, id="another in each step"),
        pytest.param("model(F.interpolate(images, size=24))", False, id="one"),
        pytest.param(PYRAMID, False, id="several in a step"),
        pytest.param("F.interpolate(model(images), size=8 + step)", False, id="features"),
    ],
)
def test_a_warning_names_the_line_that_draws_the_size_of_images(tmp_path, step, warns):
    warnings = traced(tmp_path, SCRIPT.format(step=step)).warnings
    assert any("train.py, line 8, resizes images" in warning for warning in warnings) is warns
