"""Environment variables that a launcher sets for rank 0, and that a script sees; `accelerate` also reads its file."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from cotenant.tracing.distributed import local_rank_option, mpi_stand_in
from cotenant.tracing.process.launchers import MPI, LaunchPlan, plan_launch
from cotenant.tracing.sensors.nvidia_smi import uuid_of


def apply_launcher(launcher: Sequence[str], program: Mapping[str, Any], gpus: int) -> LaunchPlan:
    """Set the variables and the option that rank 0 gets; without a launcher, nothing changes."""
    local_rank_option.give(False)
    if not launcher:
        return LaunchPlan(local=gpus)
    name, *options = launcher
    made = plan_launch(name, options, gpus)
    if name == "accelerate":
        made = _by_accelerate(made, options, program, gpus)
    os.environ.update(made.env)
    local_rank_option.give(made.gives_local_rank)
    if name in MPI:
        mpi_stand_in.install(made.total, made.local)
    return made


def _by_accelerate(made: LaunchPlan, options: Sequence[str], program: Mapping[str, Any], gpus: int) -> LaunchPlan:
    """The plan with the variables that accelerate itself sets, if it is installed and has the functions used here."""
    try:
        module: Any = importlib.import_module("accelerate.commands.launch")
        args = module.launch_command_parser().parse_args([*options, program["target"]])
        if made.total > 1 and not _has_defaults(module, args) and not _names_a_backend(args):
            args.multi_gpu = True  # as accelerate does where it finds several GPUs
        args, defaults, names_precision = module._validate_launch_command(args)
        several = args.multi_gpu or args.use_fsdp or args.use_deepspeed or args.use_megatron_lm
        if args.use_deepspeed:
            fields = [
                *(defaults.deepspeed_config if defaults else ()),
                *(["mixed_precision"] if names_precision else []),
            ]
            args.deepspeed_fields_from_accelerate_config = ",".join(fields)  # as `launch_command` does
            own = module.prepare_deepspeed_cmd_env(args)[1]
        elif several:
            own = module.prepare_multi_gpu_env(args)
        else:
            own = module.prepare_simple_launcher_cmd_env(args)[1]
    except ImportError:
        return made
    except (AttributeError, TypeError, ValueError, RuntimeError, OSError) as error:
        return replace(
            made, warning=f"`accelerate launch` was not understood ({error}): its configuration was not used"
        )
    total = int(args.num_processes or 1) if several else 1
    wanted = [f"--num_processes={total}", f"--num_machines={args.num_machines or 1}"]
    made = plan_launch("accelerate", wanted, gpus)
    changed = {name: value for name, value in own.items() if os.environ.get(name) != value}
    return replace(made, env={**changed, **(made.env if total > 1 else {})} | _accelerate_settings(changed))


def _has_defaults(module: Any, args: Any) -> bool:
    return args.config_file is not None or Path(module.default_config_file).is_file()


def _names_a_backend(args: Any) -> bool:
    ways = ("cpu", "multi_gpu", "tpu", "use_deepspeed", "use_fsdp", "use_megatron_lm")
    return any(getattr(args, way) for way in ways)


def _accelerate_settings(changed: Mapping[str, str]) -> dict[str, str]:
    """Variables of accelerate itself, which override those that we derive from its options."""
    return {name: value for name, value in changed.items() if name.startswith(("ACCELERATE_", "FSDP_"))}


def show_visible_devices(text: str | None) -> None:
    """Have the script see `text`, or nothing, as `CUDA_VISIBLE_DEVICES` where it names no real GPU.

    Scripts count its commas: YOLOX, yolox/utils/dist.py, `get_num_devices`; or read its numbers: DeepSpeed,
    accelerator/cuda_accelerator.py, `_get_nvml_gpu_id`. The C library keeps what this process's libraries must find: an
    empty text, or the UUIDs of null GPUs.
    """
    name, values = "CUDA_VISIBLE_DEVICES", cast("Any", os.environ)
    if os.environ.get(name, "-1").partition(",")[0] not in ("", uuid_of(0)):
        return
    if text is None:
        del values._data[values.encodekey(name)]
    else:
        values._data[values.encodekey(name)] = values.encodevalue(text)
