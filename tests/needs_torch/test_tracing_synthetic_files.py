"""Images, texts and tables that a script looks for by itself, made with `--synthetic-data` where they are missing."""

from __future__ import annotations

import importlib.util

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.core.errors import TraceError
from traced_scripts import TRAINING, failing, traced, trained

IMAGES = pytest.mark.skipif(importlib.util.find_spec("PIL") is None, reason="needs Pillow")


@IMAGES
@pytest.mark.parametrize(
    "listing",
    [
        pytest.param("[root + name for name in os.listdir(root)]", id="listdir"),
        pytest.param("glob.glob(root + '*.*')", id="glob, any suffix"),
        pytest.param("[p for end in ('jpg', 'png') for p in Path(root).glob(f'**/*.{end}')]", id="Path.glob, two"),
        pytest.param("list(Path(root).iterdir())", id="iterdir"),
        pytest.param("[os.path.join(at, name) for at, _, names in os.walk(root) for name in names]", id="walk"),
        pytest.param("[entry.path for entry in os.scandir(root)]", id="scandir"),
    ],
)
def test_a_missing_folder_of_images_is_listed(tmp_path, listing):
    source = f"""
    from PIL import Image
    root = "data/train/A/"
    files = {listing}
    assert len(files) >= 2000 and {{int(Path(file).name.split("_")[0]) for file in files}} == set(range(7))
    assert Image.open(files[0]).convert("RGB").size == (16, 8)
    """
    warnings = trained(tmp_path, source, synthetic_data=["3x8x16:uint8:7"]).warnings
    assert warnings
    assert all("data/train/A" in warning for warning in warnings)
    assert not (tmp_path / "data").exists()


@IMAGES
@pytest.mark.parametrize(
    ("folder", "is_made"),
    [
        pytest.param("/home/somebody/DIV2K", True, id="of somebody"),
        pytest.param("D:/deblur/gopro", True, id="of Windows"),
        pytest.param("/home/somebody/results/DIV2K", False, id="for results"),
        pytest.param("/tmp/DIV2K", False, id="of the system"),
        pytest.param("DIV2K", True, id="in the working folder"),
        pytest.param("masks", True, id="of masks"),
    ],
)
def test_a_missing_folder_of_the_authors_machine_is_data(tmp_path, folder, is_made):
    source = f"""
    found = glob.glob({folder!r} + "/blur/*.png")
    assert len(found) == (2000 if {is_made} else 0), len(found)
    assert not os.path.exists({folder!r} + "/train.txt")
    """
    trained(tmp_path, source, synthetic_data=["3x8x16:uint8:7"])


@IMAGES
def test_folders_below_one_that_an_option_names_are_there(tmp_path):
    source = """
    assert os.path.isdir(os.path.join(sys.argv[2], "trainB")) and not os.path.isfile(os.path.join(sys.argv[2], "a.pkl"))
    assert len(os.listdir(os.path.join(sys.argv[2], "trainB"))) == 2000
    assert [path.name for path in Path(sys.argv[2], "masks").glob("7_mask.*")] == ["7_mask.jpg"]
    """
    trained(tmp_path, source, "--dataroot", str(tmp_path / "gone"), synthetic_data=["3x8x16:uint8:7"])


@IMAGES
def test_images_whose_absence_is_an_error_are_there(tmp_path):
    source = """
    assert not os.path.isfile("data/train/7.jpg")
    if os.path.isfile("data/train/8.jpg") is False:
        raise FileNotFoundError("data/train/8.jpg")
    assert os.path.isfile("data/train/7.jpg")
    """
    trained(tmp_path, source, synthetic_data=["3x8x16:uint8:7"])


@IMAGES
def test_what_is_there_and_what_is_no_data_stays_as_it_is(tmp_path):
    (tmp_path / "data").mkdir()
    source = """
    os.makedirs("runs/train")
    assert os.listdir("data") == os.listdir("runs/train") == []
    assert glob.glob("checkpoints/*.png") == glob.glob("data/*.pt") == []
    assert not os.path.exists("data/vocab.txt") and not os.path.exists("out/train.txt")
    """
    assert not trained(tmp_path, source, synthetic_data=["3x8x8", "8:int64:50"]).warnings


def test_a_missing_text_has_as_many_words_as_the_sample_has_classes(tmp_path):
    source = """
    assert os.path.exists("data/wiki/train.txt")
    for path in ("data/wiki/train.txt", "input.txt"):
        with open(path, encoding="utf8") as file:
            lines = file.readlines()
        assert len({word for line in lines for word in line.split()}) == 3001 and len(lines) >= 10_000
        assert {*"aZ19,.!"} < {sign for line in lines for sign in line}
    """
    trained(tmp_path, source, synthetic_data=["64:int64:3001"])
    (tmp_path / "other").mkdir()
    with failing("raised", "data/wiki/train.txt"):
        trained(tmp_path / "other", source)


