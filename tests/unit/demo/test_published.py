"""The tables that ship with the package."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from cotenant.core.units import MiB
from cotenant.demo.published import demo_scripts, demo_trace, measured_scripts
from cotenant.jobfiles.rad import parse_rad
from cotenant.sim.workloads import workload

ROOT = Path(__file__).parents[3]
DATA = ROOT.parent / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the published data sets are not beside the checkout")


def test_each_script_is_an_example_of_ours():
    scripts = demo_scripts()
    assert len(scripts) == 6
    assert [script.script for script in scripts if not (ROOT / "examples" / script.script).is_file()] == []


def test_titles_contain_the_arguments():
    assert demo_scripts()[0].title == "cifar --model resnet34 --batch-size 32"


@needs_data
def test_measured_peaks_are_the_published_ones():
    with (DATA / "gpumemnet" / "realworld_measured.csv").open(encoding="utf-8") as file:
        published = {row["source"]: row for row in csv.DictReader(file)}
    for script in demo_scripts():
        run = script.source.rpartition(" ")[2]
        row = next(row for source, row in published.items() if run in source)
        assert script.measured_bytes == int(row["measured_mib"]) * MiB
        assert script.args[-1] == row["batch"]
        published_mib = None if script.faketensor_bytes is None else script.faketensor_bytes / MiB
        assert published_mib == (pytest.approx(float(row["faketensor_mib"])) if row["faketensor_mib"] else None)


def test_trace_is_in_order_of_arrival():
    arrivals = [job.arrival_s for job in demo_trace()]
    assert len(arrivals) == 20
    assert arrivals == sorted(arrivals)
    assert arrivals[0] == 0


def test_one_job_of_the_trace_declares_too_little():
    low = [job for job in demo_trace() if job.reported_bytes < job.measured_bytes]
    assert len(low) == 1
    assert all(job.reported_bytes == job.measured_bytes for job in demo_trace() if job not in low)


@needs_data
def test_trace_is_an_excerpt_of_the_published_one():
    with (DATA / "carma" / "traces" / "philly_heavy_60_tasks.csv").open(encoding="utf-8") as file:
        published = {int(row["seq"]): row for row in csv.DictReader(file)}
    first_s = float(published[demo_trace()[0].number]["submit_offset_s"])
    for job in demo_trace():
        row = published[job.number]
        assert job.arrival_s == float(row["submit_offset_s"]) - first_s
        assert (job.batch, job.gpus, job.measured_mib) == (
            int(row["batch"]),
            int(row["n_gpus"]),
            row["measured_mem_mb"],
        )


def test_every_workload_of_the_trace_can_be_simulated():
    for job in demo_trace():
        assert workload(job.workload).gpus == job.gpus


@pytest.mark.parametrize("job", demo_trace(), ids=lambda job: f"{job.number}-{job.workload}")
def test_rad_text_is_a_job_file(job):
    rad = parse_rad(job.rad_text("python 'a b.py' --x"), "x.rad")
    assert rad.command == ("python", "a b.py", "--x")
    assert (rad.activation, rad.batch_size, rad.gpus) == (None, job.batch, job.gpus)
    assert rad.memory_bytes["measured"] == job.reported_bytes
    assert [rad.memory_bytes[name] for name in ("horus", "faketensor", "gpumemnet")] == [
        None if text == "40000" else int(float(text) * MiB)
        for text in (job.horus_mib, job.faketensor_mib, job.gpumemnet_mib)
    ]


COLUMNS = "run,model,library,batch,n_gpus,measured_mib,faketensor_mib,source"


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        pytest.param(
            "2025-09,resnet18,timm,64,1,796,66.5,s", ("cifar.py", "--model resnet18 --batch-size 64"), id="timm"
        ),
        pytest.param(
            "2025-09,bert-base (from config),transformers,32,1,19828,,s",
            ("bert_mlm.py", "--size base --batch-size 32"),
            id="the model's name is its first word",
        ),
        pytest.param("2024,resnet18,timm,64,1,796,66.5,s", None, id="another campaign"),
        pytest.param("2025-09,resnet18,timm,64,2,796,66.5,s", None, id="two GPUs"),
        pytest.param("2025-09,resnet18,torchvision,64,1,796,66.5,s", None, id="no example repeats it"),
    ],
)
def test_measured_scripts_of_a_table(tmp_path, row, wanted):
    table = tmp_path / "t.csv"
    table.write_text(f"{COLUMNS}\n{row}\n")
    found = measured_scripts(table)
    assert [(example.script, " ".join(example.args)) for example in found] == ([] if wanted is None else [wanted])


@needs_data
def test_every_measured_job_has_an_example():
    found = measured_scripts(DATA / "gpumemnet" / "realworld_measured.csv")
    assert len(found) == 35
    assert [example.script for example in found if not (ROOT / "examples" / example.script).is_file()] == []
