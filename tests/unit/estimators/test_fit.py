"""The verdict on whether a job fits: `fits`, `tight`, `unsure`, `no`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cotenant.core.trace import LibraryCall
from cotenant.core.units import GiB, MiB
from cotenant.estimators.fit import fits_on, judge
from cotenant.estimators.replay_input import make_replay_input, software_stack
from cotenant.estimators.traced import TracedEstimator
from cotenant.gpu_specs import ContextBytes, gpu_spec
from traces import a_trace, alloc, call, free, steps

CONTEXT = ContextBytes(
    low_bytes=400 * MiB, typical_bytes=500 * MiB, high_bytes=500 * MiB, derived=True, source="a test"
)


NOTHING_HELD = "with 0 B allocated and 0 B reserved"


def a_gpu(mib):
    """A card of which `mib` are left for the allocator."""
    known = gpu_spec("A100-40GB")
    total = (mib + 500) * MiB
    return replace(known, name="card", memory_total_bytes=total, torch_total_bytes=total, context=CONTEXT)


def refit():
    """400 MiB are cached in pieces that cannot serve what comes next: 1000 MiB, or 600 with the cache given back."""
    return a_trace(
        [
            *(alloc(i, 100, module=f"layer{i}") for i in range(4)),
            *(free(i) for i in range(4)),
            alloc(9, 600, "temporary", "step", "head"),
            free(9, "step"),
        ]
    )


def verdict(trace, mib, *, margin_mib=0, conf=""):
    replay_input = make_replay_input(trace, a_gpu(mib), software_stack(replace(trace.header, alloc_conf=conf)))
    return judge(replay_input, replay_input.replay(), margin_mib * MiB)


@pytest.mark.parametrize(
    ("mib", "margin_mib", "expected", "retries"),
    [
        pytest.param(1010, 10, "fits", 0, id="with its margin"),
        pytest.param(1009, 10, "tight", 1, id="only the margin does not"),
        pytest.param(610, 10, "tight", 1, id="with the cache given back, and its margin"),
        pytest.param(609, 10, "unsure", 1, id="with the cache given back, without its margin"),
        pytest.param(598, 0, "no", 1, id="not at all"),
    ],
)
def test_the_verdict_depends_on_free_memory(mib, margin_mib, expected, retries):
    fit, _ = verdict(refit(), mib, margin_mib=margin_mib)
    assert (fit.verdict, fit.retries) == (expected, retries)
    assert (fit.oom is None) == (expected in {"fits", "tight"})
    assert fit.spare_bytes == (mib - 1000 - margin_mib) * MiB


def test_the_estimate_is_for_the_gpu_where_it_fits_else_for_unlimited_memory():
    assert verdict(refit(), 2000)[1].peak_reserved_bytes == 1000 * MiB
    assert verdict(refit(), 700)[1].peak_reserved_bytes == 600 * MiB
    assert verdict(refit(), 500)[1].peak_reserved_bytes == 1000 * MiB


@pytest.mark.parametrize(
    ("mib", "sentence"),
    [
        (2000, "fits card, 1000.0 MiB to spare"),
        (700, "fits card only just: the allocator gives back its cache once to go on"),
        (
            500,
            f"does not fit card: out of memory in step of `head`, asking for 600.0 MiB {NOTHING_HELD}",
        ),
    ],
)
def test_every_verdict_has_its_sentence(mib, sentence):
    assert verdict(refit(), mib)[0].sentence == sentence


@pytest.mark.parametrize(
    ("mib", "cell"), [(1010, "fits"), (610, "only just"), (609, "may not fit"), (598, "does not fit")]
)
def test_every_verdict_has_its_words_in_a_table(mib, cell):
    fit, _ = verdict(refit(), mib, margin_mib=10)
    assert fit.cell((8, 0)) == cell
    assert replace(fit, capability_differs=True).cell((8, 0)) == f"{cell} (as traced for sm80)"
    assert replace(fit, capability_differs=True).cell(None) == cell


def test_cudnn_runs_without_a_workspace_where_memory_runs_out():
    replay_input = replace(
        make_replay_input(refit(), a_gpu(500), software_stack(refit().header)), optional_storages=frozenset({9})
    )
    fit, result = judge(replay_input, replay_input.replay(), 0)
    assert (fit.verdict, fit.oom, result.skipped_storages) == ("tight", None, 1)


def test_a_memory_fraction_limits_the_replay():
    fit, result = verdict(refit(), 3500, conf="per_process_memory_fraction:0.1")
    assert fit.verdict == "no"
    assert result.peak_reserved_bytes == 1000 * MiB
    assert verdict(refit(), 3500, conf="per_process_memory_fraction:0.5")[0].verdict == "fits"


def test_the_bound_of_a_tight_fit_is_the_whole_gpu():
    found = TracedEstimator(coverage=0.5).on(refit(), a_gpu(700))
    assert found.fit.verdict == "tight"
    assert found.estimate.bound_bytes == 1200 * MiB
    assert any("only just" in warning and "1000.0 MiB" in warning for warning in found.estimate.warnings)


def test_the_bound_of_a_possible_fit_exceeds_the_gpu():
    found = TracedEstimator().on(refit(), a_gpu(601))
    assert found.fit.verdict == "unsure"
    assert found.estimate.bound_bytes == found.fit.bound_bytes > found.fit.usable_bytes
    assert found.estimate.peak_reserved_bytes == 600 * MiB


def test_the_estimate_without_a_fit_is_for_unlimited_memory():
    found = TracedEstimator().on(refit(), a_gpu(500))
    assert found.estimate.peak_reserved_bytes == 1000 * MiB
    assert any("unlimited memory" in warning and "step of `head`" in warning for warning in found.estimate.warnings)


def test_another_compute_capability_adds_a_warning():
    found = TracedEstimator().on(steps(), gpu_spec("H100-80GB"))
    assert found.fit.capability_differs
    assert any("compute capability" in warning for warning in found.estimate.warnings)
    assert not TracedEstimator().on(steps(), gpu_spec("A100-80GB")).fit.capability_differs


def test_fits_on_lists_gpus_and_their_mig_instances():
    trace = steps(batch_mib=2000)  # about 9 GiB
    fits = {fit.gpu: fit for fit in fits_on(trace, software_stack(trace.header), 0)}
    assert fits["A100-40GB"].verdict == fits["A100-40GB:3g.20gb"].verdict == "fits"
    assert fits["A100-40GB:1g.5gb"].verdict == fits["RTX4060-8GB"].verdict == "no"
    assert not fits["A100-40GB:1g.5gb"].capability_differs
    assert fits["H100-80GB"].capability_differs
    sizes = [fit.usable_bytes for fit in fits.values()]
    assert sizes == sorted(sizes, reverse=True)


def test_fits_on_agrees_with_an_estimate_for_that_gpu():
    # A cuBLAS workspace is larger on an H100.
    multiplies = LibraryCall(kind="gemm", thread="main")
    trace = a_trace([call(0, "load"), *steps(batch_mib=2000).events], [multiplies])
    expected = {fit.gpu: fit for fit in fits_on(trace, software_stack(trace.header), 0)}
    for gpu in ("RTX3090-24GB", "A100-80GB:1g.10gb", "T4-16GB", "H100-80GB"):
        alone = TracedEstimator().on(trace, gpu_spec(gpu))
        assert expected[gpu].reserved_bytes == alone.fit.reserved_bytes
        assert expected[gpu].usable_bytes == alone.fit.usable_bytes


def test_fits_on_carries_the_spread():
    trace = steps()
    stack = software_stack(trace.header)
    without, with_it = (fits_on(trace, stack, spread)[0].bound_bytes for spread in (0, GiB))
    assert with_it - without == pytest.approx(GiB, rel=0.1)


def test_compiled_code_that_was_traced_eagerly_is_not_said_not_to_fit():
    trace = a_trace([alloc(1, 2000, "temporary", "step", "head"), free(1, "step")])
    compiled = replace(trace, header=replace(trace.header, runs_otherwise=("compiled",)))
    card = a_gpu(1000)
    eager, found = (TracedEstimator().on(recorded, card) for recorded in (trace, compiled))
    assert (eager.fit.verdict, found.fit.verdict) == ("no", "unsure")
    assert found.estimate.bound_bytes == eager.estimate.bound_bytes
    assert (eager.estimate.eager, found.estimate.eager) == (False, True)
    assert found.capacity_bytes is None
    assert any("may not fit card: its compiled code, traced eagerly" in text for text in found.estimate.warnings)
    small = [fit for fit in found.fits_on() if fit.usable_bytes < 2000 * MiB]
    assert all(fit.verdict != "no" for fit in found.fits_on())
    assert all(fit.eager for fit in small)
    other = replace(trace, header=replace(trace.header, runs_otherwise=("extension",)))
    assert TracedEstimator().on(other, card).fit.verdict == "no"
