"""The fit of the roofline judges all jobs at once, as the roofline judges each."""

from __future__ import annotations

import pytest

pytest.importorskip("scipy")

from benchmarks.estimator.activity import Job, KernelTable
from cotenant.core.trace import KernelGroup
from cotenant.estimators.roofline import FITTED, Machine, roofline_smact

LARGE = KernelGroup("product", "float16", 3, 4e11, 2**30, 2**24)
SMALL = KernelGroup("product", "float32", 50, 1e6, 2**14, 2**10)
DOUBLE = KernelGroup("product", "float64", 2, 1e10, 2**20, 2**16)
COPY = KernelGroup("memory", "float32", 7, 0.0, 2**28, 2**26)
TINY = KernelGroup("memory", "", 900, 0.0, 64, 1)


def a_job(*kernels):
    return Job(title="job", network="network", smact=0.5, bound_bytes=1, learned=None, kernels=kernels)


@pytest.mark.parametrize("machine", [FITTED, Machine(waiting=2.0, launch_s=1e-3, flops_per_sm=1e3, host_s=1e-4)])
def test_table_says_of_each_job_what_the_roofline_says(machine):
    lists = [(LARGE,), (SMALL, TINY), (), (DOUBLE, COPY, TINY), (LARGE, SMALL, COPY)]
    jobs = [a_job(*kernels) for kernels in lists]
    assert list(KernelTable(jobs).smacts(machine)) == pytest.approx(
        [roofline_smact(job.kernels, machine) or 0.0 for job in jobs]
    )
