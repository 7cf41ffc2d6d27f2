"""Graphs of PyTorch Geometric that are not on this machine: as many nodes, edges and features as the real ones have.

Only data sets whose numbers are known by name: memory follows from them. Edges join neighbors in a ring; masks have the
sizes of the public split.
Source of the numbers: the tables in the docstrings of torch_geometric/datasets/{planetoid,tu_dataset}.py.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from cotenant.tracing.patches.registry import ImportPatch, Patch, Phase


@dataclass(frozen=True, slots=True)
class GraphSize:
    """One graph, and how many there are."""

    nodes: int
    edges: int
    features: int
    classes: int
    graphs: int = 1


_CITATIONS = {
    "cora": GraphSize(2708, 10556, 1433, 7),
    "citeseer": GraphSize(3327, 9104, 3703, 6),
    "pubmed": GraphSize(19717, 88648, 500, 3),
}
_MANY = {
    "mutag": GraphSize(18, 40, 7, 2, 188),
    "enzymes": GraphSize(33, 124, 3, 6, 600),
    "proteins": GraphSize(39, 146, 3, 2, 1113),
    "collab": GraphSize(74, 4914, 0, 3, 5000),
    "imdb-binary": GraphSize(20, 193, 0, 2, 1000),
    "reddit-binary": GraphSize(430, 996, 0, 2, 2000),
}
_TRAIN_NODES_OF_CLASS, _VALIDATION_NODES, _TEST_NODES = 20, 500, 1000
_KNOWN = {"Planetoid": _CITATIONS, "TUDataset": _MANY}


def patches(warn: Callable[[str], None]) -> list[ImportPatch]:
    """The construction of these data sets."""
    reason = "It downloads the data."

    def expand(module: ModuleType) -> list[Patch]:
        return [
            Patch(
                target=f"torch_geometric.datasets:{name}.__init__", phase=Phase.DATA, wraps=True, reason=reason,
                replacement=functools.partial(_with_missing_graphs, sizes, warn),
                source="torch_geometric/data/dataset.py, `Dataset._download`",
            )
            for name, sizes in _KNOWN.items()
            if hasattr(module, name)
        ]  # fmt: skip

    return [
        ImportPatch(
            target="torch_geometric.datasets", phase=Phase.DATA, expand=expand, reason=reason,
            source="torch_geometric/data/dataset.py, `Dataset._download`",
        )
    ]  # fmt: skip


def _with_missing_graphs(sizes: dict[str, GraphSize], warn: Callable[[str], None], original: Any) -> Any:
    @functools.wraps(original)
    def init(self: Any, root: str, name: str, *args: Any, **kwargs: Any) -> None:
        try:
            original(self, root, name, *args, **kwargs)
        except OSError:  # of `fsspec`, `aiohttp` or `urllib`
            size = sizes.get(name.lower())
            if size is None:
                raise
            warn(f"the graph data `{name}`")
            graphs = [_graph(size, index) for index in range(size.graphs)]
            if getattr(self, "pre_transform", None) is not None:
                graphs = [self.pre_transform(graph) for graph in graphs]
            self._data_list = None
            self._data, self.slices = self.collate(graphs)

    return init


def _graph(size: GraphSize, index: int) -> Any:
    nodes, numbers = size.nodes, torch.arange(size.edges)
    source = numbers % nodes
    target = (source + 1 + numbers // nodes) % nodes
    features = torch.zeros(nodes, size.features) if size.features else None
    data = importlib.import_module("torch_geometric.data").Data(x=features, edge_index=torch.stack((source, target)))
    if features is None:
        data.num_nodes = nodes
    if size.graphs > 1:
        data.y = torch.tensor([index % size.classes])
        return data
    data.y = torch.arange(nodes) % size.classes
    ends = (0, _TRAIN_NODES_OF_CLASS * size.classes, _VALIDATION_NODES, _TEST_NODES)
    for name, first, count in zip(("train", "val", "test"), (0, ends[1], nodes - ends[3]), ends[1:], strict=True):
        mask = torch.zeros(nodes, dtype=torch.bool)
        mask[first : first + count] = True
        data[f"{name}_mask"] = mask
    return data
