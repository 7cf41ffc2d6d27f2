"""Tokenizers and processors that are not on this machine, of models whose configuration is.

A tokenizer has the model's number of tokens, one token for each word, its special tokens, and the options of the call
(the longest length, tokens of the script's own); which tokens it gives does not change memory, but how many does, so a
warning says that real ones give more. A processor has the defaults of its class and the size of the configuration's
images.
Source: transformers/models/auto/{tokenization_auto,image_processing_auto,feature_extraction_auto}.py.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from typing import Any

from cotenant.tracing.patches import missing_weights
from cotenant.tracing.patches.cached_configs import find_config
from cotenant.tracing.patches.media_processors import (
    chat_template,
    media_tokens,
    set_image_sizes,
    set_media_options,
)
from cotenant.tracing.patches.registry import AbsenceContext, Patch, Phase

_UNLIMITED_LENGTH = 10**30
"""Source: transformers/tokenization_utils_base.py, `VERY_LARGE_INTEGER`."""
_MAX_SPECIAL_TOKENS = 512
"""More than any tokenizer of special tokens alone has: T5's are 104."""
_SPECIAL = ("pad", "bos", "eos", "cls", "sep", "mask")
_NAMED_BY_SCRIPTS = (
    "<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|finetune_right_pad_id|>",
    "<|padding|>", "<end_of_turn>", "<start_of_turn>", "<s>", "</s>", "<unk>", "<pad>", "[PAD]",
)  # fmt: skip
"""Special tokens of well-known models: options such as TRL's `--eos_token` name them, and must find them."""
_PREFIX_SETTERS = ("set_prefix_tokens", "set_src_lang_special_tokens", "set_tgt_lang_special_tokens")
_BERT_LIKE = ("bert", "electra", "mpnet")
_MADE = "_cotenant_made"
"""Attribute of tokenizers that were made from a configuration."""
_OPTIONS = (
    "model_max_length", "padding_side", "truncation_side", "chat_template", "additional_special_tokens",
    "extra_special_tokens", "unk_token", *(f"{which}_token" for which in _SPECIAL),
)  # fmt: skip
"""Options that every tokenizer has. Source: transformers/tokenization_utils_base.py, `PreTrainedTokenizerBase`."""


def patches(context: AbsenceContext) -> list[Patch]:
    """Methods that load by name."""
    common: dict[str, Any] = {
        "phase": Phase.LIBRARIES,
        "wraps": True,
        "reason": "It downloads files, and a trace has no network.",
    }
    auto = "transformers.models.auto"
    tokenizer = functools.partial(_loading, context.recorder, "tokenizer", make_tokenizer)
    processor = functools.partial(_loading, context.recorder, "processor", make_processor)
    own_processor = functools.partial(_loading, context.recorder, "processor", make_own_processor)
    return [
        Patch(
            target=f"{auto}.tokenization_auto:AutoTokenizer.from_pretrained", replacement=tokenizer,
            source="transformers/models/auto/tokenization_auto.py, `AutoTokenizer.from_pretrained`", **common,
        ),
        Patch(
            target="transformers.tokenization_utils_base:PreTrainedTokenizerBase.from_pretrained",
            replacement=tokenizer,
            source="transformers/tokenization_utils_base.py, `PreTrainedTokenizerBase.from_pretrained`", **common,
        ),
        Patch(
            target="transformers.processing_utils:ProcessorMixin.from_pretrained", replacement=_completing,
            source="transformers/processing_utils.py, `ProcessorMixin.from_pretrained`", **common,
        ),
        Patch(
            target="transformers.processing_utils:ProcessorMixin.check_argument_for_proper_class",
            replacement=_accepting_made, missing="transformers before 4.50",
            source="transformers/processing_utils.py, `ProcessorMixin.check_argument_for_proper_class`", **common,
        ),
        Patch(
            target="transformers.tokenization_utils_base:PreTrainedTokenizerBase._get_padding_truncation_strategies",
            replacement=_padding_made, missing="versions that pad elsewhere",
            source="transformers/tokenization_utils_base.py, `_get_padding_truncation_strategies`", **common,
        ),
        *(
            Patch(
                target=f"transformers.{module}:{name}.from_pretrained", replacement=replacement,
                source=f"transformers/{module.replace('.', '/')}.py, `{name}.from_pretrained`", **common,
            )
            for module, name, replacement in (
                ("models.auto.image_processing_auto", "AutoImageProcessor", processor),
                ("models.auto.feature_extraction_auto", "AutoFeatureExtractor", processor),
                ("image_processing_utils", "BaseImageProcessor", own_processor),
                ("feature_extraction_utils", "FeatureExtractionMixin", own_processor),
            )
        ),
    ]  # fmt: skip


