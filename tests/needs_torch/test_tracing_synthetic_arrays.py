"""Recordings, and archives of arrays, that a script looks for by itself, made with `--synthetic-data`."""

from __future__ import annotations

import importlib.util
import textwrap

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.core.errors import TraceError
from traced_scripts import failing, trained


@pytest.mark.skipif(importlib.util.find_spec("scipy") is None, reason="needs scipy")
def test_a_missing_recording_is_read(tmp_path):
    source = """
    from scipy.io import wavfile
    rate, waveform = wavfile.read("wavs/0.wav")
    assert rate == 22050 and waveform.shape == (3200,) and waveform.dtype == "int16" and waveform.std() > 0
    wavfile.write("own.wav", 8000, waveform[:10])
    assert wavfile.read("own.wav")[0] == 8000
    """
    warnings = trained(tmp_path, source, synthetic_data=["3200:float32"]).warnings
    assert any("a recording that the script opens is not on this machine" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("options", "rate"),
    [
        pytest.param("sampling_rate = 24_000", 24_000, id="a variable"),
        pytest.param("class hps: pass\nhps = hps()\nhps.audio = {'sample_rate': 44_100}", 44_100, id="an option"),
        pytest.param("frame_rate, learning_sr = 24_000, 0.1", 16_000, id="other rates"),
    ],
)
def test_a_missing_recording_has_the_rate_that_its_reader_names(tmp_path, options, rate):
    (tmp_path / "soundfile.py").write_text(
        "class SoundFile:\n    def __init__(self, file):\n        pass\n\n"
        "def read(file, **options):\n    raise FileNotFoundError(file)\n"
    )
    (tmp_path / "reader.py").write_text(
        "import soundfile\n\ndef read(path):\n    return soundfile.read(path)\n\n"
        "class Speech:\n    def __init__(self, hps):\n        self.hps = hps\n\n"
        "    def first(self):\n        return read('wavs/0.wav')\n"
    )
    named = "vars().get('hps')"
    source = f"{options}\nfrom reader import Speech, read\n" + (
        f"assert Speech({named}).first()[1] == {rate}" if "hps" in options else f"assert read('0.wav')[1] == {rate}"
    )
    trained(tmp_path, source, synthetic_data=["3200:float32"])


@pytest.mark.skipif(importlib.util.find_spec("scipy") is None, reason="needs scipy")
@pytest.mark.parametrize(
    "listing",
    [
        pytest.param("glob.glob(f'{folder}/**/*.wav', recursive=True)", id="glob"),
        pytest.param("[str(path) for path in Path(folder).rglob('*.wav')]", id="Path.rglob"),
    ],
)
def test_a_missing_folder_of_recordings_is_listed(tmp_path, listing):
    source = f"""
    from scipy.io import wavfile
    folder = sys.argv[2]
    files = {listing}
    assert len(set(files)) == 2000 and all(file.startswith(folder) and file.endswith(".wav") for file in files)
    assert wavfile.read(files[7])[1].shape == (3200,)
    assert glob.glob(folder + "/*.json") == []
    """
    arguments = ("--data_dir", str(tmp_path / "gone"))
    assert trained(tmp_path, source, *arguments, synthetic_data=["3200:float32"]).warnings
    (tmp_path / "other").mkdir()
    with failing("raised", "len(set(files))"):
        trained(tmp_path / "other", source, *arguments, synthetic_data=["3200:int64:9"])


@pytest.mark.skipif(importlib.util.find_spec("numpy") is None, reason="needs numpy")
def test_a_missing_archive_of_numpy_has_arrays_by_name(tmp_path):
    source = """
    import numpy
    with numpy.load("data/train.npz") as data:
        assert data["x"].shape == (4, 3) and data["y"].shape == (4,) and "z" in data and len(data.files) == 1
        assert data["x"].sum() > 0 and data["y"].tolist() == [0, 1, 2, 3]
    table = numpy.load("data/train.npy")
    assert table.shape == (4, 3) and table[:, 0].sum() > 0 and table[:, 0].std() > 0
    numpy.savez("own.npz", a=numpy.zeros(2))
    assert [*numpy.load("own.npz")] == ["a"]
    """
    trained(tmp_path, source, synthetic_data=["4x3:float32", "train.npz/y=4:int64"])