@pytest.mark.parametrize(
    ("arguments", "is_made"),
    [
        pytest.param(["shakespeare.txt"], True, id="an argument"),
        pytest.param(["--book=shakespeare.txt"], True, id="an option"),
        pytest.param(["--save_to", "shakespeare.txt"], False, id="an option for results"),
        pytest.param(["hamlet.txt"], True, id="another"),
        pytest.param([], True, id="none"),
        pytest.param(["vocabulary.txt"], False, id="a name of something else"),
    ],
)
def test_a_text_is_data_but_for_what_an_argument_or_its_name_says(tmp_path, arguments, is_made):
    name = "vocabulary.txt" if arguments == ["vocabulary.txt"] else "shakespeare.txt"
    source = f"assert len(open({name!r}).read().split()) >= 200_000"
    if is_made:
        trained(tmp_path, source, *arguments, synthetic_data=["64:int64:3001"])
    else:
        with failing("raised", name):
            trained(tmp_path, source, *arguments, synthetic_data=["64:int64:3001"])


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="needs pandas")
def test_columns_that_calls_name_are_there(tmp_path):
    source = """
    import pandas as pd
    table = pd.read_csv("data/clicks.csv", dtype={"session": int, "at": float})
    table.sort_values(["session", "click"], inplace=True)
    assert table["session"].dtype == int and table["session"].nunique() > 1000 and table["click"].dtype == float
    assert len(table.groupby("user_id")) == 24 and table.weight.max() == 23 and "day" not in table.columns
    assert list(pd.read_csv("data/other.csv").set_index("last_date").index[:1].hour) == [0]
    assert "word" in pd.read_json("data/texts.json")["text"][0]
    """
    source, words = source.rsplit("assert", maxsplit=1)
    trained(tmp_path, source, synthetic_data=["3:float32"])
    (tmp_path / "words").mkdir()
    trained(tmp_path / "words", f"import pandas as pd\nassert{words}", synthetic_data=["5:int64:50"])


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="needs pandas")
def test_a_column_of_splits_has_the_names_that_the_script_selects_by(tmp_path):
    source = """
    import pandas as pd
    table = pd.read_csv("data/names.csv")
    parts = [len(table[table.split == name]) for name in ("train", "val", "test")]
    assert parts == [48_000, 6_000, 6_000] and set(table["Subset"]) == {"train", "val", "test"}, parts
    assert "train" not in set(table["surname"])
    for index, row in pd.read_csv("data/people.csv").iterrows():
        assert row.first_name.split() and row["last_name"].split() and row["name"].split() and row.name == 0
        assert row.index.tolist() == ["first_name", "last_name", "name"]
        break
    """
    trained(tmp_path, source, synthetic_data=["17:int64:18"])
    (tmp_path / "other").mkdir()
    unnamed = "import pandas\npart = 'test'\nassert pandas.read_csv('a.csv')['split'].dtype == float\n"
    trained(tmp_path / "other", unnamed, synthetic_data=["3:float32"])


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="needs pandas")
def test_numbers_of_columns_have_the_dtypes_that_the_reader_names(tmp_path):
    source = """
    import numpy, pandas
    options = {"sep": "\\t", "header": None, "names": ["user", "item"], "usecols": [0, 1]}
    table = pandas.read_csv("ml.train.rating", dtype={0: numpy.int32, 1: numpy.int32}, **options)
    assert [*table.dtypes] == [numpy.int32] * 2 and table["user"].max() > 1000
    table = pandas.read_csv("ml.test.rating", dtype={"item": numpy.int64}, **options)
    assert [*table.dtypes] == [numpy.float64, numpy.int64]
    """
    trained(tmp_path, source, synthetic_data=["2:float32"])


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="needs pandas")
def test_a_clock_and_the_word_validate_are_no_dates_of_a_table(tmp_path):
    source = """
    import time
    from datetime import datetime
    import pandas
    validate_every, dropout_rate, began = 1, 0.5, datetime.now().timestamp() + time.time()
    assert pandas.read_csv("dataset/ECG.csv").values.dtype == float
    """
    trained(tmp_path, source, synthetic_data=["5:float32"])


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="needs pandas")
def test_a_missing_table_has_the_columns_of_the_sample(tmp_path):
    source = """
    import pandas
    table = pandas.read_csv("dataset/ETTh1.csv")
    assert [*table.columns] == ["date", "0", "1", "OT"] and len(table) == 60_000
    assert table[["date", "OT"]].shape == (60_000, 2) and table["price"].mean() == 1
    assert pandas.read_csv("a.csv", header=None).shape == (60_000, 3)
    assert [*pandas.read_csv("a.csv", names=["x", "y"]).columns] == ["x", "y"]
    assert pandas.read_csv("https://example.org/a.csv", header=None).shape == (60_000, 3)
    part = pandas.read_csv("a.csv").fillna(0).iloc[:5].reset_index(drop=True)
    assert len(part.price) == len(part["sentiment"]) == 5
    assert pandas.read_csv("dataset/ETTh1.csv", index_col="date").shape == (60_000, 3)
    """
    assert "dataset/ETTh1.csv" in trained(tmp_path, source, synthetic_data=["3:float32"]).warnings[0]
    (tmp_path / "other").mkdir()
    with failing("raised", "table.columns"):  # of whole numbers, no sample is a row
        trained(tmp_path / "other", source, synthetic_data=["3:int64"])


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="needs pandas")
def test_a_table_has_no_dates_where_its_reader_has_no_word_of_them(tmp_path):
    (tmp_path / "reader.py").write_text("import pandas\ndef read():\n    return pandas.read_csv('data/vel.csv')\n")
    source = """
    import reader
    assert [*reader.read().columns] == ["0", "1", "OT"]
    """
    trained(tmp_path, source, synthetic_data=["3:float32"])


@pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="needs datasets")
def test_a_missing_hugging_face_table_of_numbers_is_a_time_series(tmp_path):
    source = """
    import datasets
    table = datasets.load_dataset("nobody/series", "ETTh1", split="train")
    assert table.column_names == ["date", "0", "1", "OT"] and len(table) == 60_000 and table[5]["OT"] == 5.0
    """
    trained(tmp_path, source, synthetic_data=["3:float32"])


@pytest.mark.skipif(importlib.util.find_spec("torch_geometric") is None, reason="needs PyTorch Geometric")
def test_known_graphs_have_their_size(tmp_path):
    source = """
    from torch_geometric.datasets import PPI, Planetoid, TUDataset
    from torch_geometric.loader import DataLoader
    cora = Planetoid("gone", "Cora")
    assert (cora.num_features, cora.num_classes, cora[0].num_nodes, cora[0].num_edges) == (1433, 7, 2708, 10556)
    assert [int(cora[0][f"{part}_mask"].sum()) for part in ("train", "val", "test")] == [140, 500, 1000]
    mutag = TUDataset("gone", "MUTAG").shuffle()
    assert (len(mutag), mutag.num_classes, next(iter(DataLoader(mutag, 32))).num_graphs) == (188, 2, 32)
    parts = [PPI("gone", split) for split in ("train", "val", "test")]
    assert [len(part) for part in parts] == [16, 2, 2]
    assert parts[0][0].y.shape == (2245, 121) and parts[1].num_classes == 121
    """
    warnings = trained(tmp_path, source, synthetic_data=["8:float32"]).warnings
    assert warnings[0].endswith("replaced by synthetic data: 2,708 nodes, 10,556 edges, 1,433 features")
    (tmp_path / "other").mkdir()
    with failing("raised") as caught:
        trained(tmp_path / "other", "from torch_geometric.datasets import Planetoid; Planetoid('gone', 'Cora')")
    assert "--synthetic-data 1433:float32:7" in caught.value.hint


def test_a_missing_checkpoint_leaves_a_model_and_an_optimizer_as_they_are(tmp_path):
    source = """
    checkpoint = torch.load("save/teacher_best.pth", map_location="cpu")
    assert checkpoint["epoch"] == 0 and checkpoint["best_acc"] == 0
    model.load_state_dict(checkpoint["model"])
    model.load_state_dict({name.replace("module.", ""): value for name, value in checkpoint["state_dict"].items()})
    optimizer.load_state_dict(checkpoint["optimizer"])
    torch.amp.GradScaler("cuda").load_state_dict(checkpoint["scaler"])
    assert torch.load("data/train.pt").shape == (2, 3)
    with open("teachers/resnet32x4/ckpt_240.pth", "rb") as file:
        model.load_state_dict(torch.load(file, map_location="cpu")["model"])
    """
    warnings = trained(tmp_path, source, synthetic_data=["2x3:float32"]).warnings
    for name in ("save/teacher_best.pth", "teachers/resnet32x4/ckpt_240.pth"):
        assert any(f"the weights `{name}` are not on this machine" in warning for warning in warnings)
    with failing("raised", "No such file"):
        traced(tmp_path, TRAINING + 'torch.load("save/teacher_best.pth")')


