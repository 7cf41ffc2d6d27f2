"""`cotenant estimate --json`: one object, whose fields are listed here. Sizes are bytes.

Of every estimate: the fields of `core.estimate.Estimate`; `device_bytes`, `bound_bytes`; `elapsed_s`; `trace`, null
unless a script was traced: `backend` (`trace`, `null-gpu`), `events`, `optimizer_steps`, `torch`, `python`,
`libraries`, `convolutions`, `workspaces` (where those of convolutions come from, a sentence or null), `alloc_conf`,
`from_cache`.

Of a traced one also:
    interval      `low_bytes`, `high_bytes` of the reserved bytes when small things change; `states`: one [low, high]
                  or two; `replays`
    fit           the verdict for the GPU: `verdict` (`fits`, `tight`, `unsure`, `no`), `sentence`, `usable_bytes`,
                  `reserved_bytes` and `bound_bytes` on a GPU without end, `spare_bytes`, `retries`,
                  `capability_differs`, and `oom`, null or the request that found no memory: `phase`, `module`,
                  `request_bytes`, `allocated_bytes`, `reserved_bytes`
    context       of CUDA: `low_bytes`, `typical_bytes`, `high_bytes`, NCCL's part included; `loads_eagerly`: all
                  kernels at once; `derived`: not measured on this GPU; `source`
    nccl          null, or NCCL's part of the context: `low_bytes`, `typical_bytes`, `high_bytes`; `group_sizes`;
                  `low_channels`, `typical_channels`, `high_channels`; `parts`, each with `name`, `source` and such a
                  range of bytes
    fits_on       with `--fits-on`: one such verdict for each known GPU and MIG instance, by `gpu`; of a process that
                  uses several GPUs, that of its GPU which fits least, and none for MIG instances
    what_if       with `--what-if`: `name`, `kind` (`setting`, `optimizer`), `peak_allocated_bytes`,
                  `peak_reserved_bytes`, `bound_bytes`, `saves_bytes`, `assumed`
    parts_at_peak  requested bytes at the peak by category and module, largest first; `--baseline` reads them
    changes       with `--baseline`: bytes by part, more or less than in the earlier estimate
    failed_checks  what `--budget` and `--strict` found, as sentences; the exit code is 6 if there are any
    utilization   with `--utilization`: `smact`, `smocc` (ratios), `gpu`, `warnings`; null if unknown
    batch_size    with `--find-batch-size`: `argument`, `limit_bytes`, `largest`, `smallest_misfit`, `trials`
                  (`batch_size`, `bound_bytes`, `fits`, `problem`), `remark` (a sentence or null: why a larger one
                  may do); the estimate is that of `largest`
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotenant.core.estimate import Estimate
    from cotenant.estimators.batch_search import BatchSearch
    from cotenant.estimators.fit import Fit
    from cotenant.estimators.nccl import NcclBytes
    from cotenant.estimators.traced_result import TracedResult
    from cotenant.estimators.whatif import Saving


def of_estimate(estimate: Estimate) -> dict[str, Any]:
    """An estimate of any estimator."""
    fields = _plain(estimate)
    return {**fields, "device_bytes": estimate.device_bytes, "bound_bytes": estimate.bound_bytes}


def of_result(result: TracedResult) -> dict[str, Any]:
    """What a traced estimate has beside."""
    from cotenant.estimators.budget import parts_at_peak

    header = result.trace.header
    return {
        "parts_at_peak": parts_at_peak(result),
        "interval": _plain(result.reserved_range),
        "fit": of_fit(result.fit),
        "context": _of_context(result),
        "nccl": None if result.nccl is None else _of_nccl(result.nccl),
        "trace": {
            "backend": header.backend,
            "events": len(result.trace.events),
            "optimizer_steps": header.steps,
            "torch": header.torch_version,
            "python": header.python_version,
            "libraries": dict(header.libraries),
            "convolutions": sum(op.kind == "conv_forward" for op in result.trace.ops),
            "workspaces": result.workspaces,
            "alloc_conf": result.replay_input.stack.alloc_conf,
            "from_cache": result.from_cache,
        },
    }


def of_fit(fit: Fit) -> dict[str, Any]:
    """A verdict."""
    oom = fit.oom
    place = oom and {
        "phase": oom.phase,
        "module": oom.module,
        "request_bytes": oom.request_bytes,
        "allocated_bytes": oom.allocated_bytes,
        "reserved_bytes": oom.reserved_bytes,
    }
    return {**_plain(fit), "oom": place, "spare_bytes": fit.spare_bytes, "sentence": fit.sentence}


def _of_context(result: TracedResult) -> dict[str, Any]:
    context = result.context
    return {
        "low_bytes": context.low_bytes,
        "typical_bytes": context.typical_bytes,
        "high_bytes": context.high_bytes,
        "loads_eagerly": result.replay_input.stack.loads_eagerly,
        "derived": context.derived,
        "source": context.source,
    }


def _of_nccl(found: NcclBytes) -> dict[str, Any]:
    sums = {"low_bytes": found.low_bytes, "typical_bytes": found.typical_bytes, "high_bytes": found.high_bytes}
    return {**_plain(found), **sums, "parts": [_plain(part) for part in found.parts]}


def of_change(change: Saving) -> dict[str, Any]:
    """A row of `--what-if`."""
    return _plain(change)


def of_search(search: BatchSearch) -> dict[str, Any]:
    """What `--find-batch-size` found."""
    return {**_plain(search), "trials": [_plain(trial) for trial in search.trials]}


def _plain(value: object) -> dict[str, Any]:
    from cotenant.core.codec import encode

    fields: dict[str, Any] = encode(value)
    del fields["type"]
    return fields
