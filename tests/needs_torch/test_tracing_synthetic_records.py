"""Lists, tables and annotations that a script reads by its own code, made with `--synthetic-data` where missing."""

from __future__ import annotations

import importlib.util
import textwrap

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.core.errors import TraceError
from traced_scripts import TRAINING, failing, traced, trained

IMAGES = pytest.mark.skipif(importlib.util.find_spec("PIL") is None, reason="needs Pillow")
PANDAS = """
def read_csv(file):
    raise FileNotFoundError(file)

class DataFrame:
    def __init__(self, rows, columns=None):
        self.rows, self.columns, self.attrs = getattr(rows, "rows", rows), columns, {}
        self.iloc = self

    def __getitem__(self, at):
        return self.rows[at[0]][at[1]]
"""


@IMAGES
@pytest.mark.parametrize(
    "reading",
    [
        pytest.param("rows = [l.strip().split(',') for l in open('data/train.csv')]", id="lines"),
        pytest.param("rows = list(csv.reader(open('data/train.csv')))", id="CSV"),
        pytest.param(
            "rows = [(r['image'], r['label']) for r in csv.DictReader(open('data/train.csv'))]", id="CSV, by name"
        ),
        pytest.param("rows = [(r['image'], r['label']) for r in json.load(open('data/train.json'))]", id="JSON"),
    ],
)
def test_a_list_of_images_and_labels(tmp_path, reading):
    source = f"""
    import csv, json
    from PIL import Image
    {reading}
    images = [(os.path.join("data", name), int(label)) for name, label in rows]
    assert len(images) >= 2000 and {{label for _, label in images}} == set(range(7))
    assert len({{path for path, _ in images}}) == len(images) and images[0][0].endswith(".jpg")
    assert Image.open(images[5][0]).size == (16, 8)
    """
    warnings = trained(tmp_path, source, synthetic_data=["3x8x16:uint8:7"]).warnings
    assert any("`data/train." in warning for warning in warnings)
    assert not (tmp_path / "data").exists()


@IMAGES
def test_a_list_of_files_needs_no_name_of_data(tmp_path):
    source = """
    pairs = []
    for line in open("/media/x/lfw/pairs.txt").read().splitlines()[1:]:
        parts = line.split("\\t")
        if len(parts) == 3:
            pairs.append((parts[0] + "/" + parts[0], int(parts[1]), int(parts[2])))
    assert len(pairs) >= 2000
    try:
        options = [line.split("=")[1] for line in open("/media/x/lfw/settings.txt")]
        assert False
    except FileNotFoundError:
        pass
    try:
        for line in open("results/pairs.txt"):
            name, label = line.split()
            os.path.join("images", name), int(label)
        assert False
    except FileNotFoundError:
        pass
    """
    warnings = trained(tmp_path, source, synthetic_data=["3x8x16:uint8:7"]).warnings
    assert any("`/media/x/lfw/pairs.txt`" in warning for warning in warnings)


@IMAGES
def test_names_that_are_only_passed_on_are_of_images(tmp_path):
    """By a parameter, or as whole lines to what is not followed."""
    source = """
    from PIL import Image
    def read(path, parse):
        return parse(path)
    def pairs(path):
        found = []
        for line in open(path).readlines():
            name, label = line.strip().split(" ")
            found.append((name, int(label)))
        return found
    def lines(path):
        found = []
        with open(path) as file:
            while True:
                line = file.readline().rstrip()
                if line == "":
                    break
                found.append(line)
        return found
    name, label = read("data/casia.txt", pairs)[1]
    assert Image.open(os.path.join("data", name)).size == (16, 8) and label == 1 and name.endswith(".jpg")
    assert not read("data/class_names.txt", pairs)[1][0].endswith(".jpg")
    files = dict(rgb=read("lists/train_rgb.txt", lines), depth=read("lists/train_depth.txt", lines))
    assert len(files["rgb"]) >= 2000 and os.path.dirname(files["rgb"][0]) == "train_rgb"
    assert [Image.open(files[name][0]).size for name in ("rgb", "depth")] == [(16, 8), (4, 2)]
    """
    trained(tmp_path, source, synthetic_data=["3x8x16:uint8:7", "train_depth/=1x2x4:uint8"])


@pytest.mark.parametrize("path", ["words/notes.txt", "data/train_classes.txt", "data/train.py"])
def test_lines_that_are_only_passed_on_are_made_of_sample_lists_alone(tmp_path, path):
    source = f"""
    class Reader:
        def __init__(self):
            self.lines = self.keep(open({path!r}).read().splitlines())
        def keep(self, lines):
            return other(lines)
    Reader()
    """
    with failing("raised", path):
        trained(tmp_path, source, synthetic_data=["3x8x16:uint8:7"])


