"""The arithmetic of the comparison with the null GPU; the comparison itself needs a CUDA build of torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.estimator.oracle import CpuClock, chosen_jobs, matching, rounded, scripts_of
from benchmarks.estimator.oracle_jobs import LEFT_OUT, OracleJob, all_jobs
from benchmarks.estimator.oracle_report import (
    Comparison,
    Rows,
    cause_of,
    page_lines,
    source_digest,
    summary_lines,
    table_lines,
)

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(("size", "block"), [(1, 512), (512, 512), (513, 1024), (100_000, 100_352)])
def test_sizes_are_compared_as_blocks(size, block):
    assert rounded(size) == block


def test_equal_lists_have_no_first_difference():
    assert matching([512, 1024, 512], [512, 1024, 512]) == (3, None, 3)


def test_first_difference_is_an_index_in_both_lists():
    assert matching([512, 1024, 2048, 512], [512, 4096, 2048, 512]) == (3, (1, 1), 4)


def test_allocations_that_the_estimate_lacks_are_a_difference():
    assert matching([512, 1024], [512]) == (1, (1, 1), 1)


def test_allocations_that_follow_the_last_one_are_no_difference():
    assert matching([512, 1024], [512, 1024, 2048]) == (2, None, 2)


@pytest.mark.parametrize(
    ("found", "end"),
    [
        pytest.param([512, 2048, 3072, 4096, 8192], 3, id="it lacks one"),
        pytest.param([512, 1024, 1024, 2048, 3072, 8192], 5, id="it has one more"),
        pytest.param([512, 1024, 2048, 5120, 8192], 4, id="the last one is another"),
        pytest.param([8192, 8192], 2, id="none agrees"),
    ],
)
def test_what_follows_the_last_one_is_cut_off_where_requests_differ(found, end):
    assert matching([512, 1024, 2048, 3072], found).end == end


def test_report_counts_equal_near_and_far():
    sizes = [(100, 100), (1000, 1004), (1000, 1030), (1000, 970)]
    rows = [
        Comparison(
            "job", "A100-40GB", null_reserved_bytes=null, reserved_bytes=ours, null_allocations=4, equal_allocations=3
        )
        for null, ours in sizes
    ]
    rows.append(Comparison("bad", "A100-40GB", problem="null GPU: raised"))
    lines = list(summary_lines(rows))
    assert lines[2] == "| A100-40GB | 4 | 1 | 2 | 2 | 75.00% |"
    assert lines[3] == "| all | 4 | 1 | 2 | 2 | 75.00% |"
    assert lines[-1] == "Not counted: 1 jobs that either side could not run, 0 that the null GPU cannot judge."
    table = list(table_lines(rows))
    assert "| +3.00% |" in table[4]
    assert table[6].endswith("| null GPU: raised |")


def test_the_last_batch_of_an_epoch_is_a_known_cause():
    row = Comparison(
        "job", "example", first_difference="59: null GPU: 512 in C++; estimate: 64 in forward, no module, input"
    )
    assert cause_of(row).startswith("the estimate's last step")


def test_jobs_that_differ_are_counted_by_cause():
    batch = "5: null GPU: 512 in C++; estimate: 64 in forward, no module, input"
    sizes = [
        (100, 101, batch),
        (100, 102, batch),
        (100, 100, batch),
        (100, 99, "8: null GPU: 4 in C++; estimate: none"),
    ]
    rows = [
        Comparison("job", "example", null_reserved_bytes=null, reserved_bytes=ours, first_difference=first)
        for null, ours, first in sizes
    ]
    (found,) = (line for line in summary_lines(rows) if line.startswith("Jobs whose"))
    cause = "the estimate's last step has the last batch of an epoch, the null GPU's has not"
    assert found.endswith(f"first difference: 2 ({cause}), 1 (others).")


def test_rows_of_other_sources_are_not_read(tmp_path):
    Rows(tmp_path, "before").add("key", Comparison("job", "example", reserved_bytes=7))
    assert Rows(tmp_path, "before").get("key").reserved_bytes == 7
    assert Rows(tmp_path, "after").get("key") is None


def test_digest_of_sources_is_of_their_content(tmp_path):
    package = tmp_path / "src" / "cotenant"
    (package / "__pycache__").mkdir(parents=True)
    (package / "a.py").write_text("1")
    before = source_digest(tmp_path)
    (package / "__pycache__" / "a.pyc").write_text("compiled")
    assert source_digest(tmp_path) == before
    (package / "a.py").write_text("2")
    assert source_digest(tmp_path) != before


def test_scripts_of_a_job_are_its_own_and_what_it_imports_beside_it(tmp_path):
    (tmp_path / "job.py").write_text("import torch\nfrom model import Net\n")
    (tmp_path / "model.py").write_text("import layers, math\nimport job\n")
    (tmp_path / "layers.py").write_text("")
    (tmp_path / "other.py").write_text("")
    assert [path.name for path in scripts_of(tmp_path / "job.py")] == ["job.py", "model.py", "layers.py"]


def test_page_has_a_section_for_each_other_stack():
    job, other = all_jobs()[:2]
    rows = {
        "torch 2.13.0": [
            Comparison(other.name, other.kind, commit="abc"),
            Comparison(job.name, job.kind, commit="abc"),
        ],
        "torch 2.11.0": [Comparison(job.name, job.kind, commit="abc"), Comparison("gone", "example", commit="abc")],
    }
    lines = page_lines(rows, [job, other], main_stack="torch 2.13.0")
    assert lines[0] == "2 different jobs were judged (2 at abc), of 2 in the list."
    assert lines.index("## torch 2.11.0") > max(place for place, line in enumerate(lines) if other.name in line)
    assert next(line for line in lines if line.startswith("| `")).startswith(f"| `{job.name}`")
    assert "1 different jobs were judged (1 at abc), of 2 in the list." in lines


def test_jobs_of_the_first_pattern_come_first():
    chosen = chosen_jobs(["examples/gpt2.py *", "examples/mlp.py on *"])
    commands = list(dict.fromkeys(job.script for job in chosen))
    assert commands == ["examples/gpt2.py", "examples/mlp.py"]
    assert len(chosen_jobs([])) == len(all_jobs()) > 800


def test_every_example_is_judged_or_left_out_for_a_reason():
    programs = {path.name for path in (ROOT / "examples").glob("*.py") if "__main__" in path.read_text()}
    judged = {job.script.removeprefix("examples/") for job in all_jobs() if job.kind == "example"}
    assert judged.isdisjoint(LEFT_OUT)
    assert programs == {*judged, *LEFT_OUT}


def test_name_has_all_that_decides_the_job():
    job = OracleJob("example", "examples/mlp.py", "T4-16GB", {"A": "1"}, free_bytes=300 << 20)
    assert job.name == "A=1 examples/mlp.py on T4-16GB within 300 MiB"


def test_cpu_time_of_a_server_is_counted_once_when_it_ends():
    clock = CpuClock()
    clock.since_last_s(())
    busy = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True); input()"
    server = subprocess.Popen(
        [sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    server.stdout.readline()
    first_s = clock.since_last_s([server.pid])
    server.communicate(b"\n")
    assert first_s >= 0.4
    assert clock.since_last_s(()) < 0.3
