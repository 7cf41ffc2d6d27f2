"""The arithmetic of the ranking of estimators; the ranking itself is the benchmark's business."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from cotenant.core.units import MiB
from cotenant.demo.published import MeasuredScript

ROOT = Path(__file__).parents[3]


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module("benchmarks.estimator.ranking")


def a_job(script="resnet50.py", measured=100, fake=None):
    return MeasuredScript(
        script=script,
        args=("--batch-size", "32"),
        measured_bytes=measured,
        faketensor_bytes=fake,
        source="a publication",
    )


def a_row(bench, script="resnet50.py", problems=None, **device_bytes):
    return bench.Row(job=a_job(script), device_bytes=device_bytes, problems=problems or {})


@pytest.mark.parametrize(
    ("script", "family"),
    [("bert_mlm.py", "transformers"), ("vgg16.py", "CNN ImageNet"), ("cifar.py", "CNN CIFAR")],
)
def test_families(bench, script, family):
    assert a_row(bench, script).family == family


def test_ranking_is_by_median_of_sizes_and_counts_low_ones(bench):
    rows = [a_row(bench, bad=200, good=90), a_row(bench, bad=300, good=110), a_row(bench, good=100)]
    assert bench.ranking(rows) == [
        "| good | 3 | 10.0% | 6.7% | 10.0% | 10.0% | 33% |",
        "| bad | 2 | 150.0% | 150.0% | 195.0% | 200.0% | 0% |",
    ]


def test_report_has_a_table_of_each_family_that_was_measured(bench):
    rows = [a_row(bench, good=90), a_row(bench, "cifar.py", good=110)]
    titles = [line for line in bench.report_lines(rows) if line.startswith("##")]
    assert titles == ["## CNN ImageNet: 1 measurements", "## CNN CIFAR: 1 measurements", "## all: 2 measurements"]


def test_missing_estimates_are_reported_once_per_estimator(bench):
    rows = [a_row(bench, problems={"llmem": "llmem: no decoder"}) for _ in range(2)]
    assert bench.problem_lines(rows) == ["No estimate of llmem in 2 rows: no decoder."]


def test_published_horus_by_title(bench, tmp_path):
    table = tmp_path / "paper_results.csv"
    table.write_text("model,batch,horus_mib\nBERT_base,32,2.5\nvgg16,32,\ngpt2_xl,2,9\n")
    assert bench.published_horus(table) == {"bert_mlm --size base --batch-size 32": round(2.5 * MiB)}
    assert bench.published_horus(tmp_path / "absent.csv") == {}


def test_a_job_measured_twice_is_traced_once(bench, monkeypatch):
    traced = []
    monkeypatch.setattr(bench, "estimate_all", lambda job, folder: (traced.append(job.title), ({"traced": 5}, {}))[1])
    rows = bench.measure([a_job(measured=1, fake=7), a_job(measured=2)], Path(), {"resnet50 --batch-size 32": 9})
    assert traced == ["resnet50 --batch-size 32"]
    assert [row.device_bytes for row in rows] == [
        {"traced": 5, "faketensor, as published": 7, "horus, as published": 9},
        {"traced": 5, "horus, as published": 9},
    ]
