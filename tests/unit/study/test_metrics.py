"""The study of GPU metrics: the published rows, and a sweep on a simulated GPU with real processes."""

import sys

import pytest

from cotenant.core.errors import CotenantError
from cotenant.core.gpu import GpuSample
from cotenant.measurement.result_table import read_rows
from cotenant.simserver.backend import SimulatedBackend, SimulatedServer
from cotenant.study.metrics import BackendSource, MetricsStudy, Shape, run_metrics, summary, sweep
from cotenant.study.metrics_report import published_rows, rank_correlation, verdicts, write_report


def of(rows, metric):
    return next(verdict for verdict in verdicts(rows) if verdict.metric == metric)


def test_published_utilization_says_only_that_something_runs():
    rows = published_rows()
    assert len(rows) == 87
    assert of(rows, "utilization").smallest == pytest.approx(0.91)
    assert of(rows, "gract").smallest == pytest.approx(0.906, abs=1e-3)
    assert "says that something runs" in of(rows, "utilization").text


def test_published_smact_follows_blocks_and_smocc_threads():
    rows = published_rows()
    smact, smocc = of(rows, "smact"), of(rows, "smocc")
    assert (smact.smallest, smocc.smallest) == (0.002, 0.0)
    assert smact.by_blocks > smact.by_threads
    assert smocc.by_threads > smocc.by_blocks
    assert of(rows, "drama").text.endswith("this kernel does not use it.")


def test_rank_correlation_counts_ties_with_their_mean_rank():
    assert rank_correlation([(1, 10.0), (2, 20.0), (3, 30.0)]) == pytest.approx(1.0)
    assert rank_correlation([(1, 30.0), (2, 20.0), (3, 10.0)]) == pytest.approx(-1.0)
    assert rank_correlation([(1, 1.0), (2, 1.0), (3, 2.0)]) == pytest.approx(0.866, abs=1e-3)
    assert rank_correlation([(1, 5.0), (2, 5.0), (3, 5.0)]) is None


def test_the_tensor_kernel_is_swept_over_blocks_only():
    assert sweep(["square", "tensor"], [1, 2], [8, 16], [1.0]) == [
        Shape("square", 1, 8, 1.0), Shape("square", 1, 16, 1.0),
        Shape("square", 2, 8, 1.0), Shape("square", 2, 16, 1.0),
        Shape("tensor", 1, 0, 1.0), Shape("tensor", 2, 0, 1.0),
    ]  # fmt: skip


def sample(at_s, smact):
    return GpuSample(at_s=at_s, smact=smact, utilization=1.0)


def test_the_edges_of_a_load_do_not_count():
    readings = [sample(at, smact) for at, smact in [(10.5, 0.0), (11.5, 0.4), (12.5, 0.6), (13.5, 0.5), (15.5, 0.1)]]
    found = summary(readings, 10.0, 16.0)
    assert (found["smact"], found["samples"]) == (0.5, 3)
    assert found["lag_s"] == pytest.approx(1.5)
    assert found["gract"] is None


def test_the_period_is_that_of_changes_not_of_readings():
    readings = [sample(10.0 + tick / 10, 0.1 * (tick // 5 % 2)) for tick in range(60)]
    assert summary(readings, 10.0, 16.0)["period_s"] == pytest.approx(0.5)
    assert summary([sample(10.0 + tick, 0.5) for tick in range(6)], 10.0, 16.0)["period_s"] is None


@pytest.fixture
def study(tmp_path):
    SimulatedServer.create(tmp_path / "server", "1xA100-40GB")
    backend = SimulatedBackend(tmp_path / "server")
    (gpu,) = backend.inventory()

    def make(*shapes, load=(sys.executable, "-m", "cotenant.study.simulated_load"), source=None):
        return MetricsStudy(
            out=tmp_path / "out",
            load=load,
            env={"COTENANT_SIM_SERVER": str(tmp_path / "server")},
            sources=(source or BackendSource("simulated", backend, gpu),),
            shapes=shapes,
            seconds=0.6,
            gpu=f"simulated {gpu.name}",
        )

    return make


def rows_of(study, *, resume=False):
    list(run_metrics(study, resume=resume, say=lambda _: None))
    return read_rows(study.out / "metrics.csv")


def test_a_sweep_on_a_simulated_gpu_says_so_in_every_row(study, tmp_path):
    rows = rows_of(study(Shape("square", 54, 1024, 1.0), Shape("square", 216, 1024, 0.5)))
    assert [(row["source"], row["gpu"], row["outcome"]) for row in rows] == [
        ("simulated", "simulated A100-40GB", "ok")
    ] * 2
    assert [(row["smact"], row["smocc"], row["utilization"]) for row in rows] == [
        ("0.5", "0.25", "1.0"),
        ("0.5", "0.5", "0.5"),
    ]
    text = write_report(rows, tmp_path / "report.html").read_text()
    assert "Published, kernel" in text
    assert "simulated A100-40GB" in text


def test_resume_measures_only_new_shapes(study):
    first, second = Shape("square", 1, 1, 1.0), Shape("square", 2, 1, 1.0)
    rows_of(study(first))
    rows = rows_of(study(first, second), resume=True)
    assert [row["blocks"] for row in rows] == ["1", "2"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import sys; sys.exit('no kernel image')", "exit code 1: no kernel image"),
        ("print('{')", "exit code 0: {"),
        ('print(\'{"began_s": 1, "ended_s": NaN, "launches": 1}\')', "exit code 0"),
        ("pass", "exit code 0: no output"),
    ],
)
def test_a_load_that_fails_is_a_row_with_its_words(study, tmp_path, code, message):
    load = tmp_path / "load.py"
    load.write_text(code)
    (row,) = rows_of(study(Shape("square", 1, 1, 1.0), load=(sys.executable, str(load))))
    assert row["outcome"] == "failed"
    assert row["message"].startswith(message)
    assert row["smact"] == ""


def test_a_source_that_fails_leaves_values_out(study):
    class Failing:
        name = "failing"

        def read(self):
            raise CotenantError("driver is gone")

    (row,) = rows_of(study(Shape("square", 1, 1, 1.0), source=Failing()))
    assert (row["outcome"], row["samples"], row["smact"]) == ("ok", "0", "")
