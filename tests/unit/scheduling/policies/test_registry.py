from __future__ import annotations

import pytest

from cotenant.core.errors import UnknownName, UsageError
from cotenant.scheduling.policies import create, options, policies


def test_a_policy_has_its_registered_name():
    assert [create(policy).name for policy in policies()] == list(policies())
    assert "exclusive" in policies()
    assert "most-memory" in policies()


def test_an_unknown_policy_name_is_refused_with_the_known_ones():
    with pytest.raises(UnknownName, match=r"no policy named `bestfit` \(known: aegis, best-fit, .*\)") as caught:
        create("bestfit")
    assert caught.value.hint == "did you mean `best-fit`?"
    with pytest.raises(UnknownName):
        options("bestfit")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"smact": 1}, "has no option `smact` (known: backfill, headroom_gib, max_jobs, reserve_after_s, sharing, "),
        ({"return": 1}, "has no option `return`"),
        ({"backfill": "yes"}, "option `backfill` of policy `best-fit` is 'yes', wanted bool"),
        ({"sharing": "exclusive"}, "is 'exclusive', wanted one of ['time-sliced', 'mps', 'mig']"),
        ({"smact_limit": 80}, "SMACT limit must be above 0 and at most 1, got 80"),
        ({"reserve_after_s": float("nan")}, "`reserve_after_s` must be >= 0 and finite, got nan"),
        ({"reserve_after_s": float("inf")}, "`reserve_after_s` must be >= 0 and finite, got inf"),
        ({"reserve_after_s": -1}, "`reserve_after_s` must be >= 0 and finite, got -1"),
    ],
)
def test_invalid_policy_options_are_refused(given, message):
    with pytest.raises(UsageError) as caught:
        create("best-fit", given)
    assert message in str(caught.value)


def test_options_reach_the_policy():
    assert options("exclusive") == {"backfill": False}
    assert create("exclusive", {"backfill": True}).backfill is True
    assert create("most-memory", {"reserve_after_s": None}).reserve_after_s is None
    assert create("most-memory", {"reserve_after_s": 60}).reserve_after_s == 60.0
