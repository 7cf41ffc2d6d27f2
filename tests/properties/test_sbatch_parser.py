"""Options, headers and variables of sbatch mean here what they mean to Slurm's own sbatch."""

from __future__ import annotations

import math
import os
import time

import pytest

from cotenant.cli.jobs.directives import parse_directive_text
from cotenant.cli.jobs.job_options import JobRequest, LaunchOptions
from cotenant.cli.parameter_types import Cleared
from cotenant.cli.slurm_verbs.sbatch_options import FIELDS, read_settings
from cotenant.core.errors import UsageError
from cotenant.jobfiles.sbatch import environment_settings, split_options
from support.sbatch_oracle import SbatchOracle, Submissions, local, missing

GROUPS = (JobRequest, LaunchOptions)
CASES = int(os.environ.get("COTENANT_SBATCH_CASES", "300"))
"""`make nightly` tries 10,000."""
SEED = 18
DAY_S = 86400


def ours(words, script, env):
    """Values by field, of the line over the variables over the header; None if one of them is refused."""

    def refuse(setting, error):
        raise error

    try:
        line = read_settings(split_options(words)[0], GROUPS, on_error=refuse)
        variables = read_settings(environment_settings(env), GROUPS, on_error=refuse)
    except UsageError:
        return None
    header = parse_directive_text("job.sh", script, *GROUPS)
    if any("ignored" in warning for warning in header.warnings):
        return None  # sbatch refuses the script; we take it without that option, and say so
    return {**header.values, **variables.values, **line.values}


def limit_text(limit_s):
    """A limit as sbatch prints it: in minutes, rounded up."""
    minutes = math.ceil(limit_s / 60)
    days, hours = divmod(minutes // 60, 24)
    return f"{f'{days}-' if days else ''}{hours:02}:{minutes % 60:02}:00"


def expected(theirs, values, after):
    """Pairs of what sbatch says of our fields and what we say."""
    pairs = {}
    for name in ("job-name", "output", "error", "input", "chdir", "ntasks", "cpus-per-task"):
        value = values.get(FIELDS[name])
        pairs[name] = (theirs.get(name), None if value is None else str(value))
    limit = values.get("time_limit_s")
    pairs["time"] = (
        theirs.get("time"),
        None if limit is None else "UNLIMITED" if isinstance(limit, Cleared) else limit_text(limit),
    )
    begin = theirs.get("begin")
    if begin is None or values.get("begin_at_s") is None:
        pairs["begin"] = (begin, values.get("begin_at_s"))
    else:
        # time(NULL) reads the kernel's coarse clock, which is behind by up to a tick: it may name the second before.
        earliest, latest = local(values["begin_at_s"] - 1), local(after["begin_at_s"])
        # Slurm's clock has no seconds: a time of the running minute is tomorrow's there.
        is_this_minute = abs(values["begin_at_s"] - time.time()) < 90
        is_next_day = is_this_minute and begin == local(values["begin_at_s"] + DAY_S)
        pairs["begin"] = (True, earliest <= begin <= latest or is_next_day)
    pairs["nice"] = (int(theirs["nice"]) if "nice" in theirs else None, values.get("nice"))
    pairs["hold"] = ("hold" in theirs, values.get("hold", False))
    pairs["exclusive"] = ("exclusive" in theirs, values.get("exclusive", False))
    if not {"requeue", "no-requeue"} <= theirs.keys():  # sbatch does not say which came last
        pairs["requeue"] = (
            True if "requeue" in theirs else False if "no-requeue" in theirs else None,
            values.get("requeue"),
        )
    gpus = [theirs[name].rpartition(":")[2] for name in ("gpus", "gpus-per-node", "gres") if name in theirs]
    if len(gpus) == 1:  # of several, sbatch leaves it to the controller which count
        pairs["gpus"] = (gpus[0], str(values.get("gpus", values.get("gres"))))
    for name in ("array", "dependency", "export"):
        pairs[name] = (name in theirs, values.get(name) is not None)
    return pairs


def test_submissions_mean_what_they_mean_to_slurm(tmp_path):
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    oracle, submissions = SbatchOracle(tmp_path), Submissions(SEED)
    differences, refused = [], 0
    for _ in range(CASES):
        words, script, env = submissions.one()
        before = ours(words, script, env)
        theirs = oracle.read(words, script, env)
        after = ours(words, script, env)
        refused += theirs is None
        if theirs is None or before is None:
            wrong = {} if theirs is None and before is None else {"refused": (theirs is None, before is None)}
        else:
            wrong = {name: pair for name, pair in expected(theirs, before, after).items() if pair[0] != pair[1]}
        if wrong:
            differences.append((words, script, env, wrong))
    assert differences == []
    assert 0.1 < refused / CASES < 0.9  # both are tried
