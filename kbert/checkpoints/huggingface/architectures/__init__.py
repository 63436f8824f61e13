"""Hugging Face's architectures, a table each, and the choice between them."""

import functools
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from absl import logging

from kbert.checkpoints.huggingface.architectures.base import Architecture
from kbert.checkpoints.huggingface.architectures.bert import Bert
from kbert.configs.base import Config
from kbert.configs.decoder import DecoderConfig
from kbert.configs.encoder import EncoderConfig
from kbert.core import late

_SHARED_PREFIXES = {"model", "transformer"}  # by architectures that differ
_CLASS_ENDINGS = r"Model|For\w+|LMHeadModel|DoubleHeadsModel"

# Parts of the names of keys that other architectures have, of which kbert reads none.
_DECISIVE = re.compile(
    r"(^|_)(act|activation|alibi|bias|experts?|moe|rope|rotary|sliding|windows?|gated?|residuals?"
    r"|(layer|rms)?_?norm\d*|ln\d*|scal(e|es|ed|ing)|multipliers?|(soft_?)?cap(ping|s)?)(_|$)"
)

__all__ = [
    *("Architecture", "architectures", "find", "identify", "infer", "is_decisive", "usual_pooler")
]


@functools.cache
def architectures() -> Mapping[str, Architecture]:
    """All that kbert knows by their names, in the order in which a config is compared with them.

    Example:
        >>> architectures()["mosaicbert"].model_type
        'bert'
    """
    return {name: late.load("architecture", name)() for name in late.TABLE["architecture"]}


def identify(content: Mapping[str, Any], source: str, names: Collection[str] = ()) -> Architecture:
    """The architecture that a config is of.

    Configs of 2019 have no `model_type`. Then the classes under `architectures` decide, else the
    prefix of the weights' names; a config of neither is BERT's, as Google's own are.

    Args:
        content: of `config.json`.
        source: where it is from, for the messages.
        names: the weights' names.

    Raises:
        ValueError: kbert does not read that architecture, or nothing tells BERT from RoBERTa.

    Example:
        >>> identify({"model_type": "bert", "alibi_starting_size": 512}, "memory").title
        'MosaicBERT'
        >>> identify({"architectures": ["RobertaForMaskedLM"]}, "memory").title
        'RoBERTa'
    """
    by_class = _of_class(content)
    model_type = content.get("model_type")
    if model_type is None:
        model_type = by_class or _of_prefix(names)
    elif by_class not in (None, model_type):
        logging.warning(
            "%s: `architectures` has %s, and `model_type` is %r: read as the latter, as "
            "transformers does",
            *(source, content["architectures"][0], model_type),
        )
    if model_type is None:
        _check_is_bert(content, source)
        model_type = "bert"
    for architecture in architectures().values():
        marked = any(key in content for key in architecture.marks)
        if marked and model_type == architecture.model_type:
            return architecture
    return find(model_type, source)


def _check_is_bert(content: Mapping[str, Any], source: str) -> None:
    """Raises where a config that does not say what it is may be another's than BERT's."""
    if content.get("type_vocab_size") == 1:
        raise ValueError(
            "A config.json with one segment and without `model_type` and `architectures` may be "
            "BERT's or RoBERTa's, which count positions differently: add `model_type` to it. "
            f"Received: {source}"
        )
    others = {*content} - {*Bert.fields, *Bert.ignored}
    own = {x.model_type: others & {*x.fields} for x in architectures().values()}
    name = max(own, key=lambda name: len(own[name]))
    if len(own[name]) > 1:
        raise ValueError(
            "A config.json without `model_type` and `architectures` is read as BERT's, and this "
            f'one has keys of another: perhaps add "model_type": "{name}" to it. '
            f"Received: {', '.join(sorted(own[name]))} in {source}"
        )


def _of_class(content: Mapping[str, Any]) -> str | None:
    """The `model_type` of the class that `architectures` names first, where it is a known one."""
    classes = content.get("architectures")
    first = classes[0] if isinstance(classes, list) and classes else None
    if not isinstance(first, str):
        return None
    for architecture in architectures().values():
        if re.fullmatch(rf"(TF|Flax)?{architecture.class_prefix}({_CLASS_ENDINGS})", first):
            return architecture.model_type
    return None


def _of_prefix(names: Collection[str]) -> str | None:
    """The `model_type` whose prefix the weights' names have, the first of several."""
    prefixes = {name.partition(".")[0] for name in names} - _SHARED_PREFIXES
    for architecture in architectures().values():
        if architecture.prefix in prefixes:
            return architecture.model_type
    return None


def find(model_type: str, source: str) -> Architecture:
    """The architecture of that name.

    Args:
        model_type: as in `config.json`, or the `name` of an architecture.
        source: where the name is from, for the message.

    Raises:
        ValueError: kbert does not read that architecture.

    Example:
        >>> find("bert", "memory").prefix
        'bert'
    """
    if not isinstance(model_type, str) or model_type not in architectures():
        raise ValueError(
            f"kbert reads and writes the Hugging Face architectures {', '.join(architectures())}. "
            f"Received: {model_type!r} in {source}"
        )
    return architectures()[model_type]


