"""An estimator of another distribution: one GiB for every script that exists."""

from __future__ import annotations

from pathlib import Path

from cotenant.core.errors import UsageError
from cotenant.core.estimate import Estimate

ENTRY_POINTS = {"cotenant.estimators": {"acme-constant": "acme_estimator:Constant"}}


class Constant:
    """One GiB, without a margin."""

    name = "acme-constant"
    version = "1"

    def estimate(self, request):
        if not any((Path(request.workdir) / word).is_file() for word in request.command):
            raise UsageError("no such script", hint="give a script that exists")
        return Estimate(
            peak_allocated_bytes=None,
            peak_reserved_bytes=2**30,
            context_bytes=0,
            margin_bytes=0,
            coverage=0.5,
            estimator=self.name,
            version=self.version,
            gpu=request.gpu,
        )
