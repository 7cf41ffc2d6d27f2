"""A process that uses several GPUs fits where each of them does."""

from __future__ import annotations

from dataclasses import replace

from cotenant.cli.estimate import text as estimate_text
from cotenant.cli.estimate.reports import EstimateReports
from cotenant.core.units import MiB
from cotenant.estimators.fit import Fit, worst
from cotenant.estimators.traced import TracedEstimator
from cotenant.gpu_specs import ContextBytes, gpu_spec
from traces import a_trace, alloc, free

GPU = gpu_spec("A100-40GB")
CONTEXT = ContextBytes(low_bytes=0, typical_bytes=0, high_bytes=0, derived=True, source="a test")
SMALL = replace(GPU, name="card", memory_total_bytes=1000 * MiB, torch_total_bytes=1000 * MiB, context=CONTEXT)


def on_gpu(index, events):
    return [event._replace(device=index) for event in events]


def in_pieces(count, first):
    """Blocks of 100 MiB, cached one by one; what comes next may use them all once the cache was given back."""
    blocks = range(first, first + count)
    return [*(alloc(i, 100) for i in blocks), *(free(i) for i in blocks), alloc(first + 50, 100 * count)]


def a_fit(verdict, bound_mib):
    return Fit(gpu="card", verdict=verdict, usable_bytes=0, reserved_bytes=0, bound_bytes=bound_mib * MiB)


def test_the_worst_verdict_counts_then_the_larger_bound():
    fits = [a_fit("fits", 5), a_fit("no", 2), a_fit("tight", 9), a_fit("no", 1)]
    assert worst(fits) is fits[1]
    assert worst(fits[::2]) is fits[2]
    assert worst([a_fit("fits", 1), a_fit("fits", 2)]).bound_bytes == 2 * MiB


def test_each_gpu_must_fit_and_not_only_the_one_with_the_largest_bound():
    # GPU 0 caches 600 MiB and wants 600 at once: 1200 without end, but 600 will do. GPU 1 needs 1100 at once.
    result = TracedEstimator().on(a_trace([*in_pieces(6, 0), *on_gpu(1, [alloc(100, 1100)])], gpus=2), SMALL)
    assert (result.index, result.fit.verdict) == (0, "tight")
    assert [gpu.fit.verdict for gpu in result.gpus] == ["tight", "no"]
    assert any(warning.startswith("GPU 1 does not fit card: out of memory") for warning in result.estimate.warnings)


def test_fits_on_has_the_worst_verdict_of_each_gpu(monkeypatch):
    monkeypatch.setattr("cotenant.estimators.fit.all_gpu_specs", lambda: (SMALL,))
    result = TracedEstimator().on(a_trace([*in_pieces(6, 0), *on_gpu(1, [alloc(100, 1100)])], gpus=2), GPU)
    (found,) = result.fits_on()
    assert (found.gpu, found.verdict, found.reserved_bytes) == ("card", "no", 1100 * MiB)


def test_instances_of_a_gpu_are_for_one_gpu_only():
    one = TracedEstimator().on(a_trace([alloc(0, 10)]), GPU)
    two = TracedEstimator().on(a_trace([alloc(0, 10), *on_gpu(1, [alloc(1, 10)])], gpus=2), GPU)
    assert any(":" in fit.gpu for fit in one.fits_on())
    assert {fit.gpu for fit in two.fits_on()} == {fit.gpu for fit in one.fits_on() if ":" not in fit.gpu}


def test_the_result_names_its_gpu(capsys):
    result = TracedEstimator().on(a_trace([alloc(0, 10), *on_gpu(1, [alloc(1, 500)])], gpus=2), GPU)
    estimate_text.print_estimate("train.py", result.estimate, result, 0.1)
    assert "to spare (GPU 1, the fullest of 2)\n" in capsys.readouterr().out
    extras = EstimateReports(fits_on=True)
    found = extras.tables(result, ["train.py"], json=False)
    assert capsys.readouterr().out.startswith("\nfor 2 GPUs of one model: each row is for the GPU that it fits least\n")
    assert not any(":" in fit["gpu"] for fit in found["fits_on"])