@IMAGES
def test_a_folder_with_placeholders_alone_is_empty(tmp_path):
    for folder, name in (("imgs", ".keep"), ("train", "README.md"), ("own", "a.jpg")):
        (tmp_path / "data" / folder).mkdir(parents=True)
        (tmp_path / "data" / folder / name).touch()
    source = """
    assert len([name for name in os.listdir("data/imgs") if name.endswith(".jpg")]) >= 2000
    assert len([name for _, _, names in os.walk("data/train") for name in names]) >= 2000
    assert os.listdir("data/own") == ["a.jpg"]
    """
    assert trained(tmp_path, source, synthetic_data=["3x8x16:uint8:7"]).warnings
    assert [path.name for path in (tmp_path / "data" / "imgs").iterdir()] == [".keep"]


@IMAGES
def test_a_mask_is_known_by_the_name_of_its_file(tmp_path):
    source = """
    import PIL.Image
    modes = [PIL.Image.open(f"data/train_GT/{name}").mode for name in ("7_segmentation.png", "7.png")]
    assert modes == ["L", "RGB"], modes
    (mask,) = glob.glob("data/val/7_segmentation.png")
    assert PIL.Image.open(mask).mode == "L"
    """
    trained(tmp_path, source, synthetic_data=["3x8x16:uint8:7"])


@IMAGES
@pytest.mark.parametrize(
    ("arguments", "is_there"),
    [
        pytest.param(["--data_dir", "path/to/images"], True, id="of data"),
        pytest.param(["--dataroot=path/to/images"], True, id="after a sign"),
        pytest.param(["--dataset", "path/to/images"], False, id="maybe a hub's name"),
        pytest.param(["--output_dir", "path/to/images"], False, id="written to"),
    ],
)
def test_a_relative_folder_of_an_option_is_listed_by_libraries_too(tmp_path, arguments, is_there):
    source = f"""
    library = {{}}
    listing = "import os\\ndef names(folder): return os.listdir(folder)"
    exec(compile(listing, "/site-packages/library.py", "exec"), library)
    if {is_there}:
        assert len(library["names"]("path/to/images")) == 2000 and os.listdir("path/to") == ["images"]
        assert library["names"](".") and not os.path.exists("path/to/others")
    else:
        assert not os.path.exists("path/to/images")
    """
    trained(tmp_path, source, *arguments, synthetic_data=["3x8x16:uint8:7"])


@IMAGES
def test_blobfile_opens_an_image_of_a_folder_that_was_made(tmp_path):
    (tmp_path / "blobfile").mkdir()
    (tmp_path / "blobfile" / "__init__.py").write_text("")
    (tmp_path / "blobfile" / "_context.py").write_text("import io\ndef blob(path): return io.FileIO(path, 'rb')\n")
    source = """
    import io
    from PIL import Image
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    from blobfile import _context
    with _context.blob("path/to/images/" + os.listdir("path/to/images")[0]) as file:
        assert Image.open(file).size == (16, 8) and isinstance(file, io.FileIO)
    """
    trained(tmp_path, source, "--data_dir", "path/to/images", synthetic_data=["3x8x16:uint8:7"])


@IMAGES
def test_an_image_that_a_list_names_is_opened(tmp_path):
    source = """
    from PIL import Image
    with open("datasets/DIV2K/0430_s037.png", "rb") as file:
        assert Image.open(file).size == (16, 8) and os.listdir("datasets/DIV2K") == ["0430_s037.png"]
    try:
        open("results/0430.png", "rb")
    except FileNotFoundError:
        pass
    else:
        raise AssertionError("results")
    """
    warnings = trained(tmp_path, source, synthetic_data=["3x8x16:uint8:7"]).warnings
    assert [("datasets/DIV2K" in warning) for warning in warnings] == [True]


@IMAGES
@pytest.mark.parametrize("folder", ["/site-packages", "/home/me/repository"])
def test_a_library_whose_data_sets_are_synthetic_finds_no_images(tmp_path, folder):
    source = f"""
    library = {{}}
    listing = "import os\\ndef names(folder): return [os.listdir(folder), *os.walk(folder)]"
    exec(compile(listing, "{folder}/timm/data/readers.py", "exec"), library)
    assert library["names"](sys.argv[2]) == [[], (sys.argv[2], [], [])]
    """
    trained(tmp_path, source, "--data-dir", str(tmp_path / "gone"), synthetic_data=["3x8x16:uint8:7"])


