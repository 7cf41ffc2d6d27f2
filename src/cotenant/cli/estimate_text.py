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
    from cotenant.estimators.sensitivity import ReservedRange
    from cotenant.estimators.traced import TracedResult
    from cotenant.estimators.whatif import Saving

_BAR = 24
_VERDICTS = {"fits": "fits", "tight": "only just", "unsure": "may not fit", "no": "does not fit"}


def print_estimate(command: str, estimate: Estimate, result: TracedResult | None, elapsed_s: float) -> None:
    """The numbers, what they are made of, and whether the job fits; warnings go to stderr."""
    print(f"{command} on {estimate.gpu}{'  (partial: a lower bound)' if estimate.partial else ''}\n")
    context, margin = format_bytes(estimate.context_bytes), format_bytes(estimate.margin_bytes)
    lines = [
        ("peak allocated", estimate.peak_allocated_bytes, "live tensors, rounded up to blocks"),
        ("peak reserved", estimate.peak_reserved_bytes, f"held by the caching allocator{_spread(result)}"),
        ("device", estimate.device_bytes, f"as nvidia-smi shows it: with {context} of CUDA context"),
        (
            "bound",
            estimate.bound_bytes,
            f"to find free: with a margin of {margin}, for {estimate.coverage * 100:.3g}% of jobs",
        ),
    ]
    for name, value, meaning in lines:
        print(f"  {name:<16}{format_bytes(value):>10}   {meaning}")
    _print_breakdown(estimate)
    _print_gpus(estimate)
    if estimate.smact is not None:
        print(f"\n  {utilization_line(estimate.smact, estimate.smocc)}")
    print()
    warnings = list(estimate.warnings)
    if result is not None:
        of = f" (GPU {result.index}, the fullest of {len(result.gpus)})" if result.gpus else ""
        print(f"  {result.fit.sentence}{of}{', as far as it was seen' if estimate.partial else ''}")
        print(f"  {_made_from(result, elapsed_s)}")
        if result.workspaces is not None:
            print(f"  {result.workspaces}")
        warnings = [each for each in warnings if not each.startswith(result.fit.sentence)]
    for warning in warnings:
        note(f"warning: {warning}")


def print_script_output(error: TraceError) -> None:
    """What the script printed last, before the error itself."""
    last = error.log_tail.strip().splitlines()[-12:]
    if last:
        note("\n  ".join(["the script's last words:", *last]))


def utilization_line(smact: float, smocc: float | None) -> str:
    """How busy the job alone would keep the GPU."""
    also = "" if smocc is None else f", SMOCC {smocc:.2f}"
    return f"alone on an A100 about SMACT {smact:.2f}{also}: learned from jobs of one server"


def _print_gpus(estimate: Estimate) -> None:
    """A row for each GPU of the process, and how many processes there are."""
    if estimate.per_gpu:
        print("\n  each GPU; the numbers above are of the one with the largest bound")
    for each in estimate.per_gpu:
        sizes = (each.peak_allocated_bytes, each.peak_reserved_bytes, each.device_bytes, each.bound_bytes)
        told = "  ".join(
            f"{name} {format_bytes(value):>9}"
            for name, value in zip(("allocated", "reserved", "device", "bound"), sizes, strict=True)
        )
        print(f"  GPU {each.index:<4}{told}")
    if estimate.processes > 1:
        print(f"\n  of one of {estimate.processes} processes, rank 0; each that does the same needs a GPU with as much")


def _print_breakdown(estimate: Estimate) -> None:
    total = sum(estimate.breakdown_bytes.values())
    if not total:
        return
    print("\n  at the peak of allocated bytes")
    for category, value in sorted(estimate.breakdown_bytes.items(), key=lambda item: -item[1]):
        bar = "#" * max(1, round(_BAR * value / total))
        print(f"  {category:<16}{format_bytes(value):>10}   {bar:<{_BAR}} {value / total:6.1%}")


def _made_from(result: TracedResult, elapsed_s: float) -> str:
    header = result.trace.header
    steps = f"{header.steps} optimizer step{'s' if header.steps != 1 else ''}"
    kept = "; trace from the cache, `--no-cache` makes a new one" if result.from_cache else ""
    return f"{steps}, {len(result.trace.events):,} events, torch {header.torch_version}, {elapsed_s:.1f} s{kept}"


def _spread(result: TracedResult | None) -> str:
    """The interval, where it is wide enough to matter."""
    if result is None:
        return ""
    interval: ReservedRange = result.reserved_range
    if len(interval.states) == 2:
        low, high = (_range(*each) for each in interval.states)
        return f"; two states: {low}, or {high}"
    told = _range(interval.low_bytes, interval.high_bytes)
    return f"; {told} if small things differ" if " to " in told else ""


def _range(low_bytes: int, high_bytes: int) -> str:
    low, high = format_bytes(low_bytes), format_bytes(high_bytes)
    return low if low == high else f"{low} to {high}"


def print_fits(fits: Sequence[Fit], made_for: tuple[int, int] | None, *, gpus: int = 1) -> None:
    """The table of `--fits-on`; `gpus`: how many the process uses."""
    traced = f" (as traced for sm{made_for[0]}{made_for[1]})" if made_for else ""
    rows = [
        {
            "gpu": each.gpu,
            "memory": format_bytes(each.usable_bytes),
            "bound": format_bytes(each.bound_bytes),
            "spare": format_bytes(each.spare_bytes),
            "verdict": _VERDICTS[each.verdict] + (traced if each.capability_differs else ""),
        }
        for each in fits
    ]
    print(f"\nfor {gpus} of a kind: a row is of the process's GPU that fits it least" if gpus > 1 else "")
    print_table(rows, _columns({"gpu": "GPU", "memory": "MEMORY", "bound": "BOUND", "spare": "SPARE"}, "VERDICT"))


def print_changes(changes: Sequence[Saving], fit: Fit, not_computed: str) -> None:
    """The table of `--what-if`, below what it is without."""
    now = {"reserved": format_bytes(fit.reserved_bytes), "bound": format_bytes(fit.bound_bytes)}
    rows = [{"change": "as it is", "verdict": "", **now}]
    rows += [
        {
            "change": each.name + (" *" if each.assumed else ""),
            "reserved": format_bytes(each.peak_reserved_bytes),
            "bound": format_bytes(each.bound_bytes),
            "verdict": _saving(each.saves_bytes),
        }
        for each in changes
    ]
    print()
    print_table(rows, _columns({"change": "WHAT IF", "reserved": "RESERVED", "bound": "BOUND"}, ""))
    if any(each.assumed for each in changes):
        print("* the states of the trace in 8 bits; what such an optimizer takes beside them is not known")
    print(not_computed)


def _saving(value_bytes: int) -> str:
    if value_bytes == 0:
        return "no change"
    return f"{'saves' if value_bytes > 0 else 'costs'} {format_bytes(abs(value_bytes))}"


def print_trial(argument: str, trial: Trial) -> None:
    """One line of the path of `--find-batch-size`."""
    if trial.problem is not None:
        print(f"  {argument} {trial.batch_size:<8}{'-':>10}   {trial.problem}", flush=True)
        return
    told = "fits" if trial.fits else "does not fit"
    print(f"  {argument} {trial.batch_size:<8}{format_bytes(trial.bound_bytes):>10}   {told}", flush=True)


def _columns(sizes: dict[str, str], verdict: str) -> list[Column]:
    first, *rest = [Column(key=key, title=title, right=key != "gpu") for key, title in sizes.items()]
    first = Column(key=first.key, title=first.title)
    return [first, *rest, Column(key="verdict", title=verdict)]
