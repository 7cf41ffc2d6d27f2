"""What several jobs on a GPU do to it, told from what all do together."""

from __future__ import annotations

import pytest

from cotenant.core.units import GiB
from cotenant.scheduling.prediction.attribution import attribute_activity
from cotenant.scheduling.prediction.interference import GpuActivity, PriorInterference

SMALL, LARGE = (0.30, 2 * GiB), (0.70, 12 * GiB)


def shown(*loads):
    """SM activity that these show together, if they slow each other down as `PriorInterference` says."""
    slowdowns = PriorInterference().slowdowns([GpuActivity(None, smact, memory_bytes=size) for smact, size in loads])
    return sum(smact / slowdown for (smact, _), slowdown in zip(loads, slowdowns, strict=True))


@pytest.mark.parametrize("truth", [0.5, 0.8, 1.0, 1.25])
def test_the_sample_corrects_expected_activity(truth):
    smact, size = SMALL
    measured = shown((0.2, GiB), (truth * smact, size))
    assert attribute_activity(((0.2, GiB),), (SMALL,), measured) == pytest.approx(truth, rel=0.22)


def test_attribution_accounts_for_mutual_slowdown():
    """The residue, what is read less what is known of the other, would make it a third smaller than it is."""
    measured = shown(LARGE, SMALL)
    assert measured - LARGE[0] < 0.8 * SMALL[0]
    assert attribute_activity((LARGE,), (SMALL,), measured) == pytest.approx(1.0, abs=0.12)


def test_a_saturated_sample_leaves_the_expectation_unchanged():
    heavy = (0.8, 12 * GiB)
    assert attribute_activity((), (heavy, heavy), 1.0) == pytest.approx(1.0, abs=0.12)
    assert attribute_activity((heavy, heavy), (SMALL,), 0.97) == pytest.approx(1.0, abs=0.12), (
        "0.1 would fit a little better"
    )


def test_an_unexplained_sample_moves_the_expectation_within_its_spread():
    assert 1.2 < attribute_activity((), (SMALL, SMALL), 1.0) < 4.0
