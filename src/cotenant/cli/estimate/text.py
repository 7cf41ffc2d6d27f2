"""`cotenant estimate`, for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cotenant.cli.output import Column, note, print_table
from cotenant.core.errors import TraceError
from cotenant.core.units import format_bytes

if TYPE_CHECKING:
    from cotenant.core.estimate import Estimate
    from cotenant.estimators.batch_search import Trial
    from cotenant.estimators.fit import Fit
    from cotenant.estimators.nccl import NcclBytes
    from cotenant.estimators.sensitivity import ReservedRange
    from cotenant.estimators.traced_result import TracedResult
    from cotenant.estimators.whatif import Saving

_BAR = 24


def print_estimate(command: str, estimate: Estimate, result: TracedResult | None, elapsed_s: float) -> None:
    """The numbers, what they are made of, and whether the job fits; warnings go to stderr."""
    print(f"{command} on {estimate.gpu}{'  (partial: a lower bound)' if estimate.partial else ''}\n")
    context = format_bytes(estimate.context_bytes)
    lines = [
        ("peak allocated", estimate.peak_allocated_bytes, "live tensors, rounded up to blocks"),
        ("peak reserved", estimate.peak_reserved_bytes, f"held by the caching allocator{_spread(result)}"),
        ("device", estimate.device_bytes, f"what nvidia-smi shows: reserved plus {context} of CUDA context"),
        ("bound", estimate.bound_bytes, estimate.bound_meaning),
    ]
    for name, value, meaning in lines:
        print(f"  {name:<16}{format_bytes(value):>10}   {meaning}")
    _print_breakdown(estimate)
    nccl = None if result is None else result.nccl
    if result is not None and (nccl is not None or result.replay_input.stack.loads_eagerly):
        _print_context(result)
    _print_gpus(estimate)
    if estimate.smact is not None:
        print(f"\n  {_activity_line(estimate.smact, estimate.smact_low, estimate.smact_high)}")
    print()
    warnings = list(estimate.warnings)
    if result is not None:
        of = f" (GPU {result.index}, the fullest of {len(result.gpus)})" if result.gpus else ""
        print(f"  {result.fit.sentence}{of}{', as far as it was seen' if estimate.partial else ''}")
        print(f"  {_made_from(result, elapsed_s)}")
        if result.workspaces is not None:
            print(f"  {result.workspaces}")
        warnings = [warning for warning in warnings if not warning.startswith(result.fit.sentence)]
    for warning in warnings:
        if nccl is None or warning != nccl.sentence:
            note(f"warning: {warning}")


def print_script_output(error: TraceError) -> None:
    """Print the last lines of the script's output."""
    last = error.last_output()
    if last:
        note("\n  ".join(["the script's last output:", *last]))


def _activity_line(smact: float, low: float | None, high: float | None) -> str:
    """How busy the job alone is expected to keep the GPU."""
    span = "" if low is None or high is None else f", from {low:.2f} to {high:.2f}"
    return f"alone on its GPU about SMACT {smact:.2f}{span}: from kernels, layers and memory"


def utilization_line(smact: float, smocc: float | None, *, is_part: bool) -> str:
    """What the layers alone say of the GPU's activity; `is_part`: of a line above, which has another SMACT."""
    also = "" if smocc is None else f", SMOCC {smocc:.2f}"
    what = "of that, by layers alone: SMACT" if is_part else "alone on an A100, by its layers, about SMACT"
    return f"{what} {smact:.2f}{also}; learned from jobs of one server"


def _print_gpus(estimate: Estimate) -> None:
    """A row for each GPU of the process, and how many processes there are."""
    if estimate.per_gpu:
        print("\n  each GPU; the numbers above are those of the GPU with the largest bound")
    for gpu in estimate.per_gpu:
        sizes = (gpu.peak_allocated_bytes, gpu.peak_reserved_bytes, gpu.device_bytes, gpu.bound_bytes)
        cells = "  ".join(
            f"{name} {format_bytes(value):>9}"
            for name, value in zip(("allocated", "reserved", "device", "bound"), sizes, strict=True)
        )
        print(f"  GPU {gpu.index:<4}{cells}")
    if estimate.processes > 1:
        print(f"\n  rank 0 of {estimate.processes} processes; each of them needs a GPU with as much memory")


def _print_breakdown(estimate: Estimate) -> None:
    total = sum(estimate.breakdown_bytes.values())
    if not total:
        return
    print("\n  at the peak of allocated bytes")
    for category, value in sorted(estimate.breakdown_bytes.items(), key=lambda item: -item[1]):
        bar = "#" * max(1, round(_BAR * value / total))
        print(f"  {category:<16}{format_bytes(value):>10}   {bar:<{_BAR}} {value / total:6.1%}")


