"""The sharing modes that a job may ask for on this server.

A module of its own: submissions and the status of the server both read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cotenant.core.errors import UsageError
from cotenant.core.gpu import Gpu
from cotenant.core.job import JobSpec
from cotenant.scheduling.placement.policy import Policy
from cotenant.scheduling.placement.ranked import Ranked

ALWAYS = ("auto", "none")


def unavailable_modes(
    policy: Policy, gpus: Iterable[Gpu], *, mps_unavailable_reason: str | None
) -> dict[str, str | None]:
    """Why each mode is unavailable, or None. `mps_unavailable_reason`: why no job can become a client of MPS."""
    ranked = policy if isinstance(policy, Ranked) else None
    alone = f"policy `{policy.name}` shares no GPU" if ranked is not None and ranked.exclusive else None
    by_policy = ranked is not None and ranked.sharing == "mps"
    instances = any(gpu.mig_profile is not None for gpu in gpus)
    return {
        "time": alone,
        "mps": alone or (None if by_policy else mps_unavailable_reason),
        "mig": None if instances else "none of its GPUs has MIG instances",
    }


def check_available(specs: Sequence[JobSpec], refused: Mapping[str, str | None]) -> None:
    """Check the sharing modes that jobs ask for.

    Raises:
        UsageError: one is unavailable.
    """
    for share in {spec.sharing for spec in specs}:
        why = refused.get(share)
        if why is not None:
            raise UsageError(
                f"this server does not offer `--sharing {share}`: {why}",
                hint=f"it offers {', '.join(available_modes(refused))}",
            )


def check_gpus(specs: Sequence[JobSpec], policy: Policy, hosts: int) -> None:
    """Check how many GPUs jobs request: an attempt runs on one host, and a policy of another package may not know it.

    Raises:
        UsageError: more than one, where the daemon has several hosts and such a policy.
    """
    most = max((spec.gpus for spec in specs), default=1)
    if hosts > 1 and most > 1 and not (isinstance(policy, Ranked) and policy.one_node):
        raise UsageError(
            f"a job requests {most} GPUs, and this daemon has {hosts} hosts: policy `{policy.name}` does not place all "
            "GPUs of a job on one host",
            hint="request one GPU, or submit to a daemon with one host",
        )


def available_modes(refused: Mapping[str, str | None]) -> list[str]:
    """The modes without a reason against them."""
    return [*ALWAYS, *(share for share, why in refused.items() if why is None)]
