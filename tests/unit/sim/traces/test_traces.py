"""How the readers convert the rows of each trace format into jobs."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import replace

import pytest

from cotenant.core.errors import JobFileError, UsageError
from cotenant.core.estimate import SmactInterval, smact_interval_around
from cotenant.core.events import AttemptExited, AttemptPlaced, EstimateReady, JobSubmitted
from cotenant.core.job import AttemptExit, CoRun
from cotenant.core.placement import Placement
from cotenant.core.units import GiB, MiB
from cotenant.scheduling.prediction.interference import expected_smact
from cotenant.sim import traces
from cotenant.sim.traces import arrivals, carma, journal
from cotenant.store.sqlite import SqliteJournal
from shared_data import SHARED_DATA
from tests.builders import a_spec, an_estimate

SHARED = SHARED_DATA


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared tables are not beside this checkout")
@pytest.mark.parametrize(
    ("path", "jobs"),
    [
        ("traces/philly_jobs.csv.gz", 82_247),
        ("traces/gavel_philly_vc_seed0.csv.gz", 15_264 - 1_548),  # those without a rate have no duration
        ("traces/muri_philly_vc.csv.gz", 10_879),
        ("traces/tiresias_60jobs.csv", 60),
        ("traces/acme_kalos_converted.csv", 319),
        ("traces/hydra_pai2020_cases.csv.gz", 15_000),
        ("carma/traces/philly_trace_t1.csv", 60),
        ("carma/traces/philly_mix_90_tasks.csv", 90),
    ],
)
def test_converted_traces_are_read_whole(path, jobs):
    assert len(traces.load(str(SHARED / path))) == jobs


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared tables are not beside this checkout")
def test_published_arrivals_give_a_shape():
    venus = arrivals.read_arrivals(SHARED / "traces" / "helios_venus_10min.csv.gz")
    assert len(venus) > 100_000
    assert len(arrivals.read_arrivals(SHARED / "traces" / "sia_workloads.csv.gz", only="set=philly")) > 1000


def read(name, tmp_path, text=None):
    trace_format = traces.TRACE_FORMATS.get(name)
    path = tmp_path / trace_format.example_name
    path.write_text(trace_format.example if text is None else text)
    return trace_format.read(path)


def table(trace):
    return [(job.submit_s, job.duration_s, job.gpus, job.user, job.failed, job.workload) for job in trace]


def test_columns_of_a_table_are_mapped(tmp_path):
    assert table(read("columns", tmp_path)) == [
        (0.0, 3600.5, 1, "lab", False, ""),
        (30.0, 120.0, 8, "lab", True, ""),
    ]


def test_columns_of_other_tables_are_recognized(tmp_path):
    found = read("columns", tmp_path, "job_name,submit_s,n_gpus,dur_a100_s,dur_v100_s\nx,5,1,10,20\ny,7,1,30,40\n")
    assert table(found) == [(0.0, 10.0, 1, "", False, ""), (2.0, 30.0, 1, "", False, "")]
    assert found.notes == ("durations are `dur_a100_s`",)


def test_quoted_cells_empty_cells_and_words_for_no_number(tmp_path):
    text = 'submit_s,duration_s,n_gpus,vc,user,model\n0,NaN,1,lab,ann,a\n1,"10",1,"a, b",ann,\n2,inf,1,lab,ann,a\n'
    found = read("columns", tmp_path, text + '3,10,1, ,ann,"the ""x"""\n')
    assert table(found) == [(0.0, 10.0, 1, "a, b", False, ""), (2.0, 10.0, 1, "ann", False, 'the "x"')]
    assert found.notes == ("2 left out: no run time",)
    with pytest.raises(JobFileError, match="`duration_s` is `-inf`, wanted a number"):
        read("columns", tmp_path, text + "3,-inf,1,,ann,\n")


def test_several_traces_in_one_table_are_groups(tmp_path):
    found = read("columns", tmp_path, "trace,submit_s,duration_s,n_gpus\n1,5,10,1\n2,0,30,1\n")
    assert table(found) == [(0.0, 30.0, 1, "2", False, ""), (5.0, 10.0, 1, "1", False, "")]


def test_philly_counts_all_attempts_and_the_gpus_of_the_first(tmp_path):
    assert table(read("philly", tmp_path)) == [
        (0.0, 3600.0, 2, "ee9e8c", False, ""),
        (240.0, 660.0, 1, "ee9e8c", True, ""),
    ]


