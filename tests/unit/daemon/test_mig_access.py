"""Which configurations give the daemon access to MIG layouts, and what it answers where it has none."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cotenant.core.errors import UsageError
from cotenant.daemon.config.schema import Config, GpusSection, MigSection
from cotenant.daemon.setup import mig_control_of

ALLOWED = MigSection(repartition=True)


def test_layouts_are_out_of_reach_unless_the_administrator_allows_them():
    backend = SimpleNamespace(name="nvml", mig="control")
    assert mig_control_of(Config(), backend) is None
    assert mig_control_of(Config(mig=ALLOWED), backend) == "control"


@pytest.mark.parametrize(
    ("config", "backend", "message"),
    [
        (Config(mig=ALLOWED, gpus=GpusSection(visible="0")), SimpleNamespace(name="nvml", mig=1), "needs all GPUs"),
        (Config(mig=ALLOWED), SimpleNamespace(name="hosts"), "does not work with GPU backend `hosts`"),
        (Config(mig=ALLOWED), SimpleNamespace(name="nvml", mig=None), "does not work with GPU backend `nvml`"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(config, backend, message):
    with pytest.raises(UsageError, match=message):
        mig_control_of(config, backend)
