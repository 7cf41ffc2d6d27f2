"""What the demo on Slurm tells of a pack."""

from __future__ import annotations

from cotenant.core.units import MiB
from cotenant.demo.published import demo_trace
from cotenant.demo.slurm_runs import SlurmRun, add_results


def test_attempts_that_ran_out_of_memory_and_failures_are_reported():
    low = next(job for job in demo_trace() if job.declared_mib)
    others = [job for job in demo_trace() if not job.declared_mib][:2]
    by_line = {1: low, 2: others[0], 3: others[1]}
    run = SlurmRun(jobs=3, ended_s={1: 10.0, 2: 20.0})
    promised = {"promised_bytes": 40000 * MiB}
    add_results(
        run,
        [
            {"line": 1, "state": "COMPLETED", "attempts": 3, **promised},
            {"line": 2, "state": "FAILED", "attempts": 1, **promised},
            {"line": 3, "state": "COMPLETED", "attempts": 1, **promised},
        ],
        by_line,
    )
    assert run.ooms == 2
    assert run.recoveries == [
        "gpt2_large_wiki_bs8 declared 7.8 GiB and ran out of memory 2 x; then with 39.1 GiB: COMPLETED"
    ]
    assert run.failed == [f"{others[0].workload}: FAILED"]
    assert run.mean_jct_s == 15.0
