"""Placers of policies on a few GPUs, for tests of the compositions."""

from __future__ import annotations

from builders import a_resident, a_snapshot
from cotenant.scheduling.policies import create
from cotenant.scheduling.prediction.interference import GpuActivity, LearnedInterference

AT_S = 1000.0


class Facts:
    """Job predictions given by the test, keyed by job name."""

    def __init__(self, durations_s=None, interference=None, **smacts):
        self.smacts = smacts
        self.durations_s = durations_s or {}
        self.interference = interference or LearnedInterference()
        self.typical_bytes = ()
        self.assumed_duration_s = 3600.0
        self.slowdown_factor = 1.0

    def activity(self, job):
        return GpuActivity(workload=job.spec.name, smact=self.smacts.get(job.spec.name))

    def duration_s(self, job):
        return self.durations_s.get(job.spec.name)

    def demand_bytes(self, _job):
        return None


def busy(gib=4, smact=0.5, job_id=100, **changes):
    """A resident that has been active for a long time."""
    return a_resident(
        gib, job_id=job_id, placed_at_s=0.0, first_active_at_s=0.0, workload=f"w{smact}", smact=smact, **changes
    )


def placer(name, *gpus, facts=None, **options):
    found = create(name, options).placer(facts or Facts())
    for gpu in gpus:
        found.update(gpu)
    return found


def decided(placer, *jobs, at_s=AT_S):
    for job in jobs:
        placer.add(job)
    return {placement.job_id: placement.gpu_uuids for placement in placer.decide(at_s)}


def gpu(place, *residents, **sample):
    return a_snapshot(place, residents=residents, at_s=AT_S, **sample)


def verdict(placer, job_id=1, at_s=AT_S):
    (found,) = placer.explain(job_id, at_s).rejections
    return f"{found.rule}: {found.reason}"
