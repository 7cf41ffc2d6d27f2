"""Checks a configuration as far as possible without starting anything.

A module of its own: it imports every kind of plug-in, the schema none.
"""

from __future__ import annotations

from cotenant.core.errors import UnknownName, UsageError
from cotenant.daemon.auth.network import check_listener
from cotenant.daemon.auth.permissions import admin_uids
from cotenant.daemon.config.interference_file import read_interference
from cotenant.daemon.config.schema import Config, ListenerSection
from cotenant.daemon.setup import admin_names, scaled_options, with_aging
from cotenant.engines import ENGINES
from cotenant.estimators import ESTIMATORS
from cotenant.gpus import AUTO, GPU_BACKENDS
from cotenant.scheduling import policies
from cotenant.scheduling.repartition import RepartitionRule
from cotenant.simserver.server import check_gpus


def check_config(config: Config) -> None:
    """Check `config`, except what depends on GPUs, sockets and disks.

    Raises:
        CotenantError: a daemon would refuse it.
    """
    options = scaled_options(config.policy.name, dict(config.policy.options), config.gpus.time_scale)
    with_aging(policies.create(config.policy.name, options), config.scheduling.aging_per_hour)
    config.quotas.of_users()
    check_plugins(config)
    if config.gpus.simulate is not None:
        check_gpus(config.gpus.simulate)
    sections: tuple[tuple[str, ListenerSection], ...] = (("tcp", config.tcp), ("web", config.web))
    for name, section in sections:
        if section.listen is not None:
            check_listener(section, name)
    read_interference(config)
    RepartitionRule(min_gain=config.mig.min_gain, cost_s=config.mig.cost_s, period_s=config.mig.period_s)
    percent = config.mps.thread_percent
    if percent is not None and percent > 100:
        raise UsageError(f"`mps.thread_percent` is {percent:g}, wanted at most 100")
    if config.idle.max_activity > 1:
        raise UsageError(f"`idle.max_activity` is {config.idle.max_activity:g}, wanted a ratio, at most 1")
    admin_uids(admin_names(config))  # who may start the daemon is not checked: other users may check its configuration


def check_plugins(config: Config) -> None:
    """Check that the engine, the GPU backend and the estimator exist.

    Raises:
        UnknownName: one does not.
    """
    for registry, name in (
        (ENGINES, config.engine.name),
        (GPU_BACKENDS, config.gpus.backend),
        (ESTIMATORS, config.estimates.estimator),
    ):
        if name not in registry and (registry, name) != (GPU_BACKENDS, AUTO):
            raise UnknownName(registry.kind, name, (*registry.names(), *((AUTO,) if registry is GPU_BACKENDS else ())))
