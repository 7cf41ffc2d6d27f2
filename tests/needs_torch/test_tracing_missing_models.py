"""Models of the hub whose configuration is in the cache and whose weights, tokenizer or processor are not."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="tracing needs torch")
if importlib.util.find_spec("transformers") is None:  # imported here, it would not read the variables set below
    pytest.skip("needs transformers", allow_module_level=True)

from cotenant.core.errors import TraceError
from cotenant.tracing.patches import cached_configs, media_processors, missing_processors
from traced_scripts import by_category, failing, traced

BERT = {
    "model_type": "bert",
    "architectures": ["BertForSequenceClassification"],
    "vocab_size": 1000,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
VIT = {
    "model_type": "vit",
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 96,
    "patch_size": 16,
}
TRAIN = """
model.cuda().train()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    output = model(**{name: value.cuda() for name, value in batch.items()})
    output[0].float().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def cache(folder: Path, name: str, files: dict[str, dict[str, object]]) -> None:
    """The hub's cache as `from_pretrained` leaves it where only these files were fetched."""
    repository = folder / "hub" / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    for path, content in files.items():
        file = repository / "snapshots" / ("0" * 40) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content))


def test_a_model_and_its_tokenizer_are_made_from_a_cached_configuration(tmp_path):
    cache(tmp_path, "someone/tiny", {"config.json": BERT})
    source = """
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained("someone/tiny", cache_dir="hub")
model = AutoModelForSequenceClassification.from_pretrained("someone/tiny", cache_dir="hub")
assert len(tokenizer) == 1000 and tokenizer.model_max_length == 64 and tokenizer.pad_token_id == 0
batch = tokenizer(["one two three", "one"], padding=True, return_tensors="pt")
assert [*batch] == ["input_ids", "token_type_ids", "attention_mask"]
assert batch["input_ids"].shape == (2, 5) and batch["attention_mask"].sum() == 8
assert tokenizer.apply_chat_template([{"role": "user", "content": "hello"}], tokenize=False) == "user hello "
batch = {name: batch[name] for name in ("input_ids", "attention_mask")}
"""
    trace = traced(tmp_path, source + TRAIN)
    embeddings = 4 * 32 * (1000 + 64 + 2)
    assert by_category(trace)["parameter"] > embeddings
    assert any("the weights of `someone/tiny` are not here" in warning for warning in trace.warnings)
    assert any("the tokenizer of `someone/tiny` is not here" in warning for warning in trace.warnings)


def test_a_model_is_found_in_the_usual_cache_where_the_script_names_an_empty_one(tmp_path):
    cache(tmp_path, "someone/tiny", {"config.json": BERT})
    source = f"""
import torch
import huggingface_hub.constants, transformers.utils.hub
# Not by the environment, which both read when they are imported: another test may have done that.
huggingface_hub.constants.HF_HUB_CACHE = transformers.utils.hub.TRANSFORMERS_CACHE = {str(tmp_path / "hub")!r}
from transformers import AutoModelForSequenceClassification, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained("someone/tiny", cache_dir="cache/model")
model = AutoModelForSequenceClassification.from_pretrained("someone/tiny", cache_dir="cache/model")
batch = {{"input_ids": tokenizer(["one two"], return_tensors="pt")["input_ids"]}}
"""
    assert by_category(traced(tmp_path, source + TRAIN))["parameter"]


def test_a_made_tokenizer_has_the_options_of_the_call(tmp_path):
    # The longest length decides how long a batch is; a script's own tokens are one token each, wherever they stand.
    cache(tmp_path, "someone/tiny", {"config.json": BERT})
    script = f"""
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(
    "someone/tiny", cache_dir="hub", model_max_length=16, padding_side="left", pad_token="<nothing>",
    additional_special_tokens=["<own>"], chat_template="{{{{ messages[0]['content'] }}}}",
)
assert tokenizer.pad_token == "<nothing>" and len(tokenizer("<own><own>", add_special_tokens=False)["input_ids"]) == 2
assert tokenizer.apply_chat_template([{{"role": "user", "content": "hello"}}], tokenize=False) == "hello"
assert tokenizer.vocab["!"] == tokenizer.get_vocab()["yes"] == tokenizer.unk_token_id and "!" not in tokenizer.vocab
model = AutoModelForSequenceClassification.from_pretrained("someone/tiny", cache_dir="hub", vocab_size=len(tokenizer))
batch = tokenizer(["one two three"], padding="max_length", truncation=True, return_tensors="pt")
assert batch["input_ids"].shape == (1, 16) and batch["input_ids"][0, 0] == tokenizer.pad_token_id
{TRAIN}
"""
    assert not traced(tmp_path, script).partial


