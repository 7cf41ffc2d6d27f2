"""The command line. A verb is a click command, `module:attribute`, with one line here; calling it imports it.

Other distributions add verbs by entry points of the group `cotenant.commands`: the name is the verb,
the target a `click.Command`. Those of `cotenant.cli.options` have `-h`, our layout of help texts, and sections.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cotenant.core.registry import Registry

if TYPE_CHECKING:
    import click

# name: (where it is, its line in `cotenant --help`), in the order of that help
COMMANDS: Mapping[str, tuple[str, str]] = {
    "estimate": ("cotenant.cli.estimate.command:command", "Predict the GPU memory of a training script, without a GPU"),
    "compare": ("cotenant.cli.compare:command", "Compare all estimators on one training script"),
    "submit": ("cotenant.cli.jobs.submit:submit", "Queue a job: a script, a command or a .rad file"),
    "run": ("cotenant.cli.jobs.submit:run", "Submit a job, stream its output, exit with its exit code"),
    "ls": ("cotenant.cli.jobs.ls:command", "List jobs (also: ps, queue)"),
    "show": ("cotenant.cli.jobs.job_details:show", "Show everything about one job"),
    "explain": ("cotenant.cli.jobs.job_details:explain", "Show why a job waits, GPU by GPU"),
    "events": ("cotenant.cli.jobs.job_details:events", "Show what happened to a job, transition by transition"),
    "logs": ("cotenant.cli.jobs.job_output:logs", "Print a job's output; -f follows it"),
    "wait": ("cotenant.cli.jobs.job_output:wait", "Wait for jobs, exit with their exit code"),
    "attach": ("cotenant.cli.jobs.job_output:attach", "Follow a job's output to its end; Ctrl-C detaches"),
    "cancel": ("cotenant.cli.jobs.job_control:cancel", "Stop jobs, or remove them from the queue"),
    "hold": ("cotenant.cli.jobs.job_control:hold", "Keep queued jobs from starting"),
    "release": ("cotenant.cli.jobs.job_control:release", "Let held jobs start"),
    "update": ("cotenant.cli.jobs.update:command", "Change the request of a pending job"),
    "requeue": ("cotenant.cli.jobs.job_control:requeue", "Run jobs again"),
    "prune": ("cotenant.cli.jobs.prune:command", "Remove the output of jobs that ended long ago"),
    "history": ("cotenant.cli.jobs.history:command", "List finished jobs: what they requested, what they used"),
    "pack": ("cotenant.cli.pack:command", "Run a list of jobs that share the GPUs of one allocation"),
    "sbatch": ("cotenant.cli.slurm_verbs.sbatch:command", "Queue a batch script, as Slurm's sbatch does"),
    "squeue": ("cotenant.cli.slurm_verbs.commands:squeue", "List jobs, as Slurm's squeue does"),
    "scancel": ("cotenant.cli.slurm_verbs.scancel:scancel", "Cancel or signal jobs, as Slurm's scancel does"),
    "sinfo": ("cotenant.cli.slurm_verbs.commands:sinfo", "Show this machine, as Slurm's sinfo does"),
    "sacct": ("cotenant.cli.slurm_verbs.commands:sacct", "List finished jobs, as Slurm's sacct does"),
    "slurm": ("cotenant.cli.slurm_verbs.site:command", "Configure a Slurm whose jobs share GPUs by memory"),
    "k8s": ("cotenant.cli.kubernetes:command", "Give pods of Kubernetes the GPU memory they need"),
    "top": ("cotenant.cli.top:command", "Show the server live: GPUs, jobs, queue"),
    "web": ("cotenant.cli.web:command", "Open the web page: GPUs, queue, jobs, usage, history"),
    "gpus": ("cotenant.cli.gpus:command", "List GPUs: memory promised and used, activity, residents"),
    "mig": ("cotenant.cli.mig:command", "Plan and create MIG instances"),
    "daemon": ("cotenant.cli.daemon:command", "Start, stop and query the daemon"),
    "config": ("cotenant.cli.config:command", "Show and check the configuration"),
    "token": ("cotenant.cli.token:command", "Create, list and revoke tokens for network access"),
    "simulate": ("cotenant.cli.simulate.command:command", "Replay a trace under policies; forecast the queue"),
    "measure": ("cotenant.cli.measure:command", "Measure training scripts on this machine's GPU"),
    "calibrate": ("cotenant.cli.calibrate:command", "Measure this machine's GPU into a GPU specification"),
    "study": ("cotenant.cli.studies.command:command", "Repeat studies of monitoring and collocation"),
    "advise": ("cotenant.cli.advise:command", "Advise which jobs should share a GPU, and how"),
    "learn": ("cotenant.cli.learn:command", "Generate training data and train learned estimators"),
    "doctor": ("cotenant.cli.doctor:command", "Check this machine: what works, what is missing, what to do"),
    "demo": ("cotenant.cli.demo:command", "See estimates and a shared server in a few minutes"),
    "completion": ("cotenant.cli.completion:command", "Print the completion script for bash, zsh or fish"),
}

ALIASES: Mapping[str, str] = {"ps": "ls", "queue": "ls"}

VERBS: Registry[click.Command] = Registry(
    "command", "cotenant.commands", {name: target for name, (target, _) in COMMANDS.items()}
)
