"""Which arguments of a script name folders of data."""

from __future__ import annotations

import shlex

import pytest

from cotenant.tracing.data.missing_folders import data_folders


@pytest.mark.parametrize(
    ("arguments", "folders"),
    [
        pytest.param("--coco_path /data/coco --output_dir /runs/1", ["/data/coco"], id="a folder that is written to"),
        pytest.param("-a resnet18 /data/imagenet", ["/data/imagenet"], id="positional"),
        pytest.param("--data-path=data/imagenet -j 4", ["data/imagenet"], id="below a folder of data"),
        pytest.param("data.root=/sets/x model.ckpt=/w/x", ["/sets/x"], id="hydra"),
        pytest.param("--model_name_or_path google/vit --dataset_name org/set", [], id="names of the hub"),
        pytest.param("--data coco128.yaml --train_file /d/train.json", [], id="files"),
        pytest.param("--resume /ckpt/last --lr 0.1", [], id="a checkpoint"),
        pytest.param("--data-dir Market-1501-v15.09.15", ["Market-1501-v15.09.15"], id="ends with a version"),
        pytest.param("--instance_data_dir=dog --output_dir=out", ["dog"], id="one word"),
        pytest.param("--image_encoder_path=laion/clip --image_dir a/b", ["a/b"], id="a part of a model"),
    ],
)
def test_folders_of_data_are_recognized(arguments, folders):
    assert list(data_folders(shlex.split(arguments))) == folders
