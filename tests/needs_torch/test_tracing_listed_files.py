"""Names and kinds of files that a script lists and takes apart by itself, made with `--synthetic-data`."""

from __future__ import annotations

import importlib.util

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.tracing.data.sample_paths import is_of_masks
from cotenant.tracing.data.static_analysis import image_names, listed_suffixes
from traced_scripts import trained

IMAGES = pytest.mark.skipif(importlib.util.find_spec("PIL") is None, reason="needs Pillow")


@IMAGES
def test_names_of_images_match_the_expression_of_their_reader(tmp_path):
    source = r"""
    import re
    def read(folder):
        pattern = re.compile(r"([-\d]+)_c(\d)")
        found = [pattern.search(path).groups() for path in glob.glob(os.path.join(folder, "*.jpg"))]
        return [(int(person), int(camera)) for person, camera in found]
    people = read("data/market1501/bounding_box_train")
    assert len(people) == 2000 and {person for person, _ in people} == set(range(751)), len(people)
    assert {camera for _, camera in people} == {1, 2}
    """
    trained(tmp_path, source, synthetic_data=["3x8x16:uint8:751"])


@IMAGES
@pytest.mark.parametrize(
    "listing",
    [
        pytest.param(
            "try:\n        states = os.listdir(folder)\n    except OSError:\n        states = []", id="handled"
        ),
        pytest.param("states = glob.glob(folder + '/*.png')", id="of earlier runs"),
    ],
)
@pytest.mark.parametrize("folder", ["experiments/train_x/models", "runs/training_states"])
def test_folders_of_earlier_runs_stay_absent(tmp_path, listing, folder):
    source = f"""
    folder = {folder!r}
    {listing}
    assert states == []
    """
    assert not trained(tmp_path, source, synthetic_data=["3x8x16:uint8:7"]).warnings


@IMAGES
@pytest.mark.parametrize(
    ("handler", "is_made"),
    [
        pytest.param("except FileNotFoundError:\n        names = []", False, id="goes on"),
        pytest.param("except:\n        names = []", False, id="bare"),
        pytest.param("except ValueError:\n        names = []", True, id="another error"),
        pytest.param("except OSError:\n        raise SystemExit('no data')", True, id="raises"),
        pytest.param("except OSError:\n        sys.exit('no data')", True, id="exits"),
    ],
)
def test_a_folder_is_made_unless_the_script_goes_on_without_it(tmp_path, handler, is_made):
    source = f"""
    try:
        names = os.listdir("data/train")
    {handler}
    assert bool(names) is {is_made}
    """
    trained(tmp_path, source, synthetic_data=["3x8x16:uint8:7"])


@IMAGES
def test_a_folder_whose_listing_would_raise_needs_no_name_of_data(tmp_path):
    source = """
    assert os.listdir("../DIS5K/im")[0].endswith(".jpg")
    assert len(glob.glob("../DIS5K/gt/*.png")) >= 128
    assert glob.glob("../DIS5K/gt/*.pth") == glob.glob("figures/*.png") == glob.glob("*.png") == []
    assert list(os.walk("../DIS5K/other")) == []
    os.makedirs("mine")
    assert glob.glob("mine/*.png") == os.listdir("mine") == []
    try:
        os.listdir("models")
    except FileNotFoundError:
        train()
    """
    warnings = trained(tmp_path, source, synthetic_data=["3x8x16:uint8:7"]).warnings
    assert sum("../DIS5K" in warning for warning in warnings) == 2


@pytest.mark.parametrize(
    ("path", "is_mask"),
    [
        pytest.param("CamVid/trainannot/7.png", True, id="of CamVid"),
        pytest.param("CamVid/trainannot/7.jpg", True, id="of a suffix that the script leaves open"),
        pytest.param("CamVid/train/7.png", False, id="images"),
        pytest.param("annotated/7.png", False, id="another word"),
    ],
)
def test_folders_of_masks(path, is_mask):
    assert is_of_masks(path) is is_mask