def test_helios_jobs_are_read(tmp_path):
    assert table(read("helios", tmp_path)) == [
        (0.0, 3600.0, 1, "vcA", False, ""),
        (390.0, 120.0, 8, "vcA", True, ""),
    ]


def test_acme_jobs_are_read(tmp_path):
    assert table(read("acme", tmp_path)) == [
        (0.0, 300.0, 8, "u1", False, "Evaluation"),
        (50.0, 3600.0, 256, "u1", True, "Pretrain"),
    ]


def test_pai_multiplies_instances_and_keeps_parts_of_a_gpu(tmp_path):
    found = read("pai", tmp_path)
    assert [(job.submit_s, job.duration_s, job.gpus, job.failed) for job in found] == [
        (0.0, 537.0, 1, False),
        (21.0, 10000.0, 4, True),
    ]
    assert found[0].profile.peak_bytes == 20480 * MiB
    assert (found[0].profile.smact, found[0].profile.measured) == (0.5, False)
    assert found[1].profile is None


def test_pai_with_a_header_line_is_read(tmp_path):
    titles = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n"
    text = titles + traces.TRACE_FORMATS.get("pai").example
    assert read("pai", tmp_path, text).digest() == read("pai", tmp_path).digest()


def test_openb_is_read_in_both_forms(tmp_path):
    found = read("openb", tmp_path)
    assert [(job.submit_s, job.duration_s, job.gpus, job.failed) for job in found] == [
        (0.0, 12537496.0, 1, False),
        (427061.0, 12475899.0, 1, True),
        (1558592.0, 400.0, 8, False),
    ]
    assert [job.profile.workload if job.profile else None for job in found] == [None, "share-460", None]
    ours = (
        "variant,job_id,submit_s,scheduled_s,duration_s,n_gpus,gpu_milli,cpu_milli,host_mem_mib,gpu_spec,qos,status\n"
        "default,1,10.0,10.0,100.0,1,460,1,1,,LS,Failed\nmultigpu20,1,10.0,10.0,100.0,1,460,1,1,,LS,Failed\n"
    )
    found = read("openb", tmp_path, ours)
    assert [(job.duration_s, job.profile.workload, job.failed) for job in found] == [(100.0, "share-460", True)]
    assert "1 left out: of another variant than `default`" in found.notes


def test_script_sums_its_sleeps(tmp_path):
    found = read("rad-script", tmp_path)
    assert [(job.submit_s, job.workload) for job in found] == [
        (0.0, "xception_imagenet_bs32"),
        (181.0, "resnet18_cifar100_bs32_20e"),
        (301.0, "unet_voc"),
    ]


def test_script_reads_the_job_files_beside_it(tmp_path):
    rad = "python x.py\nm.model\nwiki\n8\nexclusive\n{}\n5918\n5000\n40000\n8000\n"
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "Xception.rad").write_text(rad.format(2))
    assert read("rad-script", tmp_path)[0].gpus == 2
    (tmp_path / "jobs" / "Xception.rad").write_text(rad.format("two"))
    with pytest.raises(JobFileError, match=r"Xception\.rad:6"):
        read("rad-script", tmp_path)


def test_script_with_an_unmeasured_job_names_the_line(tmp_path):
    with pytest.raises(JobFileError, match=r"trace\.sh:2: `xceptoin\.rad` was not measured"):
        read("rad-script", tmp_path, "sleep 3\nsubmit xceptoin.rad\n")


def test_errors_name_the_line_and_the_column(tmp_path):
    with pytest.raises(JobFileError, match=r"jobs\.csv:4: `duration_s` is `soon`, wanted a number"):
        read("columns", tmp_path, "# ours\nsubmit_s,duration_s,n_gpus\n0,5,1\n0,soon,1\n")
    with pytest.raises(JobFileError, match=r"cluster_log\.csv:2: `submit_time` is `monday`"):
        read("helios", tmp_path, traces.TRACE_FORMATS.get("helios").example.replace("2020-04-01 00:04:00", "monday"))
    with pytest.raises(JobFileError, match=r"cluster_log\.csv:1: no column `state`"):
        read("helios", tmp_path, "job_id,user,vc,gpu_num,submit_time,duration\n")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        pytest.param("0,1e15,1", "runs 1e+15 s on 1 GPUs", id="milliseconds, or nonsense"),
        pytest.param("0,10,1e10", "on 10000000000 GPUs", id="more GPUs than there are"),
    ],
)
def test_rows_with_impossible_values_are_refused(tmp_path, row, said):
    with pytest.raises(UsageError, match=re.escape(said)) as error:
        read("columns", tmp_path, f"submit_s,duration_s,n_gpus\n{row}\n")
    assert error.value.hint == "times are in seconds, up to 1e+10; GPUs from 1 to 1,000,000"


