"""A workload becomes an Estimate: declared, traced, and later by history or learning.

A new estimator is one file and one line here; an estimator is imported when it is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from cotenant.core.errors import UnknownName
from cotenant.core.ports import Estimator

ESTIMATORS: Mapping[str, tuple[str, str]] = {
    "declared": ("cotenant.estimators.declared", "DeclaredEstimator"),
    "traced": ("cotenant.estimators.traced", "TracedEstimator"),
    "accelerate": ("cotenant.estimators.published.accelerate", "AccelerateEstimator"),
    "deepspeed-zero2": ("cotenant.estimators.published.deepspeed", "Zero2Estimator"),
    "deepspeed-zero3": ("cotenant.estimators.published.deepspeed", "Zero3Estimator"),
    "dnnmem": ("cotenant.estimators.published.dnnmem", "DnnMemEstimator"),
    "faketensor": ("cotenant.estimators.published.faketensor", "FakeTensorEstimator"),
    "horus": ("cotenant.estimators.published.horus", "HorusEstimator"),
    "llmem": ("cotenant.estimators.published.llmem", "LlMemEstimator"),
    "memtracker": ("cotenant.estimators.published.memtracker", "MemTrackerEstimator"),
    "params16": ("cotenant.estimators.published.params16", "Params16Estimator"),
    "boosting": ("cotenant.estimators.learned.estimators", "BoostingEstimator"),
    "extra-trees": ("cotenant.estimators.learned.estimators", "ExtraTreesEstimator"),
    "gpumemnet-mlp": ("cotenant.estimators.learned.estimators", "MlpEnsembleEstimator"),
    "gpumemnet-sequence": ("cotenant.estimators.learned.estimators", "SequenceEnsembleEstimator"),
    "hybrid": ("cotenant.estimators.learned.hybrid", "HybridEstimator"),
}


def create(name: str) -> Estimator:
    """The estimator registered as `name`.

    Raises:
        UnknownName: there is none.
    """
    if name not in ESTIMATORS:
        raise UnknownName("estimator", name, ESTIMATORS)
    module, attribute = ESTIMATORS[name]
    made: Estimator = getattr(importlib.import_module(module), attribute)()
    return made