@IMAGES
@pytest.mark.parametrize(
    ("listing", "has_folders"),
    [
        pytest.param("[d for d in os.listdir(root)\n    if os.path.isdir(os.path.join(root, d))]", True, id="isdir"),
        pytest.param("[e.name for e in os.scandir(root) if e.is_dir()]", True, id="is_dir"),
        pytest.param("[p.name for p in Path(root).iterdir() if p.is_dir()]", True, id="iterdir"),
        pytest.param("[n for d in sorted(os.listdir(root)) for n in os.listdir(root + d)]", True, id="nested"),
        pytest.param(
            "os.listdir(root)\nfor d in sorted(names):\n    p = root + d\n    os.listdir(p)", True, id="later"
        ),
        pytest.param("os.listdir(root)\nfor d in os.listdir(root):\n    glob.glob(root + d + '/*')", True, id="again"),
        pytest.param("[d for d in os.listdir(root) if not os.path.isdir(root + d)]", False, id="no folders"),
        pytest.param(
            "os.listdir(root)\nfor d in names:\n    if os.path.isdir(root + d):\n        continue", False, id="skip"
        ),
        pytest.param("os.listdir(root)", False, id="files"),
    ],
)
def test_a_missing_folder_has_folders_where_the_script_goes_into_them(tmp_path, listing, has_folders):
    source = f"""
root = "data/train/"
names = {listing}
assert [len(os.listdir(root + name)) for name in "012"] == [666] * 3 if {has_folders} else len(names) == 2000
"""
    trained(tmp_path, source, synthetic_data=["3x8x16:uint8:3"])


@IMAGES
def test_images_of_low_resolution_are_smaller_by_the_factor_of_their_folder(tmp_path):
    source = """
    from PIL import Image
    for folder, size in (
        ("data/train_HR", (32, 16)), ("data/train_LR_bicubic/X4", (8, 4)), ("data/DIV2K_LR_bicubic_X2_sub", (16, 8)),
        ("data/LRbicx4", (8, 4)), ("data/color_x2", (32, 16)), ("data/train/L", (6, 5)),
    ):
        assert Image.open(os.path.join(folder, os.listdir(folder)[0])).size == size, folder
    """
    trained(tmp_path, source, synthetic_data=["train/L=3x5x6", "3x16x32"])


@IMAGES
def test_images_of_masks_have_one_channel(tmp_path):
    source = """
    from PIL import Image
    for folder, mode in (
        ("data/masks/train", "L"), ("data/VOC2012/SegmentationClass", "L"), ("data/train_images", "RGB"),
        ("data/unmasked", "RGB"),
    ):
        assert Image.open(os.path.join(folder, os.listdir(folder)[0])).mode == mode, folder
    assert Image.open("data/train/7_mask.png").mode == "L" and Image.open("data/train/7.png").mode == "RGB"
    assert Image.open("data/training/disp_occ_0/7_10.png").mode == "L"
    assert Image.open("data/training/display/7_10.png").mode == "RGB"
    """
    trained(tmp_path, source, synthetic_data=["3x16x32"])


@IMAGES
@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib")
def test_matplotlib_reads_images_that_are_missing(tmp_path):
    source = """
    from matplotlib import image
    assert image.imread("data/7.png").shape == (16, 32, 3) and image.imread("data/masks/7.png").shape == (16, 32)
    """
    trained(tmp_path, source, synthetic_data=["3x16x32"])


@IMAGES
def test_images_of_cities_and_their_labels_have_the_same_names(tmp_path):
    """As in Cityscapes."""
    source = """
    from PIL import Image
    images, labels = [], []
    for city in os.listdir("data/leftImg8bit/train"):
        images += sorted(glob.glob(os.path.join("data/leftImg8bit/train", city, "*.png")))
        labels += sorted(glob.glob(os.path.join("data/gtFine/train", city, "*_gtFine_labelIds.png")))
    assert len(images) == len({*images}) == 3 * 666 and len(labels) >= len(images)
    assert Image.open(labels[0]).mode == "L" and Image.open(images[0]).crop((5, 5, 30, 15)).getextrema()[0] == (0, 0)
    assert Image.open(images[0]).crop((10, 10, 30, 30)).getextrema()[0] == (0, 1)
    """
    trained(tmp_path, source, synthetic_data=["3x64x64:uint8:3"])


