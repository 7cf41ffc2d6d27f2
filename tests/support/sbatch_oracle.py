"""What Slurm's own sbatch understands of options and headers: it parses them, prints them and ends, without a Slurm.

Needs Debian's slurm-client and slurm-wlm-basic-plugins, whose cli_filter_lua.so has the options as JSON. 16 ms a call.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from datetime import datetime
from pathlib import Path

CONF = """ClusterName=oracle
SlurmctldHost=localhost
AuthType=auth/munge
CliFilterPlugins=cli_filter/lua
SelectType=select/cons_tres
GresTypes=gpu
NodeName=n1 NodeAddr=127.0.0.1 CPUs=64
PartitionName=gpu Nodes=ALL Default=YES
"""
FILTER = """
function slurm_cli_setup_defaults(options, early) return slurm.SUCCESS end
function slurm_cli_pre_submit(options, offset)
  io.stdout:write(slurm.json_cli_options(options))
  io.stdout:flush()
  os.exit(0)
end
function slurm_cli_post_submit(offset, job_id, step_id) return slurm.SUCCESS end
"""


def missing():
    """Why there is no oracle here, or None."""
    if shutil.which("sbatch") is None:
        return "sbatch is not installed (Debian: slurm-client)"
    if not any(Path("/usr/lib").rglob("slurm*/cli_filter_lua.so")):
        return "cli_filter_lua.so is not installed (Debian: slurm-wlm-basic-plugins)"
    return None


class SbatchOracle:
    """sbatch with a configuration in `folder`."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "slurm.conf").write_text(CONF)
        (folder / "cli_filter.lua").write_text(FILTER)
        own = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
        self.env = {**own, "SLURM_CONF": str(folder / "slurm.conf")}

    def understood(self, *arguments, env=()):
        """Options by name, as sbatch prints them; None if it refuses the arguments."""
        done = subprocess.run(
            ["sbatch", *arguments],
            env={**self.env, **dict(env)},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return json.loads(done.stdout) if done.stdout.startswith("{") else None

    def read(self, words, script, env):
        """`understood`, of options, a script and variables."""
        path = self.folder / "job.sh"
        path.write_text(script)
        return self.understood(*words, str(path), env=env)


class Submissions:
    """Random command lines, headers and variables: of options that have a meaning here, mostly correct."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def one(self):
        """(words, script, variables)."""
        words = [word for _ in range(self.random.randrange(4)) for word in self.option()]
        names = {"SBATCH_TIMELIMIT": self.limit, "SBATCH_JOB_NAME": self.text, "SBATCH_EXCLUSIVE": lambda: ""}
        names |= {"SBATCH_GPUS": self.gpus, "SBATCH_REQUEUE": lambda: "", "SBATCH_OUTPUT": self.text}
        chosen = [name for name in names if self.random.random() < 0.05]
        return words, self.script(), {name: names[name]() for name in chosen}

    def script(self):
        pick = self.random.choice
        lines = ["#!/bin/sh"]
        for _ in range(self.random.randrange(5)):
            lines.append(pick(("", "# a comment", "##SBATCH -t 1", "#sbatch -t 1", " #SBATCH -t 7", "\t")))
            lines.append(f"#SBATCH{pick((' ', '  ', chr(9)))}{self.header()}")
        lines.append(pick(("echo '#SBATCH -t 3'", "true", "  : x")))
        return "\n".join([*lines, "#SBATCH --time=99", ""])

    def header(self):
        words = [word for _ in range(self.random.randrange(1, 3)) for word in self.option()]
        text = self.random.choice((" ", "  ")).join(self.quoted(word) for word in words)
        return text + self.random.choice(("", "", "", " # why", " #why -t 5", "  "))

    def quoted(self, word):
        """`word` as a header may hold it; blanks need quotes."""
        if not word or set(word) & set(" #\t"):
            return f'"{word}"'
        return self.random.choice((word, word, word, f"'{word}'", f'"{word}"', word[:1] + "\\" + word[1:]))

    def option(self):
        """The words of one option."""
        pick = self.random.choice
        name, letter, value = pick(
            [
                *[("time", "t", self.limit)] * 5,
                *[("begin", "b", self.begin)] * 4,
                ("job-name", "J", self.text),
                ("output", "o", self.text),
                ("error", "e", self.text),
                ("input", "i", self.text),
                ("chdir", "D", lambda: pick(("/tmp", "/var/tmp", "/"))),
                ("ntasks", "n", self.count),
                ("cpus-per-task", "c", self.count),
                ("gpus", "G", self.gpus),
                ("gpus-per-node", "", self.gpus),
                ("gres", "", lambda: f"gpu:{self.gpus()}"),
                ("array", "a", lambda: pick(("1", "1-4", "0-15:4", "1,3,5-7%2", "2-3"))),
                ("dependency", "d", lambda: pick(("afterok:3", "afterany:3:4", "singleton", "afternotok:7"))),
                ("export", "", lambda: pick(("ALL", "NONE", "ALL,A=1", "A=1,B=2"))),
                ("nice", "", None),
                ("hold", "H", ""),
                ("requeue", "", ""),
                ("no-requeue", "", ""),
                ("exclusive", "", ""),
            ]
        )
        if value == "":
            return pick([[f"--{name}"], [f"-{letter}"] if letter else [f"--{name}"]])
        if value is None:
            return [pick(("--nice", f"--nice={self.random.randint(-99, 99)}"))]
        text = value()
        short = name[: self.random.randint(3, len(name))] if name in ("time", "begin", "array", "output") else name
        forms = [[f"--{name}={text}"], [f"--{name}", text], [f"--{short}={text}"]]
        if letter:
            forms += [[f"-{letter}", text], *([[f"-{letter}{text}"]] if text else [])]
        return pick(forms)

    def number(self):
        return str(
            self.random.choice((0, 1, 5, 9, 10, 23, 24, 59, 60, 61, 99, 100, 1440, self.random.randrange(10**5)))
        )

    def limit(self):
        pick = self.random.choice
        clock = ":".join(self.number() for _ in range(self.random.choice((1, 1, 2, 3, 3, 4))))
        odd = (
            "UNLIMITED",
            "infinite",
            "Infinite",
            "0",
            "-1",
            "0:0",
            "00:00:00",
            "0-0",
            "abc",
            "",
            " 10",
            "10 ",
            "1h",
            "1.5",
        )
        odd += (
            "1-",
            "-",
            ":",
            "1:",
            ":1",
            "1-1-1",
            "1::1",
            "+5",
            "--",
            "1-:1",
            "INF",
            "1-2:3:4:5",
            "01",
            "1_0",
            "1e3",
        )
        return pick((clock, clock, f"{pick((0, 1, 2, 30, 365, 3650))}-{clock}", pick(odd)))

    def begin(self):
        pick, number = self.random.choice, self.random.randrange
        hour, minute = number(25), number(62)
        clock = pick(
            (
                f"{hour}:{minute:02}",
                f"{hour:02}:{minute:02}:{number(61):02}",
                f"{number(14)}:{minute:02}{pick(('am', 'pm', ' pm', 'AM'))}",
            )
        )
        clock = pick((clock, clock, pick(("noon", "midnight", "teatime", "fika", "Noon"))))
        month, day = number(14), number(33)
        date = pick(
            (
                f"20{number(26, 40)}-{month:02}-{day:02}", f"{month:02}/{day:02}/{number(26, 40)}", f"{month}/{day}",
                f"{month:02}{day:02}{number(26, 40)}", f"{month:02}.{day:02}.{number(26, 40)}", "today", "tomorrow",
            )
        )  # fmt: skip
        joined = pick((f"{date}T{clock}", f"{date} {clock}", f"{clock} {date}", date, clock, f"{date}-{clock}"))
        unit = pick(("", "seconds", "minutes", "hours", "days", "weeks", "hour", "second", "fortnights"))
        now = pick(
            (
                "now",
                f"now+{number(100)}{unit}",
                f"now +{number(100)}{unit}",
                f"now+ {number(100)} {unit}",
                f"NOW+1{unit}",
            )
        )
        odd = (
            "",
            "abc",
            "now+",
            "now-5",
            "now+abc",
            "12",
            "1:",
            "25:00",
            "2030-02-30",
            "uts1900000000",
            "12:00:00:00",
            "now now",
            "T12:00",
            "2030-01-01T",
        )
        return pick((joined, joined, now, now, pick(odd)))

    def text(self):
        return self.random.choice(("a", "run-1", "a b", "x#y", "out/%j.txt", "%A_%a", "ä", "it's", "-x", "a,b=c"))

    def count(self):
        return self.random.choice(("1", "2", "16", "007", "0", "-1", "1x", "", "1-2", "3.0", "abc", " 4", "+4"))

    def gpus(self):
        return self.random.choice(("1", "2", "4", "a100:2"))


def local(seconds):
    """A time as sbatch prints it."""
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%dT%H:%M:%S")  # noqa: DTZ006 (the machine's zone)
