"""The policies and the oracles of the thesis (2025) that CARMA and AEGIS come from, one preset each.

All start tasks in order of submission, a task that ran out of memory before all others and on GPUs without tasks, and
nothing beside it while it waits. They look at a window of 90 s, and at a GPU only once its newest task was active for
as long. A GPU takes another task if its SMACT over the window is at most 80 %.

| preset | takes | memory |
| --- | --- | --- |
| `thesis-rr` | the next GPU in turn | unknown; no condition, not on SMACT either |
| `thesis-magm` | most free memory | unknown: 5 GB free; where an estimator knows it, what it says |
| `thesis-lug` | lowest SMACT | as `thesis-magm` |
| `thesis-mug` | highest SMACT | as `thesis-magm`; the thesis leaves it out of its evaluation |
| `thesis-off`, `-obf`, `-owf`, `-olug` | first, fullest, emptiest GPU, lowest SMACT | the measured peak and 2 GB |

`floor_gib` is what a GPU must have free for a task of unknown memory, and what such a task is promised; None: it runs
exclusively, as jobs of unknown memory do elsewhere.

Different here: free memory is what is not promised, not what a snapshot shows, and a GPU that cannot be read admits no
job. Nothing is learned from earlier runs, so that a replay of a trace is that of the thesis.

Source: sections 6.2.2, 6.2.3 and 6.3.3; tables 6.3 to 6.5 for the conditions that were tried.
"""

from __future__ import annotations

from collections.abc import Callable

from cotenant.scheduling.placement import gates, orders, scores
from cotenant.scheduling.placement.ranked import Collocation, Ranked
from cotenant.scheduling.placement.scores import Score
from cotenant.scheduling.policies._options import gib_to_bytes, unknown_bytes
from cotenant.scheduling.policies.carma import exclusive_after_oom

WINDOW_S = 90.0
SMACT_LIMIT = 0.80
FLOOR_GIB = 5.0
MARGIN_GIB = 2.0


def preset(
    name: str, score: Score, *, floor_gib: float | None = None, margin_gib: float = 0.0, smact: float = SMACT_LIMIT
) -> Callable[..., Ranked]:
    """A preset; its defaults are those of the thesis, and each of them is an option of the policy."""
    default_floor_gib, default_margin_gib, default_smact = floor_gib, margin_gib, smact

    def policy(
        *,
        smact_limit: float = default_smact,
        floor_gib: float | None = default_floor_gib,
        margin_gib: float = default_margin_gib,
        window_s: float = WINDOW_S,
        sharing: Collocation = "mps",
    ) -> Ranked:
        """A `smact_limit` of 1 is no condition on SMACT."""
        on_smact = gates.smact_above(smact_limit)
        return Ranked(
            name=name,
            order=orders.retries_first,
            gates=(gates.warming_up(window_s, first_activity_timeout_s=1000.0), on_smact),
            score=score,
            backfill=False,
            retries_block=True,
            headroom_bytes=gib_to_bytes(margin_gib, "a margin"),
            unknown_bytes=unknown_bytes(floor_gib),
            after_oom=exclusive_after_oom,
            sharing=sharing,
            window_s=window_s,
            uses_history=False,
        )

    return policy


magm = preset("thesis-magm", scores.most_available_memory, floor_gib=FLOOR_GIB)
lug = preset("thesis-lug", scores.least_active, floor_gib=FLOOR_GIB)
mug = preset("thesis-mug", scores.most_active, floor_gib=FLOOR_GIB)
rr = preset("thesis-rr", scores.round_robin, floor_gib=0.0, smact=1.0)
off = preset("thesis-off", scores.first, margin_gib=MARGIN_GIB)
obf = preset("thesis-obf", scores.least_available_memory, margin_gib=MARGIN_GIB)
owf = preset("thesis-owf", scores.most_available_memory, margin_gib=MARGIN_GIB)
olug = preset("thesis-olug", scores.least_active, margin_gib=MARGIN_GIB)
