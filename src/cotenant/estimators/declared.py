"""The estimator that returns what the user declared.

One file for each estimator.
"""

from __future__ import annotations

from cotenant.core.errors import UsageError
from cotenant.core.estimate import Estimate
from cotenant.core.ports import EstimateRequest


class DeclaredEstimator:
    """The declared bytes are the device memory of each process, without a margin."""

    name = "declared"
    version = "1"

    def estimate(self, request: EstimateRequest) -> Estimate:
        """The estimate; see `core.ports.Estimator`."""
        if request.declared_bytes is None:
            raise UsageError(
                "no memory was declared", hint="declare it, e.g. `--gpu-mem 12G`, or choose another estimator"
            )
        return Estimate(
            peak_allocated_bytes=None,
            peak_reserved_bytes=request.declared_bytes,
            context_bytes=0,
            margin_bytes=0,
            coverage=1.0,
            estimator=self.name,
            version=self.version,
            gpu=request.gpu,
        )
