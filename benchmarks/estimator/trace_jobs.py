"""Jobs of the published traces that `demo.published` does not repeat: two GPUs, recommendation, detection, Llama.

Each is an example with the arguments that repeat the job as far as its settings are published.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cotenant.core.units import MiB
from cotenant.demo.published import MeasuredScript


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """A job of the traces.

    Attributes:
        published: its model and batch in the publication's table of estimates.
        assumed: which settings are ours, since they are not published.
        longest: whether batches are made of the longest samples, as the peak of a whole epoch is.
    """

    script: MeasuredScript
    published: tuple[str, str]
    assumed: str = ""
    gpus: int = 1
    longest: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Example:
    """The example that repeats a row of `realworld_measured.csv`; `run` names the row's measuring session."""

    words: tuple[str, ...]
    published: str
    run: str = "2025-09"
    gpus: int = 1
    assumed: str = ""
    longest: bool = False


_GRAPHS = "the encoder's and decoder's details; validation keeps its graphs, as measured"
_EXAMPLES: Mapping[str, _Example] = {
    "gpt2-large": _Example(words=("gpt2.py", "--size", "large", "--data-parallel"), published="gpt2_large", gpus=2),
    "gpt2-xl": _Example(
        words=("gpt2.py", "--size", "xl", "--optimizer-loop"),
        published="gpt2_xl",
        run="2024-10",
        assumed="AdamW in a loop",
    ),
    "xlnet-base-cased": _Example(
        words=("xlnet.py", "--size", "base"), published="xlnet_base", gpus=2, assumed="lengths", longest=True
    ),
    "xlnet-large-cased": _Example(
        words=("xlnet.py", "--size", "large"), published="xlnet_large", gpus=2, assumed="lengths", longest=True
    ),
    "Unet(resnet34)": _Example(words=("unet.py", "--validate-with-graph"), published="UNet", assumed=_GRAPHS),
    "DLRM": _Example(words=("dlrm.py",), published="DLRM", assumed="at most 100,000 rows a table"),
    "maskrcnn_resnet50_fpn": _Example(
        words=(
            *("detection.py", "--model", "maskrcnn_resnet50_fpn", "--side", "480", "--other-side", "640"),
            *("--classes", "91"),
        ),
        published="MaskRCNN",
        assumed="images of 480 x 640 and 640 x 480",
    ),
}


def trace_jobs(table: Path, profiles: Path) -> Iterator[TraceJob]:
    """The jobs in `realworld_measured.csv`, and the Llama of AEGIS in `workload_profiles_a100.csv`, where that is."""
    with table.open(newline="", encoding="utf-8") as lines:
        for cells in csv.DictReader(lines):
            example = _EXAMPLES.get(cells["model"].split(" ")[0])
            if example is not None and cells["run"] == example.run:
                script = _script(example.words, cells["batch"], cells["measured_mib"], cells["source"])
                yield TraceJob(
                    script=script,
                    published=(example.published, cells["batch"]),
                    assumed=example.assumed,
                    gpus=example.gpus,
                    longest=example.longest,
                )
    if profiles.is_file():
        with profiles.open(newline="", encoding="utf-8") as lines:
            for cells in csv.DictReader(lines):
                if cells["spec"].startswith("llama3_width_8layer"):
                    words, source = ("llama.py", "--variant", "width"), "AEGIS, first 200 s"
                    script = _script(words, "1", cells["peak_mem_mib_200s"], source)
                    yield TraceJob(script=script, published=("", ""), assumed="bfloat16, 512 tokens, Llama 3's width")


def _script(words: tuple[str, ...], batch: str, measured_mib: str, source: str) -> MeasuredScript:
    return MeasuredScript(
        script=words[0],
        args=(*words[1:], "--batch-size", batch),
        measured_bytes=int(measured_mib) * MiB,
        faketensor_bytes=None,
        source=source,
    )
