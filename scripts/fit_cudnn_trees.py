"""Fits the decision trees of `src/cotenant/estimators/data/cudnn_trees` to cuDNN's answers on a null GPU.

    python scripts/fit_cudnn_trees.py measure --gpu A100-40GB --format tf32 --site SITE --folder measured
    python scripts/fit_cudnn_trees.py judge --folder measured
    python scripts/fit_cudnn_trees.py fit --folder measured

`measure` queries the cuDNN in SITE, a folder of packages with a CUDA build of torch, for `convolution_shapes.shapes()`:
half a minute for each GPU and format, without a GPU or a driver. `judge` fits to four fifths of the shapes and prints
how often trees, and the estimator without them, are within 2 % on the others; no channels, kernel and stride are in
both parts. `fit` writes the files of the package. Needs scikit-learn (the extra `learn`).
"""

from __future__ import annotations

import argparse
import gzip
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ask_cudnn import OPS, SMALL_BYTES, library
from convolution_shapes import shapes
from sklearn.tree import DecisionTreeClassifier

from cotenant.core.trace import LibraryCall
from cotenant.estimators.cudnn.trees import features, item_bytes, operand_bytes, read_trees
from cotenant.estimators.cudnn.workspaces import ConvRule
from cotenant.gpu_specs import gpu_spec

TREES = Path(__file__).parents[1] / "src/cotenant/estimators/data/cudnn_trees"
FORMATS = {
    "tf32": {"dtype": "float32", "tf32": True},
    "float32": {"dtype": "float32", "tf32": False},
    "half": {"dtype": "float16", "tf32": True},
}
LAYOUTS = ("", "_channels_last")
SPATIAL = ("stride", "padding", "dilation")
MIN_LEAF = 8
"""Shapes of a leaf: with 1, 3 and 5 more nodes were less often right on other shapes, 15 was as good."""
CLOSE = 0.02
COPY_COST = 0.0005
MAX_COPIES = 64
FOLDS = 5

Answers = Sequence[Sequence[int]]
"""For each shape the workspaces of `OPS`; -1 where cuDNN had no plan."""


def queries(form: str) -> list[dict[str, Any]]:
    """The shapes as queries without an operation, in format `form`."""
    name = form.removesuffix(LAYOUTS[1])
    common = {**FORMATS[name], "channels_last": form != name, "deterministic": False}
    return [{**{key: shape[key] for key in ("x", "w", "y", *SPATIAL)}, **common} for shape in shapes()]


def measure(gpu: str, form: str, site: Path, folder: Path) -> None:
    """Write the answers for all shapes."""
    cudnn, found = library(gpu, site), []
    for query in queries(form):
        plans = [cudnn.workspaces({**query, "kind": op}) for op in OPS]
        found.append(",".join(str(next(iter(sizes), -1)) for sizes in plans))
    head = f"# cuDNN {cudnn.version} on a null {gpu}, {form}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{gpu}_{form}.csv.gz").write_bytes(gzip.compress("\n".join([head, *found, ""]).encode(), mtime=0))


def measured(folder: Path) -> list[tuple[str, str, str, Answers]]:
    """GPU, format, first line and answers of all files in `folder`."""
    found = []
    for file in sorted(folder.glob("*.csv.gz")):
        head, *lines = gzip.decompress(file.read_bytes()).decode().splitlines()
        gpu, form = file.name.removesuffix(".csv.gz").split("_", 1)
        found.append((gpu, form, head, [list(map(int, line.split(","))) for line in lines]))
    if not found:
        sys.exit(f"no measurements in {folder}: run `measure` first")
    return found


def code_of(nbytes: int, query: dict[str, Any]) -> str:
    """The leaf that stands for `nbytes`; the inverse of `trees.leaf_bytes`, within 2 % or, for `r`, 5 %."""
    if nbytes <= SMALL_BYTES:
        return "0"
    x, y, weight, images = operand_bytes(query)
    plain = images * item_bytes(query) * math.prod(query["w"])
    if abs(nbytes - plain) <= max(512, 0.001 * nbytes):
        return "n"
    best = (CLOSE, f"r{round(10 * math.log(nbytes / (x + y + weight)))}")
    for name, base in (("", 0), ("x", x), ("y", y), ("xy", x + y)):
        copies = max(0, round((nbytes - base) / weight))
        if copies <= MAX_COPIES:
            error = abs(nbytes - base - copies * weight) / nbytes + COPY_COST * copies
            best = min(best, (error, f"{name}{copies or ''}" if name else f"w{copies}"))
    return best[1]


