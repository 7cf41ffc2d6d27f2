"""Images that are read without Python, recordings, videos, and tables of images, with `--synthetic-data`."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

import torch

from cotenant.tracing.data.data_options import parse_sample
from cotenant.tracing.data.images import synthetic_videos
from traced_scripts import trained

IMAGES = pytest.mark.skipif(importlib.util.find_spec("PIL") is None, reason="needs Pillow")
TABLES = pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="needs pandas")
SOUNDFILE = pytest.mark.skipif(importlib.util.find_spec("soundfile") is None, reason="needs soundfile")


def _reads_images() -> bool:
    """Whether the compiled readers of torchvision are there; builds for another torch do not load."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return False
    try:
        torch.ops.load_library(next(Path(spec.origin).parent.glob("image*.so")))
    except (OSError, StopIteration):
        return False
    return True


@IMAGES
@pytest.mark.skipif(not _reads_images(), reason="needs torchvision with its compiled readers of images")
def test_torchvision_reads_made_up_images_and_masks(tmp_path):
    source = """
    from torchvision.io import read_image
    images, masks = (sorted(os.listdir(f"data/people/{name}")) for name in ("PNGImages", "PedMasks"))
    image, mask = (
        read_image(f"data/people/{name}/{files[0]}") for name, files in (("PNGImages", images), ("PedMasks", masks))
    )
    assert image.shape == (3, 8, 16) and mask.shape == (1, 8, 16)
    assert mask.unique().tolist() == [0, 1]
    assert read_image("data/train/named_elsewhere.png").shape == (3, 8, 16)
    """
    trained(tmp_path, source, synthetic_data=["3x8x16:uint8:7"])


@pytest.mark.parametrize(
    ("reading", "shape"),
    [
        pytest.param("wave.open(files[7]).getnframes()", "32000", id="wave"),
        pytest.param("wave.open(files[7]).getnframes()", "1x32000", id="wave, with its channel"),
        pytest.param("soundfile.info(files[7]).frames", "32000", id="soundfile, info", marks=SOUNDFILE),
        pytest.param("len(soundfile.read(files[7])[0])", "32000", id="soundfile, read", marks=SOUNDFILE),
    ],
)
def test_a_missing_folder_of_recordings_is_listed_and_read(tmp_path, reading, shape):
    source = f"""
    import wave
    import importlib.util
    if importlib.util.find_spec("soundfile"):
        import soundfile
    root = "data/speakers"
    files = [os.path.join(at, name) for at, _, names in os.walk(root) for name in names if name.endswith(".wav")]
    assert len(files) == 2000 and {{Path(file).name.split("_")[0] for file in files}} == set(map(str, range(7)))
    assert len(os.listdir("data/clean")) == 2000
    assert {reading} == 32_000
    """
    trained(tmp_path, source, synthetic_data=[f"{shape}:float32:7"])


def test_recordings_of_a_made_up_list_are_there(tmp_path):
    source = """
    with open("filelists/train.txt") as lines:
        files = [os.path.join("data", line.split("|")[0] + ".wav") for line in lines.read().split("\\n") if line]
    for file in files:
        assert os.path.exists(file), "not found"
    assert len(files) == 2000 and [name for name in files if os.path.exists(name)] == files
    assert not os.path.exists("data/000003.pkl") and not os.path.exists("out/000003.wav")
    """
    trained(tmp_path, source, synthetic_data=["32000:float32"])


@IMAGES
@TABLES
@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        pytest.param("table['image_id'] + '.png'", ".png", id="the script appends the suffix"),
        pytest.param("table.file_name", ".jpg", id="the table has it"),
    ],
)
def test_a_missing_table_names_images_and_their_labels(tmp_path, name, suffix):
    source = f"""
    import pandas
    from PIL import Image
    table = pandas.read_csv("data/train.csv")
    table["path"] = ["data/train_images/" + name for name in {name}]
    assert len(table) == 2000 and set(table.label) == set(range(5))
    kept = table[table.path.map(os.path.exists)].reset_index(drop=True)
    assert len(kept) == 2000 and kept.path[0].endswith({suffix!r})
    assert Image.open(kept.iloc[3].path).size == (16, 8)
    boxes = kept.groupby("label").get_group(2).loc[:, ["XMin", "YMin", "XMax", "YMax"]].values
    assert boxes.shape == (400, 4) and boxes[0].tolist() == [0, 0, 1, 1]
    assert set(kept.fold_number) == set(range(5)) and kept.caption[0].startswith("word")
    """
    trained(tmp_path, source, synthetic_data=["3x8x16:uint8:5"])