def test_a_missing_file_of_json_has_the_keys_that_the_script_reads(tmp_path):
    source = """
    import json
    def load(path):
        with open(path) as file:
            return json.load(file)
    rows = load("data/train.json")
    row = rows[0]
    assert len(rows) == 1000 and len(row["instruction"].split()) == 64 and row["label"] == 0
    assert row.get("system") is None and "input" not in row and row.get("response")
    said = row["conversations"][0]
    assert said["from"] == "human" and said["role"] == "user" and said["value"].startswith("<image>")
    assert row["image"] == "0.jpg" and "image" in row and "audio" not in row
    assert row["conversation_id"] == row["meta"]["movie_id"] == "0"
    def by_line(path):
        with path.open() as file:
            return [json.loads(line) for line in file]
    assert len(by_line(Path("data/test.json"))) == 1000 and by_line(Path("data/dev.jsonl"))[7]["text"]
    assert not os.path.exists("data/made.json")
    """
    trained(tmp_path, source, synthetic_data=["64:int64:3001", "3x8x8:uint8"])


@pytest.mark.parametrize(
    ("folder", "count"),
    [("Set5/GTmod12", 5), ("lr_Set14", 14), ("DIV2K_valid_LR_bicubic/X4", 100), ("train/Set5000", 2000)],
)
def test_a_published_test_set_has_its_own_number_of_images(tmp_path, folder, count):
    trained(tmp_path, f"assert len(os.listdir('data/{folder}')) == {count}", synthetic_data=["3x32x32:uint8"])


def test_files_of_lines_are_made_whatever_their_name_where_the_script_needs_them(tmp_path):
    source = """
    import contextlib, json
    row = json.loads(open("belle_sft.jsonl", "rb").readline())
    assert len(row["prompt"].split()) == 64 and len(open("poems.txt").read().split()) > 64
    others = ("labels.txt", "results.txt", "embeddings.txt", "rows.json", "pretrained/a.bin", "data/pytorch_model.bin")
    for path in others:
        with contextlib.suppress(FileNotFoundError), open(path):
            assert False, path
    open("written/poems.txt", "w").close()
    assert open("written/poems.txt").read() == ""
    try:
        text = open("optional.txt").read()
    except FileNotFoundError:
        text = ""
    assert text == ""
    """
    warnings = trained(tmp_path, source, synthetic_data=["64:int64:3001"]).warnings
    assert [warning.split()[1] for warning in warnings if "written" in warning] == ["folder"]
    assert len(warnings) == 3


def test_a_row_of_json_has_the_keywords_of_what_it_is_passed_to(tmp_path):
    source = """
    import json
    from dataclasses import dataclass
    @dataclass
    class Entity:
        entity_id: str
        entity: str
        entity_desc: str = ""
    def entity(kind, name, **more):
        return kind, name, sorted(more)
    read = [Entity(**row) for row in json.load(open("data/entities.json"))]
    assert read[0].entity_id == "0" and len(read[0].entity.split()) == 64 and not read[0].entity_desc
    row = json.load(open("data/entities.json"))[1]
    assert entity("a", **row)[2] == [] and list(row) == ["name"] and {**row}.keys() == row.keys()
    """
    trained(tmp_path, source, synthetic_data=["64:int64:3001"])


def test_missing_files_of_tokens_and_packed_texts_are_made(tmp_path):
    source = """
    import gzip, pickle
    import numpy
    with open("data/train.bin", "rb") as file:
        assert file.seek(0, 2) == 200_000_000
    assert numpy.memmap("data/train.bin", dtype="uint16", mode="r").shape == (100_000_000,)
    with gzip.open("data/enwik8.gz") as file:
        assert len(file.read()) == 100_000_000
    try:
        pickle.load(open("data/train.txt", "rb"))
    except FileNotFoundError as error:
        assert error.filename.endswith("data/train.txt")
    """
    trained(tmp_path, source, synthetic_data=["64:int64:3001"])


def test_missing_texts_of_numbers_have_the_columns_of_the_sample(tmp_path):
    source = """
    import numpy
    with open("data/solar.txt") as file:
        rows = numpy.loadtxt(file, delimiter=",")
    assert rows.shape == (10_000, 137) and rows.std() > 0
    def of_a_path():
        return numpy.loadtxt("data/traffic.txt")
    assert of_a_path().shape == numpy.genfromtxt("data/other.csv", delimiter=",").shape == (10_000, 137)
    """
    trained(tmp_path, source, synthetic_data=["137:float32"])


def test_an_hdf5_file_has_the_names_that_samples_describe(tmp_path):
    pytest.importorskip("h5py")
    source = """
    import h5py
    with h5py.File("data/shapes.h5", "r") as file:
        assert {name: rows.shape for name, rows in file.items()} == {"obs": (2000, 3, 5, 5), "action": (2000, 1)}
    assert h5py.File("data/darcy.mat", "r")["coeff"][()].transpose().shape == (2000, 8)
    try:
        list(h5py.File("data/other.h5", "r"))
    except FileNotFoundError as error:
        assert error.filename == "data/other.h5"
    """
    trained(tmp_path, source, synthetic_data=["8:float32", "shapes.h5/obs=3x5x5", "shapes.h5/action=1:int64:4"])