MATLAB = """
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    from scipy.io import loadmat
    data = loadmat("data/IndianPine.mat")
    assert (data["input"].shape, data["TR"].shape, int(data["TR"].max())) == ((5, 4, 20), (5, 4), 16)
"""


@pytest.fixture
def scipy(tmp_path):
    """A package that reads as SciPy does: from a file that is opened."""
    (tmp_path / "scipy").mkdir()
    (tmp_path / "scipy/__init__.py").touch()
    (tmp_path / "scipy/io.py").write_text("def loadmat(path):\n    return open(path)\n")


def test_a_missing_file_of_matlab_has_the_arrays_that_are_described(tmp_path, scipy):
    trained(tmp_path, MATLAB, synthetic_data=["IndianPine.mat/input=5x4x20", "TR=5x4:uint8:17"])


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        pytest.param(["5x4x20"], "FileNotFoundError", id="none for a name"),
        pytest.param(["5x4x20", "input=5x4x20"], "KeyError: 'TR'", id="not this one"),
    ],
)
def test_a_file_of_matlab_has_no_other_arrays(tmp_path, scipy, samples, message):
    with failing("raised", message):
        trained(tmp_path, MATLAB, synthetic_data=samples)


@pytest.mark.parametrize("path", ["pretrained_models/stylegan.pt", "out/model.pt"])
def test_a_file_in_a_folder_of_checkpoints_has_weights(tmp_path, path):
    trace = trained(tmp_path, f"model.load_state_dict(torch.load({path!r})['g_ema'])", synthetic_data=["4x3:float32"])
    assert trace.warnings[0] == f"the weights `{path}` are not on this machine: the model keeps its initial ones"


def test_entries_that_are_copied_from_missing_weights_are_the_initial_ones(tmp_path):
    source = """
    layer = torch.nn.Linear(3, 3)
    saved, own = torch.load("best.pth.tar")["state_dict"], layer.state_dict()
    for name in own:
        own[name] = saved[name]
    own["weight"] = torch.full((3, 3), 7.0)
    before = layer.bias.clone()
    layer.load_state_dict(own)
    assert (layer.weight == 7).all() and (layer.bias == before).all()
    """
    trained(tmp_path, source, synthetic_data=["4x3:float32"])


def test_a_missing_file_of_an_array_that_torch_saved_is_one(tmp_path):
    source = """
    series = torch.load("data/series.pt")
    assert torch.from_numpy(series[1:, :-1]).shape == (3, 2)
    """
    trained(tmp_path, source, synthetic_data=["4x3:float32"])


@pytest.mark.skipif(importlib.util.find_spec("h5py") is None, reason="needs h5py")
def test_an_hdf5_file_that_is_read_into_memory_is_made(tmp_path):
    source = """
    import h5py
    assert h5py.File("data/train.h5", "r", driver="core")["images"].shape[1:] == (3, 8, 16)
    try:
        h5py.File("absent/new.h5", "w")
    except FileNotFoundError:
        pass
    else:
        raise AssertionError("a file was made in a folder that is absent")
    """
    assert trained(tmp_path, source, synthetic_data=["3x8x16:float32"]).warnings


@pytest.mark.skipif(importlib.util.find_spec("h5py") is None, reason="needs h5py")
def test_a_file_of_tokens_is_one_long_text(tmp_path):
    source = """
    import h5py
    with h5py.File("data/train.h5", "r") as file:
        tokens, rows = file["tokens"], file["input_ids"]
        assert tokens.shape == (100_000_000,) and len(rows) == 2000
        assert tokens[5_000:5_065].shape == rows[7].shape == (65,) and int(tokens[3]) == 0
    """
    trained(tmp_path, source, synthetic_data=["65:int64:3001"])


