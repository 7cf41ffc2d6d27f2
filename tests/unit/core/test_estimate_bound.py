"""What an estimate says of its bound."""

from builders import an_estimate
from cotenant.core.units import GiB


def test_a_bound_names_its_margin_and_coverage():
    estimate = an_estimate(margin_bytes=2 * GiB, coverage=0.99)
    assert estimate.bound_meaning == "require this much free: margin 2.0 GiB, 99% of jobs stay below"


def test_the_bound_of_a_partial_estimate_promises_nothing_of_the_rest():
    estimate = an_estimate(margin_bytes=2 * GiB, coverage=0.99, partial=True)
    assert estimate.bound_meaning == "what was traced, with a margin of 2.0 GiB; the job may need more"
