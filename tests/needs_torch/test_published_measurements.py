"""The estimator against published peaks of the same jobs on a real GPU (whole device, nvidia-smi, A100-40GB)."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from benchmarks.estimator.published_scripts import MEASURED_WITH
from cotenant.core.ports import EstimateRequest
from cotenant.demo.accuracy import signed_error
from cotenant.demo.examples import estimate_scripts
from cotenant.demo.published import MeasuredScript, measured_scripts
from cotenant.estimators.traced import TracedEstimator

ROOT = Path(__file__).parents[2]
TABLE = ROOT.parent / "shared" / "data" / "gpumemnet" / "realworld_measured.csv"
NEEDS = ("torch", "torchvision", "timm", "transformers")

# Largest relative error, by the start of a job's title. The rest of the table is the benchmark's business.
LIMITS = {
    "bert_mlm": 0.01,
    "mobilenet_v2": 0.02,
    "efficientnet_b0": 0.02,
    "cifar": 0.02,
}
# From batch 64 to 128 these grew by 58 to 64 MiB, though the tensors do not: cuDNN took another algorithm.
MISSED = {
    "cifar --model efficientnet_b0 --batch-size 64": "+2.8 %: a workspace that the measured version did not take",
    "cifar --model efficientnet_b0 --batch-size 128": "+2.1 %: as with 64, and 2 MiB (0.2 %) for cuBLASLt of torch 2.8",
    "cifar --model resnet18 --batch-size 128": "-3.7 %: the workspace of cuDNN's algorithm is not predicted",
    "cifar --model resnet34 --batch-size 128": "-3.9 %: the workspace of cuDNN's algorithm is not predicted",
}


def measurements() -> dict[str, list[MeasuredScript]]:
    """All measurements of each job; some were measured twice, and differ by up to 1.4 %."""
    found: dict[str, list[MeasuredScript]] = {}
    for job in measured_scripts(TABLE) if TABLE.is_file() else ():
        if job.title.startswith(tuple(LIMITS)):
            found.setdefault(job.title, []).append(job)
    return found


def cases() -> list[object]:
    return [
        pytest.param(jobs, id=title, marks=pytest.mark.xfail(reason=MISSED[title]) if title in MISSED else ())
        for title, jobs in measurements().items()
    ]


def as_measured(script, args, gpu):
    """An estimate by the rules of the newest torch when the jobs were measured."""
    request = EstimateRequest(command=(str(script), *args), workdir=str(script.parent), env=dict(os.environ), gpu=gpu)
    return TracedEstimator(torch_version=MEASURED_WITH).estimate(request)


@pytest.mark.skipif(not TABLE.is_file(), reason="the published measurements are not beside the checkout")
@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in NEEDS), reason=f"not all of {', '.join(NEEDS)} are installed"
)
@pytest.mark.parametrize("jobs", cases())
def test_the_estimate_is_near_the_published_peak(jobs):
    (result,) = estimate_scripts(jobs[:1], ROOT / "examples", gpu="A100-40GB", estimating=as_measured)
    assert result.problem is None
    limit = next(limit for start, limit in LIMITS.items() if result.measured.title.startswith(start))
    errors = [signed_error(result.estimate.device_bytes, job.measured_bytes) for job in jobs]
    assert min(errors, key=abs) == pytest.approx(0, abs=limit)
