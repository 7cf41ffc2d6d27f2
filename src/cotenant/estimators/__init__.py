"""Estimators by name: a workload in, an `Estimate` out.

A new estimator is one file and one line here, or an entry point of the group `cotenant.estimators` in another
distribution. It is imported when it is first used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cotenant.core.ports import Estimator
from cotenant.core.registry import Registry

if TYPE_CHECKING:
    from cotenant.estimators.traced import TracedEstimator

ESTIMATORS: Registry[Callable[[], Estimator]] = Registry(
    "estimator",
    "cotenant.estimators",
    {
        "declared": "cotenant.estimators.declared:DeclaredEstimator",
        "traced": "cotenant.estimators.traced:TracedEstimator",
        "summary": "cotenant.learn.model_summaries.estimator:SummaryEstimator",
        "accelerate": "cotenant.estimators.published.parameter_rules:AccelerateEstimator",
        "deepspeed-zero2": "cotenant.estimators.published.parameter_rules:Zero2Estimator",
        "deepspeed-zero3": "cotenant.estimators.published.parameter_rules:Zero3Estimator",
        "dnnmem": "cotenant.estimators.published.dnnmem:DnnMemEstimator",
        "faketensor": "cotenant.estimators.published.live_tensors:FakeTensorEstimator",
        "horus": "cotenant.estimators.published.parameter_rules:HorusEstimator",
        "llmem": "cotenant.estimators.published.llmem:LlMemEstimator",
        "memtracker": "cotenant.estimators.published.live_tensors:MemTrackerEstimator",
        "params16": "cotenant.estimators.published.parameter_rules:Params16Estimator",
        "boosting": "cotenant.estimators.learned.estimators:BoostingEstimator",
        "extra-trees": "cotenant.estimators.learned.estimators:ExtraTreesEstimator",
        "gpumemnet-mlp": "cotenant.estimators.learned.estimators:MlpEnsembleEstimator",
        "gpumemnet-sequence": "cotenant.estimators.learned.estimators:SequenceEnsembleEstimator",
        "schedtune": "cotenant.estimators.learned.estimators:SchedTuneEstimator",
        "hybrid": "cotenant.estimators.learned.hybrid:HybridEstimator",
    },
)


def create(name: str, tracer: Callable[[], TracedEstimator] | None = None) -> Estimator:
    """The estimator registered as `name`.

    `tracer` makes the `TracedEstimator` that runs scripts, with its cache and its options; it is called only for an
    estimator that declares a `from_tracer`.

    Raises:
        UnknownName: there is none of that name.
        PluginError: another distribution declares it, but it cannot be imported.
    """
    factory = ESTIMATORS.get(name)
    from_tracer = getattr(factory, "from_tracer", None)
    if tracer is None or from_tracer is None:
        return factory()
    estimator: Estimator = from_tracer(tracer())
    return estimator