@pytest.mark.parametrize(
    ("reading", "suffix"),
    [
        pytest.param("archive = np.load(path)\n    field = archive['a']", ".npz", id="by name"),
        pytest.param("with np.load(path) as archive:\n        field = archive['a']", ".npz", id="with"),
        pytest.param("field = np.load(path)['a']", ".npz", id="at once"),
        pytest.param("field = np.load(path)[0:3]", ".npy", id="array"),
        pytest.param("field = h5py.File(path)['a']", ".h5", id="HDF5"),
        pytest.param("field = np.load(path)\n    image = Image.open(path)", ".jpg", id="images, too"),
    ],
)
def test_the_reader_of_files_says_their_suffix(tmp_path, reading, suffix):
    module = tmp_path / "reader.py"
    module.write_text(f"def read(path):\n    {reading}\n")
    assert listed_suffixes.suffix_of_readers(str(module), ".jpg") == suffix


@pytest.mark.skipif(importlib.util.find_spec("numpy") is None, reason="needs NumPy")
def test_listed_archives_of_arrays_have_the_suffix_of_their_reader(tmp_path):
    source = """
    import numpy as np
    files = os.listdir("data/fields")
    assert np.load("data/fields/" + files[0])["a"].shape == (6, 8, 8)
    found = [glob.glob(f"data/scans/*{suffix}") for suffix in (".npz", ".nii", ".nii.gz", "_t1.nii.gz", ".h5x")]
    assert [len(names) > 1 for names in found] == [True, True, True, True, False]
    assert not any(path.endswith(".nii.nii.gz") for path in found[2]) and found[3][0].endswith("_t1.nii.gz")
    assert np.load(found[0][-1])["a"].shape == (6, 8, 8)
    """
    trained(tmp_path, source, synthetic_data=["6x8x8:float32"])


@pytest.mark.skipif(importlib.util.find_spec("numpy") is None, reason="needs NumPy")
def test_arrays_that_a_script_lists_are_files(tmp_path):
    source = """
    import numpy
    labels = sorted(glob.glob(os.path.join("data/npy/gts", "**/*.npy"), recursive=True))
    images = [os.path.join("data/npy/imgs", os.path.basename(path)) for path in labels]
    images = [path for path in images if os.path.isfile(path)]
    assert len(labels) == len(images) > 1
    label, image = numpy.load(labels[0], "r"), numpy.load(images[0], allow_pickle=True)
    assert label.shape == (8, 16) and set(numpy.unique(label)) == {0, 1}
    assert image.shape == (8, 16, 3) and image.dtype == "float32"
    """
    trained(tmp_path, source, synthetic_data=["gts=8x16:uint8:2", "imgs=8x16x3:float32"])


@pytest.mark.parametrize(
    ("pattern", "first"),
    [
        pytest.param(r"([-\d]+)_c(\d)", "0_c1_0", id="re-identification"),
        pytest.param(r"(\d{4})_c(\d+)s(\d+)_", "0000_c1s1__0", id="digits of a fixed number"),
        pytest.param(r"^img_(\d+)\.jpg$", "img_0", id="whole name"),
        pytest.param(r"(cat|dog)\.(\d+)", "cat.0_0", id="one of two"),
        pytest.param(r"(?<=x)\d", "0_0", id="what is not made"),
        pytest.param(r"((", "0_0", id="no expression"),
    ],
)
def test_a_name_matches_an_expression(monkeypatch, pattern, first):
    monkeypatch.setattr(image_names, "_patterns", lambda path, line: (pattern,))
    names = image_names.names(20, 20, ".jpg")
    assert names[0] == first
    assert len(set(names)) == 20


YOLO = r"""
    def img2label_paths(paths):
        return [path.replace("/images/", "/labels/").rsplit(".", 1)[0] + ".txt" for path in paths]
"""


