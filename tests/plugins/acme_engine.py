"""An engine of another distribution: attempts run here, in a niceness of their own, and know who started them."""

from __future__ import annotations

from cotenant.engines.local import LocalEngine

ENTRY_POINTS = {"cotenant.engines": {"acme": "acme_engine:AcmeEngine"}}


class AcmeEngine(LocalEngine):
    name = "acme"

    def launch(self, spec, attempt, placement, env):
        super().launch(spec, attempt, placement, {**env, "STARTED_BY": "acme"})