def test_a_made_tokenizer_of_a_class_is_copied_and_sent_to_other_processes(tmp_path):
    cache(tmp_path, "someone/tiny", {"config.json": BERT})
    script = f"""
import copy, pickle, torch
from transformers import AutoModelForSequenceClassification, BertTokenizer
tokenizer = BertTokenizer.from_pretrained("someone/tiny", cache_dir="hub")
for other in (pickle.loads(pickle.dumps(tokenizer)), copy.deepcopy(tokenizer)):
    assert isinstance(other, BertTokenizer) and other("one two")["input_ids"] == tokenizer("one two")["input_ids"]
    assert other.vocab["yes"] == tokenizer.unk_token_id
model = AutoModelForSequenceClassification.from_pretrained("someone/tiny", cache_dir="hub")
batch = tokenizer(["one two three"], return_tensors="pt")
{TRAIN}
"""
    assert not traced(tmp_path, script).partial


def test_a_tokenizer_without_a_vocabulary_is_replaced(tmp_path):
    """transformers 5 makes one of special tokens alone where the files are missing: a text then has no tokens."""
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "WordLevel", "vocab": {"<eos>": 0}, "unk_token": "<eos>"},
    }
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps({**BERT, "eos_token_id": 3}))
    (tmp_path / "tiny" / "tokenizer.json").write_text(json.dumps(tokenizer))
    (tmp_path / "tiny" / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    source = """
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained("tiny")
model = AutoModelForSequenceClassification.from_pretrained("tiny")
assert len(tokenizer) == 1000 and tokenizer.eos_token_id == 3
assert "<|im_end|>" in tokenizer.get_vocab()
batch = tokenizer(["one two three", "one"], padding=True, return_tensors="pt")
assert batch["input_ids"].shape == (2, 5)
batch = {name: batch[name] for name in ("input_ids", "attention_mask")}
"""
    trace = traced(tmp_path, source + TRAIN)
    assert any("the tokenizer of `tiny` is not here" in warning for warning in trace.warnings)


def test_a_tokenizer_with_its_own_small_vocabulary_is_kept(tmp_path):
    letters = {letter: index for index, letter in enumerate("abcdefghijklmnopqrstuvwxyz?")}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "WordLevel", "vocab": letters, "unk_token": "?"},
    }
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps({**BERT, "vocab_size": 32}))
    (tmp_path / "tiny" / "tokenizer.json").write_text(json.dumps(tokenizer))
    (tmp_path / "tiny" / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    source = """
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
assert 27 <= len(AutoTokenizer.from_pretrained("tiny")) < 32
model = AutoModelForSequenceClassification.from_pretrained("tiny")
batch = {"input_ids": torch.ones(2, 5, dtype=torch.int64)}
"""
    trace = traced(tmp_path, source + TRAIN)
    assert not any("the tokenizer" in warning for warning in trace.warnings)


def test_an_image_processor_has_the_size_of_the_configuration(tmp_path):
    pytest.importorskip("PIL")
    cache(tmp_path, "someone/vision", {"config.json": VIT})
    source = """
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageClassification
processor = AutoImageProcessor.from_pretrained("someone/vision", cache_dir="hub")
model = AutoModelForImageClassification.from_pretrained("someone/vision", cache_dir="hub")
batch = processor([Image.new("RGB", (200, 300))] * 2, return_tensors="pt")
assert batch["pixel_values"].shape == (2, 3, 96, 96)
"""
    assert not traced(tmp_path, source + TRAIN).partial


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(dict, id="a class"),
        pytest.param((None, dict), id="slow and fast, transformers 4"),
        pytest.param({"torchvision": "Gone", "pil": dict}, id="by backend, transformers 5"),
    ],
)
def test_the_class_of_a_processor_is_found_in_every_kind_of_mapping(entry):
    def load(mapping, backend):
        assert backend in mapping
        return next((value for value in mapping.values() if isinstance(value, type)), None)

    module = SimpleNamespace(_load_class_with_fallback=load)
    assert missing_processors._processor_class(module, entry) is dict
    assert missing_processors._processor_class(module, ()) is None