@IMAGES
@pytest.mark.parametrize(
    ("path", "listing"),
    [
        pytest.param("datasets/coco/train2017.txt", "data.read_text().splitlines()", id="list"),
        pytest.param("datasets/coco128/images/train2017", "glob.glob(str(data / '*.*'))", id="folder"),
    ],
)
def test_a_data_set_of_yolo_has_images_and_boxes(tmp_path, path, listing):
    source = f"""
    from PIL import Image
    {YOLO}
    data = Path({path!r}).resolve()
    assert all(found.exists() for found in [data])
    images = {listing}
    assert len(images) == 1000 and Image.open(images[0]).size == (16, 8)
    boxes = []
    for label in img2label_paths(images):
        with open(label) as file:
            lines = file.read().splitlines()
        assert len(set(lines)) == 7 and all(0 < float(word) < 1 for line in lines for word in line.split()[1:])
        assert {{len(line.split()) for line in lines}} == {{1 + 2 * 4}}  # outlines
        boxes += [int(line.split()[0]) for line in lines]
    assert set(boxes) == set(range(80))
    assert not Path("datasets/coco/vocabulary.txt").exists()
    """
    warnings = trained(tmp_path, source, synthetic_data=["3x8x16:uint8:80"]).warnings
    assert any("images/train2017" in warning for warning in warnings)


@IMAGES
def test_a_library_that_lists_images_for_a_script_finds_those_that_are_made_up(tmp_path):
    library = tmp_path / "site-packages/imutils"
    library.mkdir(parents=True)
    (library / "paths.py").write_text("""
import os

def list_images(folder):
    for root, _, names in os.walk(folder):
        yield from (os.path.join(root, name) for name in names if name.endswith(".jpg"))
""")
    source = """
    sys.path.insert(0, "site-packages")
    from imutils import paths
    assert len(list(paths.list_images("data/train"))) == 2000
    """
    trained(tmp_path, source, synthetic_data=["3x8x16:uint8:80"])


@IMAGES
def test_the_text_of_a_made_up_image_has_its_boxes_where_a_script_asks_for_it(tmp_path):
    source = """
    Path("own/images").mkdir(parents=True)
    Path("own/images/000001.jpg").touch()
    assert not os.path.isfile("data/labels/train/000003.txt")  # its image is not there yet
    names = sorted(os.listdir("data/images/train"))
    texts = [f"data/labels/train/{name[:-4]}.txt" for name in names[:40]]
    assert all(os.path.isfile(text) for text in texts) and not os.path.isfile("own/labels/7.txt")
    assert not os.path.isfile(texts[0].replace(".txt", ".json")) and not Path("data/text/train/000003.txt").is_file()
    lines = [line.split() for text in texts for line in Path(text).read_text().splitlines()]
    assert len(lines) == 40 * 7 and {len(line) for line in lines} == {5}
    assert 60 < len({int(line[0]) for line in lines}) <= 80 and all(int(line[0]) < 80 for line in lines)
    centers, sizes = {line[1] for line in lines}, {line[3] for line in lines}
    assert len(centers) == 7 and sizes == {"0.200"} and 0.1 < float(min(centers)) < float(max(centers)) < 0.9
    """
    trained(tmp_path, source, synthetic_data=["3x8x16:uint8:80"])


@IMAGES
def test_a_list_whose_paths_of_images_become_those_of_labels_has_both(tmp_path):
    source = """
    from PIL import Image
    images, boxes = [], []
    for line in open("../data/coco/trainvalno5k.txt", "r"):
        label = line.replace("images", "labels").replace(".jpg", ".txt").strip()
        if os.path.isfile(label):
            images.append(line.strip())
            boxes += [row.split() for row in Path(label).read_text().splitlines()]
    assert len(images) == 1000 and Image.open(images[0]).size == (16, 8)
    assert len(boxes) == 7000 and {len(box) for box in boxes} == {5}
    assert {int(box[0]) for box in boxes} == set(range(80))
    assert len(set(map(tuple, boxes[:7]))) == 7
    """
    trained(tmp_path, source, synthetic_data=["3x8x16:uint8:80"])


@IMAGES
def test_a_list_of_images_is_absent_without_a_reader_of_yolo(tmp_path):
    source = "assert not Path('datasets/coco/train2017.txt').exists()"
    assert not trained(tmp_path, source, synthetic_data=["3x8x16:uint8:80"]).warnings


