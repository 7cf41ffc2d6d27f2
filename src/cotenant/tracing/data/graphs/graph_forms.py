"""What a graph of PyTorch Geometric holds, by the class of its data set: attributes, their shapes and dtypes.

Only classes of which both are known: the form, and that the numbers of their documentation count edges as `edge_index`
does. Source: `process` of each class in torch_geometric/datasets, and ogb/nodeproppred/dataset_pyg.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from cotenant.tracing.data.graphs.published_graphs import GraphSize


@dataclass(frozen=True, slots=True)
class Attribute:
    """A tensor of a graph.

    Attributes:
        shape: numbers, or letters for nodes (N), edges (E), features (F), attributes of a node (A), features of an
            edge (D), classes (C), tasks (T).
        values: how many different whole numbers it has, or a letter; 0 for zeros of float32.
    """

    shape: str
    values: int | str = 0


@dataclass(frozen=True, slots=True)
class GraphForm:
    """The attributes of a graph.

    Attributes:
        attributes: by name, beside `edge_index`.
        split: shares of nodes in the masks for training, validation and test; empty without masks.
        splits: columns of the masks; 0 for masks of one dimension.
        is_directed: an edge says nothing of the opposite one.
    """

    attributes: Mapping[str, Attribute]
    split: tuple[float, ...] = ()
    splits: int = 0
    is_directed: bool = False
    has_edges: bool = True


_NODES = {"x": Attribute("NF"), "y": Attribute("N", "C")}
_MOLECULE = {"x": Attribute("N1", 28), "edge_attr": Attribute("E", 4), "y": Attribute("1")}
_POINTS = {"pos": Attribute("N3")}
_GEOM_GCN = GraphForm(_NODES, (0.48, 0.32, 0.2), splits=10, is_directed=True)
_REDDIT = GraphForm(_NODES, (0.66, 0.1, 0.24))
_PLANETOID = (20, 500, 1000)
"""Nodes of a class to train on, of validation and of test. Source: the public split of planetoid.py."""
FORMS = {
    "Planetoid": GraphForm(_NODES, _PLANETOID),
    **dict.fromkeys(("CitationFull", "CoraFull", "Coauthor", "Amazon"), GraphForm(_NODES)),
    **dict.fromkeys(("WikipediaNetwork", "WebKB", "Actor"), _GEOM_GCN),
    **dict.fromkeys(("Reddit", "Reddit2"), _REDDIT),
    "Flickr": GraphForm(_NODES, (0.5, 0.25, 0.25)),
    "Yelp": GraphForm({"x": Attribute("NF"), "y": Attribute("NT")}, (0.75, 0.1, 0.15)),
    "PPI": GraphForm({"x": Attribute("NF"), "y": Attribute("NT")}),
    "TUDataset": GraphForm({"x": Attribute("NF"), "edge_attr": Attribute("ED"), "y": Attribute("1", "C")}),
    **dict.fromkeys(("ZINC", "AQSOL"), GraphForm(_MOLECULE)),
    "MoleculeNet": GraphForm({"x": Attribute("N9", 5), "edge_attr": Attribute("E3", 2), "y": Attribute("1C")}),
    "QM9": GraphForm(
        {
            "x": Attribute("NF"),
            "edge_attr": Attribute("E4"),
            "y": Attribute("1T"),
            "pos": Attribute("N3"),
            "z": Attribute("N", 9),
        }
    ),
    "MNISTSuperpixels": GraphForm({"x": Attribute("NF"), "pos": Attribute("N2"), "y": Attribute("1", "C")}),
    "ModelNet": GraphForm({**_POINTS, "face": Attribute("3E", "N"), "y": Attribute("1", "C")}, has_edges=False),
    "FAUST": GraphForm({**_POINTS, "face": Attribute("3E", "N"), "y": Attribute("1", "C")}, has_edges=False),
    "ShapeNet": GraphForm(
        {**_POINTS, "x": Attribute("N3"), "y": Attribute("N", "C"), "category": Attribute("1", 16)}, has_edges=False
    ),
    "BitcoinOTC": GraphForm({"edge_attr": Attribute("E", 11)}, is_directed=True),
    "PygNodePropPredDataset": GraphForm(
        {"x": Attribute("NF"), "edge_attr": Attribute("ED"), "y": Attribute("N1", "C")}, is_directed=True
    ),
}


def form_of(dataset: Any) -> GraphForm | None:
    """The form of the graphs of a data set, by its class; None where it is not known."""
    return next((FORMS[kind.__name__] for kind in type(dataset).__mro__ if kind.__name__ in FORMS), None)


def made_graph(form: GraphForm, size: GraphSize) -> dict[str, Any]:
    """The attributes of one graph."""
    lengths: dict[str | int, int] = {
        "N": size.nodes, "E": size.edges, "F": size.features + size.node_attributes, "D": size.edge_features,
        "T": size.tasks, "C": size.classes,
    }  # fmt: skip
    made: dict[str, Any] = {}
    for name, attribute in form.attributes.items():
        shape = [lengths.get(letter) or (int(letter) if letter.isdigit() else 0) for letter in attribute.shape]
        if 0 not in shape:
            values = attribute.values
            made[name] = _values(shape, values if isinstance(values, int) else lengths[values])
    if form.has_edges:
        made["edge_index"] = edges(size.nodes, size.edges, is_directed=form.is_directed)
    if "x" not in made and "pos" not in made:
        made["num_nodes"] = size.nodes
    return {**made, **_masks(form, size)}


def _values(shape: list[int], count: int) -> torch.Tensor:
    if not count:
        return torch.zeros(shape)
    return (torch.arange(torch.Size(shape).numel()) % count).reshape(shape)


def edges(nodes: int, count: int, *, is_directed: bool) -> torch.Tensor:
    """`edge_index` of nodes in a ring, each joined with its next ones; in both directions, unless directed."""
    numbers = torch.arange(count if is_directed else (count + 1) // 2)
    source = numbers % nodes
    target = (source + 1 + numbers // nodes) % nodes
    one_way = torch.stack((source, target))
    return one_way if is_directed else torch.cat((one_way, one_way.flip(0)), 1)[:, :count]


def _masks(form: GraphForm, size: GraphSize) -> dict[str, torch.Tensor]:
    if not form.split:
        return {}
    train, *others = form.split
    counts = [train * (size.classes if train >= 1 else size.nodes), *(o if o >= 1 else o * size.nodes for o in others)]
    made, first = {}, 0
    for name, count in zip(("train", "val", "test"), map(int, counts), strict=True):
        mask = torch.zeros(size.nodes, dtype=torch.bool)
        mask[first : first + count] = True
        made[f"{name}_mask"] = mask[:, None].repeat(1, form.splits) if form.splits else mask
        first += count
    return made
