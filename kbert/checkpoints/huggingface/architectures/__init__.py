"""Hugging Face's architectures, each a table, and the choice between them."""

import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from absl import logging

from kbert.checkpoints.huggingface.architectures.base import Architecture
from kbert.checkpoints.huggingface.architectures.bert import Bert
from kbert.configs.base import Config
from kbert.configs.decoder import DecoderConfig
from kbert.configs.encoder import EncoderConfig
from kbert.configs.seq2seq import RELATIVE, Seq2SeqConfig
from kbert.core import late

_SHARED_PREFIXES = {"model", "transformer"}  # used by several architectures
_CLASS_ENDINGS = r"Model|MTModel|For\w+|LMHeadModel|DoubleHeadsModel"

# Words in the names of keys that change the model in other architectures, which kbert cannot read.
_DECISIVE = re.compile(
    r"(^|_)(act|activation|alibi|bias|experts?|moe|rope|rotary|sliding|windows?|gated?|residuals?"
    r"|(layer|rms)?_?norm\d*|ln\d*|scal(e|es|ed|ing)|multipliers?|(soft_?)?cap(ping|s)?)(_|$)"
)

__all__ = [
    *("Architecture", "architectures", "find", "identify", "infer", "is_decisive", "usual_pooler")
]


@functools.cache
def architectures() -> Mapping[str, Architecture]:
    """Returns name -> architecture, in the order in which a config is compared with them.

    Example:
        >>> architectures()["mosaicbert"].model_type
        'bert'
    """
    return {name: late.load("architecture", name)() for name in late.TABLE["architecture"]}


def identify(content: Mapping[str, Any], source: str, names: Collection[str] = ()) -> Architecture:
    """Returns the architecture of a config.

    Configs of 2019 have no `model_type`. They are identified by the class names under
    `architectures`, else by the prefix of the weight names. A config with neither is BERT's, like
    Google's own. A key of an architecture's `marks` decides between those with one `model_type`.

    Args:
        content: key -> value of `config.json`.
        source: where the config is from, for messages.
        names: names of the weights.

    Raises:
        ValueError: kbert does not read that architecture, or the config may be BERT's or another
            architecture's.

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
            "%s: `architectures` has %s, but `model_type` is %r: the latter is used, as in "
            "transformers",
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
    """Raises ValueError if a config without `model_type` may be another architecture than BERT."""
    if content.get("type_vocab_size") == 1:
        raise ValueError(
            "A config.json with one segment must have `model_type` or `architectures`, as BERT "
            f"and RoBERTa count positions differently: add `model_type` to it. Received: {source}"
        )
    other_keys = {*content} - {*Bert.fields, *Bert.ignored}
    matching_keys = {x.model_type: other_keys & {*x.fields} for x in architectures().values()}
    name = max(matching_keys, key=lambda name: len(matching_keys[name]))
    if len(matching_keys[name]) > 1:
        raise ValueError(
            "A config.json without `model_type` and `architectures` is read as BERT's, but this "
            f'one has keys of another architecture: perhaps add "model_type": "{name}" to it. '
            f"Received: {', '.join(sorted(matching_keys[name]))} in {source}"
        )


def _of_class(content: Mapping[str, Any]) -> str | None:
    """Returns the `model_type` of the first class in a config's `architectures`; None = unknown."""
    classes = content.get("architectures")
    first = classes[0] if isinstance(classes, list) and classes else None
    if not isinstance(first, str):
        return None
    for architecture in architectures().values():
        if re.fullmatch(rf"(TF|Flax)?{architecture.class_prefix}({_CLASS_ENDINGS})", first):
            return architecture.model_type
    return None


def _of_prefix(names: Collection[str]) -> str | None:
    """Returns the first `model_type` whose prefix occurs in the weight names, or None.

    The prefixes "model" and "transformer" do not count: several architectures have them.
    """
    prefixes = {name.partition(".")[0] for name in names} - _SHARED_PREFIXES
    for architecture in architectures().values():
        if architecture.prefix in prefixes:
            return architecture.model_type
    return None


def find(model_type: str, source: str) -> Architecture:
    """Returns an architecture by name.

    Args:
        model_type: `model_type` in `config.json`, or the `name` of an architecture.
        source: where the name is from, for the error message.

    Raises:
        ValueError: kbert does not read that architecture.

    Example:
        >>> find("bert", "memory").prefix
        'bert'
    """
    if not isinstance(model_type, str) or model_type not in architectures():
        raise ValueError(
            f"kbert supports the Hugging Face architectures {', '.join(architectures())}. "
            f"Received: {model_type!r} in {source}"
        )
    return architectures()[model_type]