@IMAGES
def test_pascal_voc_has_lists_images_boxes_and_masks(tmp_path):
    source = """
    import xml.etree.ElementTree as ET
    from PIL import Image
    root = "VOCdevkit/VOC2007"
    names = {}
    for split in ("Main/trainval", "Segmentation/val", "Main/cat_train"):
        with open(os.path.join(root, "ImageSets", split + ".txt")) as file:
            names[split] = file.read().splitlines()
    assert names["Main/trainval"] == names["Segmentation/val"] == [line.split()[0] for line in names["Main/cat_train"]]
    assert {line.split()[1] for line in names["Main/cat_train"]} == {"1"} and len(set(names["Main/trainval"])) == 1000
    name = names["Main/trainval"][-1]
    assert Image.open(os.path.join(root, "JPEGImages", name + ".jpg")).size == (64, 48)
    mask = Image.open(os.path.join(root, "SegmentationClass", name + ".png"))
    assert (mask.size, mask.mode) == ((64, 48), "L")
    objects = ET.parse(os.path.join(root, "Annotations", name + ".xml")).findall("object")
    for found in objects:
        box = found.find("bndbox")
        left, top, right, bottom = (int(box.find(side).text) for side in ("xmin", "ymin", "xmax", "ymax"))
        assert 1 <= left < right <= 64 and 1 <= top < bottom <= 48 and found.find("difficult").text == "0"
    assert len({found.find("name").text for found in objects}) == 3
    """
    warnings = trained(tmp_path, source, synthetic_data=["3x48x64:uint8:20"]).warnings
    assert any("VOC2007/JPEGImages" in warning for warning in warnings)


def test_a_font_that_is_downloaded_is_the_one_of_matplotlib(tmp_path):
    (tmp_path / "matplotlib" / "fonts" / "ttf").mkdir(parents=True)
    (tmp_path / "matplotlib" / "__init__.py").write_text("def get_data_path(): return __path__[0]\n")
    (tmp_path / "matplotlib" / "fonts" / "ttf" / "DejaVuSans.ttf").write_text("glyphs")
    source = """
    torch.hub.download_url_to_file("https://github.com/assets/v0/Arial.ttf", "Arial.ttf", progress=False)
    import matplotlib  # the real one where a test before this one has imported it
    with open(os.path.join(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"), "rb") as font:
        assert open("Arial.ttf", "rb").read() == font.read() != b""
    try:
        torch.hub.download_url_to_file("https://github.com/assets/v0/yolo.zip", "yolo.zip")
    except OSError:
        train()
    else:
        raise AssertionError("yolo.zip")
    """
    trained(tmp_path, source)


@IMAGES
def test_optical_flow_lies_between_two_images(tmp_path):
    source = """
    import struct
    from PIL import Image
    images = sorted(glob.glob("datasets/chairs/data/*.ppm"))
    flows = sorted(glob.glob("datasets/chairs/data/*.flo"))
    assert len(images) // 2 == len(flows) > 0 and Image.open(images[0]).size == (16, 8)
    content = open(flows[0], "rb").read()
    assert struct.unpack("<fii", content[:12]) == (202021.25, 16, 8) and len(content) == 12 + 16 * 8 * 2 * 4
    named = glob.glob("datasets/other/*_flow.flo")
    assert len(named) == 2000
    assert all(os.path.isfile(flow.replace("_flow.flo", "_img2.ppm")) for flow in named[:9])
    assert not os.path.isfile("datasets/other/readme_img1.ppm")
    """
    trained(tmp_path, source, synthetic_data=["3x8x16:uint8"])


@IMAGES
@pytest.mark.parametrize("path", ["data/coco/images/966.jpg"])
def test_an_image_exists_where_the_script_needs_it(tmp_path, path):
    source = f"""
    from PIL import Image
    assert not os.path.exists("data/coco/images/7.jpg")
    path = {path!r}
    assert os.path.exists(path), path
    assert Image.open(path).size == (16, 8)
    path = "data/frames/0_7/img_00001.jpg"
    while not os.path.exists(path):
        raise AssertionError("tries another one")
    """
    trained(tmp_path, source, synthetic_data=["3x8x16:uint8"])


