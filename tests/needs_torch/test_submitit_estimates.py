"""A function that is submitted is traced, as a script is, before it has a GPU."""

from __future__ import annotations

import os
import sys
import time
from unittest import mock

import pytest

torch = pytest.importorskip("torch", reason="tracing needs torch")
pytest.importorskip("submitit", reason="needs submitit")
import cloudpickle  # noqa: E402 (submitit needs it)

from cotenant.submitit import Executor  # noqa: E402
from sites import open_site  # noqa: E402

cloudpickle.register_pickle_by_value(sys.modules[__name__])
TIMEOUT_S = 240


def train(width):
    model = torch.nn.Linear(width, width, device="cuda")
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, width, device="cuda")).sum().backward()
        optimizer.step()


def test_a_call_has_an_estimate_of_its_own():
    widths = (49152, 65536)  # no GPU of the site is large enough: the jobs wait for ever
    with open_site() as site:
        site.start()
        with mock.patch.dict(os.environ, site.env):
            jobs = Executor(site.root / "log").map_array(train, widths)
        give_up_s = time.monotonic() + TIMEOUT_S
        estimates = []
        while not all(estimates) or not estimates:
            assert time.monotonic() < give_up_s, estimates
            time.sleep(0.1)
            estimates = [site.client.job(int(job.job_id))["estimate"] for job in jobs]
    for width, estimate in zip(widths, estimates, strict=True):
        assert estimate["estimator"] == "traced"
        # Parameters, gradients and two moments, of 4 bytes each, and a temporary of a step of Adam.
        assert estimate["peak_allocated_bytes"] == pytest.approx(5 * 4 * width**2, rel=0.02)