@pytest.mark.skipif(importlib.util.find_spec("h5py") is None, reason="needs h5py")
def test_a_missing_hdf5_file_has_rows_of_the_sample(tmp_path):
    source = """
    import h5py
    with h5py.File("data/train.h5", "r") as file:
        assert isinstance(file, h5py.File) and "lr" in file
        assert file["lr"][3].shape == (8, 16) and file["lr"]["5"][:, :].shape == (8, 16) and len(file["lr"]) >= 1000
        assert file["lr"].shape[1:] == (8, 16) and file["lr"][:4].dtype == "float32"
    """
    assert any("data/train.h5" in warning for warning in trained(tmp_path, source, synthetic_data=["8x16"]).warnings)


@pytest.mark.skipif(importlib.util.find_spec("numpy") is None, reason="needs numpy")
def test_a_sample_with_a_path_is_for_its_files_alone(tmp_path):
    source = """
    import numpy
    assert numpy.load("x.npy").shape == (4, 2)
    assert numpy.load("masks/y.npy").shape == torch.load("masks/y.pt").shape == (3,)
    """
    trained(tmp_path, source, synthetic_data=["masks/=3:int64", "4x2"])


def test_a_pattern_of_hdf5_files_finds_one_to_be_opened(tmp_path):
    source = """
    assert glob.glob("data/modelnet40/*train[0-9].h5") == ["data/modelnet40/0train0.h5"]
    assert glob.glob("checkpoints/*.h5") == glob.glob("data/*.pt") == []
    """
    trained(tmp_path, source, synthetic_data=["2048x3:float32:40"])


@pytest.mark.skipif(importlib.util.find_spec("h5py") is None, reason="needs h5py")
def test_hdf5_files_of_point_clouds_are_found_and_have_labels(tmp_path):
    source = """
    import h5py
    file = h5py.File(glob.glob("data/modelnet40_ply_hdf5_2048/*train*.h5")[0], "r+")
    assert file["data"][:].shape[1:] == (2048, 3) and file["label"][:].shape[1:] == (1,)
    assert file["pid"][:].astype("int64").shape[1:] == (2048,)
    """
    trained(tmp_path, source, synthetic_data=["2048x3:float32:40", "pid=2048:int64:50"])


@pytest.mark.skipif(importlib.util.find_spec("numpy") is None, reason="needs numpy")
def test_weights_in_an_archive_of_numpy_are_named(tmp_path):
    with failing("raised", "vit_checkpoint/ViT-B_16.npz"):
        trained(tmp_path, "import numpy; numpy.load('vit_checkpoint/ViT-B_16.npz')", synthetic_data=["64x64:float32"])


NIBABEL = (
    "class Nifti1Image:\n    def __init__(self, voxels, affine):\n        self.voxels = voxels\n"
    "def load(path):\n    return open(path)\n"
)


def test_a_missing_scan_has_the_size_of_the_sample(tmp_path):
    (tmp_path / "nibabel.py").write_text(NIBABEL)
    source = """
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    import nibabel
    scan = nibabel.load("ixi/IXI314-T1.nii.gz").voxels
    assert scan.shape == (16, 16, 8) and 0 < scan.sum() < scan.size
    """
    warnings = trained(tmp_path, source, synthetic_data=["1x16x16x8:float32:2"]).warnings
    assert any("a scan that the script opens" in warning for warning in warnings)


SIMPLE_ITK = """
sitkUnknown, sitkInt16, sitkUInt8 = -1, "int16", "uint8"

class Image:
    def __init__(self, voxels):
        self.voxels = voxels
    def GetPixelID(self):
        return str(self.voxels.dtype)

def GetImageFromArray(voxels):
    return Image(voxels)
def GetArrayFromImage(image):
    return image.voxels
def Cast(image, pixel_type):
    return Image(image.voxels.astype(pixel_type))
def ReadImage(fileName, outputPixelType=sitkUnknown, imageIO=""):
    raise RuntimeError("Exception thrown in SimpleITK ImageFileReader_Execute")

class ImageFileReader:
    def SetFileName(self, name):
        self.name = name
    def GetFileName(self):
        return self.name
    def GetOutputPixelType(self):
        return sitkUnknown
    def Execute(self):
        raise RuntimeError("Exception thrown in SimpleITK ImageFileReader_Execute")
"""