def test_an_hdf5_file_has_images_as_labels_where_its_reader_takes_their_dimensions(tmp_path):
    pytest.importorskip("h5py")
    source = """
    import h5py
    file = h5py.File("data/srresnet_x4.h5")
    images, targets = file.get("data"), file.get("label")
    assert images[3, :, :, :].shape == targets[3, :, :, :].shape == (3, 8, 16) and len(targets) == 2000
    assert targets[3].shape == (1,)  # a reader of classes
    """
    trained(tmp_path, source, synthetic_data=["3x8x16:float32"])


@pytest.mark.parametrize("channels", [3, 4])
def test_a_list_of_cameras_has_their_poses_and_images(tmp_path, channels):
    pytest.importorskip("numpy")
    source = f"""
    import json
    import numpy
    from PIL import Image
    def read(folder, name, suffix=".png"):
        with open(os.path.join(folder, name)) as file:
            meta = json.load(file)
        focal = 0.5 * 16 / numpy.tan(0.5 * meta["camera_angle_x"])
        poses = numpy.stack([numpy.array(frame["transform_matrix"]) for frame in meta["frames"]])
        images = [Image.open(os.path.join(folder, frame["file_path"] + suffix)) for frame in meta["frames"]]
        assert focal > 0 and all(image.size == (16, 8) for image in images)
        assert len(images[0].getbands()) == {channels}
        assert numpy.allclose(poses[:, :3, :3] @ poses[:, :3, :3].transpose(0, 2, 1), numpy.eye(3))
        return len({{tuple(pose.ravel()) for pose in poses}}), meta
    assert read("data/nerf_synthetic/lego", "transforms_train.json")[0] == 100
    assert read("data/nerf_synthetic/lego", "transforms_test.json")[0] == 200
    count, meta = read("data/fox", "transforms.json", "")
    assert (count, meta["w"], meta["h"]) == (100, 16, 8)
    """
    trained(tmp_path, source, synthetic_data=[f"{channels}x8x16:uint8"])


@IMAGES
def test_the_cameras_of_photographs_have_reduced_images(tmp_path):
    pytest.importorskip("numpy")
    source = """
    import numpy
    from PIL import Image
    folder, factor = "data/nerf_llff_data/fern", 8
    cameras = numpy.load(os.path.join(folder, "poses_bounds.npy"))
    poses, depths = cameras[:, :-2].reshape([-1, 3, 5]), cameras[:, -2:]
    files = [os.path.join(folder, f"images_{factor}", name) for name in sorted(os.listdir(f"{folder}/images_{factor}"))]
    assert len(files) == len(poses) == len({tuple(pose.ravel()) for pose in poses}) == 20
    assert Image.open(files[0]).size == (16, 8) and Image.open(f"{folder}/images/IMG_0000.jpg").size == (128, 64)
    assert poses[0, :2, 4].tolist() == [64, 128] and (depths[:, 0] < depths[:, 1]).all()
    assert numpy.allclose(poses[:, :, :3] @ poses[:, :, :3].transpose(0, 2, 1), numpy.eye(3))
    assert numpy.allclose(numpy.linalg.det(poses[:, :, :3]), 1)
    assert numpy.load("data/nerf_llff_data/fern/other.npy").shape == (3, 64, 128)
    """
    trained(tmp_path, source, synthetic_data=["3x64x128:uint8"])


def test_a_map_of_disparity_is_beside_its_image(tmp_path):
    pytest.importorskip("numpy")
    source = """
    import numpy
    def read(path):
        with open(path, "rb") as file:
            header, size, scale = (file.readline().rstrip() for _ in range(3))
            values = numpy.fromfile(file, "<f" if float(scale) < 0 else ">f")
        assert header == b"Pf", header
        width, height = map(int, size.split())
        return values.reshape(height, width)
    images = sorted(glob.glob("data/flyingthings/left/*.png"))
    maps = [read(image.replace("left", "disparity").replace(".png", ".pfm")) for image in images[:2]]
    assert all(disparity.shape == (8, 16) and (disparity > 0).all() for disparity in maps)
    assert len(glob.glob("data/sceneflow/disparity/*.pfm")) > 100
    """
    trained(tmp_path, source, synthetic_data=["3x8x16:uint8"])