def is_decisive(key: str) -> bool:
    """Whether a key changes what a model computes, in one of the architectures or by its name.

    Not every one that does: an architecture that kbert does not know may call it anything.

    Example:
        >>> [is_decisive(key) for key in ("rope_theta", "logit_scale", "house_style")]
        [True, True, False]
    """
    if _DECISIVE.search(key):
        return True
    tables = architectures().values()
    own = ({*x.fields, *x.required, *(x.ignored - Bert.ignored - {"auto_map"})} for x in tables)
    return any(key in keys for keys in own)


def infer(config: Config, names: Iterable[str], tokenizer_kind: str | None) -> str:
    """The architecture that a model is written as where none is named.

    A decoder is ModernBERT's with rotary positions, else GPT-2 with norms before its parts, GPT
    with norms behind them. Of encoders, in this order: one with a vector of the task is ERNIE, one
    with disentangled attention DeBERTa-v2, one with global tokens Longformer, one with bottlenecks
    MobileBERT, one with biases of distances MPNet, one with convolutions ConvBERT, one with ALiBi
    MosaicBERT. With rotary positions and norms behind the parts it is NomicBERT where it is gated,
    RoFormer where not; with the root mean square before them NeoBERT where all of that one's values
    are its, else EuroBERT; else ModernBERT. One with `num_layer_groups` is ALBERT's; one
    with `embedding_size`, a pooler with GELU, or a discriminator is ELECTRA's. One without
    `padding_id` is BERT with segments, and without them DistilBERT where epsilon is 1e-12 and there
    is no pooler but one with ReLU. All others are XLM-RoBERTa over a unigram vocabulary and RoBERTa
    over another. Several architectures can be the same function; name the one that is meant where
    this order finds another.

    Args:
        config: the model's.
        names: of the weights.
        tokenizer_kind: "wordpiece", "bpe", "unigram", or None where there is none.

    Returns:
        A `model_type`.

    Raises:
        ValueError: the config is of a kind that no architecture has.

    Example:
        >>> from kbert import family
        >>> infer(family("bert-tiny"), [], None)
        'bert'
    """
    if isinstance(config, DecoderConfig):
        if config.positions == "rotary":
            return "modernbert-decoder"
        return "gpt2" if config.block == "pre_norm" else "openai-gpt"
    if not isinstance(config, EncoderConfig):
        raise ValueError(
            "A model of another library is written of an EncoderConfig or a DecoderConfig. "
            f"Received: {config}"
        )
    for architecture in architectures().values():
        if config.kind == architecture.config_class.kind != EncoderConfig.kind:
            return architecture.model_type  # of a class of its own
    if config.kind != EncoderConfig.kind:
        raise ValueError(
            "Hugging Face's format has an architecture for each of its models, and none that is "
            f"this one: save it as kbert's own preset. Received: {config.told}"
        )
    for architecture in architectures().values():
        if config.part is not None and config.part["name"] == architecture.part:
            return architecture.model_type
    if config.positions == "alibi":
        return "mosaicbert"
    if config.positions == "rotary":
        if config.block == "post_norm":
            return "nomic_bert" if config.feed_forward == "gated" else "roformer"
        if not architectures()["neobert"].incompatibilities(config):
            return "neobert"
        return "eurobert" if config.norm == "rms" else "modernbert"
    if config.num_layer_groups is not None:
        return "albert"
    if config.embedding_size is not None or config.pooler_activation == "gelu":
        return "electra"
    if any(name.startswith("discriminator/") for name in names):
        return "electra"
    if config.num_segments and config.padding_id is None:
        return "bert"
    like_distilbert = config.layer_norm_epsilon == 1e-12 and config.padding_id is None
    if like_distilbert and config.pooler_activation in (None, "relu"):
        return "distilbert"
    return "xlm-roberta" if tokenizer_kind == "unigram" else "roberta"


def usual_pooler(config: EncoderConfig, names: Iterable[str], tokenizer_kind: str | None) -> str:
    """The activation of the dense layer under a classifier, in the architecture a model is.

    BERT, ALBERT and RoBERTa have tanh, DistilBERT ReLU, ELECTRA and DeBERTa GELU, ModernBERT and
    RoFormer that of their other heads; what no architecture is has BERT's.

    Args:
        config: the encoder's, without a pooler.
        names: of the weights.
        tokenizer_kind: see `infer`.

    Example:
        >>> from kbert import family
        >>> usual_pooler(family("google/electra-small-discriminator"), [], None)
        'gelu'
    """
    if config.kind not in {x.config_class.kind for x in architectures().values()}:
        return "tanh"
    return architectures()[infer(config, names, tokenizer_kind)].usual_pooler(config)