@IMAGES
@pytest.mark.parametrize(
    "listing",
    [
        pytest.param('[name for name in os.listdir(folder) if name.endswith(".png")]', id="comprehension"),
        pytest.param("[name for name in os.listdir(folder) if os.path.splitext(name)[1] == SUFFIX]", id="equal"),
        pytest.param("[name for name in sorted(os.listdir(folder)) if is_image(name)]", id="function"),
        pytest.param('[path.name for path in Path(folder).iterdir() if path.suffix in {".png", ".tif"}]', id="one of"),
        pytest.param('fnmatch.filter(os.listdir(folder), "*.png")', id="pattern"),
        pytest.param("kept(os.listdir(folder))", id="as it is"),
    ],
)
def test_a_missing_folder_has_files_of_the_suffix_that_its_reader_keeps(tmp_path, listing):
    source = f"""
    import fnmatch
    SUFFIX, SUFFIXES = ".png", [".png", ".gif"]
    def is_image(name):
        return any(name.endswith(suffix) for suffix in SUFFIXES)
    def kept(names):
        return names
    def read(folder):
        return {listing}
    images, masks = read("data/train/images"), read("data/train/masks")
    assert len(images) > 100 and images == masks, (len(images), len(masks))
    assert all(name.endswith({'".jpg"' if "kept" in listing else '".png"'}) for name in images), images[:3]
    """
    trained(tmp_path, source, synthetic_data=["3x8x16:uint8:7"])


@IMAGES
def test_listed_names_that_a_loop_keeps_by_an_attribute(tmp_path):
    source = """
    from PIL import Image
    class Scans:
        def __init__(self, folder, suffix="gif"):
            self.suffix, self.paths = suffix, []
            names = os.listdir(folder)
            for name in names:
                if name.endswith(self.suffix):
                    self.paths.append(os.path.join(folder, name))
    scans = Scans("data/1st_manual")
    assert len(scans.paths) > 100 and Image.open(scans.paths[0]).size == (16, 8)
    assert os.listdir("data/outdoor/hazy")
    """
    trained(tmp_path, source, synthetic_data=["3x8x16:uint8:7"])


@IMAGES
@pytest.mark.parametrize(
    ("condition", "is_made"),
    [
        pytest.param("not os.path.isdir(root)", True, id="where it is absent"),
        pytest.param("os.path.isdir(root)", False, id="where it is there"),
    ],
)
def test_a_folder_that_a_script_downloads_is_there(tmp_path, condition, is_made):
    source = f"""
    import subprocess
    def download():
        subprocess.check_call(["curl", "-L", "https://localhost:1/celeba.zip"])
    root = "data/celeba"
    if {condition}:
        download()
    found = os.path.isdir(root)
    assert found is {is_made}
    """
    trained(tmp_path, source, synthetic_data=["3x8x16:uint8:7"])


@IMAGES
def test_names_that_are_listed_in_turn_elsewhere_are_folders(tmp_path):
    source = """
    from PIL import Image
    root = "data/omniglot"
    characters = [
        os.path.join(root, family, character)
        for family in os.listdir(root) if os.path.isdir(os.path.join(root, family))
        for character in os.listdir(os.path.join(root, family))
    ]
    def images(folder):
        return [os.path.join(folder, name) for name in os.listdir(folder)]
    assert len({Path(character).parent for character in characters}) == 7
    assert [len(images(character)) for character in characters[:9]] == [20] * 9
    assert Image.open(images(characters[3])[19]).size == (16, 8)
    """
    trained(tmp_path, source, synthetic_data=["3x8x16:uint8:7"])


@IMAGES
def test_a_list_of_images_with_boxes_is_known_by_its_reader(tmp_path):
    rest = "[1" + ":]"  # this file is a user's module for the tests beside it, and would be a reader of boxes
    boxes = f"[list(map(int, box.split(','))) for box in parts{rest}]"
    (tmp_path / "reading.py").write_text(f"def item(line):\n    parts = line.split()\n    return parts[0], {boxes}\n")
    source = """
    from PIL import Image
    import reading
    def read(path):
        with open(path) as file:
            return file.readlines()
    assert len(read("2007_val.txt")) == 2000
    items = [reading.item(line) for line in read("2007_train.txt")]
    assert len(items) == 2000 and Image.open(items[7][0]).size == (16, 8)
    assert all(left < right <= 16 and top < bottom <= 8 for left, top, right, bottom, _ in items[7][1])
    assert {box[4] for _, boxes in items for box in boxes} == set(range(7))
    """
    trained(tmp_path, source, synthetic_data=["3x8x16:uint8:7"])