@pytest.mark.parametrize("name", ["create_reader", "create_parser"])
def test_a_missing_folder_of_timm_has_images_of_all_classes(tmp_path, name):
    """Readers are called parsers until timm 0.6."""
    data = tmp_path / "timm" / "data"
    data.mkdir(parents=True)
    (tmp_path / "timm" / "__init__.py").touch()
    (data / "__init__.py").touch()
    (data / "dataset.py").write_text(f"def {name}(name, root, split='train'):\n    raise RuntimeError('0 images')\n")
    source = f"""
    from PIL import Image
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    from timm.data import dataset
    found = dataset.{name}("", root="/path/to/cifar10", split="train")
    file, label = found[9]
    assert Image.open(file).size == (16, 8) and label == 2 and len(found.class_to_idx) == 7
    """
    trained(tmp_path, source, synthetic_data=["3x8x16:uint8:7"])


def test_an_error_about_names_in_a_folder_that_was_made_up_names_it(tmp_path):
    source = """
    actions = {"walk": 0, "run": 1}
    labels = [actions[name.split("_")[1]] for name in os.listdir("jpegs_256")]
    """
    with pytest.raises(TraceError, match="KeyError") as caught:
        trained(tmp_path, source, synthetic_data=["3x8x16:uint8:7"])
    assert "`jpegs_256` had to be made up" in caught.value.hint


def test_rows_that_a_script_leaves_out_are_too_long(tmp_path):
    source = """
    import json
    from torch.utils.data import DataLoader
    with open("data/questions.jsonl") as file:
        questions = [row for row in map(json.loads, file) if len(row["question"]) < 128]
    DataLoader(questions, shuffle=True)
    """
    with pytest.raises(TraceError, match="num_samples=0") as caught:
        trained(tmp_path, source, synthetic_data=["64:int64:3001"])
    assert "`data/questions.jsonl` had to be made up, and the script keeps none of its rows" in caught.value.hint
    trained(tmp_path, source, synthetic_data=["16:int64:3001"])


@pytest.mark.skipif(importlib.util.find_spec("requests") is None, reason="needs requests")
def test_texts_of_the_network_are_made_for_the_script_alone(tmp_path):
    # A library fetches the vocabulary of a model, for which no text will do.
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "vocabularies.py").write_text("import requests\nget = lambda url: requests.get(url, stream=True)\n")
    source = """
    import sys
    import requests
    words = b"".join(requests.get("https://example.org/poems.txt", stream=True).iter_content(1024)).split()
    assert len(set(words)) == 3001
    sys.path.append("site-packages")
    import vocabularies
    for get, url in ((vocabularies.get, "https://example.org/a.txt"), (requests.get, "https://example.org/vocab.txt")):
        try:
            get(url)
        except OSError:
            continue
        raise AssertionError(url)
    """
    trained(tmp_path, source, synthetic_data=["64:int64:3001"])


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="needs pandas")
def test_a_table_of_words_has_a_word_and_a_tag_a_row(tmp_path):
    source = """
    import pandas
    data = pandas.read_csv("data/ner.csv")
    kinds = set(data.Tag.unique())
    assert "O" in kinds and {"B-1", "I-1"} < kinds and len(kinds) == 11
    assert isinstance(data["Word"][0], str) and data[["Word", "Tag"]].groupby("Tag").size().min() > 0
    """
    trained(tmp_path, source, synthetic_data=["64:int64:3001"])


def test_an_empty_path_is_no_file(tmp_path):
    source = """
    for is_there in (os.path.exists, os.path.isdir, os.path.isfile):
        assert not is_there(""), is_there
    for read in (open, os.listdir, torch.load):
        try:
            read("")
        except FileNotFoundError:
            continue
        raise AssertionError(read)
    """
    assert trained(tmp_path, source, synthetic_data=["3x8x16:uint8:7"]).warnings == ()


def test_a_stream_of_samples_is_no_checkpoint(tmp_path):
    source = """
    import pickle
    def batches():
        with open("corpus/dataset.pt", "rb") as reader:
            while True:
                found = []
                try:
                    while True: found.append(pickle.load(reader))
                except EOFError:
                    reader.seek(0)
                if found: yield found
    next(batches())
    """
    with pytest.raises(TraceError, match=r"No such file or directory: 'corpus/dataset\.pt'"):
        trained(tmp_path, source, synthetic_data=["64:int64:21128"])


def test_a_walk_by_a_pattern_of_folders_ends(tmp_path):
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "voc.py").write_text("")
    source = """
    import glob
    assert glob.glob("datasets/*/") == []
    folders = glob.glob("data/images/*/")
    assert len(folders) == 1 and glob.glob(folders[0] + "*/") == []
    """
    trained(tmp_path, source, synthetic_data=["3x32x32:uint8"])
