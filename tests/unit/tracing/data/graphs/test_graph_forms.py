"""Graphs that are made up: the attributes that a class of PyTorch Geometric gives them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.tracing.data.graphs import graph_forms  # noqa: E402
from cotenant.tracing.data.graphs.published_graphs import GraphSize  # noqa: E402


def shapes(kind, size):
    graph = graph_forms.made_graph(graph_forms.FORMS[kind], size)
    return {name: tuple(getattr(value, "shape", ())) for name, value in graph.items()}


def test_a_graph_of_nodes_has_labels_and_the_public_split():
    size = GraphSize(nodes=2708, edges=10556, features=1433, classes=7)
    graph = graph_forms.made_graph(graph_forms.FORMS["Planetoid"], size)
    assert [int(graph[f"{part}_mask"].sum()) for part in ("train", "val", "test")] == [140, 500, 1000]
    assert (graph["x"].shape, graph["edge_index"].shape, int(graph["y"].max())) == ((2708, 1433), (2, 10556), 6)
    assert {tuple(edge) for edge in graph["edge_index"].T.tolist()} == {
        tuple(edge) for edge in graph["edge_index"].flip(0).T.tolist()
    }


def test_attributes_follow_the_class():
    assert shapes("QM9", GraphSize(nodes=18, edges=37, features=11, tasks=19, graphs=9)) == {
        "x": (18, 11), "edge_attr": (37, 4), "y": (1, 19), "pos": (18, 3), "z": (18,), "edge_index": (2, 37),
    }  # fmt: skip
    assert shapes("TUDataset", GraphSize(nodes=20, edges=193, classes=2, graphs=9)) == {
        "y": (1,), "edge_index": (2, 193), "num_nodes": (),
    }  # fmt: skip
    assert shapes("ModelNet", GraphSize(nodes=90, edges=70, features=3, classes=10, graphs=9)) == {
        "pos": (90, 3), "face": (3, 70), "y": (1,),
    }  # fmt: skip
    assert shapes("Actor", GraphSize(nodes=100, edges=30, features=2, classes=5))["train_mask"] == (100, 10)


@pytest.mark.parametrize("is_directed", [False, True])
def test_edges_are_different_and_within_the_graph(is_directed):
    edges = graph_forms.edges(74, 4914, is_directed=is_directed)
    assert edges.shape == (2, 4914)
    assert len({tuple(edge) for edge in edges.T.tolist()}) == 4914
    assert (int(edges.min()), int(edges.max())) == (0, 73)
