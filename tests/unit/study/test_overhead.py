"""The study of monitoring overhead, with real processes: jobs of a few milliseconds, tools that exist everywhere."""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from cotenant.core.errors import CotenantError, UsageError
from cotenant.gpus.gpu_sampler import GpuSampler
from cotenant.measurement.result_table import read_rows
from cotenant.osutil.procfs import all_stats
from cotenant.simserver.backend import SimulatedBackend, SimulatedServer
from cotenant.study import overhead
from cotenant.study.overhead import OverheadStudy, StudyJob, output_bytes, read_epochs, resolve_jobs, run_overhead
from cotenant.study.overhead_page import write_page
from cotenant.study.overhead_report import tool_costs, write_report
from cotenant.study.tools import MONITORING_TOOLS, MonitoringTool
from places import until

TWO_EPOCHS = """
import json, os, time
for _ in range(2):
    began = time.time()
    time.sleep(0.02)
    with open(os.environ["COTENANT_STUDY_EPOCHS"], "a") as file:
        file.write(json.dumps({"began_s": began, "ended_s": time.time()}) + "\\n")
print("trained")
"""


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(overhead, "TOOL_START_S", 0.0)
    monkeypatch.setattr(overhead, "TOOL_STOP_S", 5.0)


@pytest.fixture(autouse=True)
def tools(monkeypatch):
    """The registry of tools, to which a test adds; `ticker` exists on every machine."""
    builtin = dict(MONITORING_TOOLS._builtin)
    builtin["ticker"] = MonitoringTool(
        title="ticker",
        command=lambda _: ("sh", "-c", "while :; do date; sleep 0.05; done"),
        is_ready=lambda run: output_bytes(run.folder) > 0,
    )
    monkeypatch.setattr(MONITORING_TOOLS, "_builtin", builtin)
    return builtin


def study_of(tmp_path, text, tools, *, repeats=1, timeout_s=600.0):
    script = tmp_path / "job.py"
    script.write_text(text)
    job = StudyJob(name="job", script=str(script), timeout_s=timeout_s)
    return OverheadStudy(
        out=tmp_path / "out", python=sys.executable, jobs=(job,), tools=tools, repeats=repeats, device="cpu"
    )


def rows_of(study, *, resume=False):
    list(run_overhead(study, resume=resume, say=lambda _: None))
    return read_rows(study.out / "overhead.csv")


def test_every_tool_of_every_repeat_is_a_row(tmp_path):
    rows = rows_of(study_of(tmp_path, TWO_EPOCHS, ("ticker",), repeats=3))
    assert sorted((row["tool"], row["repeat"]) for row in rows) == [
        (tool, repeat) for tool in ("none", "ticker") for repeat in "123"
    ]
    assert {row["outcome"] for row in rows} == {"ok"}
    for row in rows:
        assert row["epochs"] == "2"
        assert 0.02 <= float(row["epoch_s"]) < float(row["run_s"])
        assert float(row["cpu_s"]) > 0
        assert bool(row["tool_cpu_s"]) == (row["tool"] == "ticker")
        assert (int(row["output_bytes"]) > 0) == (row["tool"] == "ticker")


def test_the_order_of_tools_differs_between_repeats(tmp_path):
    study = study_of(tmp_path, TWO_EPOCHS, ("top", "ps", "iostat"), repeats=8)
    orders = {tuple(study.order(study.jobs[0], repeat)) for repeat in range(8)}
    assert len(orders) > 1
    assert {tuple(sorted(order)) for order in orders} == {("iostat", "none", "ps", "top")}


def test_a_missing_tool_is_one_row_that_says_so(tmp_path, tools):
    tools["absent"] = MonitoringTool(
        title="absent", program="no-such-program", command=lambda run: ("no-such-program",)
    )
    rows = rows_of(study_of(tmp_path, TWO_EPOCHS, ("absent",), repeats=2))
    missing = [row for row in rows if row["tool"] == "absent"]
    assert [(row["outcome"], row["message"]) for row in missing] == [("missing", "no `no-such-program` on the PATH")]
    assert sum(row["tool"] == "none" for row in rows) == 2


