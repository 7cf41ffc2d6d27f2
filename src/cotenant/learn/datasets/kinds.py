"""What a layer does, by its class; shared with the learned estimators, which know layers by the same names."""

from cotenant.estimators.layer_kinds import LAYER_KINDS, LayerKind, layer_kind

__all__ = ["LAYER_KINDS", "LayerKind", "layer_kind"]
