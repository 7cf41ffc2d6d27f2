"""What a layer does, by its class; shared with the learned estimators, which know layers by the same names."""

from cotenant.estimators.layers import KINDS, Kind, kind_of

__all__ = ["KINDS", "Kind", "kind_of"]