def is_decisive(key: str) -> bool:
    """Whether a config key changes what a model computes, in a known architecture or by its name.

    Such keys are not all recognised: an architecture unknown to kbert may use any name.

    Example:
        >>> [is_decisive(key) for key in ("rope_theta", "logit_scale", "house_style")]
        [True, True, False]
    """
    if _DECISIVE.search(key):
        return True
    tables = architectures().values()
    known_keys = (
        {*x.fields, *x.required, *(x.ignored - Bert.ignored - {"auto_map"})} for x in tables
    )
    return any(key in keys for keys in known_keys)


def infer(config: Config, names: Iterable[str], tokenizer_kind: str | None) -> str:
    """Returns the architecture that a model is written as if the user names none.

    A decoder is written as ModernBERT's decoder if it has rotary positions, as GPT-2 if it has
    norms before its parts, else as GPT. An encoder-decoder is written as T5 if it has relative
    positions; with learned ones as mBART if it has norms before its parts, else as BART; with
    sinusoidal ones as PEGASUS or Marian. A model with a config class of its own (XLNet, Reformer)
    is written as its own architecture. For other encoders the first match of this list decides:

    - by part: task embeddings are ERNIE, disentangled attention is DeBERTa-v2, global tokens are
      Longformer, bottlenecks are MobileBERT, a relative position bias is MPNet, dynamic
      convolutions are ConvBERT, grouped layers are SqueezeBERT;
    - ALiBi is MosaicBERT;
    - rotary positions with norms after the parts are NomicBERT if gated, else RoFormer;
    - other rotary positions are NeoBERT if all values fit it, else EuroBERT with RMSNorm, else
      ModernBERT;
    - `num_layer_groups` is ALBERT;
    - `embedding_size`, a pooler with GELU, or a discriminator is ELECTRA;
    - segments without `padding_id` are BERT;
    - no `padding_id`, an epsilon of 1e-12, and no pooler or one with ReLU are DistilBERT;
    - all else is XLM-RoBERTa with a unigram tokenizer, RoBERTa with another.

    Several architectures can be the same function; name the one you want if this order chooses
    another.

    Args:
        config: config of the model.
        names: names of the weights.
        tokenizer_kind: kind of the tokenizer: "wordpiece", "bpe", "unigram"; None = no tokenizer.

    Returns:
        The `model_type`.

    Raises:
        ValueError: no architecture has this kind of config.

    Example:
        >>> from kbert import family
        >>> infer(family("bert-tiny"), [], None)
        'bert'
    """
    if config.kind in _OF_KIND:
        return _OF_KIND[config.kind](config)
    if not isinstance(config, EncoderConfig):
        raise ValueError(
            "Hugging Face's format requires an EncoderConfig, a DecoderConfig or a Seq2SeqConfig. "
            f"Received: {config}"
        )
    for architecture in architectures().values():
        if config.kind == architecture.config_class.kind != EncoderConfig.kind:
            return architecture.model_type  # the config has a class of its own
    if config.kind != EncoderConfig.kind:
        raise ValueError(
            "Hugging Face's format has no architecture for this model: save it as a kbert preset. "
            f"Received: {config.told}"
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


def _of_decoder(config: Any) -> str:
    """Returns the architecture that a decoder is written as."""
    if config.positions == "rotary":
        return "modernbert-decoder"
    return "gpt2" if config.block == "pre_norm" else "openai-gpt"


def _of_encoder_decoder(config: Any) -> str:
    """Returns the architecture that an encoder-decoder is written as."""
    if config.positions == RELATIVE:
        return "t5"
    before = config.block == "pre_norm"
    if config.positions == "learned":
        return "mbart" if before else "bart"
    return "pegasus" if before else "marian"


# Kind of a config -> function that returns its architecture; the others are encoders.
_OF_KIND: dict[str, Callable[[Any], str]] = {
    DecoderConfig.kind: _of_decoder,
    Seq2SeqConfig.kind: _of_encoder_decoder,
}


def usual_pooler(config: EncoderConfig, names: Iterable[str], tokenizer_kind: str | None) -> str:
    """Returns the activation of the dense layer before a classifier, in a model's architecture.

    BERT, ALBERT and RoBERTa use tanh, DistilBERT ReLU, ELECTRA and DeBERTa GELU. ModernBERT and
    RoFormer use the activation of their other heads. A model without an architecture uses tanh.

    Args:
        config: config of an encoder without a pooler.
        names: names of the weights.
        tokenizer_kind: kind of the tokenizer: "wordpiece", "bpe", "unigram"; None = no tokenizer.

    Example:
        >>> from kbert import family
        >>> usual_pooler(family("google/electra-small-discriminator"), [], None)
        'gelu'
    """
    if config.kind not in {x.config_class.kind for x in architectures().values()}:
        return "tanh"
    return architectures()[infer(config, names, tokenizer_kind)].usual_pooler(config)
