"""A stand-in for `cuda-checkpoint`, and a job whose steps need its process to be in the state `running`.

States of processes are files of a folder, by pid. Files `fail-ACTION` and `hang-ACTION` there do what they are named;
`break-ACTION` also leaves the process in the state `failed`. `at-ACTION` and `log` say what was done. A program
`memory ACTION PID` in the folder moves what stands for device memory; if it fails, the action does.
"""

from __future__ import annotations

import sys

PROGRAM = """#!/bin/sh
dir={folder}
case "$1" in
--help) echo "--get-state --pid <pid>  --action lock | checkpoint | restore | unlock  --toggle"; exit 0;;
--get-state)
    touch "$dir/at-state"
    while [ -e "$dir/hang-state" ]; do sleep 0.02; done
    cat "$dir/$3" 2>/dev/null || {{ echo "Could not find restore thread"; exit 1; }}; exit 0;;
esac
action=$2 pid=$4
touch "$dir/at-$action"
while [ -e "$dir/hang-$action" ]; do sleep 0.02; done
if [ -e "$dir/break-$action" ]; then echo failed >"$dir/$pid"; fi
if [ -e "$dir/fail-$action" ] || [ -e "$dir/break-$action" ]; then
    echo "fail $action" >>"$dir/log"; echo "CUDA_ERROR_NOT_SUPPORTED"; exit 1
fi
case "$action:$(cat "$dir/$pid")" in
lock:running | restore:checkpointed) new=locked;;
checkpoint:locked) new=checkpointed;;
unlock:locked) new=running;;
*) echo "illegal $action" >>"$dir/log"; echo "CUDA_ERROR_ILLEGAL_STATE"; exit 1;;
esac
if [ -x "$dir/memory" ] && ! "$dir/memory" "$action" "$pid"; then
    echo "fail $action" >>"$dir/log"; echo "CUDA_ERROR_OUT_OF_MEMORY"; exit 1
fi
echo "$action" >>"$dir/log"
echo "$new" >"$dir/$pid.new" && mv "$dir/$pid.new" "$dir/$pid"
"""

JOB = """
import os, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
state = folder / str(os.getpid())
state.write_text("running")
while not (folder / "finish").exists():
    if state.read_text().strip() == "running":
        with open(folder / "steps", "a") as steps:
            steps.write(f"{os.getpid()}\\n")
    time.sleep(0.01)
"""


class FakeCudaCheckpoint:
    """The program, its folder, and the command of a job that it knows."""

    def __init__(self, folder):
        self.folder = folder / "cuda"
        self.folder.mkdir()
        self.program = str(self.folder / "cuda-checkpoint")
        (self.folder / "cuda-checkpoint").write_text(PROGRAM.format(folder=self.folder))
        (self.folder / "cuda-checkpoint").chmod(0o755)
        (self.folder / "job.py").write_text(JOB)
        self.job = (sys.executable, str(self.folder / "job.py"), str(self.folder))

    def let(self, *names):
        """Make the stand-in do what the files of these names say."""
        for name in names:
            (self.folder / name).touch()

    def mend(self, *names):
        """Undo `let`."""
        for name in names:
            (self.folder / name).unlink()

    def has(self, name):
        """Whether the file exists."""
        return (self.folder / name).exists()

    @property
    def states(self):
        """States of all processes that it knows, by pid."""
        found = {}
        for file in self.folder.iterdir():
            if file.name.isdecimal():
                found[int(file.name)] = file.read_text().strip()
        return found

    @property
    def log(self):
        """The actions that succeeded, and `fail ACTION`, `illegal ACTION`."""
        file = self.folder / "log"
        return file.read_text().splitlines() if file.exists() else []

    @property
    def steps(self):
        """How many steps were made, by pid."""
        file = self.folder / "steps"
        pids = file.read_text().split() if file.exists() else []
        return {int(pid): pids.count(pid) for pid in set(pids)}
