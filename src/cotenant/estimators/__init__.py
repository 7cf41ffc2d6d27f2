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
    "accelerate": ("cotenant.estimators.accelerate", "AccelerateEstimator"),
    "deepspeed-zero2": ("cotenant.estimators.deepspeed", "Zero2Estimator"),
    "deepspeed-zero3": ("cotenant.estimators.deepspeed", "Zero3Estimator"),
    "dnnmem": ("cotenant.estimators.dnnmem", "DnnMemEstimator"),
    "faketensor": ("cotenant.estimators.faketensor", "FakeTensorEstimator"),
    "horus": ("cotenant.estimators.horus", "HorusEstimator"),
    "llmem": ("cotenant.estimators.llmem", "LlMemEstimator"),
    "memtracker": ("cotenant.estimators.memtracker", "MemTrackerEstimator"),
    "params16": ("cotenant.estimators.params16", "Params16Estimator"),
    "boosting": ("cotenant.estimators.learned", "BoostingEstimator"),
    "extra-trees": ("cotenant.estimators.learned", "ExtraTreesEstimator"),
    "gpumemnet-mlp": ("cotenant.estimators.learned", "MlpEnsembleEstimator"),
    "gpumemnet-sequence": ("cotenant.estimators.learned", "SequenceEnsembleEstimator"),
    "hybrid": ("cotenant.estimators.learned_hybrid", "HybridEstimator"),
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
