"""Fitted models as plain arrays, for estimators that run without torch and scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cotenant.estimators.learned.weights import Weights
from cotenant.learn.datasets.feature_table import Matrix


def range_of(names: Sequence[str], matrix: Matrix) -> dict[str, object]:
    """`features`, `low` and `high` of the meta."""
    return {"features": list(names), "low": matrix.min(axis=0).tolist(), "high": matrix.max(axis=0).tolist()}


def forest(regressor: Any, meta: Mapping[str, object]) -> Weights:
    """Trees of scikit-learn: a forest, whose leaves are averaged, or histogram gradient boosting, which sums them."""
    if hasattr(regressor, "estimators_"):
        trees = [_of_forest(tree.tree_) for tree in regressor.estimators_]
        scale, base = 1 / len(trees), 0.0
    else:
        trees = [_of_boosting(tree[0].nodes) for tree in regressor._predictors]
        scale, base = 1.0, float(np.ravel(regressor._baseline_prediction)[0])
    sizes = [len(tree[0]) for tree in trees]
    feature, threshold, left, right = (np.concatenate(parts) for parts in zip(*trees, strict=True))
    return Weights(
        {**meta, "scale": scale, "base": base},
        {
            "feature": feature.astype(np.int8),
            "threshold": threshold.astype(np.float32),
            "left": left.astype(np.uint16),
            "right": right.astype(np.uint16),
            "roots": np.cumsum([0, *sizes[:-1]]).astype(np.int32),
        },
    )


def _of_forest(tree: Any) -> tuple[Any, ...]:
    leaf = tree.children_left < 0
    threshold = np.where(leaf, tree.value[:, 0, 0], tree.threshold)
    children = (np.where(leaf, 0, indices) for indices in (tree.children_left, tree.children_right))
    return (np.where(leaf, -1, tree.feature), threshold, *children)


def _of_boosting(nodes: Any) -> tuple[Any, ...]:
    leaf = nodes["is_leaf"].astype(bool)
    threshold = np.where(leaf, nodes["value"], nodes["num_threshold"])
    children = (np.where(leaf, 0, nodes[side]) for side in ("left", "right"))
    return (np.where(leaf, -1, nodes["feature_idx"]), threshold, *children)


def perceptrons(net: Any, meta: Mapping[str, object]) -> Weights:
    """The MLP ensemble, its batch norms folded into the weights."""
    state = {name: value.detach().numpy().astype(np.float64) for name, value in net.state_dict().items()}
    weights, biases, active = [], [], []
    levels = sum(name.startswith("mean") for name in state)
    for level in range(levels):
        gain = state[f"scales.{level}"] / np.sqrt(state[f"variance{level}"] + 1e-5)
        used = state[f"used{level}"][:, 0]
        weights.append(state[f"weights.{level}"] * (gain * used)[:, None])
        shift = (state[f"biases.{level}"] - state[f"mean{level}"]) * gain + state[f"shifts.{level}"]
        biases.append((shift * used)[:, None])
        active.append(state[f"active{level}"].astype(bool))
    return Weights(
        meta,
        {
            "first": weights[0].astype(np.float32),
            "first_bias": biases[0][:, 0].astype(np.float32),
            "inner": np.stack(weights[1:]).astype(np.float32),
            "inner_bias": np.stack(biases[1:]).astype(np.float32),
            "active": np.stack(active[1:]),
            "head": state["head"].astype(np.float32),
            "head_bias": state["head_bias"].astype(np.float32),
        },
    )


def encoders(net: Any) -> dict[str, Any]:
    """The arrays of the encoders, each name after the encoder's number."""
    return {
        f"{number}.{name}": value.detach().numpy().astype(np.float32)
        for number, encoder in enumerate(net.encoders)
        for name, value in encoder.state_dict().items()
    }