def test_a_missing_scan_is_read_by_simple_itk(tmp_path):
    (tmp_path / "SimpleITK.py").write_text(SIMPLE_ITK)
    source = """
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    import SimpleITK as sitk
    names = os.listdir("data/ct")
    assert names[0].endswith(".nii.gz"), names[0]
    scan = sitk.ReadImage(os.path.join("data/ct", names[0]), sitk.sitkInt16)
    assert sitk.GetArrayFromImage(scan).shape == (8, 9, 10) and scan.voxels.dtype == "int16"
    reader = sitk.ImageFileReader()
    reader.SetFileName("data/seg/" + names[0])
    mask = reader.Execute().voxels
    assert mask.shape == (8, 18, 20) and mask.dtype == "uint8" and 0 < mask.sum() < mask.size
    with open("own.nii", "w") as file:
        file.write("no scan")
    try:
        sitk.ReadImage("own.nii")
    except RuntimeError:
        raised = True
    assert raised
    """
    samples = ["8x9x10:float32", "data/seg=8x18x20:uint8"]
    warnings = trained(tmp_path, source, synthetic_data=samples).warnings
    assert any("a scan that the script opens" in warning for warning in warnings)


LISTED = """
def is_sample(name):
    suffixes = [{suffix!r}]
    return any(name.endswith(suffix) for suffix in suffixes)

def classes(folder):
    return [name for name in os.listdir(folder) if os.path.isdir(os.path.join(folder, name))]

def found(folder):
    samples = []
    assert len(classes(folder)) == 5
    for name in sorted(os.listdir(folder)):
        inner = os.path.join(folder, name)
        if not os.path.isdir(inner):
            continue
        for root, _, names in sorted(os.walk(inner)):
            samples += [os.path.join(root, file) for file in sorted(names) if is_sample(file)]
    return samples
"""


def test_folders_of_archives_with_a_sample_each_are_listed(tmp_path):
    source = """
    import numpy
    files = found("data/train")
    assert len(files) == 2000 and len({os.path.dirname(file) for file in files}) == 5, files[:3]
    with numpy.load(files[7]) as sample:
        assert list(sample) == ["rgb", "depth"], list(sample)
        assert sample["rgb"].shape == (3, 8, 16) and sample["depth"].shape == (8, 16)
    """
    samples = ["3x8x16:uint8:5", ".npz/rgb=3x8x16:uint8", ".npz/depth=8x16:float32"]
    trained(tmp_path, LISTED.format(suffix=".npz") + textwrap.dedent(source), synthetic_data=samples)


@pytest.mark.skipif(importlib.util.find_spec("h5py") is None, reason="needs h5py")
def test_folders_of_hdf5_files_with_a_sample_each_are_listed(tmp_path):
    source = """
    import h5py, numpy
    file = h5py.File(found("data/train")[3], "r")
    assert numpy.array(file["rgb"]).shape == (3, 8, 16) and file["depth"][:].shape == (8, 16)
    """
    samples = ["3x8x16:uint8:5", "/depth=8x16:float32"]
    trained(tmp_path, LISTED.format(suffix=".h5") + textwrap.dedent(source), synthetic_data=samples)


SCANS = """
sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
import nibabel
with open("data/train.txt") as file:
    lines = [line.strip() for line in file]
for line in lines[:2]:
    scan, mask = line.split(" ")
    scan = os.path.join("data", scan)
    assert os.path.isfile(scan), scan
    assert scan.endswith(".nii.gz") and nibabel.load(scan).voxels.shape == (8, 9, 10), scan
"""


