"""Guidelines applied to jobs: figures, names, the rows of a study, the history of a daemon."""

import json

import pytest
from click.testing import CliRunner

from cotenant.cli.advise import command
from cotenant.core.errors import UsageError
from cotenant.core.units import GiB
from cotenant.measurement.collocation import COLUMNS
from cotenant.scheduling.sharing_guidelines import SoloUse, sharing_advice
from cotenant.sim.workloads import workloads
from cotenant.study.advise import parse_job


def job(name, smact, gib):
    return SoloUse(name=name, smact=smact, memory_bytes=None if gib is None else round(gib * GiB))


@pytest.mark.parametrize(
    ("jobs", "verdict", "reason"),
    [
        ([job("a", 0.4, 10), job("b", 0.4, 20)], "share", "SM activity adds up to 80%, up to 80% collocation pays"),
        ([job("a", 0.41, 10), job("b", 0.4, 20)], "marginal", "81%, above 80% jobs slow each other down"),
        ([job("a", 0.1, 30), job("b", 0.1, 20)], "alone", "memory adds up to 50.0 GiB, the GPU has 40.0 GiB"),
        ([job("a", None, 10), job("b", 0.4, 20)], "unknown", "the SM activity of `a` is not known"),
        ([job("a", 0.1, None), job("b", 0.1, None)], "unknown", "the memory of `a`, `b` is not known"),
        ([job("a", 0.9, None), job("b", 0.1, 1)], "unknown", "the memory of `a` is not known"),
    ],
)
def test_memory_must_fit_and_activity_decides(jobs, verdict, reason):
    found = sharing_advice(jobs, 40 * GiB)
    assert found.verdict == verdict
    assert any(reason in text for text in found.reasons)
    assert (found.sharing is None) == (verdict == "alone")


@pytest.mark.parametrize(
    ("options", "sharing"),
    [({}, "mps"), ({"has_mps": False}, "time-sliced"), ({"needs_isolation": True, "has_mps": False}, "mig")],
)
def test_how_to_share_follows_from_trust(options, sharing):
    assert sharing_advice([job("a", 0.1, 1)], 40 * GiB, **options).sharing == sharing


def test_jobs_are_names_or_figures():
    assert parse_job("bert=0.35,6", {}) == job("bert", 0.35, 6)
    assert parse_job("a", {"a": job("a", 0.1, 1)}) == job("a", 0.1, 1)
    published = workloads()["resnet50_imagenet_bs64"]
    found = parse_job("resnet50_imagenet_bs64", {})
    assert (found.smact, found.memory_bytes) == (published.smact, published.peak_bytes)


@pytest.mark.parametrize(
    "text", ["nosuch", "a=", "a=1", "a=2,5", "a=0.5,-1", "a=x,1", "=0.5,1", "a=0.5,inf", "a=nan,1"]
)
def test_what_is_no_job_is_refused(text):
    with pytest.raises(UsageError, match=r"no job"):
        parse_job(text, {})


def test_a_study_lists_pairs_best_first_with_measured_gains(tmp_path):
    cells = {"repeat": "1", "until": "seconds", "outcome": "ok", "gpu": "G", "gpu_memory_bytes": str(20 * GiB)}
    rows = [
        {**cells, "group": name, "sharing": "alone", "position": "1", "job": name, "step_s": "0.1", "smact": str(smact),
         "peak_device_bytes": str(gib * GiB)}
        for name, smact, gib in (("busy", 0.7, 4), ("idle", 0.05, 12))
    ]  # fmt: skip
    for position, name in enumerate(("idle", "busy"), start=1):
        rows.append(
            {**cells, "group": "idle+busy", "sharing": "mps", "position": str(position), "job": name, "step_s": "0.125",
             "slowdown": "1.25"}
        )  # fmt: skip
    lines = [",".join(COLUMNS), *(",".join(row.get(name, "") for name in COLUMNS) for row in rows)]
    (tmp_path / "collocation.csv").write_text("\n".join(lines) + "\n")
    done = CliRunner().invoke(command, ["--study", str(tmp_path), "--json"], catch_exceptions=False)
    found = json.loads(done.stdout)["advice"]
    assert [(one["jobs"], one["verdict"], one["best"]) for one in found] == [
        (["busy", "idle"], "share", "mps"),
        (["busy", "busy"], "marginal", ""),
        (["idle", "idle"], "alone", ""),
    ]
    assert found[0]["gains"] == {"mps": pytest.approx(1.6)}
    assert not any("but here" in reason for reason in found[0]["reasons"])
    isolated = CliRunner().invoke(command, ["--study", str(tmp_path), "--isolation", "--json"], catch_exceptions=False)
    assert json.loads(isolated.stdout)["advice"][0]["reasons"][-1] == "but here mps gained most: 1.60"
