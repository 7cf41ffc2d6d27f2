"""What a placer remembers of its judgments never changes a decision, whatever is learned meanwhile."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from builders import a_job
from cotenant.scheduling.policies import create
from cotenant.scheduling.prediction.interference import GpuActivity
from placers import AT_S, Facts, busy, gpu

NAMES = ("tiny", "small", "half", "large", "new")
SMACTS = {"tiny": 0.1, "small": 0.2, "half": 0.4, "large": 0.7}
RESIDENTS = (0.06, 0.16, 0.32)
GPUS = 6


class Forgetful:
    """The pairing rule of `marginal-gain`, made anew for each judgment."""

    def __init__(self, pairing, predictions):
        self._pairing, self._predictions = pairing, predictions
        self.profile, self.gpu_class, self.annotate = pairing.profile, pairing.gpu_class, pairing.annotate

    def judge(self, profile, gpu_class):
        return self._pairing.with_predictions(self._predictions).judge(profile, gpu_class)


def a_placer(facts, *, remembers, linear_scan_max_gpus):
    policy = create("marginal-gain", {"reserve_after_s": None})
    if not remembers:
        policy = replace(policy, pairing=Forgetful(policy.pairing, facts))
    return policy.placer(facts, linear_scan_max_gpus=linear_scan_max_gpus)


def a_busy_gpu(place, rng):
    residents = [
        busy(rng.choice([4, 8]), rng.choice(RESIDENTS), 100 + 10 * place + i) for i in range(rng.choice([0, 1, 2, 3]))
    ]
    return gpu(place, *residents)


def learn(facts, rng):
    """Two workloads turn out to disturb each other, or not to."""
    names = [*NAMES, *(f"w{smact}" for smact in RESIDENTS)]
    pair = [GpuActivity(name, 0.3) for name in rng.sample(names, 2)]
    facts.interference.learn(pair, [rng.choice([1.0, 1.3, 3.0]) for _ in pair], spread=0.1)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_placer_that_remembers_decides_and_explains_as_one_that_judges_anew(seed):
    rng, facts = random.Random(seed), Facts(**SMACTS)
    reference = a_placer(facts, remembers=False, linear_scan_max_gpus=10**9)
    placers = [reference, *(a_placer(facts, remembers=True, linear_scan_max_gpus=most) for most in (0, 10**9))]
    running, waiting = [], []

    def each(call):
        answers = [call(placer) for placer in placers]
        assert answers[1:] == answers[:1] * 2
        return answers[0]

    for place in range(GPUS):
        found = a_busy_gpu(place, rng)
        each(lambda placer, found=found: placer.update(found))
    for job_id in range(1, 25):
        step = rng.random()
        if step < 0.3:
            learn(facts, rng)
        elif step < 0.4:
            facts.slowdown_factor = rng.choice([1.0, 1.2, 1.4])
        elif step < 0.6:
            found = a_busy_gpu(rng.randrange(GPUS), rng)
            each(lambda placer, found=found: placer.update(found))
        elif step < 0.7 and running:
            left = running.pop(rng.randrange(len(running)))
            each(lambda placer, left=left: placer.release(left))
        job = a_job(job_id, rng.choice([4, 8, 30]), name=rng.choice(NAMES), gpus=rng.choice([1, 1, 1, 2]))
        waiting.append(job_id)
        each(lambda placer, job=job: placer.add(job))
        at_s = AT_S + 20.0 * job_id
        placed = each(lambda placer, at_s=at_s: placer.decide(at_s))
        running += [placement.job_id for placement in placed]
        waiting = [waiting_id for waiting_id in waiting if waiting_id not in running]
        for waiting_id in waiting[:2]:
            each(lambda placer, waiting_id=waiting_id, at_s=at_s: placer.explain(waiting_id, at_s))