def test_a_tool_that_ends_before_the_job_is_a_failed_row(tmp_path, tools):
    command = ("sh", "-c", "echo no permission; exit 3")
    # Never ready: the job starts once it has ended.
    tools["brief"] = MonitoringTool(title="brief", command=lambda _: command, is_ready=lambda _: False)
    rows = rows_of(study_of(tmp_path, TWO_EPOCHS, ("brief",)))
    brief = next(row for row in rows if row["tool"] == "brief")
    assert (brief["outcome"], brief["message"]) == ("failed", "the tool ended early: no permission")


def test_the_job_starts_when_the_tool_is_ready(tmp_path, tools):
    code = "sleep 0.5; date > tool.ready; sleep 600"
    tools["slow"] = MonitoringTool(
        title="slow", command=lambda _: ("sh", "-c", code), is_ready=lambda run: (run.folder / "tool.ready").exists()
    )
    job = "import os\nfolder = os.path.dirname(os.environ['COTENANT_STUDY_EPOCHS'])\n"
    job += "if 'slow' in os.path.basename(folder): os.stat(folder + '/tool.ready')"
    rows = rows_of(study_of(tmp_path, job, ("slow",)))
    assert {row["tool"]: row["outcome"] for row in rows} == {"none": "ok", "slow": "ok"}


def test_a_job_that_fails_says_its_last_words(tmp_path):
    began = tmp_path / "began"  # the second run fails
    text = f"import pathlib, sys\nbegan = pathlib.Path({str(began)!r})\n"
    text += "if began.exists(): sys.exit('bad data')\nbegan.touch()"
    rows = rows_of(study_of(tmp_path, text, ()))
    assert [(row["outcome"], row["message"]) for row in rows] == [("failed", "exit code 1: bad data")]


def test_a_job_that_fails_at_once_ends_the_study(tmp_path):
    study = study_of(tmp_path, "import sys\nprint('bad data')\nsys.exit(4)", ("ticker",), repeats=9)
    with pytest.raises(CotenantError, match="`job` fails without a tool, exit code 4: bad data") as failure:
        rows_of(study)
    log = failure.value.hint.removeprefix("see `").removesuffix("`")
    assert Path(log).read_text() == "bad data\n"


def test_a_job_over_its_limit_is_killed_with_its_children(tmp_path):
    mark = f"study-{time.time_ns()}"
    text = f"import subprocess, time\nsubprocess.Popen(['sh', '-c', 'sleep 600; : {mark}'])\ntime.sleep(600)"
    rows = rows_of(study_of(tmp_path, text, (), timeout_s=1.5))
    assert [row["outcome"] for row in rows] == ["timeout"]
    until(lambda: not is_in_a_command_line(mark), "all of its processes have ended")


def is_in_a_command_line(mark):
    return any(mark in command_line(stat.pid) for stat in all_stats())


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def test_a_tool_that_ignores_the_interrupt_is_killed(tmp_path, tools, monkeypatch):
    monkeypatch.setattr(overhead, "TOOL_STOP_S", 0.2)
    mark = f"study-{time.time_ns()}"
    code = f"import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(600)  # {mark}"
    tools["stubborn"] = MonitoringTool(title="stubborn", command=lambda _: (sys.executable, "-c", code))
    rows_of(study_of(tmp_path, TWO_EPOCHS, ("stubborn",)))
    until(lambda: not is_in_a_command_line(mark), "all of its processes have ended")


def test_resume_runs_only_what_is_left(tmp_path):
    study = study_of(tmp_path, TWO_EPOCHS, ("ticker",), repeats=2)
    runs = run_overhead(study, resume=False, say=lambda _: None)
    first = next(runs)
    runs.close()
    rows = rows_of(study, resume=True)
    assert len(rows) == 4
    assert rows[0] == {name: "" if value is None else str(value) for name, value in first.items()}
    assert len({(row["tool"], row["repeat"]) for row in rows}) == 4
    with pytest.raises(UsageError, match="exists already"):
        rows_of(study)