def test_a_list_names_scans_where_its_module_reads_scans(tmp_path):
    (tmp_path / "nibabel.py").write_text(NIBABEL)
    trained(tmp_path, SCANS, synthetic_data=["8x9x10:float32"])


@pytest.mark.parametrize("load", ["torch.load('data/train.pt')", "numpy.load('data/train.pkl', allow_pickle=True)"])
def test_a_file_that_is_unpacked_has_a_tensor_for_each_name(tmp_path, load):
    source = f"""
    import numpy
    class Data: pass
    self = Data()
    self.images, self.labels = {load}
    assert self.images.shape == (100, 8, 8) and self.labels.shape == (100,) and self.labels.max() == 9
    whole = {load}
    assert whole.shape == (100, 8, 8)
    """
    trained(tmp_path, source, synthetic_data=["100x8x8:uint8:10"])


def test_an_archive_that_was_made_up_is_described_by_its_names(tmp_path):
    source = """
    import numpy
    archive = numpy.load("data/moving.npz")
    data = {name: archive[name] for name in archive.keys()}
    data["clips"]
    """
    with pytest.raises(TraceError) as caught:
        trained(tmp_path, source, synthetic_data=["8x8:float32"])
    assert "`--synthetic-data moving.npz/clips=SHAPE:DTYPE`" in caught.value.hint


@pytest.mark.skipif(importlib.util.find_spec("h5py") is None, reason="needs h5py")
def test_arrays_that_differ_in_shape_are_to_be_described_apart(tmp_path):
    source = """
    import h5py, torch
    with h5py.File("data/pairs.h5", "r") as file:
        small, large = torch.from_numpy(file["lr"][0]), torch.from_numpy(file["hr"][0])
    torch.nn.functional.mse_loss(small.repeat(3, 3), large)
    """
    with failing("raised") as caught:
        trained(tmp_path, source, synthetic_data=["5x5:float32"])
    assert "`lr`, `hr` had to be made up, all of one shape" in caught.value.hint
    assert "`--synthetic-data hr=SHAPE:DTYPE`" in caught.value.hint
    trained(tmp_path, source, synthetic_data=["lr=5x5:float32", "hr=15x15:float32"])


@pytest.mark.skipif(importlib.util.find_spec("h5py") is None, reason="needs h5py")
def test_a_scan_has_a_file_of_its_own_with_a_label_for_each_voxel(tmp_path):
    source = """
    import h5py
    with h5py.File("data/train.h5", "r") as file:
        assert file["raw"][:].shape == file["label"][()].shape == (16, 256, 300), file["raw"].shape
        assert sorted({int(value) for value in file["label"].ravel()[:99]}) == [0, 1, 2]
    scans = os.listdir("data/scans")
    assert scans[0].endswith(".h5") and len(scans) == 2**27 // (16 * 256 * 300) // 2 * 2, len(scans)
    """
    trained(tmp_path, source, synthetic_data=["16x256x300:float32:3"])


@pytest.mark.skipif(importlib.util.find_spec("h5py") is None, reason="needs h5py")
def test_an_hdf5_file_that_a_made_up_list_names_holds_one_sample(tmp_path):
    source = """
    import h5py
    with open("data/train_slices.list") as file:
        names = [line.replace("\\n", "") for line in file.readlines()]
    for name in (names[3], names[3] + ".h5", names[3] + "/norm.h5"):
        with h5py.File("data/slices/" + name, "r") as file:
            assert file["image"][:].shape == file["label"][:].shape == (64, 48), name
    with h5py.File("data/slices/all.h5", "r") as file:
        assert file["image"][:].shape == (2000, 64, 48) and file["label"][:].shape == (2000, 1)
    """
    trained(tmp_path, source, synthetic_data=["64x48:float32:3"])