def fitted(rows: list[dict[str, int]], codes: Sequence[str]) -> str:
    """A tree as a line of the file, without its operation."""
    names = list(rows[0])
    table = np.array([list(row.values()) for row in rows], dtype=np.float32)
    model = DecisionTreeClassifier(min_samples_leaf=MIN_LEAF, random_state=0).fit(table, codes)
    tree, tokens, todo = model.tree_, [], [0]
    while todo:
        place = todo.pop()
        if tree.children_left[place] < 0:
            tokens.append(str(model.classes_[tree.value[place].argmax()]))
        else:
            tokens.append(f"{names[tree.feature[place]]}<={math.floor(tree.threshold[place])}")
            todo += [tree.children_right[place], tree.children_left[place]]
    return joined(tokens)


def joined(tokens: Sequence[str]) -> str:
    """The tokens of a tree in preorder as text; a node whose leaves are equal becomes one of them."""
    stack: list[list[str]] = []
    for token in reversed(tokens):
        if "<=" not in token:
            stack.append([token])
        else:
            low, high = stack.pop(), stack.pop()
            stack.append(low if low == high and len(low) == 1 else [token, *low, *high])
    return " ".join(stack.pop())


def text_of(head: str, form: str, answers: Answers, places: Sequence[int]) -> str:
    """A file of trees, fitted to the shapes at `places`."""
    asked = queries(form)
    rows = [features(asked[place]) for place in places]
    lines = [
        f"{op} {fitted(rows, [code_of(answers[place][column], asked[place]) for place in places])}"
        for column, op in enumerate(OPS)
    ]
    return "\n".join([f"{head}; {len(places)} shapes, scripts/fit_cudnn_trees.py", *lines, ""])


def fit(folder: Path) -> None:
    """Write the files of the package."""
    for gpu, form, head, answers in measured(folder):
        major, minor = gpu_spec(gpu).compute_capability
        text = text_of(head, form, answers, range(len(answers)))
        file = TREES / f"sm{major}{minor}_{head.split()[2]}_{form}.txt.gz"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(gzip.compress(text.encode(), mtime=0))
        print(file.name, file.stat().st_size, "bytes", text.count("<="), "nodes")


def judge(folder: Path) -> None:
    """Print, for shapes of the held-out fifth that are in no shipped table, how many answers are within 2 %."""
    for gpu, form, head, answers in measured(folder):
        asked = queries(form)
        held = [hash((query["x"][1], *query["w"], *query["stride"])) % FOLDS == 0 for query in asked]
        trees = read_trees(text_of(head, form, answers, [place for place, out in enumerate(held) if not out]))
        spec = gpu_spec(gpu)
        rule = ConvRule(capability=spec.compute_capability, sm_count=spec.sm_count, version=int(head.split()[2]))
        for column, op in enumerate(OPS):
            calls = [
                (call, {**query, "kind": op}, max(0, answers[place][column]))
                for place, query in enumerate(asked)
                if held[place] and rule.source_of(call := call_of(query, op)) != "table"
            ]
            by_rule = share([(rule(call), nbytes) for call, _, nbytes in calls])
            by_trees = share([(trees(query), nbytes) for _, query, nbytes in calls])
            print(f"{gpu} {form} {op} n={len(calls)}: rule {by_rule:.1%}, trees {by_trees:.1%}", flush=True)


def call_of(query: dict[str, Any], op: str) -> LibraryCall:
    """`query` as the tracer records it."""
    params = {key: tuple(value) if isinstance(value, list) else value for key, value in query.items()}
    groups = query["x"][1] // query["w"][1]
    extra = {"groups": groups, "transposed": False, "enabled": True, "allow_tf32": query["tf32"]}
    return LibraryCall(kind=op, thread="main", params={**params, **extra})


def share(pairs: Sequence[tuple[int, int]]) -> float:
    """The share of (guess, truth) in bytes that are within 2 %, or both small."""
    close = (
        abs(guess - nbytes) <= (CLOSE * nbytes if nbytes > SMALL_BYTES else SMALL_BYTES) for guess, nbytes in pairs
    )
    return sum(close) / len(pairs)


def main() -> None:
    """Measure, judge or fit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("measure", "judge", "fit"))
    parser.add_argument("--folder", type=Path, required=True, help="of measurements")
    parser.add_argument("--gpu", default="A100-40GB", help="model of GPU to measure")
    parser.add_argument("--format", choices=[name + layout for name in FORMATS for layout in LAYOUTS], default="tf32")
    parser.add_argument("--site", type=Path, help="folder with torch and NVIDIA's wheels to measure")
    args = parser.parse_args()
    if args.step == "measure":
        if args.site is None:
            parser.error("`measure` needs --site")
        measure(args.gpu, args.format, args.site, args.folder)
    else:
        {"judge": judge, "fit": fit}[args.step](args.folder)


if __name__ == "__main__":
    main()