@IMAGES
def test_lists_of_celeba_have_its_form(tmp_path):
    source = """
    lines = [line.rstrip() for line in open("data/celeba/list_attr_celeba.txt")]
    names = lines[1].split()
    rows = [line.split() for line in lines[2:]]
    assert len(rows) == int(lines[0]) == 202599 and len(names) == 40 and rows[-1][0] == "202599.jpg"
    for at in (names.index("Male"), names.index("Young")):
        assert {row[at + 1] for row in rows[:2000]} == {"1", "-1"}
    parts = [line.split() for line in open("celeba/list_eval_partition.txt")]
    assert [sum(part == str(at) for _, part in parts) for at in range(3)] == [162770, 19867, 19962]
    csv = open("list_attr_celeba.csv").read().split()
    assert csv[0].split(",")[:2] == ["image_id", names[0]] and csv[1].startswith("000001.jpg,")
    """
    trained(tmp_path, source, synthetic_data=["3x8x16:uint8:7"])


def test_every_identity_of_pairs_occurs(tmp_path):
    source = """
    users, items = set(), set()
    for line in open("data/ratings.txt"):
        user, item = map(int, line.split(" "))
        users.add(user), items.add(item)
    assert users == items == set(range(300))
    """
    trained(tmp_path, source, synthetic_data=["50:int64:300"])


def test_texts_have_words_and_labels(tmp_path):
    source = """
    words, labels = set(), set()
    with open("data/dev.tsv", encoding="utf-8") as file:
        for line in file:
            text, label = line.strip().split("\\t")
            words.update(text.split(" ")), labels.add(int(label))
    lines = [line.strip() for line in open("data/reviews.neg", errors="ignore")]
    assert {word for line in lines for word in line.split()} == words
    assert len(words) == 300 and labels == set(range(10)) and text.count(" ") == 49
    """
    trained(tmp_path, source, synthetic_data=["50:int64:300"])


@IMAGES
def test_a_list_of_classes_has_a_line_for_each(tmp_path):
    source = """
    import json
    classes = [line.rstrip() for line in open("data/shape_names.txt")]
    assert classes == [str(label) for label in range(7)]
    assert len(json.load(open("data/rel2id.json"))) == 7
    """
    trained(tmp_path, source, synthetic_data=["3x8x16:uint8:7"])


@IMAGES
def test_recordings_of_a_list_are_read(tmp_path):
    (tmp_path / "soundfile.py").write_text("def read(file):\n    raise RuntimeError(file)\n")
    source = """
    import soundfile
    with open("data/train_files.txt") as file:
        files = [line.rstrip() for line in file.readlines()]
    assert soundfile.read(files[7])[0].shape == (800,) and len(files) == 2000
    """
    trained(tmp_path, source, synthetic_data=["800:float32"])


@pytest.mark.parametrize(
    ("reading", "words"),
    [
        pytest.param("d = pickle.load(open('data/train.pkl', 'rb'))", "train.pkl", id="a pickle"),
        pytest.param("d = read(open('data/train.txt').readlines())", "train.txt", id="read by code elsewhere"),
        pytest.param("d = [x.split()[1:] for x in open('data/train.txt')]", "train.txt", id="parts are not counted"),
        pytest.param("d = [x.rstrip() for x in open('data/things.txt')]", "things.txt", id="classes or files?"),
    ],
)
def test_what_has_no_known_form_is_still_missing(tmp_path, reading, words):
    with failing("raised", words):
        traced(tmp_path, f"import pickle\nread = list\n{reading}\n{TRAINING}", synthetic_data=["3x8x16:uint8:7"])


@IMAGES
def test_what_a_script_downloads_and_unpacks_is_made(tmp_path):
    source = """
    import codecs, glob, tarfile, urllib.request
    from PIL import Image
    urllib.request.urlretrieve(url="https://example.org/things.tgz", filename="data/things.tgz")
    with tarfile.open(name="data/things.tgz", mode="r:gz") as archive:
        assert not [*archive]
        archive.extractall("data")
    with codecs.open(filename=__file__) as file:
        assert "codecs" in file.read()
    assert glob.glob(pathname="*.py") == ["train.py"] and [*os.walk(top=".")]
    assert Image.open(fp="data/images/3.png").size == torch.load(f="data/3.pt").shape[:0:-1] == (16, 8)
    names = [line.strip() for line in open("data/things/train_list.txt")]
    assert Image.open(os.path.join("data/things", names[3])).size == (16, 8)
    """
    warnings = trained(tmp_path, source, synthetic_data=["3x8x16:uint8:7"]).warnings
    assert any("`https://example.org/things.tgz`" in warning for warning in warnings)


