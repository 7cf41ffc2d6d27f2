"""How large the graphs of PyTorch Geometric and OGB are, by their documentation: memory follows from these numbers.

The classes of PyTorch Geometric have them as tables in their docstrings, which are read from the installed version.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSize:
    """One graph, and how many there are; of different graphs the means.

    Attributes:
        edges: columns of `edge_index`: an undirected edge counts twice.
        features: of a node.
        edge_features: of an edge.
        node_attributes: further features, which TUDataset gives with `use_node_attr=True`.
        classes: 0 without labels, and where `tasks` are predicted instead.
    """

    nodes: int
    edges: int
    features: int = 0
    edge_features: int = 0
    node_attributes: int = 0
    classes: int = 0
    tasks: int = 0
    graphs: int = 1

    def __str__(self) -> str:
        one = f"{self.nodes:,} nodes, {self.edges:,} edges, {self.features:,} features"
        return one if self.graphs == 1 else f"{self.graphs:,} graphs, each of the mean size: {one}"


_WITHOUT_TABLE = {
    "TUDataset": {
        "colors-3": GraphSize(nodes=61, edges=182, node_attributes=4, classes=11, graphs=10500),
        "triangles": GraphSize(nodes=21, edges=65, classes=10, graphs=45000),
        "mutagenicity": GraphSize(nodes=30, edges=62, features=14, edge_features=3, classes=2, graphs=4337),
        "nci1": GraphSize(nodes=30, edges=65, features=37, classes=2, graphs=4110),
        "dd": GraphSize(nodes=284, edges=1431, features=89, classes=2, graphs=1178),
    },
    "WikipediaNetwork": {
        "chameleon": GraphSize(nodes=2277, edges=36101, features=2325, classes=5),
        "squirrel": GraphSize(nodes=5201, edges=217073, features=2089, classes=5),
    },
    "PygNodePropPredDataset": {
        "ogbn-arxiv": GraphSize(nodes=169343, edges=1166243, features=128, classes=40),
        "ogbn-products": GraphSize(nodes=2449029, edges=2 * 61859140, features=100, classes=47),
        "ogbn-proteins": GraphSize(nodes=132534, edges=2 * 39561252, edge_features=8, tasks=112),
    },
}
"""Sources: https://chrsmrrs.github.io/datasets/docs/datasets; dgl/data/geom_gcn.py; https://ogb.stanford.edu/docs/nodeprop:
all but geom_gcn.py count an undirected edge once."""
_MORE = {
    "proteins": {"node_attributes": 1},
    "enzymes": {"node_attributes": 18},
    "mutag": {"edge_features": 4},
}
"""Of data sets of TUDataset, what the table of its docstring does not have."""
_CELL = re.compile(r"^\s*(\* )?\s*- *(.*?)\s*$", re.MULTILINE)
_COLUMNS = {
    "#graphs": "graphs", "#nodes": "nodes", "#edges": "edges", "#features": "features", "#classes": "classes",
    "#tasks": "tasks",
}  # fmt: skip


def published_size(dataset: Any) -> GraphSize | None:
    """The size of a data set's graphs, by its class and its `name`; None where its documentation has no numbers."""
    sizes: dict[str, GraphSize] = {}
    for kind in type(dataset).__mro__:
        sizes = {**_table(kind), **_WITHOUT_TABLE.get(kind.__name__, {})}
        if sizes:
            break
    name = getattr(dataset, "name", None)
    if not isinstance(name, str):
        return next(iter(sizes.values()), None)
    size = next((size for known, size in sizes.items() if known.endswith(name.lower())), None)
    return size and replace(size, **_MORE.get(name.lower(), {}))


def _table(kind: type) -> dict[str, GraphSize]:
    """The rows of the table in a docstring, by their names in lower case."""
    _, is_there, text = (inspect.getdoc(kind) or "").partition("list-table::")
    head, *rows = _rows(text) if is_there else [[]]
    if not {"#nodes", "#edges"} <= set(head):
        return {}
    found = {}
    for row in rows:
        numbers = {_COLUMNS[title]: _number(cell) for title, cell in zip(head, row, strict=False) if title in _COLUMNS}
        known = {field: number for field, number in numbers.items() if number is not None}
        if {"nodes", "edges"} <= known.keys():
            found[row[0].lower() if head[0] == "Name" else ""] = GraphSize(**known)
    return found


def _rows(text: str) -> Iterator[list[str]]:
    row: list[str] = []
    for is_first, cell in _CELL.findall(text):
        if is_first and row:
            yield row
            row = []
        row.append(cell)
    yield row


def _number(cell: str) -> int | None:
    """`~1,393.0` is 1393; None for `...`."""
    digits = cell.lstrip("~").replace(",", "")
    return round(float(digits)) if re.fullmatch(r"\d+(?:\.\d+)?", digits) else None