def test_unreasonable_times_in_a_script_are_refused(tmp_path):
    with pytest.raises(UsageError, match="submits at 1e"):
        read("rad-script", tmp_path, "submit UNet.rad\nsleep 99999999999999999999\nsubmit UNet.rad\n")


def test_rows_with_fractional_gpus_are_left_out(tmp_path):
    trace = read("columns", tmp_path, "submit_s,duration_s,n_gpus\n0,10,1.5\n5,10,2\n")
    assert list(trace.gpus) == [2]
    assert "1 left out: no whole GPU" in trace.notes


def test_tables_saved_by_a_spreadsheet(tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_bytes(b"\xef\xbb\xbfsubmit_s,duration_s,n_gpus\r\n0,100,1\r\n")
    assert list(traces.load(str(path)).duration_s) == [100.0]


def test_shipped_traces_have_measured_jobs():
    sizes = {name: len(traces.load(name)) for name in traces.shipped()}
    assert sizes.pop("philly") == 5000
    assert sizes == {"t1": 60, "t2": 60, "heavy-60": 60, "mix-90": 90, "aegis-philly-60": 60, "aegis-saturn-60": 60}
    t1 = traces.load("t1")
    assert t1.has_profiles
    assert t1.work_gpu_s / 60 == pytest.approx(1651.8, abs=0.05)  # as in the published derivation
    assert (t1[1].submit_s, t1[1].workload) == (181.0, "resnet18_cifar100_bs128_50e")
    assert traces.load("aegis-philly-60").span_s == pytest.approx(carma.PHILLY_SPAN_S)
    first, again, other = (carma.read_shipped("aegis-philly-60", seed=seed) for seed in (0, 0, 1))
    assert first.submit_s == again.submit_s != other.submit_s
    assert other.span_s == pytest.approx(carma.PHILLY_SPAN_S)
    assert first.workload_of == other.workload_of


def test_the_window_of_philly_is_the_one_it_says():
    philly = traces.load("philly")
    assert (philly.name, len(philly.users), max(philly.gpus)) == ("philly", 11, 32)
    assert philly.submit_s[0] == 0.0
    assert not philly.has_profiles
    assert philly.work_gpu_s / philly.span_s == pytest.approx(457.3, abs=0.1)  # GPUs at work, each job with its own
    assert traces.default_gpus("philly") == "400xA100-40GB"
    assert traces.default_gpus("t1") == "4xA100-40GB"


def test_measured_workloads_keep_the_reported_activity():
    unet = carma.measured_a100()["unet_voc"].profile
    assert (unet.first_peak_bytes, unet.peak_bytes) == (5636 * MiB, 9910 * MiB)
    assert unet.reported_bytes["declared"] == 9910 * MiB
    assert unet.reported_bytes["cotenant"] == 11314 * MiB
    assert carma.measured_a100()["mnist_bs32"].profile.reported_bytes["cotenant"] is None
    bert = carma.measured_a100()["bert_base_wiki_bs32"].profile.reported_bytes
    assert (bert["gpumemnet"], bert["faketensor"]) == (32000 * MiB, None)
    reported = {name: workload.profile.reported_smact for name, workload in carma.measured_a100().items()}
    assert reported["vgg16_imagenet_bs64"] == SmactInterval(0.63, 0.78, 1.0)
    assert reported["mnist_bs32"] is None, "no example repeats it"
    known = carma.measured_a100()
    missed = [abs(smact.expected - known[name].profile.smact) for name, smact in reported.items() if smact is not None]
    assert len(missed) == 52
    assert 0.02 < sum(missed) / len(missed) < 0.08, "told before the run, not measured"


def test_arrivals_from_bins_and_from_submissions(tmp_path):
    bins = tmp_path / "bins.csv"
    bins.write_text("t_s,submit_gpu_job\n0,0\n600,2\n1200,1\n")
    found = arrivals.read_arrivals(bins, seed=1)
    assert len(found) == 3
    assert found[0] == 0.0
    assert found == sorted(found) == arrivals.read_arrivals(bins, seed=1) != arrivals.read_arrivals(bins, seed=2)
    assert found[-1] < 1200
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("set,submit_s\na,100\nb,7\na,90\n")
    assert arrivals.read_arrivals(jobs, only="set=a") == [0.0, 10.0]
    with pytest.raises(UsageError, match="has no arrivals"):
        arrivals.read_arrivals(jobs, only="set=c")


def an_exit(job_id, at_s, code=0, peak_gib=5.0):
    return AttemptExited(
        at_s=at_s,
        cause="",
        job_id=job_id,
        attempt=1,
        exit=AttemptExit(exit_code=code, signal=None, reason="exited"),
        peak_observed_bytes={"GPU-0": int(peak_gib * GiB)},
    )


def test_a_journal_is_read_while_a_daemon_holds_its_lock(tmp_path):
    path = tmp_path / "journal.db"
    held = SqliteJournal(path)
    place = Placement(job_id=1, gpu_uuids=("GPU-0",), sharing="time-sliced", promised_bytes=GiB)
    held.append(
        [
            JobSubmitted(at_s=1000.0, cause="", job_id=1, spec=a_spec(name="bert", user="ann", gpus=2)),
            EstimateReady(at_s=1001.0, cause="", job_id=1, estimate=an_estimate(6, smact=0.4)),
            JobSubmitted(at_s=1010.0, cause="", job_id=2, spec=a_spec(declared_bytes=3 * GiB)),
            AttemptPlaced(at_s=1020.0, cause="", job_id=1, attempt=1, placement=place),
            AttemptPlaced(at_s=1030.0, cause="", job_id=2, attempt=1, placement=place),
            an_exit(1, 1120.0),
            an_exit(2, 1040.0, code=3, peak_gib=0.0),
            JobSubmitted(at_s=1050.0, cause="", job_id=3, spec=a_spec()),
        ]
    )
    found = journal.read(path)
    held.close()
    assert [(job.submit_s, job.duration_s, job.gpus, job.user, job.failed) for job in found] == [
        (0.0, 100.0, 2, "ann", False),
        (10.0, 10.0, 1, "ann", True),
    ]
    assert found[0].profile.peak_bytes == 5 * GiB
    assert found[0].profile.reported_bytes == {"declared": None, "cotenant": 6 * GiB}
    assert [job.profile.reported_smact for job in found] == [smact_interval_around(0.4), None]
    assert found[1].profile.peak_bytes == 3 * GiB
    assert "1 left out: did not run to its end" in found.notes


def test_a_journal_counts_the_last_attempt_and_only_if_it_ended(tmp_path):
    path = tmp_path / "journal.db"
    held = SqliteJournal(path)
    events = []
    for job_id, retried in ((1, True), (2, False)):
        place = Placement(job_id=job_id, gpu_uuids=("GPU-0",), sharing="time-sliced", promised_bytes=GiB)
        events += [
            JobSubmitted(at_s=1000.0, cause="", job_id=job_id, spec=a_spec(declared_bytes=GiB)),
            AttemptPlaced(at_s=1000.0, cause="", job_id=job_id, attempt=1, placement=place),
            an_exit(job_id, 1010.0, code=1),
            AttemptPlaced(at_s=1020.0, cause="", job_id=job_id, attempt=2, placement=place),
        ]
        if retried:
            events.append(an_exit(job_id, 1090.0))
    held.append(events)
    held.close()
    found = journal.read(path)
    assert [(job.duration_s, job.failed) for job in found] == [(70.0, False)]  # the other still runs


def test_activity_is_measured_solo_or_predicted_from_memory(tmp_path):
    held = SqliteJournal(tmp_path / "journal.db")
    alone = (CoRun(neighbor_ids=(), seconds=40.0, smact=0.9), CoRun(neighbor_ids=(2,), seconds=99.0, smact=0.1))
    events = []
    for job_id, (command, co_runs) in enumerate([("a.py", alone), ("a.py", ()), ("b.py", ())], start=1):
        place = Placement(job_id=job_id, gpu_uuids=("GPU-0",), sharing="time-sliced", promised_bytes=GiB)
        events += [
            JobSubmitted(at_s=1000.0, cause="", job_id=job_id, spec=a_spec(command=("python", command))),
            AttemptPlaced(at_s=1000.0, cause="", job_id=job_id, attempt=1, placement=place),
            replace(an_exit(job_id, 1100.0), co_runs=co_runs),
        ]
    held.append(events)
    held.close()
    found = journal.read(tmp_path / "journal.db")
    assert [job.profile.smact for job in found] == [0.9, 0.9, expected_smact(5 * GiB)]
    assert "SM activity of 1 jobs is expected from their memory: none was observed alone" in found.notes


def test_a_file_that_is_no_journal_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="no journal at"):
        journal.read(tmp_path / "absent.db")
    other = tmp_path / "other.db"
    sqlite3.connect(other).close()
    with pytest.raises(UsageError, match="is no journal"):
        journal.read(other)