@TABLES
def test_a_missing_table_has_rows_of_each_part_and_images_as_numbers(tmp_path):
    source = """
    import pandas
    table = pandas.read_csv("data/fer2013.csv")
    own, other = table[table.Usage == "Training"], table[table.Usage == "PublicTest"]
    assert len(own) == len(other) == 1000 and set(own.emotion) | set(other.emotion) == set(range(5))
    assert [int(number) for number in other.pixels.iloc[0].split(" ")] == [0] * 128
    """
    trained(tmp_path, source, synthetic_data=["1x8x16:uint8:5"])


@IMAGES
@pytest.mark.skipif(importlib.util.find_spec("cv2") is None, reason="needs OpenCV")
def test_a_missing_folder_of_videos_is_listed_and_read(tmp_path):
    source = """
    import cv2
    root = "data/UCF-101"
    classes = sorted(os.listdir(root))
    files = [os.path.join(root, name, clip) for name in classes for clip in os.listdir(os.path.join(root, name))
             if clip.endswith(".avi")]
    assert len(classes) == 7 and len(files) >= 1900 and len(glob.glob("videos/*.mp4")) >= 100
    video, frames = cv2.VideoCapture(files[7]), []
    assert video.isOpened() and video.get(cv2.CAP_PROP_FRAME_COUNT) == 300
    assert (video.get(cv2.CAP_PROP_FRAME_WIDTH), video.get(cv2.CAP_PROP_FRAME_HEIGHT)) == (16, 8)
    video.set(cv2.CAP_PROP_POS_FRAMES, 290)
    while True:
        is_there, frame = video.read()
        if not is_there:
            break
        frames.append(frame)
    assert len(frames) == 10 and frames[0].shape == (8, 16, 3)
    """
    trained(tmp_path, source, synthetic_data=["3x8x16:uint8:7"])


@pytest.mark.parametrize(
    ("reading", "shape"),
    [
        pytest.param("read_video(path, pts_unit='sec')[0]", (300, 8, 16, 3), id="torchvision"),
        pytest.param("read_video(path, output_format='TCHW')[0]", (300, 3, 8, 16), id="torchvision, channels first"),
    ],
)
def test_a_missing_video_is_read_as_a_tensor(reading, shape):
    image = parse_sample("3x8x16:uint8")
    read_video = functools.partial(synthetic_videos._read_video, [image], image)
    assert eval(reading, {"read_video": read_video, "path": "data/clip.mp4"}).shape == shape


@IMAGES
@pytest.mark.parametrize(
    ("sample", "line", "mode"),
    [
        pytest.param("3x8x16:uint8:2", 'label = Image.open(os.path.join("data/OUT", "7.png"))', "L", id="label"),
        pytest.param("3x8x16:uint8:2", 'label = Image.open("data/OUT/7.png").convert("RGB")', "RGB", id="converted"),
        pytest.param("3x8x16:uint8", 'label = Image.open("data/OUT/7.png")', "RGB", id="an image to restore"),
        pytest.param("3x8x16:uint8", 'a_mask = Image.open("data/OUT/7.png")', "L", id="mask"),
        pytest.param("3x8x16:uint8:2", 'image = Image.open("data/OUT/7.png")', "RGB", id="image"),
    ],
)
def test_an_image_that_is_opened_as_a_label_has_one_channel(tmp_path, sample, line, mode):
    source = f"""
    from PIL import Image
    {line}
    assert {line.partition(" = ")[0]}.mode == {mode!r}
    """
    trained(tmp_path, source, synthetic_data=[sample])
