"""Configuration of the launcher.

A module that hydra does not scan, by its name: hydra executes what it scans before it adds it to `sys.modules`, where
`dataclass` looks for annotations that are strings. Source: hydra 1.3, core/plugins.py, `_scan_all_plugins`.
"""

from __future__ import annotations

from dataclasses import dataclass

from hydra.core.config_store import ConfigStore


@dataclass
class CotenantLauncherConf:
    """Configuration of the launcher, which `hydra.launcher.NAME=VALUE` overrides.

    All but the first two are parameters of `cotenant.submitit.Executor`; null is its default.
    """

    _target_: str = "hydra_plugins.hydra_cotenant_launcher.launcher.CotenantLauncher"
    folder: str = "${hydra.sweep.dir}/.cotenant"
    max_num_timeout: int = 0
    name: str = "${hydra.job.name}"
    timeout_min: float | None = None
    gpus_per_node: int | None = None
    stderr_to_stdout: bool = False
    gpu_mem: str | None = None
    estimator: str | None = None
    exclusive: bool | None = None
    max_attempts: int | None = None
    max_slowdown: float | None = None
    notify: str | None = None
    priority: int | None = None
    progress: str | None = None
    retries: int | None = None
    sharing: str | None = None
    signal_delay_s: float | None = None
    time_slice_min: float | None = None


ConfigStore.instance().store(group="hydra/launcher", name="cotenant", node=CotenantLauncherConf, provider="cotenant")