def test_a_made_tokenizer_gives_what_the_model_takes(tmp_path):
    config = {"model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 1000, "n_positions": 64}
    cache(tmp_path, "someone/writes", {"config.json": config})
    source = """
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained("someone/writes", cache_dir="hub")
model = AutoModelForCausalLM.from_pretrained("someone/writes", cache_dir="hub").cuda()
batch = tokenizer("one two", return_tensors="pt")
assert [*batch] == ["input_ids", "attention_mask"]
model.generate(**{name: value.cuda() for name, value in batch.items()}, max_new_tokens=2)
"""
    assert not traced(tmp_path, source + TRAIN).partial


def test_a_script_that_logs_in_and_pushes_to_the_hub_asks_nobody(tmp_path):
    source = """
import torch
from huggingface_hub import interpreter_login, login, notebook_login
login()
login(token="hf_none")
notebook_login(), interpreter_login()
from huggingface_hub import HfApi, create_repo, upload_folder, whoami
assert create_repo("someone/mine", exist_ok=True).repo_id == "someone/mine"
assert HfApi().create_repo(repo_id="mine").repo_id.endswith("/mine") and whoami()["name"]
assert upload_folder(repo_id="someone/mine", folder_path=".") is None
assert upload_folder(repo_id="someone/mine", folder_path=".", run_as_future=True).done()
model, batch = torch.nn.Linear(8, 8), {"input": torch.zeros(2, 8)}
"""
    assert not traced(tmp_path, source + TRAIN.replace("output[0].float()", "output")).partial


def test_a_script_that_asks_for_the_files_of_a_fetched_model_gets_those_of_the_cache(tmp_path):
    cached = tmp_path / "hub" / "models--someone--mine"
    for name, text in (("refs/main", "c0ffee"), ("snapshots/c0ffee/vae/config.json", "{}")):
        (cached / name).parent.mkdir(parents=True)
        (cached / name).write_text(text)
    # Not by a variable: this process may have imported the library, which reads it once.
    source = f"from huggingface_hub import constants\nconstants.HF_HUB_CACHE = {str(tmp_path / 'hub')!r}\n"
    source += """
import sysconfig, torch
from huggingface_hub import HfApi, list_repo_files, model_info
assert [file.rfilename for file in model_info("someone/mine").siblings] == ["vae/config.json"]
assert list_repo_files(repo_id="someone/mine") == HfApi().list_repo_files("someone/mine") == ["vae/config.json"]
of_library = compile("model_info('someone/mine')", sysconfig.get_path("purelib") + "/library.py", "exec")
for call in (lambda: model_info("someone/gone"), lambda: exec(of_library)):
    try:
        call()
    except OSError:
        model, batch = torch.nn.Linear(8, 8), {"input": torch.zeros(2, 8)}
    else:
        raise SystemExit("a library goes on by itself")
"""
    assert not traced(tmp_path, source + TRAIN.replace("output[0].float()", "output")).partial


def test_weights_that_a_script_reads_from_the_hub_by_itself_are_replaced(tmp_path):
    source = """
import torch
from huggingface_hub import hf_hub_download
from safetensors import safe_open
from safetensors.torch import load_file
model = torch.nn.Linear(8, 8)
path = hf_hub_download(repo_id="someone/gone", filename="model.safetensors", cache_dir="hub")
model.load_state_dict(load_file(path))
with safe_open(filename=path, framework="pt", device="cpu") as file:
    assert [*file.keys()] == []
model.load_state_dict(torch.load(hf_hub_download("someone/gone", "pytorch_model.bin", cache_dir="hub")))
try:
    hf_hub_download("someone/gone", "config.json", cache_dir="hub")
except OSError:
    batch = {"input": torch.zeros(2, 8)}
"""
    train = TRAIN.replace("output[0].float()", "output")
    warnings = traced(tmp_path, source + train).warnings
    assert any("`someone/gone/model.safetensors` are not on this machine" in warning for warning in warnings)
    with failing("raised", "no tensor `a`") as caught:
        traced(tmp_path, source.replace("[*file.keys()] == []", "file.get_tensor('a')"))
    assert "the file of weights `model.safetensors` is not on this machine" in caught.value.hint


WHISPER = {
    "model_type": "whisper",
    "num_mel_bins": 128,
    "vocab_size": 1000,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "decoder_start_token_id": 3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
}


def test_a_processor_that_the_script_names_by_its_class_suits_the_model(tmp_path):
    cache(tmp_path, "someone/hears", {"config.json": WHISPER})
    source = """
import torch
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration, WhisperProcessor, WhisperTokenizer
processor = WhisperProcessor.from_pretrained("someone/hears", cache_dir="hub", language="Hindi", task="transcribe")
assert isinstance(WhisperTokenizer.from_pretrained("someone/hears", cache_dir="hub"), WhisperTokenizer)
assert len(processor.tokenizer) == 1000
processor.tokenizer.set_prefix_tokens(language="Hindi", task="transcribe")
assert processor(text="word word").input_ids == processor.tokenizer("word word").input_ids
padded = processor.tokenizer.pad([{"input_ids": [5, 6]}, {"input_ids": [7]}], return_tensors="pt")
assert padded["input_ids"].shape == (2, 2)
listener = WhisperFeatureExtractor.from_pretrained("someone/hears", cache_dir="hub")
model = WhisperForConditionalGeneration.from_pretrained("someone/hears", cache_dir="hub")
batch = listener(torch.zeros(16000).numpy(), sampling_rate=16000, return_tensors="pt")
assert batch["input_features"].shape == (1, 128, 3000)
batch = {"input_features": batch["input_features"], "labels": torch.ones(1, 4, dtype=torch.long)}
"""
    trace = traced(tmp_path, source + TRAIN)
    assert not trace.partial
    assert any("the processor of `someone/hears`" in warning for warning in trace.warnings)


LLAVA = {
    "model_type": "llava",
    "image_token_index": 999,
    "vision_feature_select_strategy": "default",
    "text_config": {
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": 1000,
    },
    "vision_config": {
        "model_type": "clip_vision_model",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 56,
        "patch_size": 14,
    },
}


def test_a_processor_of_images_and_texts_makes_as_many_image_tokens_as_the_model_has_patches(tmp_path):
    pytest.importorskip("PIL")
    cache(tmp_path, "someone/sees", {"config.json": LLAVA})
    source = """
import torch
from PIL import Image
from transformers import AutoProcessor, AutoModelForImageTextToText
processor = AutoProcessor.from_pretrained("someone/sees", cache_dir="hub")
model = AutoModelForImageTextToText.from_pretrained("someone/sees", cache_dir="hub")
parts = [{"type": "image"}, {"type": "text", "text": "word word"}]
messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": "word"}]
text = processor.apply_chat_template(messages)
batch = processor(text=[text] * 2, images=[Image.new("RGB", (200, 300))] * 2, return_tensors="pt")
assert batch["pixel_values"].shape == (2, 3, 56, 56)
assert (batch["input_ids"] == 999).sum(1).tolist() == [16, 16]
batch["labels"] = batch["input_ids"]
"""
    trace = traced(tmp_path, source + TRAIN)
    assert not trace.partial
    assert any("the processor of `someone/sees`" in warning for warning in trace.warnings)


def test_sizes_and_tokens_of_media_come_from_the_configuration():
    vision = SimpleNamespace(patch_size=16, spatial_merge_size=2, image_size=384)
    config = SimpleNamespace(
        model_type="qwen3_vl", image_token_id=7, vision_start_token_id=5, vision_end_token_id=6, video_token_id=2000,
        vision_config=vision, scale_factor=3, mm_tokens_per_image=64,
    )  # fmt: skip
    tokens = media_processors.media_tokens(config, 1000)
    assert tokens == {
        "image": ("<|image_pad|>", 7),
        "vision_start": ("<|vision_start|>", 5),
        "vision_end": ("<|vision_end|>", 6),
    }
    assert "<|vision_start|><|image_pad|><|vision_end|>" in media_processors.chat_template(tokens)
    images = SimpleNamespace(patch_size=14, merge_size=1, size={"height": 224, "width": 224})
    media_processors.set_image_sizes(images, config)
    assert (images.patch_size, images.merge_size, images.size) == (16, 2, {"height": 384, "width": 384})
    both = SimpleNamespace(image_seq_len=169, image_seq_length=256)
    media_processors.set_media_options(both, config)
    assert (both.image_seq_len, both.image_seq_length) == (64, 64)


def test_a_model_that_is_not_here_at_all_is_an_error(tmp_path):
    for name in ("AutoTokenizer", "AutoModel"):
        with failing("raised", "the script raised OSError") as caught:
            source = f"import transformers\ntransformers.{name}.from_pretrained('someone/gone', cache_dir='hub')\n"
            traced(tmp_path, source)
        assert "`--allow-network`" in caught.value.hint


HUB = """
import torch
from huggingface_hub import hf_hub_download
from safetensors.torch import load_file
model = torch.nn.Linear(8, 4).cuda()
"""
USE = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    model(torch.ones(2, 8).cuda()).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "loading",
    [
        'load_file(hf_hub_download("someone/gone", "model.safetensors"), device="cpu")',
        'torch.load(hf_hub_download(repo_id="someone/gone", filename="weights/model.pth"))["model"]',
    ],
)
def test_weights_that_a_script_fetches_from_the_hub_are_replaced(tmp_path, loading):
    trace = traced(tmp_path, f"{HUB}model.load_state_dict({loading})\n{USE}")
    assert by_category(trace)["parameter"] == 4 * (8 * 4 + 4)
    assert ["someone/gone" in warning for warning in trace.warnings] == [True]


