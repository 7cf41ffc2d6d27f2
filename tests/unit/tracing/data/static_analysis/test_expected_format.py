"""What the code around a call of `open` says of the file: parts of lines, their kinds, columns, and members of JSON."""

from __future__ import annotations

import textwrap

import pytest

from cotenant.tracing.data.data_options import parse_sample
from cotenant.tracing.data.static_analysis.expected_format import format_at
from cotenant.tracing.data.tables.synthetic_records import RecordMaker


def read(tmp_path, source):
    """The format that `source` expects of the file that its line with `open(` reads."""
    path = tmp_path / f"reader{len(list(tmp_path.iterdir()))}.py"  # files are parsed once
    path.write_text(textwrap.dedent(source))
    calls = ("open(", "read_csv(", "loadtxt(")
    lines = enumerate(path.read_text().splitlines(), 1)
    line = next(at for at, text in lines if any(call in text for call in calls))
    return format_at(str(path), line)


def uses(form):
    """The uses of the parts, in their order."""
    return [sorted(form.node.fields[key].uses) for key in sorted(form.node.fields)]


@pytest.mark.parametrize(
    ("source", "separator", "count", "parts"),
    [
        pytest.param(
            "for line in open(p):\n    name, label = line.strip().split(',')\n    x = root / name, int(label)",
            ",", 2, [["path"], ["int"]], id="unpacked",
        ),
        pytest.param(
            "with open(p) as f:\n    rows = [x.rstrip().split('|') for x in f]\n"
            "for row in rows:\n    wav, text = f'wavs/{row[0]}.wav', row[1]",
            "|", 2, [["path", "suffix"], []], id="rows of a comprehension",
        ),
        pytest.param(
            "lines = open(p).read().splitlines()\nfor i, x in enumerate(lines):\n    u, v = map(int, x.split())",
            None, 2, [["int"], ["int"]], id="map",
        ),
        pytest.param(
            "data = [l.split() for l in open(p).readlines()]\na, b = zip(*data)\nload(a)",
            None, 2, [["path"], []], id="columns by zip",
        ),
        pytest.param(
            "for l in open(p):\n    r = l.split('\\t')\n    assert len(r) == 3\n    x = float(r[-1])",
            "\t", 3, [["float"]], id="length, last part",
        ),
    ],
)  # fmt: skip
def test_parts_of_lines(tmp_path, source, separator, count, parts):
    form = read(tmp_path, source)
    assert (form.kind, form.node.separator, form.node.count, uses(form)) == ("lines", separator, count, parts)


def test_a_class_is_followed_through_its_attributes(tmp_path):
    source = """
    class Data:
        def __init__(self, path, sep=";"):
            self.lines = open(path).readlines()[1:]
            self.sep = sep

        def __getitem__(self, index):
            name, label = self.lines[index].strip().split(";")
            return Image.open(os.path.join(self.root, name)), int(label)
    """
    form = read(tmp_path, source)
    assert (form.header, form.node.separator, uses(form)) == (1, ";", [["path"], ["int"]])


def test_what_a_function_returns_is_followed_to_its_callers(tmp_path):
    source = """
    def listed(path, split="|"):
        with open(path) as file:
            return [line.strip().split(split) for line in file]

    class Data:
        def __init__(self, path):
            self.rows = listed(path)

        def __getitem__(self, index):
            return load(self.rows[index][0]), int(self.rows[index][1])
    """
    form = read(tmp_path, source)
    assert (form.node.separator, uses(form)) == ("|", [["path"], ["int"]])


def test_what_is_returned_to_another_module_is_followed_there(tmp_path):
    helper, user = tmp_path / "helper.py", tmp_path / "user.py"
    helper.write_text("def parsed(path):\n    with open(path) as file:\n        return json.load(file)\n")
    user.write_text(
        textwrap.dedent("""
        class Captions:
            def __init__(self, root, listed):
                self.root = root
                self.rows = [(self.named(row["image_id"]), row["caption"]) for row in listed["annotations"]]

            def named(self, number):
                return str(number).zfill(6) + ".jpg"

            def __getitem__(self, index):
                name, caption = self.rows[index]
                return Image.open(os.path.join(self.root, name)), caption

        def build(root):
            return Captions(root, parsed(root + "/train.json"))
        """)
    )
    line = next(at for at, text in enumerate(user.read_text().splitlines(), 1) if "parsed(" in text)
    form = format_at(str(helper), 2, [(str(user), line)])
    rows = form.node.fields["annotations"].elements
    assert {name: node.uses for name, node in rows.fields.items()} == {"image_id": {"path", "suffix"}, "caption": set()}
    assert format_at(str(helper), 2) is None or not format_at(str(helper), 2).node.fields