def test_a_time_limit_leaves_whole_repeats_of_all_jobs(tmp_path, monkeypatch):
    first = study_of(tmp_path, TWO_EPOCHS, ("ticker",), repeats=3)
    jobs = (*first.jobs, replace(first.jobs[0], name="second"))
    clock = iter(range(1000))
    monkeypatch.setattr(
        overhead, "_measure", lambda job, name, _, repeat, study: overhead._row(job, name, repeat, study)
    )
    monkeypatch.setattr(overhead, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    said = []
    rows = list(run_overhead(replace(first, jobs=jobs, limit_s=5.0), resume=False, say=said.append))
    assert sorted((row["job"], row["tool"], row["repeat"]) for row in rows) == [
        (job.name, tool, 1) for job in jobs for tool in ("none", "ticker")
    ]
    assert said[-1] == "8 runs left at the time limit; continue with `--resume`"


def test_the_profiler_and_the_probe_run_the_script_to_its_end(tmp_path):
    pytest.importorskip("torch")
    rows = rows_of(study_of(tmp_path, TWO_EPOCHS + "import torch; torch.ones(3) + 1", ("torch-profiler", "probe")))
    assert {row["tool"]: (row["outcome"], row["epochs"]) for row in rows} == {
        "none": ("ok", "2"), "torch-profiler": ("ok", "2"), "probe": ("ok", "2"),
    }  # fmt: skip
    trace = json.loads((tmp_path / "out" / "job" / "torch-profiler-1" / "tool.json").read_text())
    assert any(event.get("name") == "aten::add" for event in trace["traceEvents"])


@pytest.mark.parametrize(
    ("ending", "message"),
    [
        ("raise ValueError('no such class')", "error: ValueError: no such class"),
        ("sys.exit('no data')", "error: the script ended with 'no data'"),
        ("os._exit(0)", "the probe wrote no answer"),
    ],
)
def test_a_script_that_fails_under_the_probe_alone_has_failed(tmp_path, ending, message):
    pytest.importorskip("torch")
    script = f"{TWO_EPOCHS}\nimport sys\nif os.path.basename(sys.orig_argv[1]) == 'probe.py':\n    {ending}"
    rows = rows_of(study_of(tmp_path, script, ("probe",)))
    assert {row["tool"]: (row["outcome"], row["message"]) for row in rows} == {
        "none": ("ok", ""), "probe": ("failed", message),
    }  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{}",
        "[1]",
        '{"began_s": 5, "ended_s": 4}',
        '{"began_s": NaN, "ended_s": 4}',
        '{"began_s": 1, "ended_s": 1e999}',
        '{"began_s": "x", "ended_s": 2}',
        "[" * 100_000,
        '{"began_s": 1, "ended_s": 1' + "0" * 5000 + "}",
    ],
)
def test_a_line_that_is_no_epoch_is_skipped(tmp_path, line):
    path = tmp_path / "epochs.jsonl"
    path.write_text(f'{line}\n{{"began_s": 1.0, "ended_s": 3.5}}\n')
    assert read_epochs(path) == [(1.0, 3.5)]


def test_output_counts_the_tools_files_only(tmp_path):
    (tmp_path / "job.log").write_bytes(b"x" * 1000)
    (tmp_path / "tool.out").write_bytes(b"x" * 10)
    (tmp_path / "daemon").mkdir()
    (tmp_path / "daemon" / "job.log").write_bytes(b"x" * 5)
    (tmp_path / "link").symlink_to(tmp_path / "job.log")
    assert output_bytes(tmp_path) == 15


def row(tool, repeat, epoch_s, **values):
    known = dict.fromkeys(overhead.COLUMNS, "")
    known |= {
        "job": "light",
        "tool": tool,
        "repeat": str(repeat),
        "outcome": "ok",
        "epoch_s": str(epoch_s),
        "cpu_s": "1",
    }
    return known | values


def test_a_tool_is_compared_with_the_run_alone_of_its_repeat():
    rows = [row("none", 1, 10.0), row("none", 2, 20.0), row("top", 2, 22.0), row("top", 1, 11.0), row("top", 3, 99.0)]
    alone, top = tool_costs(rows)
    assert alone.epoch.mean == pytest.approx(1.0)
    assert (top.epoch.mean, top.epoch.pairs) == (pytest.approx(1.1), 2)
    assert (top.epoch.low, top.epoch.high) == (pytest.approx(1.1), pytest.approx(1.1))
    assert top.published == pytest.approx(0.0052)