@IMAGES
def test_sequences_that_a_script_reads_until_one_is_absent_are_few(tmp_path):
    source = """
    from PIL import Image
    found, sequence = [], 0
    while True:
        images = sorted(glob.glob(os.path.join("data/hd1k", "image_2/%06d_*.png" % sequence)))
        if not images:
            break
        found.append(len(images))
        sequence += 1
    assert len(found) == 4 and found[0] > 100, found
    listed = [len(glob.glob(f"data/other/{index}_*.png")) for index in range(9)]
    assert min(listed) > 100, listed
    """
    trained(tmp_path, source, synthetic_data=["3x8x16:uint8:7"])


@IMAGES
def test_more_images_are_made_than_a_file_may_have_links(tmp_path):
    source = """
    from PIL import Image
    folders = [os.listdir(f"data/train/{index}") for index in range(36)]
    assert sum(map(len, folders)) == 72_000
    assert Image.open(f"data/train/35/{folders[35][-1]}").size == (16, 8)
    """
    trained(tmp_path, source, synthetic_data=["3x8x16:uint8:7"])


@IMAGES
def test_images_and_the_flow_between_two_of_them_are_as_many(tmp_path):
    source = """
    images = sorted(glob.glob(os.path.join("data/FlyingChairs", "*.ppm")))
    flows = sorted(glob.glob(os.path.join("data/FlyingChairs", "*.flo")))
    assert 100 < len(images) == 2 * len(flows), (len(images), len(flows))
    """
    trained(tmp_path, source, synthetic_data=["3x436x1027:uint8"])


@IMAGES
@pytest.mark.parametrize("name", ["label.txt", "notes.txt"])
def test_a_list_of_faces_has_a_line_of_numbers_for_each(tmp_path, name):
    source = f"""
    from PIL import Image
    path, faces = "data/widerface/train/{name}", {{}}
    try:
        lines = open(path).readlines()
    except FileNotFoundError:
        lines = []
    for line in lines:
        if line.startswith("#"):
            faces[path.replace("{name}", "images/") + line[2:].strip()] = found = []
        else:
            found.append([float(number) for number in line.split(" ")])
    assert len(faces) == (2000 if {name!r} == "label.txt" else 0)
    for image, found in list(faces.items())[:1]:
        assert Image.open(image).size == (16, 8) and [len(face) for face in found] == [20] * 3
        assert all(left + width <= 16 and top + height <= 8 for left, top, width, height, *_ in found), found
    """
    trained(tmp_path, source, synthetic_data=["3x8x16:uint8:2"])


@IMAGES
def test_folders_have_the_names_that_a_script_compares_them_with(tmp_path):
    source = """
    def load(images, masks):
        found, pairs = {}, []
        kinds = os.listdir(images)
        for kind in kinds:
            if kind == "background":
                continue
            if kind == "good":
                found[kind] = glob.glob(os.path.join(images, kind) + "/*.png")
            else:
                found[kind] = sorted(glob.glob(os.path.join(images, kind) + "/*.png"))
                pairs += zip(found[kind], sorted(glob.glob(os.path.join(masks, kind) + "/*.png")), strict=True)
        return found, pairs
    found, pairs = load("data/bottle/train", "data/bottle/ground_truth")
    assert list(found) == ["good"] and len(found["good"]) == 2000 and not pairs
    found, pairs = load("data/bottle/test", "data/bottle/ground_truth")
    assert sorted(found) == ["0", "1", "2", "3", "good"] and len(pairs) == 4 * 400
    """
    trained(tmp_path, source, synthetic_data=["3x8x16:uint8:5"])


@IMAGES
def test_folders_that_a_pattern_finds_and_a_script_lists_are_folders(tmp_path):
    source = """
    found = []
    folders = sorted(glob.glob("data/scenes/*"))
    for folder in folders:
        found += glob.glob(folder + "/*GT_SRGB*")
    assert len(folders) == 5 and len(found) == 2000 and "GT_SRGB" in found[0]
    assert all(os.path.isfile(path) for path in glob.glob("data/pictures/*"))
    """
    trained(tmp_path, source, synthetic_data=["3x8x16:uint8:5"])
