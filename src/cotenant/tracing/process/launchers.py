"""Commands that start a script as several processes, of which rank 0 is traced, with its environment variables.

Known: `torchrun`, `python -m torch.distributed.run` and `.launch`, `accelerate launch`, `deepspeed`, `mpiexec`.
Sources: torch/distributed/run.py, accelerate/commands/launch.py (1.15), deepspeed/launcher/{runner,launch}.py; mpirun
of Open MPI 4.1 and mpiexec of MPICH's Hydra 4.2, their manuals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cotenant.core.errors import UsageError

MPI = ("mpiexec", "mpirun")
_LAUNCH = "torch.distributed.launch"
MODULES = {"torch.distributed.run": "torchrun", _LAUNCH: _LAUNCH}
"""Launchers that are started as modules."""

_FLAGS = {
    "torchrun": {"--standalone", "--virtual-local-rank"},
    _LAUNCH: {"--standalone", "--virtual-local-rank", "--use-env"},
    "accelerate": {
        "--cpu", "--multi_gpu", "--tpu", "--ipex", "--use_xpu", "--use_mps_device", "--use_deepspeed", "--use_fsdp",
        "--use_parallelism_config", "--use_megatron_lm", "-q", "--quiet", "--same_network", "--debug",
        "--enable_cpu_affinity", "--dynamo_use_fullgraph", "--dynamo_use_dynamic", "--tpu_use_cluster",
        "--no_tpu_cluster", "--tpu_use_sudo", "--fp8_use_autocast_during_eval", "--fp8_override_linear_precision",
        "--dynamo_use_regional_compilation",
    },
    "deepspeed": {"--force_multi", "--save_pid", "--no_local_rank", "--enable_each_rank_log", "--bind_cores_to_rank"},
}  # fmt: skip
_MPI_FLAGS = {
    "--allow-run-as-root", "--oversubscribe", "--nooversubscribe", "--tag-output", "--display-map", "-q", "--quiet",
    "-v", "--verbose", "-l", "-prepend-rank", "-genvall",
}  # fmt: skip
_FLAGS.update(dict.fromkeys(MPI, _MPI_FLAGS))
_PAIRS = {"--mca", "-mca", "--gmca", "-gmca", "-genv", "-env"}
"""Options of MPI's launchers that take a name and a value."""
_MODULE = {"-m", "--module"}
_NOT_PYTHON = {"--no-python", "--no_python"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """How a launcher starts a script.

    Attributes:
        local: processes on this machine, each with a GPU; `total`: on all machines.
        env: variables of rank 0; `more_args`: arguments that it puts before the script's own.
        gives_local_rank: whether it also adds `--local-rank`, see `local_rank_option`.
        warning: what of the launcher's options had no effect; empty if nothing.
    """

    local: int = 1
    total: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    more_args: tuple[str, ...] = ()
    gives_local_rank: bool = False
    warning: str = ""


def split(name: str, words: Sequence[str]) -> tuple[tuple[str, ...], bool, tuple[str, ...]]:
    """(options of the launcher `name`, whether a module follows, the script or module and its arguments).

    Raises:
        UsageError: no Python program follows the options.
    """
    at, is_module, words = 0, False, list(words)
    while at < len(words):
        word = words[at]
        if word == "--":  # argparse ignores the one before or behind the first positional argument
            words = [*words[:at], *words[at + 1 :]]
            continue
        if word in _NOT_PYTHON:
            raise UsageError(f"`{name} {word}` starts another program than Python, which cannot be traced")
        if word in _MODULE:
            is_module = True
        elif not word.startswith("-"):
            target, args = word, words[at + 1 :]
            return tuple(words[:at]), is_module, (target, *(args[1:] if args[:1] == ["--"] else args))
        elif name in MPI and word in _PAIRS:
            at += 2
        elif word.replace("_", "-") not in {flag.replace("_", "-") for flag in _FLAGS[name]} and "=" not in word:
            at += 1
        at += 1
    raise UsageError(f"`{name}` names no script to start", hint=f"write e.g. `{name} train.py`")


def plan_launch(name: str, options: Sequence[str], gpus: int) -> LaunchPlan:
    """How `name` with `options` starts a script on a machine with `gpus` GPUs.

    Raises:
        UsageError: a number of processes is not a number.
    """
    return _PLANNERS[name](_values(name, options), gpus)


def _values(name: str, options: Sequence[str]) -> dict[str, str]:
    """Options by name, with dashes; a flag has the value `yes`."""
    flags = {flag.replace("_", "-") for flag in _FLAGS[name]} | _MODULE
    found: dict[str, str] = {}
    words = list(options)
    while words:
        key, equals, value = words.pop(0).partition("=")
        key = key.replace("_", "-")
        if key in _PAIRS and words:
            words.pop(0)
        if not equals:
            value = "yes" if key in flags or not words else words.pop(0)
        found[key] = value
    return found


def _number(text: str, what: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 2**16:
        raise UsageError(f"{what} is `{text}`, expected a whole number from 1 to 65536")
    return int(text)


def _ranks(local: int, nodes: int, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables of the first of `local` processes on each of `nodes` machines."""
    return {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(local * nodes),
        "LOCAL_WORLD_SIZE": str(local),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        **(more or {}),
    }


def _torchrun(values: Mapping[str, str], gpus: int) -> LaunchPlan:
    wanted = values.get("--nproc-per-node", "1")
    local = gpus if wanted in {"gpu", "auto"} else _number(wanted, "`--nproc-per-node`")
    nodes = _number(values.get("--nnodes", "1").split(":")[-1], "`--nnodes`")
    more = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0", "ROLE_RANK": "0"}
    return LaunchPlan(local=local, total=local * nodes, env=_ranks(local, nodes, more))


def _launch(values: Mapping[str, str], gpus: int) -> LaunchPlan:
    return replace(_torchrun(values, gpus), gives_local_rank="--use-env" not in values)


def _accelerate(values: Mapping[str, str], gpus: int) -> LaunchPlan:
    """Without accelerate's file of defaults, which accelerate itself reads: see `launcher_env`."""
    several = any(f"--{way}" in values for way in ("multi-gpu", "use-deepspeed", "use-fsdp", "use-megatron-lm"))
    if "--num-processes" in values:
        total = _number(values["--num-processes"], "`--num_processes`")
    else:
        total = gpus if several or gpus > 1 else 1
    nodes = _number(values.get("--num-machines", "1"), "`--num_machines`")
    local = max(1, total // nodes)
    env = {"ACCELERATE_MIXED_PRECISION": values.get("--mixed-precision", "no")}
    if "--gradient-accumulation-steps" in values:
        env["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] = values["--gradient-accumulation-steps"]
    return LaunchPlan(local=local, total=total, env=_ranks(local, nodes, env) if total > 1 else env)


def _deepspeed(values: Mapping[str, str], gpus: int) -> LaunchPlan:
    local = _number(values["--num-gpus"], "`--num_gpus`") if "--num-gpus" in values else gpus
    if "--include" in values:  # e.g. localhost:0,1
        local = values["--include"].partition(":")[2].count(",") + 1
    nodes = _number(values.get("--num-nodes", "1"), "`--num_nodes`")
    more = () if "--no-local-rank" in values else ("--local_rank=0",)
    return LaunchPlan(local=local, total=local * nodes, env=_ranks(local, nodes), more_args=more)


def _mpi(values: Mapping[str, str], gpus: int) -> LaunchPlan:
    """All processes on one machine, as without a list of hosts."""
    wanted = next((values[key] for key in ("-n", "-np", "--np", "-c") if key in values), "1")
    total = _number(wanted, "the number of processes, `-n`,")
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "SIZE": str(total), "LOCAL_SIZE": str(total)}
    env = {f"OMPI_COMM_WORLD_{name}": value for name, value in ranks.items()}
    return LaunchPlan(local=total, total=total, env={**env, "PMI_RANK": "0", "PMI_SIZE": str(total)})


_PLANNERS: Mapping[str, Callable[[Mapping[str, str], int], LaunchPlan]] = {
    "torchrun": _torchrun,
    _LAUNCH: _launch,
    "accelerate": _accelerate,
    "deepspeed": _deepspeed,
    **dict.fromkeys(MPI, _mpi),
}
NAMES = tuple(_PLANNERS)
