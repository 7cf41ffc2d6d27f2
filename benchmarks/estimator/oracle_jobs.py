"""The jobs of `oracle.py`: scripts, GPUs and settings, in an order of which each prefix is a sample over all kinds."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

EXAMPLES = "examples/"
ARCHITECTURE = "benchmarks/estimator/jobs/architecture.py"
ENCODER = "benchmarks/estimator/jobs/transformer_row.py"
PERCEPTRON = "benchmarks/estimator/jobs/mlp_row.py"
CNN = "benchmarks/estimator/jobs/cnn_row.py"
PUBLISHED_CNN = "benchmarks/estimator/jobs/xmem_cnn.py"
PUBLISHED_LM = "benchmarks/estimator/jobs/xmem_lm.py"
GPUS = ("A100-40GB", "H100-80GB", "RTX3060-12GB", "T4-16GB")
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
ALLOCATORS = (
    EXPANDABLE,
    {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"},
    {"PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:4"},
)
"""Settings of the allocator for small jobs."""


@dataclass(frozen=True)
class OracleJob:
    """A script with its arguments, on a GPU.

    Attributes:
        kind: what it stands for: `example`, `torchvision`, `timm`, `transformers`, `encoder`, `perceptron`, `cnn`,
            `limited` (little more memory than its peak), `published` (scripts of published measurements).
        not_judged: why the null GPU does not know its sizes, empty if it does.
        free_bytes: of the GPU's memory, all that the job gets; None: the whole.
    """

    kind: str
    command: str
    gpu: str = GPUS[0]
    env: Mapping[str, str] = field(default_factory=dict)
    not_judged: str = ""
    free_bytes: int | None = None

    @property
    def name(self) -> str:
        settings = " ".join(f"{key}={text}" for key, text in sorted(self.env.items()))
        limit = f"within {self.free_bytes >> 20} MiB" if self.free_bytes else ""
        return " ".join(part for part in (settings, self.command, "on", self.gpu, limit) if part)

    @property
    def script(self) -> str:
        return shlex.split(self.command)[0]

    @property
    def arguments(self) -> list[str]:
        return shlex.split(self.command)[1:]


IMAGENET = "--batch-size 16 --train-images 36 --workers 0"
"""Three steps in an epoch, whose last batch is a quarter."""
EXAMPLE_COMMANDS = (
    "mlp.py",
    f"resnet50.py {IMAGENET}",
    "bert_mlm.py --size base --batch-size 4 --sequences 9",
    "gpt2.py --batch-size 2 --sequences 6",
    "hf_trainer_bf16.py --layers 2 --batch-size 4",
    "amp_gradscaler.py --images 72 --workers 0",
    "accumulate_checkpoint.py --layers 2 --sequences 48",
    "attention.py",
    "gan.py",
    "optimizers.py",
    "cuda_graph.py",
    "segmentation.py --batch-size 2 --side 240",
    f"vgg16.py {IMAGENET}",
    f"xception.py {IMAGENET}",
    f"inception_v3.py {IMAGENET}",
    f"efficientnet_b0.py {IMAGENET}",
    f"mobilenet_v2.py {IMAGENET}",
    "cifar.py --train-images 72 --workers 0",
    "accelerate_bert.py --layers 4 --batch-size 8",
    "finetune_llm.py --layers 2",
    "timm_train.py --batch-size 8",
    "unet.py --batch-size 2 --image-size 256 --images 6 --workers 0",
    "dlrm.py --batch-size 2048 --batches 3",
    "llama.py --variant depth --layers 2 --seq-len 256",
    "largest_batch.py --share 0.2",
    "lightning_mlp.py",
)
"""One setting of each example, on each GPU."""
EXAMPLE_VARIANTS = (
    *(f"attention.py --how {how}" for how in ("padded", "grouped", "math", "efficient", "window")),
    *(f"attention.py --how {how} --dtype float32" for how in ("causal", "padded", "math")),
    "attention.py --how causal --dtype float16",
    *(f"optimizers.py --optimizer {name}" for name in ("sgd", "adam", "amsgrad", "rmsprop", "adagrad", "adadelta")),
    *(f"optimizers.py --optimizer {name}" for name in ("nadam", "lion", "adafactor")),
    *(f"optimizers.py --optimizer adamw --kind {kind}" for kind in ("for-loop", "fused", "capturable")),
    *(f"optimizers.py --zero-grad {when}" for when in ("after", "to-zero")),
    "gpt2.py --batch-size 2 --sequences 6 --gradient-checkpointing",
    "gpt2.py --batch-size 2 --sequences 6 --optimizer-loop",
    "bert_mlm.py --size large --batch-size 2 --sequences 6",
    "hf_trainer_bf16.py --layers 2 --batch-size 4 --gradient-checkpointing",
    "hf_trainer_bf16.py --layers 2 --batch-size 2 --accumulate 4",
    "accumulate_checkpoint.py --layers 2 --sequences 48 --no-checkpoint",
    "cuda_graph.py --what model",
    "segmentation.py --batch-size 2 --side 240 --amp",
    "segmentation.py --model fcn_resnet50 --batch-size 2 --side 240",
    "segmentation.py --model lraspp_mobilenet_v3_large --batch-size 2 --side 240",
    "cifar.py --model mobilenetv3_small_100 --train-images 72 --workers 0",
    "cifar.py --model resnet34 --train-images 72 --workers 0",
    "finetune_llm.py --layers 2 --no-checkpointing",
    "finetune_llm.py --layers 2 --optimizer fused",
    "finetune_llm.py --layers 2 --optimizer adafactor",
    "timm_train.py --batch-size 8 --amp float16 --channels-last",
    "timm_train.py --batch-size 8 --amp bfloat16 --model-ema",
    "timm_train.py --model vit_tiny_patch16_224 --batch-size 8 --grad-checkpointing",
    "timm_train.py --model resnet26d --batch-size 8 --opt lamb",
    "timm_train.py --model efficientnet_lite0 --batch-size 8 --tf32 --opt rmsprop",
    "llama.py --variant depth --layers 2 --seq-len 256 --gradient-checkpointing",
    "llama.py --variant tiny --seq-len 256 --dtype float32",
    "unet.py --batch-size 1 --image-size 320 --images 3 --workers 0",
    "mlp.py --batch-norm --dropout 0.3",
    "dlrm.py --batch-size 512 --batches 3 --width 16 --max-rows 1000",
    "largest_batch.py --share 0.1 --width 1024",
)
"""Further settings of examples, the GPUs in turn."""
LEFT_OUT = {
    "ddp.py": "NCCL does not run without a driver",
    "pipeline.py": "NCCL does not run without a driver",
    "sharded.py": "NCCL does not run without a driver",
    "deepspeed_zero.py": "NCCL does not run without a driver",
}
"""Examples without a job, and why."""
NOT_JUDGED = {
    "moe.py": "how many tokens each expert gets is read from the router",
    "dqn.py": "a mask of final states is read",
    "detection.py": "boxes are filtered by their scores",
    "speech.py": "lengths are random",
    "video.py": "statistics are updated after the steps at which the null GPU ends the script",
    "translate_rnn.py": "lengths are random",
    "xlnet.py --batch-size 2 --seq-len 128 --sentences 6": "lengths are random",
}
"""Why the values of a script, which are zeros on the null GPU, or a stub decide its sizes."""
RANDOM_NETWORKS = {"Wav2Vec2ForCTC": "whole layers are left out at random"}
TORCHVISION = (
    *("resnet18", "convnext_tiny", "vit_b_16", "swin_t", "mobilenet_v3_large", "densenet121", "regnet_y_400mf"),
    *("efficientnet_v2_s", "googlenet", "alexnet", "squeezenet1_1", "shufflenet_v2_x1_0", "mnasnet0_5", "maxvit_t"),
    *("wide_resnet50_2", "resnext50_32x4d", "vgg11_bn", "swin_v2_t", "mobilenet_v2", "r3d_18"),
)
TIMM = (
    *("vit_small_patch16_224", "deit_tiny_patch16_224", "mixer_s32_224", "beit_base_patch16_224"),
    *("convmixer_768_32", "resmlp_12_224", "gmlp_s16_224", "cait_xxs24_224", "swin_tiny_patch4_window7_224"),
    *("pit_s_224", "xcit_nano_12_p16_224", "poolformer_s12", "mobilevit_s", "levit_128", "coatnet_0_224"),
    *("twins_svt_small", "crossvit_tiny_240", "edgenext_small", "efficientformer_l1", "eva02_tiny_patch14_224"),
    *("vit_tiny_patch16_224", "tnt_s_patch16_224", "volo_d1_224", "visformer_small", "convit_tiny", "davit_tiny"),
    *("nest_tiny", "sequencer2d_s", "fastvit_t8", "hiera_tiny_224", "resnet26d", "ecaresnet26t", "skresnet18"),
    *("res2net50_14w_8s", "dla34", "hrnet_w18_small", "ghostnet_100", "tf_efficientnet_lite0", "regnetx_002"),
    *("repvgg_a0",),
)  # fmt: skip
TRANSFORMERS = (
    *("BertForMaskedLM", "RobertaForMaskedLM", "GPT2LMHeadModel", "T5ForConditionalGeneration", "LlamaForCausalLM"),
    *("DistilBertForMaskedLM", "ElectraForMaskedLM", "AlbertForMaskedLM", "BartForConditionalGeneration"),
    *("OPTForCausalLM", "GPTNeoXForCausalLM", "BloomForCausalLM", "FalconForCausalLM", "MistralForCausalLM"),
    *("Qwen2ForCausalLM", "GemmaForCausalLM", "PhiForCausalLM", "GPTJForCausalLM", "ViTForImageClassification"),
    *("DeiTForImageClassification", "SwinForImageClassification", "BeitForImageClassification"),
    *("DebertaV2ForMaskedLM", "MPNetForMaskedLM", "XLNetLMHeadModel", "CTRLLMHeadModel", "MarianMTModel"),
    *("PegasusForConditionalGeneration", "MBartForConditionalGeneration", "Wav2Vec2ForCTC"),
    *("WhisperForConditionalGeneration", "LongformerForMaskedLM", "FNetForMaskedLM", "ConvBertForMaskedLM"),
    *("MobileBertForMaskedLM", "SqueezeBertForMaskedLM", "NystromformerForMaskedLM", "RoFormerForMaskedLM"),
    *("XGLMForCausalLM", "BigBirdForMaskedLM", "GPTNeoForCausalLM", "StableLmForCausalLM"),
)  # fmt: skip
SETTINGS = (
    "",
    "--precision bf16 --optimizer adam",
    "--precision fp16 --optimizer adamw-fused",
    "--optimizer adam",
    "--checkpoint --precision bf16",
)
"""Settings that architectures take in turn; the switch of activation checkpointing is for transformers only."""
NO_CHECKPOINTING = frozenset(
    (
        *("AlbertForMaskedLM", "MPNetForMaskedLM", "XLNetLMHeadModel", "CTRLLMHeadModel", "MobileBertForMaskedLM"),
        "SqueezeBertForMaskedLM",
    )
)
"""Models that refuse activation checkpointing in transformers 4.56; they take the setting without it."""
ENCODERS = (
    "--width 256 --heads 4 --layers 4 --length 128 --batch-size 32",
    "--width 512 --heads 8 --layers 6 --length 256 --batch-size 16 --feedforward 2048",
    "--width 768 --heads 12 --layers 4 --length 512 --batch-size 8 --feedforward 3072",
    "--width 128 --heads 8 --layers 2 --length 64 --batch-size 64",
    "--width 320 --heads 5 --layers 3 --length 200 --batch-size 24",
    "--width 1024 --heads 8 --layers 2 --length 300 --batch-size 8",
)
PERCEPTRONS = (
    "--inputs 1024 --hidden 512 256 --batch-size 128",
    "--inputs 4096 --hidden 4096 4096 2048 --batch-size 512 --batch-norm --dropout 0.3",
    "--inputs 100 --hidden 50 --classes 1 --batch-size 32",
    "--inputs 20000 --hidden 1000 1000 1000 1000 --batch-size 64 --activation gelu",
)
CNNS = (
    "--layers conv3x3:32x64;bn;act;gap:32x1;linear:10x1;softmax --batch-size 32",
    "--layers conv3x3:64x64;bn;act;conv3x3:128x64;bn;act;dropout;gap:128x1;linear:100x1;softmax --batch-size 64",
    "--layers conv3x3:16x64;act;conv3x3:24x64;act;conv3x3:300x64;act;gap:300x1;linear:10x1 --batch-size 16",
)

PUBLISHED = (
    *(f"{PUBLISHED_CNN} --model {name} --batch-size 16 --classes 10" for name in ("resnet101", "vgg16", "mnasnet1_0")),
    *(
        f"{PUBLISHED_CNN} --model {name} --batch-size 16"
        for name in ("regnet_x_400mf", "convnext_base", "mobilenet_v2")
    ),
    f"{PUBLISHED_CNN} --model mobilenet_v3_small --batch-size 16 --optimizer RMSprop --zero-grad before-backward",
    f"{PUBLISHED_CNN} --model resnet152 --batch-size 8 --optimizer Adam --zero-grad end",
    *(f"{PUBLISHED_LM} --model {name} --batch-size 2" for name in ("gpt2", "distilgpt2", "opt-125m", "t5-small")),
    f"{PUBLISHED_LM} --model cerebras-gpt-111m --batch-size 2 --optimizer Adafactor --zero-grad end",
    f"{PUBLISHED_LM} --model t5-base --batch-size 1 --optimizer SGD --zero-grad before-backward",
)
LIMITED = (
    (CNN, CNNS[1], 960),
    (CNN, CNNS[2], 400),
    (ENCODER, ENCODERS[0], 600),
    (ENCODER, ENCODERS[2], 1920),
    (ENCODER, ENCODERS[3], 260),
    (ENCODER, ENCODERS[4], 620),
    (ENCODER, ENCODERS[5], 1340),
    (PERCEPTRON, PERCEPTRONS[1], 860),
)
"""Jobs, and MiB between their allocated and reserved peaks on an A100."""


def all_jobs() -> list[OracleJob]:
    """Every job once, the kinds in turn."""
    kinds = (
        *(_examples(), _transformers(), _timm(), _torchvision(), _encoders(), _perceptrons(), _cnns(), _limited()),
        *(_published(), _settings()),
    )
    found: dict[str, OracleJob] = {}
    for row in itertools.zip_longest(*kinds):
        for job in row:
            if job is not None:
                found.setdefault(job.name, job)
    return list(found.values())


def _examples() -> Iterator[OracleJob]:
    for gpu in GPUS:
        for command in EXAMPLE_COMMANDS:
            yield OracleJob("example", EXAMPLES + command, gpu)
        for command, why in NOT_JUDGED.items():
            yield OracleJob("example", EXAMPLES + command, gpu, not_judged=why)
    for place, command in enumerate(EXAMPLE_VARIANTS):
        yield OracleJob("example", EXAMPLES + command, GPUS[place % len(GPUS)])
    for command in EXAMPLE_COMMANDS:
        yield OracleJob("example", EXAMPLES + command, env=EXPANDABLE)


def _architectures(library: str, names: tuple[str, ...], batch: int, settings: tuple[str, ...]) -> Iterator[OracleJob]:
    for turn, gpu in enumerate(GPUS):
        for place, name in enumerate(names):
            setting = settings[(place + turn) % len(settings)]
            if name in NO_CHECKPOINTING:
                setting = setting.removeprefix("--checkpoint ")
            command = f"{ARCHITECTURE} {library} {name} --batch {batch} {setting}".strip()
            env = EXPANDABLE if (place + turn) % 7 == 3 else {}
            yield OracleJob(library, command, gpu, env, not_judged=RANDOM_NETWORKS.get(name, ""))


def _transformers() -> Iterator[OracleJob]:
    yield from _architectures("transformers", TRANSFORMERS, 8, SETTINGS)


def _timm() -> Iterator[OracleJob]:
    yield from _architectures("timm", TIMM, 8, (*SETTINGS[:4], "--no-tf32"))


def _torchvision() -> Iterator[OracleJob]:
    yield from _architectures("torchvision", TORCHVISION, 8, (*SETTINGS[:4], "--channels-last", "--no-tf32"))


def _encoders() -> Iterator[OracleJob]:
    yield from (OracleJob("encoder", f"{ENCODER} {one_epoch(words)}", gpu) for gpu in GPUS for words in ENCODERS)


def _perceptrons() -> Iterator[OracleJob]:
    yield from (
        OracleJob("perceptron", f"{PERCEPTRON} {one_epoch(words)}", gpu) for gpu in GPUS for words in PERCEPTRONS
    )


def _cnns() -> Iterator[OracleJob]:
    yield from (
        OracleJob("cnn", f"{CNN} {shlex.join(one_epoch(words).split())}", gpu) for gpu in GPUS for words in CNNS
    )


def _published() -> Iterator[OracleJob]:
    for place, command in enumerate(PUBLISHED):
        for turn in range(2):
            yield OracleJob("published", command, GPUS[(place + turn) % len(GPUS)])


def one_epoch(words: str) -> str:
    """Three steps in an epoch, whose last batch is a quarter: the estimate counts it, wherever the epoch ends."""
    arguments = words.split()
    batch = int(arguments[arguments.index("--batch-size") + 1])
    return f"{words} --samples {9 * batch // 4}"


def _limited() -> Iterator[OracleJob]:
    """Jobs in little more memory than their allocated peak: the allocator must return cached segments to the driver."""
    yield OracleJob("limited", f"{EXAMPLES}accumulate_checkpoint.py", free_bytes=8500 << 20)
    for script, words, free_mib in LIMITED:
        yield OracleJob("limited", f"{script} {shlex.join(one_epoch(words).split())}", free_bytes=free_mib << 20)


def _settings() -> Iterator[OracleJob]:
    """Small jobs with each setting of the allocator, the settings in turn over the GPUs."""
    small = [("perceptron", PERCEPTRON, words) for words in PERCEPTRONS]
    small += [("cnn", CNN, words) for words in CNNS] + [("encoder", ENCODER, words) for words in ENCODERS]
    for turn in range(len(ALLOCATORS) * len(GPUS)):
        for place, (kind, script, words) in enumerate(small):
            env = ALLOCATORS[(place + turn) % len(ALLOCATORS)]
            gpu = GPUS[turn // len(ALLOCATORS)]
            yield OracleJob(kind, f"{script} {shlex.join(one_epoch(words).split())}", gpu, env)
