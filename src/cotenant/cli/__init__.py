"""The command line. One file a command, one line here; a command is imported when it is called.

A module named here has a function `command` (its docstring is the help text) or, with subcommands, a `typer.Typer`
named `app`. It may have `CONTEXT`, a mapping of click context settings.
"""

from __future__ import annotations

from collections.abc import Mapping

# name: (module, line in `cotenant --help`), in the order of that help
COMMANDS: Mapping[str, tuple[str, str]] = {
    "estimate": ("cotenant.cli.estimate", "Predict the GPU memory of a training script, without a GPU"),
    "compare": ("cotenant.cli.compare", "All estimators on one training script, side by side"),
    "submit": ("cotenant.cli.submit", "Queue a job: a script, a command or a .rad file"),
    "run": ("cotenant.cli.run", "Submit, stream the output, and exit as the job does"),
    "ls": ("cotenant.cli.ls", "List jobs (also: ps, queue)"),
    "show": ("cotenant.cli.show", "Everything about one job"),
    "explain": ("cotenant.cli.explain", "Why a job waits, GPU by GPU"),
    "logs": ("cotenant.cli.logs", "Print a job's output; -f follows it"),
    "wait": ("cotenant.cli.wait", "Wait for a job and exit as it does"),
    "attach": ("cotenant.cli.attach", "Follow a job's output to its end; Ctrl-C detaches"),
    "top": ("cotenant.cli.top", "The server as it is now, on a screen that follows"),
    "events": ("cotenant.cli.events", "What became of a job, transition by transition"),
    "history": ("cotenant.cli.history", "Jobs that are over: what they asked for and what they used"),
    "cancel": ("cotenant.cli.cancel", "Stop jobs, or take them out of the queue"),
    "hold": ("cotenant.cli.hold", "Keep queued jobs from starting"),
    "release": ("cotenant.cli.release", "Let held jobs start"),
    "update": ("cotenant.cli.update", "Change what a waiting job has asked for"),
    "requeue": ("cotenant.cli.requeue", "Run jobs again"),
    "gpus": ("cotenant.cli.gpus", "The GPUs: memory promised and used, activity, residents"),
    "mig": ("cotenant.cli.mig", "Cut a GPU into MIG instances: propose a layout, make it"),
    "config": ("cotenant.cli.config", "The configuration in effect, and checks of files"),
    "token": ("cotenant.cli.token", "Tokens for the daemon on the network: make, list, revoke them"),
    "daemon": ("cotenant.cli.daemon", "Start, stop and ask the daemon"),
    "simulate": ("cotenant.cli.simulate", "Replay a trace under policies; when would my job start"),
    "measure": ("cotenant.cli.measure", "What scripts really take, measured on this machine's GPU"),
    "calibrate": ("cotenant.cli.calibrate", "Measure this machine's GPU into a device profile"),
    "doctor": ("cotenant.cli.doctor", "What works on this machine, what is missing, what to do"),
    "learn": ("cotenant.cli.learn", "Training jobs to learn from: make them, run them, tidy the results"),
    "demo": ("cotenant.cli.demo", "Estimates and a shared server, shown in a few minutes"),
}

ALIASES: Mapping[str, str] = {"ps": "ls", "queue": "ls"}
