"""Options of sbatch are split and read as the sbatch of this machine does, on random headers and times."""

from __future__ import annotations

import os
import random
from datetime import datetime

import pytest

from cotenant.cli.slurm_verbs.times import parse_begin_from_now, parse_time_limit
from cotenant.core.errors import UsageError
from cotenant.jobfiles.sbatch import OPTIONS, header_words, split_options
from cotenant.slurm.plan import words_of
from support.sbatch_oracle import SbatchOracle, missing

CASES = int(os.environ.get("COTENANT_SBATCH_CASES", "300"))
"""`make nightly` tries 10,000."""


@pytest.fixture(scope="module")
def understood(tmp_path_factory):
    """A function: what sbatch makes of arguments, by option; None if it refuses them."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    return SbatchOracle(tmp_path_factory.mktemp("slurm")).understood


VALUES = {
    "account": "acc",
    "comment": "c o",
    "constraint": "x",
    "error": "e",
    "gres": "gpu:2",
    "job-name": "nm",
    "licenses": "l",
    "mail-user": "m@x",
    "output": "o.%j",
    "partition": "p1",
    "qos": "q",
    "reservation": "r",
}
FLAGS = ("hold", "requeue", "no-requeue", "parsable", "overcommit")
ODDITIES = (
    "'",
    '"',
    "#",
    "\\",
    "-",
    "--",
    "=",
    "''",
    '" "',
    "-k",
    "-Hp",
    "-pH",
    "\\\\",
    "\\#x",
    "a\\ b",
    "--nice",
    "--nice=5",
)


def a_word(rng):
    if rng.random() < 0.12:
        return rng.choice(ODDITIES)
    if rng.random() < 0.2:
        return f"--{rng.choice(FLAGS)}"
    name = rng.choice(list(VALUES))
    value = rng.choice(["{}", "{}", "'{}'", '"{}"']).format(VALUES[name])
    forms = [f"--{name}={value}", f"--{name} {value}", f"--{name[: rng.randint(5, 8)]}={value}"]
    if OPTIONS[name].letter:
        letter = OPTIONS[name].letter
        forms += [f"-{letter} {value}", f"-{letter}{value}", f"-{letter}={value}"]
    return rng.choice(forms)


def a_header(rng):
    lines = ["#!/bin/sh"]
    for _ in range(rng.randint(1, 4)):
        mark = rng.choice(["#SBATCH "] * 12 + ["#SBATCH\t", "#SBATCH", " #SBATCH ", "##SBATCH ", "# "])
        words = rng.choice([" ", "  ", "\t"]).join(a_word(rng) for _ in range(rng.randint(0, 3)))
        lines.append(mark + words + rng.choice(["", "", "", " # c", "#c", " "]))
        if rng.random() < 0.1:
            lines.append(rng.choice(["", "true", "  # x", "   "]))
    return "\n".join(lines) + "\n"


def ours(text):
    """Values by option, of those in `VALUES`; None if a word is refused."""
    words, refused = header_words(text)
    if refused:
        return None
    try:
        settings, end = split_options([word.text for word in words])
    except UsageError:
        return None
    if end < len(words):
        return None
    return {setting.option.name: setting.value for setting in settings if setting.option.name in VALUES}


def test_headers_are_split_as_sbatch_splits_them(understood, tmp_path):
    rng = random.Random(20261122)
    script = tmp_path / "job.sh"
    accepted = 0
    for _ in range(CASES):
        text = a_header(rng)
        script.write_text(text)
        slurms = understood(str(script))
        if slurms is not None:
            accepted += 1
            slurms = {name: value.removeprefix("gres:") for name, value in slurms.items() if name in VALUES}
        assert ours(text) == slurms, text
    assert CASES // 2 < accepted < CASES  # both answers are tested


ALL_VALUES = {
    **VALUES,
    "acctg-freq": "30",
    "array": "1-4%2",
    "begin": "2030-01-01T00:00:00",
    "chdir": "/",
    "clusters": "all",
    "cores-per-socket": "2",
    "cpu-freq": "high",
    "cpus-per-gpu": "2",
    "cpus-per-task": "3",
    "dependency": "afterok:1",
    "distribution": "block",
    "exclude": "n1",
    "exclusive": "user",
    "export": "A=1,B=2",
    "gpu-bind": "closest",
    "gpus": "a100:2",
    "gpus-per-node": "2",
    "gpus-per-task": "1",
    "gres-flags": "enforce-binding",
    "input": "in",
    "mail-type": "END,FAIL",
    "mem": "2G",
    "mem-per-cpu": "100",
    "mem-per-gpu": "3G",
    "mincpus": "2",
    "nice": "5",
    "nodelist": "n1",
    "nodes": "1-2",
    "ntasks": "4",
    "ntasks-per-node": "2",
    "open-mode": "append",
    "priority": "7",
    "signal": "B:USR1@60",
    "sockets-per-node": "1",
    "switches": "1@5",
    "threads-per-core": "1",
    "time": "1:30",
    "time-min": "10",
    "tmp": "10",
    "wckey": "w",
}
ALL_FLAGS = (
    *FLAGS, "contiguous", "exclusive", "nice", "no-kill", "quiet", "reboot", "spread-job", "use-min-nodes",
    "verbose", "wait",
)  # fmt: skip


def a_command_line(rng):
    words = []
    for name in rng.sample([*ALL_VALUES, *ALL_FLAGS], rng.randint(1, 6)):
        option = OPTIONS[name]
        value = ALL_VALUES.get(name) if name not in ALL_FLAGS or rng.random() < 0.5 else None
        forms = [[f"--{name}"]] if value is None else [[f"--{name}={value}"]]
        if value is not None and option.value == "required":
            forms.append([f"--{name}", value])
        if option.letter:
            letter = f"-{option.letter}"
            forms += [[letter]] if value is None else [[f"{letter}{value}"]]
            forms += [[letter, value]] if value is not None and option.value == "required" else []
        words += rng.choice(forms)
    return words


def test_a_command_line_that_was_read_and_written_means_the_same_to_sbatch(understood):
    """What `cotenant sbatch --to slurm` passes on, for all options: also those that mean nothing to our own daemon."""
    rng = random.Random(20261123)
    accepted = 0
    for _ in range(CASES // 2):
        words = a_command_line(rng)
        slurms = understood(*words, "--wrap=true")
        settings, end = split_options(words)
        assert end == len(words), words
        again = [word for setting in settings for word in words_of(setting)]
        assert understood(*again, "--wrap=true") == slurms, (words, again)
        accepted += slurms is not None
    assert accepted > CASES // 4


DAYS = ("today", "tomorrow", "01/20/30", "1/20", "12/31", "0120", "012030", "2030-01-20", "2031-12-31T", "12.25.29")
TIMES = ("midnight", "noon", "fika", "teatime", "1:05", "16:00", "23:59:59", "1:05pm", "12:00am", "x", "5", "99:99")
DELAYS = ("now", "now+1", "now+2hours", "now - 3 minutes", "now+1week", "NOW +1day", "now+1fortnight", "now+")


def seconds(text):
    try:
        return parse_begin_from_now(text)
    except UsageError:
        return None


def test_times_to_begin_are_those_of_sbatch(understood):
    rng = random.Random(20261122)
    texts = [*DELAYS, *DAYS, *TIMES]
    while len(texts) < CASES:
        pieces = [rng.choice(DAYS), rng.choice(TIMES)]
        rng.shuffle(pieces)
        texts.append(rng.choice([" ", "-", "T"]).join(pieces))
    accepted = 0
    for text in texts:
        slurms = understood(f"--begin={text}", "--wrap=true")
        found = seconds(text)
        if slurms is None or "begin" not in slurms:
            assert found is None, text
            continue
        accepted += 1
        wanted = datetime.fromisoformat(slurms["begin"]).timestamp()
        # Slurm starts a minute earlier or later: a time of the running minute is tomorrow's there.
        assert found is not None, text
        assert abs(found - wanted) <= 5 or abs(abs(found - wanted) - 86400) <= 60, text
    assert accepted > CASES // 4


def test_time_limits_are_those_of_sbatch(understood):
    rng = random.Random(20261122)
    texts = ["UNLIMITED", "infinite", "0", "-1", "0:0", "0-0", "1-", "", ":5", "5:", "1--2", "1:2:3:4", "10m", "1-x"]
    for _ in range(100):
        days = rng.choice(["", "", f"{rng.randint(0, 9)}-"])
        texts.append(days + ":".join(str(rng.randint(0, 99)) for _ in range(rng.randint(1, 4))))
    for text in texts:
        slurms = understood(f"--time={text}", "--wrap=true")
        try:
            found = parse_time_limit(text)
        except UsageError:
            assert slurms is None, text
            continue
        assert slurms is not None, text
        if slurms["time"] == "UNLIMITED":
            assert found is None, text
            continue
        days, _, clock = slurms["time"].rpartition("-")
        hours, minutes, _ = map(int, clock.split(":"))
        assert found is not None, text
        assert -(-found // 60) == int(days or 0) * 1440 + hours * 60 + minutes, text  # Slurm rounds up to minutes
