"""Which ways to share a GPU a server offers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import a_gpu, a_spec
from cotenant.core.errors import UsageError
from cotenant.daemon.api.submission.sharing_modes import available_modes, check_available, unavailable_modes
from cotenant.scheduling.policies import create

PLAIN = [a_gpu(0)]
CUT = [a_gpu(0), replace(a_gpu(1), mig_profile="3g.20gb")]


@pytest.mark.parametrize(
    ("policy", "options", "gpus", "mps_unavailable_reason", "ways"),
    [
        ("most-memory", {}, PLAIN, None, ["auto", "none", "time", "mps"]),
        ("most-memory", {}, PLAIN, "it is not there", ["auto", "none", "time"]),
        ("most-memory", {"sharing": "mps"}, PLAIN, "simulated", ["auto", "none", "time", "mps"]),
        ("marginal-gain", {}, CUT, "x", ["auto", "none", "time", "mig"]),
        ("exclusive", {}, CUT, None, ["auto", "none", "mig"]),
        ("exclusive", {}, [], None, ["auto", "none"]),
    ],
)
def test_sharing_modes_follow_the_server(policy, options, gpus, mps_unavailable_reason, ways):
    assert (
        available_modes(unavailable_modes(create(policy, options), gpus, mps_unavailable_reason=mps_unavailable_reason))
        == ways
    )


def test_a_mode_that_is_not_available_is_refused_with_the_reason():
    refused = unavailable_modes(
        create("most-memory", {}), PLAIN, mps_unavailable_reason="there is no `nvidia-cuda-mps-control`"
    )
    check_available([a_spec(), a_spec(sharing="time")], refused)
    with pytest.raises(
        UsageError, match="does not offer `--sharing mps`: there is no `nvidia-cuda-mps-control`"
    ) as found:
        check_available([a_spec(), a_spec(sharing="mps")], refused)
    assert found.value.hint == "it offers auto, none, time"
    with pytest.raises(UsageError, match="none of its GPUs has MIG instances"):
        check_available([a_spec(sharing="mig")], refused)