def _loading(recorder: Any, what: str, make: Any, bound: Any) -> Any:
    original = bound.__func__

    def from_pretrained(cls: Any, name: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            found = original(cls, name, *args, **kwargs)
        except Exception as error:  # each class and version has another for missing files
            config = find_config(name, cls, kwargs)
            made = make(config, cls, kwargs) if config is not None else None
            if made is None:
                if config is None and not _is_of_package(error):
                    missing_weights.mark_missing(error, f"the {what} of `{name}`")
                raise
        else:
            config = find_config(name, cls, kwargs) if _may_lack_vocabulary(found) else None
            lacks = config is not None and _lacks_vocabulary(found, config)
            made = make(config, cls, kwargs) if lacks else None
            if made is None:
                return found
        recorder.warn(
            f"the {what} of `{name}` is not here: one of its configuration was used; "
            + ("real text has more tokens than words" if what == "tokenizer" else "with default options")
        )
        return made

    return classmethod(from_pretrained)


def _accepting_made(original: Any) -> Any:
    @functools.wraps(original)
    def check(self: Any, argument_name: str, argument: Any) -> Any:
        """The class of a part of a processor, of which a made tokenizer has none."""
        return type(argument) if getattr(argument, _MADE, False) else original(self, argument_name, argument)

    return check


def _padding_made(original: Any) -> Any:
    @functools.wraps(original)
    def strategies(self: Any, padding: Any = False, *args: Any, **kwargs: Any) -> Any:
        """Padding by a made tokenizer: a script that gives it no token for that has a real one with its own."""
        if padding and getattr(self, _MADE, False) and self.pad_token is None:
            self.pad_token = self.eos_token or self.unk_token
        return original(self, padding, *args, **kwargs)

    return strategies


def _is_of_package(error: BaseException) -> bool:
    """Whether a package is not installed, other than one that the handling of another error wanted.

    Source: transformers/tokenization_utils_base.py, `import_protobuf_decode_error`.
    """
    cause = error.__context__
    return isinstance(error, ImportError) and (cause is None or _is_of_package(cause))


def _completing(bound: Any) -> Any:
    original = bound.__func__

    def from_pretrained(cls: Any, name: Any, *args: Any, **kwargs: Any) -> Any:
        """A processor; where its tokenizer was made from a configuration, its own options are, too."""
        processor = original(cls, name, *args, **kwargs)
        tokenizer = getattr(processor, "tokenizer", None)
        if tokenizer is None or not getattr(tokenizer, _MADE, False):
            return processor
        if getattr(processor, "chat_template", None) is None:
            processor.chat_template = tokenizer.chat_template
        config = find_config(name, cls, kwargs)
        if config is not None:
            set_media_options(processor, config)
        return processor

    return classmethod(from_pretrained)


def _may_lack_vocabulary(found: Any) -> bool:
    """Whether it is a tokenizer with hardly more than special tokens.

    Without a vocabulary's files transformers 5 makes one of special tokens alone, for which a text has no tokens.
    Source: transformers/models/qwen2/tokenization_qwen2.py, `Qwen2Tokenizer.__init__` (5.23), and others.
    """
    return hasattr(found, "convert_ids_to_tokens") and len(found) <= _MAX_SPECIAL_TOKENS


def _lacks_vocabulary(tokenizer: Any, config: Any) -> bool:
    """Whether the model has far more tokens than the tokenizer; one of bytes or of letters has all of them."""
    return (_vocabulary_size(config) or 0) > 2 * len(tokenizer)


def make_tokenizer(config: Any, cls: type, options: Mapping[str, Any]) -> Any:
    """A tokenizer of words with the special tokens of the configuration; None if it names no number of tokens.

    `options`: as of `from_pretrained`.
    """
    text, size = _text_config(config), _vocabulary_size(config)
    if not size:
        return None
    module = importlib.import_module("tokenizers")
    special = _special_tokens(text, size)
    names = {index: f"token{index}" for index in range(size)}
    if size > _MAX_SPECIAL_TOKENS:
        own = {name for name, _ in special.values()}
        names.update(enumerate((name for name in _NAMED_BY_SCRIPTS if name not in own), 3 * size // 4))
    names.update({index: name for name, index in special.values()})
    media = media_tokens(config, size)
    names.update({index: name for name, index in media.values()})
    free = (names[index] for index in reversed(range(size)) if names[index] == f"token{index}")
    unknown = next(free, names[size - 1])
    model = module.models.WordLevel({name: index for index, name in names.items()}, unk_token=unknown)
    tokenizer = module.Tokenizer(model)
    tokenizer.pre_tokenizer = module.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([name for name, _ in media.values()])
    _add_ends(module, tokenizer, special)
    usual = {
        "model_max_length": _longest(text),
        "unk_token": unknown,
        "model_input_names": _input_names(text),
        **{f"{which}_token": name for which, (name, _) in special.items()},
    }
    wanted = {name: options[name] for name in _OPTIONS if options.get(name) is not None}
    kind = _tokenizer_class(cls, bool(getattr(config, "is_encoder_decoder", False)))
    fast = kind(tokenizer_object=tokenizer, **usual | wanted)
    for medium, (name, index) in media.items():
        setattr(fast, f"{medium}_token", name)
        setattr(fast, f"{medium}_token_id", index)
    if "chat_template" not in wanted:
        fast.chat_template = chat_template(media)
    setattr(fast, _MADE, True)
    fast.get_vocab = functools.partial(_vocabulary, tokenizer, tokenizer.token_to_id(unknown))
    return fast


def _longest(text: Any) -> int:
    """Most tokens that the model takes; of those without a limit some name none, and XLNet -1."""
    length = getattr(text, "max_position_embeddings", None)
    return length if isinstance(length, int) and length > 0 else _UNLIMITED_LENGTH


class _Vocabulary(dict[str, int]):
    """Numbers of tokens; one that a script looks up (`tokenizer.vocab["yes"]`) has the number of unknown words."""

    unknown = 0

    def __missing__(self, token: str) -> int:
        return self.unknown


def _vocabulary(tokenizer: Any, unknown: int) -> dict[str, int]:
    found = _Vocabulary(tokenizer.get_vocab(with_added_tokens=True))
    found.unknown = unknown
    return found


@functools.cache
def _tokenizer_class(cls: type, has_prefixes: bool) -> Any:
    """The class of a tokenizer that stands for one of `cls`, for which processors before 4.50 test.

    Source: transformers/processing_utils.py, `ProcessorMixin.__init__` (4.38).
    """
    library = importlib.import_module("transformers")
    base = library.PreTrainedTokenizerFast
    own: dict[str, Any] = dict.fromkeys(_PREFIX_SETTERS, _setting_no_prefix) if has_prefixes else {}
    if issubclass(cls, library.PreTrainedTokenizerBase) and not issubclass(base, cls):
        own["__class__"] = property(lambda self: cls)
    if not own:
        return base
    # `pickle` would look the class up by its name, and compares it with `__class__`.
    own["__reduce_ex__"] = lambda self, _: (_unpickled, (cls, has_prefixes), vars(self))
    return type("MadeTokenizer", (base,), own)


def _unpickled(cls: type, has_prefixes: bool) -> Any:
    kind = _tokenizer_class(cls, has_prefixes)
    return kind.__new__(kind)


def _setting_no_prefix(self: Any, *args: Any, **kwargs: Any) -> None:
    """As of Whisper's tokenizer, whose language and task are tokens before the text: here, no text has any."""


def _input_names(text: Any) -> list[str]:
    """What a tokenizer gives: `token_type_ids` only for models of several kinds of sentences, such as BERT."""
    has_types = (getattr(text, "type_vocab_size", 0) or 0) > 1
    return ["input_ids", *(["token_type_ids"] if has_types else []), "attention_mask"]


def _text_config(config: Any) -> Any:
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _vocabulary_size(config: Any) -> int | None:
    return getattr(_text_config(config), "vocab_size", None)


def _special_tokens(text: Any, size: int) -> dict[str, tuple[str, int]]:
    """(name, index) by kind, of those that the configuration has; BERT's have no entry there."""
    found: dict[str, tuple[str, int]] = {}
    for which in _SPECIAL:
        index = getattr(text, f"{which}_token_id", None)
        index = index[0] if isinstance(index, list) and index else index
        if isinstance(index, int) and 0 <= index < size:
            same = next((known for known in found.values() if known[1] == index), None)
            found[which] = same or (f"<{which}>", index)
    if any(word in getattr(text, "model_type", "") for word in _BERT_LIKE):
        free = iter(range(1, size))
        taken = {index for _, index in found.values()}
        for which in ("pad", "cls", "sep", "mask"):
            if which not in found:
                index = next(index for index in free if index not in taken)
                found[which] = (f"[{which.upper()}]", index)
                taken.add(index)
    elif "eos" not in found:  # generative models have one, though not all configurations name it
        found["eos"] = ("<eos>", size - 2)
    if "clip" in str(getattr(text, "model_type", "")) and "pad" not in found:
        found["pad"] = found["eos"]  # Source: openai/clip-vit-large-patch14, special_tokens_map.json
    return found


def _add_ends(module: Any, tokenizer: Any, special: dict[str, tuple[str, int]]) -> None:
    """Let it put the first and the last special token around a text."""
    ends = [special.get("cls"), special.get("sep")]
    if ends[0] is None or ends[1] is None:
        return
    tokenizer.post_processor = module.processors.TemplateProcessing(
        single=f"{ends[0][0]} $A {ends[1][0]}",
        pair=f"{ends[0][0]} $A {ends[1][0]} $B:1 {ends[1][0]}:1",
        special_tokens=[end for end in ends if end is not None],
    )


def make_processor(config: Any, cls: type, options: Mapping[str, Any]) -> Any:
    """The processor of images or sounds that the library maps to a configuration; None if it knows none."""
    image = cls.__name__ == "AutoImageProcessor"
    module = importlib.import_module(
        f"transformers.models.auto.{'image_processing_auto' if image else 'feature_extraction_auto'}"
    )
    mapping = module.IMAGE_PROCESSOR_MAPPING if image else module.FEATURE_EXTRACTOR_MAPPING
    try:
        found = mapping[type(config)]
    except KeyError:
        return None
    kind_of_processor = _processor_class(module, found)
    return None if kind_of_processor is None else make_own_processor(config, kind_of_processor, options)


def make_own_processor(config: Any, cls: Any, options: Mapping[str, Any]) -> Any:
    """A processor of the class `cls` with what the configuration says of images and sounds."""
    made = cls()
    bands = getattr(config, "num_mel_bins", None)
    if isinstance(bands, int):  # a raw waveform has one feature
        own = {name: getattr(made, name, None) for name in ("feature_size", "num_mel_bins")}
        wanted = {name: bands for name, value in own.items() if isinstance(value, int) and value > 1}
        made = cls(**wanted) if wanted else made
    set_image_sizes(made, config)
    return made


def _processor_class(module: Any, found: Any) -> Any:
    """The class that a mapping's entry names; None if there is none.

    An entry is a class, several of which some are None (transformers 4), or names and classes by backend (5).
    Source: transformers/models/auto/image_processing_auto.py, `_load_class_with_fallback` (5.23).
    """
    if isinstance(found, dict):
        return module._load_class_with_fallback(found, next(iter(found)))
    classes = [found] if isinstance(found, type) else found or ()
    return next((cls for cls in classes if cls is not None), None)