def test_a_failed_run_is_in_no_mean():
    rows = [row("none", 1, 10.0), row("top", 1, 0.1, outcome="failed", message="exit code 1: x")]
    top = tool_costs(rows)[1]
    assert top.epoch is None
    assert top.missing == "exit code 1: x"


def test_the_report_shows_every_tool(tmp_path):
    study = study_of(tmp_path, TWO_EPOCHS, ("ticker", "nvidia-smi"))
    rows = rows_of(study)
    text = write_report(rows, study.out).read_text()
    for words in ("no tool", "ticker", "nvidia-smi", "Resident memory", "Measured on cpu"):
        assert words in text


def test_the_page_says_how_to_repeat_it(tmp_path):
    rows = [
        row("none", 1, 10.0, device="cpu", at="2026-01-01"), row("top", 1, 11.0, device="cpu", at="2026-01-02"),
        row("dcgmi", 1, "", outcome="missing", message="no `dcgmi` on the PATH", device="cpu", at="2026-01-02"),
    ]  # fmt: skip
    text = write_page(rows, tmp_path / "pages" / "o.md", "cotenant study overhead --out o").read_text()
    assert "- measured 2026-01-01 to 2026-01-02" in text
    assert "`cotenant study overhead --out o`" in text
    assert "| top | 11.000 | +10.0 % |" in text
    assert "no `dcgmi` on the PATH |" in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1
    with pytest.raises(UsageError, match="cannot write"):
        write_page(rows, tmp_path / "pages" / "o.md" / "x.md", "")


class WatchedBackend(SimulatedBackend):
    """Makes the file `seen` after ten readings of an active job; a job that begins removes it."""

    def __init__(self, folder, seen):
        super().__init__(folder)
        self.count, self.seen = 0, seen

    def sample(self, at_s):
        found = super().sample(at_s)
        self.count += any(sample.smact for sample in found.values()) and not self.seen.exists()
        if self.count == 10:
            self.seen.touch()
            self.count = 0
        return found


def test_the_gpu_is_read_while_the_job_trains(tmp_path):
    SimulatedServer.create(tmp_path / "server", "1xA100-40GB")
    backend = WatchedBackend(tmp_path / "server", tmp_path / "seen")
    (gpu,) = backend.inventory()
    busy = f"""
from cotenant.simserver.server import SimulatedServer
from pathlib import Path
server = SimulatedServer.open(Path({str(tmp_path / "server")!r}))
attachment = server.attach(server.uuids[0], context_bytes=2**20, label="job")
attachment.set_activity(smact=0.5, smocc=0.25, drama=0.125, utilization=1.0)
"""
    busy += f"seen = Path({str(tmp_path / 'seen')!r})\nseen.unlink(missing_ok=True)\n"
    epoch = "time.sleep(0.02)\n    while not seen.exists(): time.sleep(0.02)"
    study = study_of(tmp_path, busy + TWO_EPOCHS.replace("time.sleep(0.02)", epoch), ())
    study = replace(study, watch=GpuSampler(backend, gpu, every_s=0.02), device="simulated A100-40GB")
    rows = rows_of(study)
    assert float(rows[0]["smact"]) == pytest.approx(0.5, abs=0.05)
    assert 0 < float(rows[0]["drama"]) < float(rows[0]["smocc"]) < 0.5
    assert len(read_rows(study.out / "job" / "none-1" / "gpu.csv")) > 2
    text = write_report(rows, study.out).read_text()
    assert "SM occupancy" in text
    assert "Power, W" in text


def test_jobs_are_shipped_ones_or_scripts(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")
    assert [job.name for job in resolve_jobs((), (), device="cpu", epochs=1)] == ["light", "heavy"]
    jobs = resolve_jobs(("light",), (str(script), "--lr", "1"), device="cpu", epochs=1)
    assert [(job.name, job.args[-2:]) for job in jobs] == [("light", ("--device", "cpu")), ("train", ("--lr", "1"))]
    with pytest.raises(UsageError, match="no job `huge`"):
        resolve_jobs(("huge",), (), device="cpu", epochs=1)
    with pytest.raises(UsageError, match="no script"):
        resolve_jobs((), ("missing.py",), device="cpu", epochs=1)