@pytest.mark.parametrize("name", ["config.json", "training_args.bin"])
def test_other_files_of_the_hub_are_missing(tmp_path, name):
    with failing("raised", "the script raised LocalEntryNotFoundError"):
        traced(tmp_path, f"{HUB}hf_hub_download('someone/gone', {name!r})\n{USE}")


def test_libraries_with_a_fallback_of_their_own_get_the_error_of_the_hub(tmp_path):
    package = tmp_path / "open_clip"
    package.mkdir()
    package.joinpath("__init__.py").write_text(
        "from huggingface_hub import hf_hub_download\ndef fetch(): return hf_hub_download('a/b', 'model.safetensors')\n"
    )
    with failing("raised", "the script raised LocalEntryNotFoundError"):
        traced(tmp_path, f"import open_clip\n{HUB}open_clip.fetch()\n{USE}")


def test_pixels_that_a_library_normalizes_by_a_file_of_the_hub_have_those_of_imagenet(tmp_path):
    package = tmp_path / "segmentation_models_pytorch"
    package.mkdir()
    package.joinpath("__init__.py").write_text(
        "from huggingface_hub import hf_hub_download\n"
        "def fetch(): return [hf_hub_download('a/b', name) for name in ('config.json', 'model.safetensors')]\n"
    )
    source = "import json, segmentation_models_pytorch as library\nconfig, weights = library.fetch()\n"
    source += "assert len(json.load(open(config))['mean']) == 3\nmodel.load_state_dict(load_file(weights))\n"
    assert len(traced(tmp_path, HUB + source + USE).warnings) == 1