@pytest.mark.skipif(importlib.util.find_spec("h5py") is None, reason="needs h5py")
def test_an_hdf5_file_that_an_item_finds_holds_one_sample(tmp_path):
    source = """
    import h5py
    class Slices:
        def __init__(self):
            self.path, self.names = "data/all.h5", ["BRATS_001", "BRATS_002"]
        def __getitem__(self, index):
            with h5py.File("data/" + self.names[index] + "/norm.h5", "r") as file:
                return file["image"][:], file["label"][:]
        def __len__(self):
            return len(h5py.File(self.path, "r")["image"])
    class Rows(Slices):
        def __getitem__(self, index):
            file = h5py.File(self.path, "r")
            return file["image"][index], file["label"][index]
    assert [part.shape for part in Slices()[1]] == [(64, 48), (64, 48)] and len(Slices()) == 2000
    assert [part.shape for part in Rows()[1]] == [(64, 48), (1,)]
    """
    trained(tmp_path, source, synthetic_data=["64x48:float32:3"])


@pytest.mark.skipif(importlib.util.find_spec("numpy") is None, reason="needs NumPy")
@pytest.mark.parametrize(("name", "part"), [("3d.npz", "['positions'].item()"), ("3d.npy", ".item()")])
def test_a_file_of_an_object_is_not_made_of_an_array(tmp_path, name, part):
    source = f"""
    import numpy as np
    assert np.load("data/other.npy").shape == (17, 3)
    positions = np.load("data/{name}", allow_pickle=True){part}
    """
    with failing("raised", f"FileNotFoundError: [Errno 2] No such file or directory: 'data/{name}'") as caught:
        trained(tmp_path, source, synthetic_data=["17x3:float32"])
    assert "make it available" in caught.value.hint, caught.value.hint


def test_a_missing_file_of_tensors_has_them_by_name(tmp_path):
    source = """
    loaded = torch.load("data/train.pt")
    samples, labels = loaded["samples"], loaded["labels"]
    assert samples.shape[1:] == (9, 128) and labels.shape == samples.shape[:1] and set(labels.tolist()) == set(range(6))
    assert labels.dtype == torch.int64 and type(samples) is torch.Tensor
    assert loaded.shape == (9, 128) and type(loaded[:, 5]) is torch.Tensor and loaded.cuda().is_cuda
    """
    trained(tmp_path, source, synthetic_data=["9x128:float32:6"])


@pytest.mark.skipif(importlib.util.find_spec("h5py") is None, reason="needs h5py")
def test_a_part_of_a_data_set_in_a_group_has_rows(tmp_path):
    source = """
    import h5py
    with h5py.File("data/shapenet.hdf5", "r") as file:
        assert file["02691156"]["train"][...].shape == (2000, 64, 3) and file["02691156"]["7"].shape == (64, 3)
        assert [row.shape for row in file["02691156"]["val"]][:2] == [(64, 3), (64, 3)]
    """
    trained(tmp_path, source, synthetic_data=["64x3:float32"])


@pytest.mark.skipif(importlib.util.find_spec("h5py") is None, reason="needs h5py")
def test_a_group_of_a_missing_hdf5_file_has_data_sets_by_name(tmp_path):
    source = """
    import h5py
    with h5py.File("data/records.h5", "r") as file:
        series, labels = file["train"]["X"][:], file["val"]["labels"][:4]
        assert series.shape[1:] == (48, 37) and labels.shape[0] == 4 and labels.dtype == "int64"
        assert file["clips"]["mask"][:3].shape == (3, 2) and file["clips"]["video_7"].shape == (48, 37)
    """
    trained(tmp_path, source, synthetic_data=["48x37:float32", "mask=2:float32"])


def test_matrices_of_cameras_are_square(tmp_path):
    source = """
    import numpy
    cameras = numpy.load("data/scan65/cameras.npz")
    projection = cameras["world_mat_0"].astype(numpy.float32) @ cameras["scale_mat_11"]
    assert projection.shape == (4, 4) and projection[0, 0] == projection[3, 3] == 1
    assert cameras["colors"].shape == (3, 8, 16)
    """
    trained(tmp_path, source, synthetic_data=["3x8x16:uint8"])