def test_another_branch_opens_another_file(tmp_path):
    source = """
    class Data:
        def __init__(self, split):
            if split == "train":
                with open("train.json") as file:
                    self.images = json.load(file)
            else:
                with gzip.open("test.json") as file:
                    self.images = json.load(file)

        def __getitem__(self, index):
            return Image.open(self.images[index])
    """
    assert read(tmp_path, source).node.elements.uses == {"path"}


def test_csv_has_names_or_parts(tmp_path):
    named = read(tmp_path, "with open(p) as f:\n    for r in csv.DictReader(f):\n        x = r['image'], int(r['age'])")
    assert (named.kind, named.header, list(named.node.fields)) == ("csv", 1, ["image", "age"])
    parts = read(tmp_path, "f = open(p)\nr = csv.reader(f, delimiter=';')\nnext(r)\nfor a, b in r:\n    float(b)")
    assert (parts.header, parts.node.separator, uses(parts)) == (1, ";", [[], ["float"]])


def test_columns_of_tables(tmp_path):
    numbers = read(tmp_path, "m = np.loadtxt(p, dtype=np.int32)\nusers, items = m[:, 0].max(), m[:, 1].max()")
    assert (numbers.node.separator, numbers.node.count, uses(numbers)) == (None, 2, [["int"], ["int"]])
    source = """
    class Data:
        def __init__(self, path):
            self.labels = pd.read_csv(path)

        def __getitem__(self, index):
            return os.path.join(self.folder, self.labels.iloc[index, 0]), self.labels.iloc[index, 1]
    """
    table = read(tmp_path, source)
    assert (table.kind, table.node.count, uses(table)) == ("table", 2, [["path"], []])


def test_members_of_json(tmp_path):
    source = """
    data = json.load(open(p))
    for item in data["images"]:
        path, label = os.path.join(root, item["file"]), int(item["label"])
    """
    form = read(tmp_path, source)
    images = form.node.fields["images"].elements
    assert form.kind == "json"
    assert {name: node.uses for name, node in images.fields.items()} == {"file": {"path"}, "label": {"int"}}


def test_texts_that_a_part_is_compared_with(tmp_path):
    form = read(
        tmp_path, "for l in open(p):\n    a, b = l.split()\n    if b == 'train' or b == 'val':\n        load(a)"
    )
    assert form.node.fields[1].choices == ["train", "val"]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("l = l.strip('\\n').split(' ')\nitems = [int(i) for i in l[1:]]\nuser = int(l[0])", id="a part"),
        pytest.param("all = [int(i) for i in l.split(' ')]\nuser, items = all[0], all[1:]", id="of numbers"),
    ],
)
def test_numbers_up_to_the_end_of_a_line(tmp_path, body):
    form = read(tmp_path, "for l in open(p):\n" + textwrap.indent(body, "    "))
    node = form.node
    assert (node.rest, node.elements.uses, uses(form)) == (1, {"int"}, [["int"]])
    assert (
        RecordMaker([parse_sample("3:int64:50")], None, print, bool, bool)
        .content(form, "train.txt")
        .startswith("0 0 1 2\n1 3 4 5\n")
    )
    assert RecordMaker([parse_sample("3x8x8:uint8:9")], None, print, bool, bool).content(form, "train.txt") is None


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("with open(p) as f:\n    lines = f.readlines()\nd = Data(lines)", id="goes elsewhere"),
        pytest.param("for l in open(p):\n    v = [float(x) for x in l.split()[1:]]", id="any number of values"),
        pytest.param("for l in open(p):\n    t = ' '.join(l.split()[1:])", id="any number of words"),
        pytest.param("for l in open(p):\n    t = [int(x) for x in l.split()[1:-1]]", id="up to another part"),
        pytest.param(
            "for l in open(p):\n    a = l.split()\n    int(a[-1])\n    [int(x) for x in a[1:]]", id="both ends"
        ),
        pytest.param(
            "for l in open(p):\n    a, b = l.split()\n    if b == split:\n        use(a)", id="a value at run time"
        ),
        pytest.param("for l in open(p):\n    a, b = l.split(sep)", id="an unknown separator"),
        pytest.param("for l in open(p):\n    a = l.split(',')\n    b = l.split(';')", id="two separators"),
        pytest.param("data = pickle.load(open(p, 'rb'))", id="a pickle"),
        pytest.param("for l in open(p):\n    x = eval(l)", id="eval"),
        pytest.param("def f():\n    return open(p).readlines()", id="returned to another module"),
        pytest.param("f = open(p)", id="never read"),
        pytest.param("t = np.loadtxt(p, dtype=str)[:, 1]", id="texts"),
        pytest.param("t = np.loadtxt(p)[:, 1:]", id="any number of columns"),
    ],
)
def test_what_says_too_little_has_no_format(tmp_path, source):
    assert read(tmp_path, source) is None
