"""ZIP files, shards and databases of images, made with `--synthetic-data` where they are missing."""

from __future__ import annotations

import importlib.util

import pytest

pytest.importorskip("torch", reason="tracing needs torch")
pytest.importorskip("PIL", reason="needs Pillow")

from traced_scripts import failing, trained

SAMPLE = {"synthetic_data": ["3x8x16:uint8:7"]}


def test_a_missing_zip_file_has_images_and_labels(tmp_path):
    source = """
    import json
    from PIL import Image
    archive = zipfile.ZipFile("datasets/faces-8x16.zip")
    images = [name for name in archive.namelist() if name.endswith(".png")]
    with archive.open(images[3]) as file:
        assert Image.open(file).size == (16, 8)
    labels = dict(json.loads(archive.read("dataset.json"))["labels"])
    assert sorted(labels) == sorted(images) and set(labels.values()) == set(range(7)), len(images)
    """
    assert any("faces-8x16.zip" in warning for warning in trained(tmp_path, source, **SAMPLE).warnings)


def test_a_zip_file_that_is_there_or_is_written_stays_as_it_is(tmp_path):
    source = """
    with zipfile.ZipFile("mine.zip", "w") as archive:
        archive.writestr("a.txt", "b")
    assert zipfile.ZipFile("mine.zip").namelist() == ["a.txt"]
    try:
        zipfile.ZipFile("weights.npz")
    except FileNotFoundError:
        pass
    else:
        raise AssertionError("weights.npz")
    """
    assert not trained(tmp_path, source, **SAMPLE).warnings


@pytest.mark.parametrize("has_folder", [False, True], ids=["no folder", "a folder without data.mdb"])
def test_a_missing_lmdb_has_an_image_for_each_key(tmp_path, has_folder):
    if has_folder:
        (tmp_path / "LMDB_PATH" / "images").mkdir(parents=True)
    refusing = "class Environment:\n    def __init__(self, path, **_): raise OSError(path)\nopen = Environment\n"
    (tmp_path / "lmdb.py").write_text(refusing)
    source = """
    from PIL import Image
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    import lmdb, pickle
    with lmdb.open("LMDB_PATH", readonly=True, lock=False).begin(write=False) as transaction:
        count = int(transaction.get(b"length").decode())
        assert Image.open(io.BytesIO(transaction.get(b"256:00007"))).size == (16, 8)
        assert count == len(list(transaction.cursor())) == pickle.loads(transaction.get(b"__len__")) == 2000
        assert len(pickle.loads(transaction.get(b"__keys__"))) == count
        keys = list(transaction.cursor().iternext(keys=True, values=False))
        assert keys == [key for key, _ in transaction.cursor().iternext()] and keys[0] == b"0", keys[:2]
    try:
        lmdb.open("written")
    except OSError:
        pass
    else:
        raise AssertionError("written")
    """
    assert any("LMDB_PATH" in warning for warning in trained(tmp_path, source, **SAMPLE).warnings)


def test_the_key_of_an_lmdb_names_the_size_of_its_image(tmp_path):
    (tmp_path / "lmdb.py").write_text("def open(path, **kwargs):\n    raise OSError(path)\n")
    source = """
    from PIL import Image
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    import lmdb
    with lmdb.open("faces.lmdb", readonly=True).begin() as transaction:
        sizes = [Image.open(io.BytesIO(transaction.get(key))).size for key in (b"32-00007", b"7", b"100-7")]
    assert sizes == [(32, 32), (16, 8), (16, 8)], sizes
    """
    trained(tmp_path, source, **SAMPLE)


@pytest.mark.skipif(importlib.util.find_spec("webdataset") is not None, reason="stands in for webdataset")
def test_a_missing_shard_has_images_captions_and_classes(tmp_path):
    (tmp_path / "webdataset").mkdir()
    (tmp_path / "webdataset" / "__init__.py").write_text("")
    (tmp_path / "webdataset" / "gopen.py").write_text("def gopen(url, mode='rb'):\n    return open(url, mode)\n")
    source = """
    from PIL import Image
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    import tarfile
    from webdataset import gopen
    shard = tarfile.open(fileobj=gopen.gopen("shards/0000.tar"), mode="r|*")
    found = {member.name: shard.extractfile(member).read() for member in shard}
    assert Image.open(io.BytesIO(found["00000009.jpg"])).size == (16, 8)
    assert found["00000009.cls"] == b"2" and b"word" in found["00000009.txt"] and len(found) == 4 * 256
    """
    assert any("shard" in warning for warning in trained(tmp_path, source, **SAMPLE).warnings)


@pytest.mark.parametrize(
    ("check", "is_made"),
    [
        pytest.param("assert os.path.isdir(root), root", True, id="assert"),
        pytest.param("assert not root or os.path.isdir(root)", True, id="assert unless empty"),
        pytest.param("if not os.path.exists(root):\n        raise RuntimeError(root)", True, id="raise"),
        pytest.param("if not os.path.exists(root):\n        os.makedirs(root)", False, id="makes it itself"),
        pytest.param("assert not os.path.exists(root)", False, id="asserts that there is none"),
        pytest.param("cached = os.path.exists(root)", False, id="only looks"),
    ],
)
def test_a_folder_of_data_is_made_where_the_script_raises_without_it(tmp_path, check, is_made):
    source = f"""
    root = "trainsets/trainL"
    {check}
    assert (len(os.listdir(root) if os.path.isdir(root) else []) == 2000) or not {is_made}
    """
    trained(tmp_path, source, **SAMPLE)


def test_a_folder_that_is_no_data_is_not_made(tmp_path):
    with failing("raised", "no weights"):
        trained(tmp_path, "assert os.path.isdir('pretrained/weights'), 'no weights'", **SAMPLE)