def _print_context(result: TracedResult) -> None:
    """What the memory outside of the allocator is made of; it can outweigh the tensors of a small job."""
    nccl, context = result.nccl, result.context
    low, typical, high = context.low_bytes, context.typical_bytes, context.high_bytes
    if nccl is not None:
        low, typical, high = low - nccl.low_bytes, typical - nccl.typical_bytes, high - nccl.high_bytes
    meaning = "context, kernels and libraries"
    if result.replay_input.stack.loads_eagerly:
        meaning += f", {_range(low, high)}; all kernels loaded at once"
    print("\n  in the CUDA context")
    for name, value, text in (("CUDA", typical, meaning), *_nccl_lines(nccl)):
        print(f"  {name:<16}{format_bytes(value):>10}   {text}")


def _nccl_lines(nccl: NcclBytes | None) -> list[tuple[str, int, str]]:
    if nccl is None:
        return []
    sizes = " and ".join(map(str, nccl.group_sizes))
    groups = f"group{'s' if len(nccl.group_sizes) > 1 else ''} of {sizes} GPUs"
    return [
        ("NCCL", nccl.typical_bytes, f"{nccl.interval}; {nccl.typical_channels} channels; {groups}"),
        *((f"  {part.name}", part.typical_bytes, part.source) for part in nccl.parts),
    ]


def _made_from(result: TracedResult, elapsed_s: float) -> str:
    header = result.trace.header
    steps = f"{header.steps} optimizer step{'s' if header.steps != 1 else ''}"
    cached = "; trace from the cache, `--no-cache` makes a new one" if result.from_cache else ""
    return f"{steps}, {len(result.trace.events):,} events, torch {header.torch_version}, {elapsed_s:.1f} s{cached}"


def _spread(result: TracedResult | None) -> str:
    """The interval, where it is wide enough to matter."""
    if result is None:
        return ""
    interval: ReservedRange = result.reserved_range
    if len(interval.states) == 2:
        low, high = (_range(*state) for state in interval.states)
        return f"; two states: {low}, or {high}"
    bounds = _range(interval.low_bytes, interval.high_bytes)
    return f"; {bounds} if allocations differ slightly" if " to " in bounds else ""


def _range(low_bytes: int, high_bytes: int) -> str:
    low, high = format_bytes(low_bytes), format_bytes(high_bytes)
    return low if low == high else f"{low} to {high}"


def print_fits(fits: Sequence[Fit], made_for: tuple[int, int] | None, *, gpus: int = 1) -> None:
    """Print the table of `--fits-on` for a process that uses `gpus` GPUs."""
    rows = [
        {
            "gpu": fit.gpu,
            "memory": format_bytes(fit.usable_bytes),
            "bound": format_bytes(fit.bound_bytes),
            "spare": format_bytes(fit.spare_bytes),
            "verdict": fit.cell(made_for),
        }
        for fit in fits
    ]
    print(f"\nfor {gpus} GPUs of one model: each row is for the GPU that it fits least" if gpus > 1 else "")
    print_table(rows, _columns({"gpu": "GPU", "memory": "MEMORY", "bound": "BOUND", "spare": "SPARE"}, "VERDICT"))


def print_changes(changes: Sequence[Saving], fit: Fit, notes: Sequence[str]) -> None:
    """Print the table of `--what-if`, below the estimate without changes, and `notes` on it."""
    now = {"reserved": format_bytes(fit.reserved_bytes), "bound": format_bytes(fit.bound_bytes)}
    rows = [{"change": "as it is", "verdict": "", **now}]
    rows += [
        {
            "change": saving.name + (" *" if saving.assumed else ""),
            "reserved": format_bytes(saving.peak_reserved_bytes),
            "bound": format_bytes(saving.bound_bytes),
            "verdict": _saving(saving.saves_bytes),
        }
        for saving in changes
    ]
    print()
    print_table(rows, _columns({"change": "WHAT IF", "reserved": "RESERVED", "bound": "BOUND"}, ""))
    for line in notes:
        print(line)


def _saving(value_bytes: int) -> str:
    if value_bytes == 0:
        return "no change"
    return f"{'saves' if value_bytes > 0 else 'costs'} {format_bytes(abs(value_bytes))}"


def print_trial(argument: str, trial: Trial) -> None:
    """Print one trial of `--find-batch-size`."""
    if trial.problem is not None:
        print(f"  {argument} {trial.batch_size:<8}{'-':>10}   {trial.problem}", flush=True)
        return
    verdict = "fits" if trial.fits else "does not fit"
    print(f"  {argument} {trial.batch_size:<8}{format_bytes(trial.bound_bytes):>10}   {verdict}", flush=True)


def _columns(sizes: dict[str, str], verdict: str) -> list[Column]:
    first, *rest = [Column(key=key, title=title, right=key != "gpu") for key, title in sizes.items()]
    first = Column(key=first.key, title=first.title)
    return [first, *rest, Column(key="verdict", title=verdict)]