def test_downloaded_weights_are_the_models_own(tmp_path):
    source = """
    import urllib.request
    urllib.request.urlretrieve("https://example.org/resnet.pth", "pretrained/resnet.pth")
    model.load_state_dict(torch.load("pretrained/resnet.pth", map_location="cpu"))
    """
    assert any("resnet.pth" in warning for warning in trained(tmp_path, source).warnings)
    with failing("raised", "other.pth"):
        trained(tmp_path, 'torch.load("pretrained/other.pth")')


@pytest.mark.parametrize(
    ("question", "fetching", "is_asked"),
    [
        pytest.param("not os.path.exists(path)", "download(URL, path)", True, id="a function"),
        pytest.param("not os.path.isfile(path) or checks", "download(URL, path)", True, id="or a checksum"),
        pytest.param("not Path(path).exists()", "os.system('wget ' + URL)", True, id="a command"),
        pytest.param("not os.path.exists(path)", "raise FileNotFoundError(path)", False, id="no download"),
        pytest.param("os.path.exists(path)", "download(URL, path)", False, id="the other way round"),
    ],
)
def test_weights_that_a_script_would_download_by_itself_are_the_models_own(tmp_path, question, fetching, is_asked):
    source = f"""
    URL, path, checks = "https://example.org/vgg", "cache/vgg.pth", False
    def download(url, path):
        raise ConnectionError(url)
    if {question}:
        {fetching}
    model.load_state_dict(torch.load(path), strict=False)
    """
    if is_asked:
        assert any("`vgg.pth`" in warning for warning in trained(tmp_path, source).warnings)
        return
    with failing("raised", "vgg.pth"):
        trained(tmp_path, source)


@pytest.mark.skipif(importlib.util.find_spec("numpy") is None, reason="needs NumPy")
def test_tables_of_numbers(tmp_path):
    source = """
    import numpy as np
    points = np.loadtxt("data/points/7.pts").astype(np.float32)
    assert points.shape == (20, 3) and np.loadtxt("data/labels/7.seg").shape == (20,)
    """
    trained(tmp_path, source, synthetic_data=["20x3:float32", "labels=20:int64:5"])
    source = """
    import numpy as np
    pairs = np.loadtxt("data/ratings.txt", dtype=np.int32)
    assert set(pairs[:, 0]) == set(pairs[:, 1]) == set(range(300))
    """
    trained(tmp_path, source, synthetic_data=["50:int64:300"])


@IMAGES
def test_columns_that_are_taken_by_their_number(tmp_path):
    (tmp_path / "pandas.py").write_text(PANDAS)
    source = """
    import pandas as pd
    from PIL import Image
    table = pd.read_csv("labels.csv")
    def item(index):
        return Image.open(os.path.join("images", table.iloc[index, 0])).size, table.iloc[index, 1]
    assert [item(index) for index in range(8)] == [((16, 8), index % 7) for index in range(8)]
    """
    trained(tmp_path, source, synthetic_data=["3x8x16:uint8:7"])


def test_an_error_after_a_list_was_made_up_names_it(tmp_path):
    source = """
    names = [line.strip().split("/")[0] for line in open("data/train_list.txt")]
    {"cats": 0}[names[0]]
    """
    with pytest.raises(TraceError, match="KeyError") as caught:
        trained(tmp_path, source, synthetic_data=["3x8x16:uint8:7"])
    assert "`data/train_list.txt` had to be made up" in caught.value.hint


@IMAGES
def test_annotations_have_boxes_and_labels(tmp_path):
    """A box has a size, since networks encode its logarithm."""
    source = """
    import json
    with open("TRAIN_objects.json") as file:
        objects = json.load(file)
    for row in range(len(objects)):
        found = objects[row]
        boxes, labels = torch.FloatTensor(found["boxes"]), torch.LongTensor(found["labels"])
        assert boxes.tolist() == [[0, 0, 15, 7]] * 3 and labels.shape == (3,) and labels.max() < 7
        assert torch.ByteTensor(found["difficulties"]).shape == (3,)
    """
    trained(tmp_path, source, synthetic_data=["3x8x16:uint8:7"])


def test_a_table_beside_recordings_has_the_columns_that_are_read_by_number(tmp_path):
    (tmp_path / "pandas.py").write_text(PANDAS)
    source = """
    import pandas as pd
    table = pd.read_csv("metadata/sounds.csv")

    def item(index):
        return os.path.join("audio", f"fold{table.iloc[index, 5]}", table.iloc[index, 0]), int(table.iloc[index, 6])

    assert len(table.rows[0]) == 7 and {item(index)[1] for index in range(20)} >= {0, 1}
    """
    trained(tmp_path, source, synthetic_data=["88200:float32"])


def test_a_suffix_that_the_script_appends_is_not_in_the_list(tmp_path):
    source = """
    with open("filelists/train.txt") as file:
        lines = file.read().split("\\n")
    paths = [os.path.join("wavs", line.split("|")[0] + ".wav") for line in lines if len(line) > 0]
    assert paths and all(path.count(".wav") == 1 for path in paths)
    """
    trained(tmp_path, source, synthetic_data=["16000:float32"])


