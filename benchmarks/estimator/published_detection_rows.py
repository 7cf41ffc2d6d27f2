"""Rows of `published_memory` of detectors with images of one size: detectron2's ViTDet project.

The job imports a checkout of detectron2, in which `detectron2/model_zoo/configs` links to `configs`; its compiled
extension is not needed. Beside it:

    pip install --no-deps --target FOLDER fvcore iopath omegaconf==2.3.1 antlr4-python3-runtime==4.9.3 pycocotools \
        portalocker yacs tabulate termcolor cloudpickle 'setuptools<81'
    python -m benchmarks.estimator.ground_truth --set vitdet --pythonpath CHECKOUT:FOLDER
"""

from __future__ import annotations

from benchmarks.estimator.ground_truth_rows import Cells, Group, Row
from benchmarks.estimator.published_memory_rows import OLDEST_RULES, printed_bytes
from cotenant.core.units import GiB, MiB

COCO_MOST_OBJECTS = 63
"""In one training image. The peak was never reset, and each process met nearly every image at least once.

Source: Carion et al., End-to-End Object Detection with Transformers, 2020, section 4.
"""


def vitdet_row(cells: Cells) -> Row | str:
    """A row of `detectron2_all.csv`: one image of 1024 x 1024 for each of 64 processes, torch before 2.0."""
    if cells["image"] != "1024x1024 LSJ":
        return "images of varying size"
    config = cells["config"].removeprefix("configs/")
    if not config.startswith("COCO/"):
        return "objects in the fullest image of LVIS not known"
    measured, readings = printed_bytes(cells["peak_gib"], GiB, other_unit_bytes=1000 * MiB)
    return Row(
        title=config.removeprefix("COCO/").removesuffix(".py"),
        script="vitdet_row.py",
        args=("--config", config, "--objects", str(COCO_MOST_OBJECTS), "--old-torch"),
        gpu="A100-40GB",
        torch=OLDEST_RULES,
        measured_bytes=measured,
        quantity="allocated",
        readings=readings,
    )


PUBLISHED_DETECTION = {
    group.name: group
    for group in (
        Group(
            name="vitdet",
            file="published_memory/detectron2_all.csv",
            measures="max_memory_allocated of the first of 64 processes in whole MiB, of which somebody made GB",
            outside_bytes=0,
            imports=("torchvision", "detectron2", "detectron2.model_zoo"),
            packages=("fvcore",),
            row=vitdet_row,
            all_rows=True,
        ),
    )
}