@pytest.mark.parametrize(
    "handling",
    [
        pytest.param("finally:\n    pass\n", id="its own error"),
        pytest.param("except Exception as error:\n    raise SystemError('no words') from error\n", id="another one"),
    ],
)
def test_a_tokenizer_without_files_is_named_whatever_its_class_raises(tmp_path, handling):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    source = f"import transformers\ntry:\n    transformers.BertTokenizer.from_pretrained('tiny')\n{handling}"
    with pytest.raises(TraceError) as error:
        traced(tmp_path, source)
    assert "the tokenizer of `tiny` is not on this machine" in error.value.hint


UNET = {
    "_class_name": "UNet2DModel",
    "sample_size": 16,
    "in_channels": 3,
    "out_channels": 3,
    "layers_per_block": 1,
    "block_out_channels": [32, 32],
    "down_block_types": ["DownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "UpBlock2D"],
    "norm_num_groups": 8,
}


def test_a_model_of_diffusers_is_made_from_its_configuration(tmp_path):
    if importlib.util.find_spec("diffusers") is None:
        pytest.skip("needs diffusers")
    files = {"unet/config.json": UNET, "scheduler/scheduler_config.json": {"_class_name": "DDPMScheduler"}}
    cache(tmp_path, "someone/painter", files)
    source = """
import torch
from diffusers import DDPMScheduler, UNet2DModel
scheduler = DDPMScheduler.from_pretrained("someone/painter", subfolder="scheduler", cache_dir="hub")
model = UNet2DModel.from_pretrained("someone/painter", subfolder="unet", cache_dir="hub", torch_dtype=torch.bfloat16)
assert not model.training and model.dtype is torch.bfloat16 and scheduler.config.num_train_timesteps == 1000
batch = {"sample": torch.zeros(2, 3, 16, 16, dtype=torch.bfloat16), "timestep": torch.tensor([1, 2])}
"""
    trace = traced(tmp_path, source + TRAIN)
    assert not trace.partial
    assert any("the weights of `someone/painter` are not here" in warning for warning in trace.warnings)
    with failing("raised", "someone/gone"):
        traced(tmp_path, source.replace("painter", "gone"))


class CLIPTokenizer:
    """Of the name by which a pipeline asks."""


@pytest.mark.parametrize("part", ["", "tokenizer_2"], ids=["the whole pipeline", "a part"])
def test_a_tokenizer_of_a_pipelines_folder_is_of_its_text_encoder(tmp_path, part):
    """As `StableDiffusionXLPipeline.from_pretrained` loads it, by folder."""
    files = {
        "model_index.json": {"_class_name": "Pipeline"},
        "text_encoder/config.json": {"model_type": "t5", "vocab_size": 7},
        "text_encoder_2/config.json": {"model_type": "clip_text_model", "vocab_size": 99},
    }
    for path, content in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(json.dumps(content))
    (tmp_path / "tokenizer_2").mkdir()
    assert cached_configs.find_config(str(tmp_path / part), CLIPTokenizer, {}).vocab_size == 99
    (tmp_path / "model_index.json").unlink()
    assert cached_configs.find_config(str(tmp_path / part), CLIPTokenizer, {}) is None


def test_a_model_without_a_longest_text_gets_the_length_that_the_script_names():
    """As of XLNet, whose configuration gives -1."""
    config = SimpleNamespace(vocab_size=1000, model_type="xlnet", max_position_embeddings=-1)
    tokenizer = missing_processors.make_tokenizer(config, object, {})
    longest = min(4, tokenizer.model_max_length)
    assert len(tokenizer("a b c d e f", max_length=longest, truncation=True)["input_ids"]) == 4


def test_the_last_token_may_be_a_special_one():
    """As of GPT-2, whose end of a text is its last token."""
    text = SimpleNamespace(bos_token_id=999, eos_token_id=999, vocab_size=1000, model_type="gpt2")
    assert missing_processors._special_tokens(text, 1000) == {"bos": ("<bos>", 999), "eos": ("<bos>", 999)}


def test_captions_are_padded_with_the_end_of_a_text():
    """As of CLIP, also where the configuration is of a part whose class this version does not have."""
    text = SimpleNamespace(vocab_size=1000, model_type="clip_text_model")
    assert missing_processors._special_tokens(text, 1000) == {"eos": ("<eos>", 998), "pad": ("<eos>", 998)}


def test_a_made_tokenizer_pads_with_the_end_of_a_text_where_it_has_no_token_for_it():
    def padded_by(padding, *, is_made):
        tokenizer = SimpleNamespace(_cotenant_made=is_made, pad_token=None, eos_token="</s>", unk_token="?")
        return missing_processors._padding_made(lambda self, _padding: self.pad_token)(tokenizer, padding)

    assert padded_by(True, is_made=True) == "</s>"
    assert padded_by(False, is_made=True) is None
    assert padded_by(True, is_made=False) is None