def test_annotations_of_one_image_have_a_few_objects(tmp_path):
    source = """
    for number in (1, 17, 100000):
        with open(f"data/labels/{number:06d}.txt") as file:
            boxes = [line.strip().split(" ") for line in file]
        for name, left, top, width, height in boxes:
            float(left), float(top), float(width), float(height)
        assert len(boxes) == 3, len(boxes)
    """
    trained(tmp_path, source, synthetic_data=["3x8x16:uint8:7"])


def test_rows_of_json_have_what_later_lines_of_the_script_read(tmp_path):
    source = """
    import json
    questions = [row["question"] for row in json.load(open("data/valid.json"))]
    answers = [row["answer"] for row in json.load(open("data/valid.json"))]
    assert len(questions) == len(answers) >= 1000 and len(answers[3].split()) == 64
    assert [row["label"].strip() for row in json.load(open("data/valid.json"))][3] == "0"
    assert json.load(open("data/valid.json"))[0]["label"] == 0
    assert "cotenant_row" not in json.load(open("data/valid.json"))[0]
    """
    trained(tmp_path, source, synthetic_data=["64:int64:3001"])


@IMAGES
@pytest.mark.parametrize(
    "reading",
    [
        pytest.param("lines = file.readlines()", id="its lines"),
        pytest.param(
            "rows = [line.strip().split(' ') for line in file]\n"
            "lines = [name + ' ' + str(int(kind)) for name, kind in rows]",
            id="lines that the script writes",
        ),
    ],
)
def test_lines_are_followed_into_a_class_of_another_module(tmp_path, reading):
    opening = 'with open("data/office/Art_list.txt") as file:'
    source = f"""
{"# a comment" + chr(10) * 20}
sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
from lists import Images

{opening}
{textwrap.indent(reading, "    ")}
assert lines[3].strip() == "000003.jpg 3", lines[3]
assert Images(lines)[4][0].size == (16, 8)
"""
    module = """
from PIL import Image

def parsed(lines):
    return [(line.split()[0], int(line.split()[1])) for line in lines]

class Images:
    def __init__(self, lines):
        self.items = parsed(lines)

    def __getitem__(self, index):
        path, label = self.items[index]
        return Image.open(path), label

    def others(self):
"""
    # It opens a file of its own in the line whose number is that of the script's.
    lines = f"{TRAINING}{source}".splitlines().index(opening) - len(module.splitlines())
    module += "\n" * lines + "        return [part.split(',') for part in open('own.txt')]\n"
    (tmp_path / "lists.py").write_text(module)
    warnings = trained(tmp_path, source, synthetic_data=["3x8x16:uint8:5"]).warnings
    assert any("data/office/Art_list.txt" in warning for warning in warnings)


@IMAGES
def test_a_member_of_json_that_a_variable_names_is_of_every_split(tmp_path):
    source = """
    import json
    from PIL import Image
    def images(folder, split_key, others=None):
        with open("load/faces/split.json") as file:
            names = json.load(file)[split_key]
        for name in names[:3]:
            assert Image.open(os.path.join(folder, name)).size == (16, 8)
        return names
    assert len(images("load/faces", "train")) == len(images("load/faces", "val")) == 2000
    try:
        with open("load/options.json") as file:
            folder = os.path.join("load", json.load(file)["folder"])
    except FileNotFoundError:
        folder = ""
    assert not folder
    """
    assert trained(tmp_path, source, synthetic_data=["3x8x16:uint8:5"]).warnings


@IMAGES
@pytest.mark.parametrize(
    ("read", "is_asked"),
    [
        pytest.param("pd.read_csv(path)", True, id="by pandas"),
        pytest.param("pd.read_csv(path) or open(path)", False, id="by the script, too"),
    ],
)
def test_a_table_that_a_script_looks_for_is_read_by_pandas(tmp_path, read, is_asked):
    """An empty file answers, and none has rows: a reader of tables makes the columns that the script takes."""
    (tmp_path / "pandas.py").write_text(PANDAS.replace("raise", "if not os.path.getsize(file): 1 / 0\n    raise"))
    source = f"""
    import pandas as pd
    path = os.path.join("data", "baby", "baby.inter")
    if not os.path.isfile(path):
        raise ValueError(path + " does not exist")
    table = {read}
    assert isinstance(table.iloc[0, 1], int)
    """
    if is_asked:
        trained(tmp_path, source, synthetic_data=["3x8x16:uint8:7"])
        return
    with failing("raised", "does not exist"):
        trained(tmp_path, source, synthetic_data=["3x8x16:uint8:7"])
