"""What the demo prints."""

from __future__ import annotations

import dataclasses
import json

import pytest

from builders import a_job, an_estimate
from cotenant.cli.demo import GPU, script_json
from cotenant.cli.demo_text import (
    BAR_WIDTH,
    HEAD,
    bar,
    columns,
    comparison_line,
    counts,
    display,
    estimate_line,
    gpu_line,
    progress_line,
    progress_table,
)
from cotenant.core.job import Done, Running, Starting
from cotenant.core.units import GiB
from cotenant.demo.examples import ScriptEstimate
from cotenant.demo.gpu import DemoMeasurement
from cotenant.demo.published import MeasuredScript
from cotenant.demo.run_summary import RunSummary
from cotenant.demo.server import DemoStatus
from json_shapes import shape_problems


def a_result(gib=9.0, *, fake=5.0, problem=None) -> ScriptEstimate:
    return ScriptEstimate(
        measured=MeasuredScript(
            script="net.py",
            args=("--batch-size", "8"),
            measured_bytes=10 * GiB,
            faketensor_bytes=None if fake is None else int(fake * GiB),
            source="a publication",
        ),
        estimate=None if problem else an_estimate(gib),
        problem=problem,
        elapsed_s=1.25,
    )


def a_progress(elapsed=60.0, *, total=4, states=()) -> DemoStatus:
    jobs = [dataclasses.replace(a_job(i), state=state) if state else a_job(i) for i, state in enumerate(states, 1)]
    gpu = {
        "index": 0,
        "used_bytes": 10 * GiB,
        "promised_bytes": 20 * GiB,
        "memory_total_bytes": 40 * GiB,
        "residents": [{"job_id": 1, "name": "bert"}, {"job_id": 2, "name": "vgg"}],
    }
    return DemoStatus(elapsed_s=elapsed, total=total, jobs=jobs, gpus=[gpu])


DONE = Done(outcome="completed", at_s=1)


@pytest.mark.parametrize(
    ("result", "wanted"),
    [
        pytest.param(a_result(), ["10.0 GiB", "9.0 GiB", "-10.0%", "-50.0%", "1.2"], id="both baselines"),
        pytest.param(a_result(11, fake=None), ["10.0 GiB", "11.0 GiB", "+10.0%", "-", "1.2"], id="nothing published"),
    ],
)
def test_estimate_line_has_measured_estimated_and_error(result, wanted):
    line = estimate_line(result)
    assert line.startswith("net --batch-size 8 ")
    assert line.split("  ", 1)[1].replace(" GiB", "_GiB").split() == [cell.replace(" ", "_") for cell in wanted]


def test_estimate_line_names_the_problem():
    line = estimate_line(a_result(problem="the script raised KeyError"))
    assert line.endswith("-  the script raised KeyError")


def test_columns_are_aligned_with_their_titles():
    head, line = columns(HEAD), estimate_line(a_result())
    for title, cell in (("measured", "10.0 GiB"), ("estimated", "9.0 GiB"), ("error", "-10.0%"), ("seconds", "1.2")):
        assert head.index(title) + len(title) == line.index(cell) + len(cell)


def test_counts_has_waiting_running_and_done_jobs():
    states = (None, Starting(attempt=1), Running(attempt=1), DONE, DONE)
    assert counts(a_progress(total=20, states=states)) == " 1 waiting,  2 running,  2 of 20 done"


def test_progress_line_has_memory_and_residents_of_each_gpu():
    line = progress_line("exclusive", a_progress(3600, states=(DONE,)))
    assert line == "exclusive     1h00m   0 waiting,  0 running,  1 of 4 done  GPUs: 10.0 GiB (2)"


@pytest.mark.parametrize(
    ("used", "full"),
    [
        pytest.param(0, 0, id="empty"),
        pytest.param(20, BAR_WIDTH // 2, id="half"),
        pytest.param(40, BAR_WIDTH, id="full"),
        pytest.param(50, BAR_WIDTH, id="never longer than the card"),
    ],
)
def test_bar_is_filled_in_proportion_to_used_memory(used, full):
    assert bar(used, 40) == "█" * full + "░" * (BAR_WIDTH - full)


def test_progress_is_printed_every_5_s_and_at_the_end():
    said = []
    with display("exclusive", said.append, live=False, time_scale=100) as show:
        for elapsed in (0, 250, 499, 500, 700):  # a line each 5 s of wall-clock time, 500 s on the server
            show(a_progress(elapsed, total=1, states=(None,)))
        show(a_progress(710, total=1, states=(DONE,)))
    assert [line.split()[1] for line in said] == ["0.0s", "8m20s", "11m50s"]


def test_progress_table_has_one_row_per_gpu():
    rich = pytest.importorskip("rich.console")
    console = rich.Console(width=100)
    with console.capture() as captured:
        console.print(progress_table("most-memory", a_progress(states=(DONE,))))
    title, _, row = captured.get().strip().splitlines()
    assert title.startswith("most-memory, 1m00s:")
    assert row.split() == ["0", "10.0", "GiB", "20.0", "GiB", "█" * 5 + "░" * 15, "bert,", "vgg"]


def test_comparison_line_has_no_trailing_space():
    assert comparison_line("makespan", "4h", "3h", "") == "makespan                       4h           3h"


@pytest.mark.parametrize(
    ("real", "wanted"),
    [
        pytest.param(DemoMeasurement(reason="no GPU here"), "Not run on a real GPU: no GPU here.", id="no GPU"),
        pytest.param(
            DemoMeasurement(script="mlp", gpu="T4", estimated_bytes=9 * GiB, measured_bytes=10 * GiB),
            "On the T4 of this machine, mlp was estimated at 9.0 GiB and held 10.0 GiB when it ran (-10.0%).",
            id="a GPU",
        ),
    ],
)
def test_gpu_line_has_the_measured_and_estimated_memory_or_the_reason(real, wanted):
    assert gpu_line(real) == wanted


def test_json_of_the_demo_has_the_documented_shape():
    run = RunSummary(
        jobs=2, makespan_s=9.0, mean_jct_s=4.0, mean_delay_s=1.0, ooms=1, recoveries=("one",), unfinished=("two",)
    )
    estimates = {
        "gpu": GPU,
        "scripts": [script_json(a_result()), script_json(a_result(fake=None, problem="the script raised KeyError"))],
        "real_gpu": dataclasses.asdict(DemoMeasurement(reason="no GPU here")),
    }
    body = {"schema": 1, "estimates": estimates, "runs": {"exclusive": dataclasses.asdict(run)}}
    assert shape_problems("demo", json.dumps(body)) == []
