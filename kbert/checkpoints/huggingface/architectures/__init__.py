"""Hugging Face's architectures, a table each, and the choice between them."""

from collections.abc import Iterable

from kbert.checkpoints.huggingface.architectures.albert import Albert
from kbert.checkpoints.huggingface.architectures.base import Architecture
from kbert.checkpoints.huggingface.architectures.bert import Bert
from kbert.checkpoints.huggingface.architectures.deberta import PART, DebertaV2
from kbert.checkpoints.huggingface.architectures.distilbert import DistilBert
from kbert.checkpoints.huggingface.architectures.electra import Electra
from kbert.checkpoints.huggingface.architectures.gpt2 import Gpt2
from kbert.checkpoints.huggingface.architectures.modernbert import ModernBert
from kbert.checkpoints.huggingface.architectures.modernbert_decoder import ModernBertDecoder
from kbert.checkpoints.huggingface.architectures.openai_gpt import OpenAIGpt
from kbert.checkpoints.huggingface.architectures.roberta import Roberta, XlmRoberta
from kbert.configs.base import Config
from kbert.configs.decoder import DecoderConfig
from kbert.configs.encoder import EncoderConfig

ARCHITECTURES: dict[str, Architecture] = {
    architecture.model_type: architecture
    for architecture in (
        *(Bert(), Roberta(), XlmRoberta(), Albert(), DistilBert(), Electra(), ModernBert()),
        *(DebertaV2(), Gpt2(), OpenAIGpt(), ModernBertDecoder()),
    )
}

__all__ = ["ARCHITECTURES", "Architecture", "find", "infer", "usual_pooler"]


def find(model_type: str, source: str) -> Architecture:
    """The architecture of that name.

    Args:
        model_type: as in `config.json`.
        source: where the name is from, for the message.

    Raises:
        ValueError: kbert does not read that architecture.

    Example:
        >>> find("bert", "memory").prefix
        'bert'
    """
    if not isinstance(model_type, str) or model_type not in ARCHITECTURES:
        raise ValueError(
            f"kbert reads and writes the Hugging Face architectures {', '.join(ARCHITECTURES)}. "
            f"Received: {model_type!r} in {source}"
        )
    return ARCHITECTURES[model_type]


def infer(config: Config, names: Iterable[str], tokenizer_kind: str | None) -> str:
    """The architecture that a model is written as where none is named.

    A decoder is ModernBERT's with rotary positions, else GPT-2 with norms before its parts, GPT
    with norms behind them. Of encoders, in this order: one with disentangled attention is
    DeBERTa-v2, one with rotary positions ModernBERT; one with `num_layer_groups` is ALBERT's; one
    with `embedding_size`, a pooler with GELU, or a discriminator is ELECTRA's. With segments it is
    BERT. Without, it is DistilBERT where epsilon is 1e-12 and there is no pooler but one with ReLU;
    else XLM-RoBERTa over a unigram vocabulary and RoBERTa over another. Several architectures can
    be the same function; name the one that is meant where this order finds another.

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
    for architecture in ARCHITECTURES.values():
        if config.kind == architecture.config_class.kind != EncoderConfig.kind:
            return architecture.model_type  # of a class of its own
    if config.part is not None and config.part["name"] == PART:
        return "deberta-v2"
    if config.positions == "rotary":
        return "modernbert"
    if config.num_layer_groups is not None:
        return "albert"
    if config.embedding_size is not None or config.pooler_activation == "gelu":
        return "electra"
    if any(name.startswith("discriminator/") for name in names):
        return "electra"
    if config.num_segments:
        return "bert"
    if config.layer_norm_epsilon == 1e-12 and config.pooler_activation in (None, "relu"):
        return "distilbert"
    return "xlm-roberta" if tokenizer_kind == "unigram" else "roberta"


def usual_pooler(config: EncoderConfig, names: Iterable[str], tokenizer_kind: str | None) -> str:
    """The activation of the dense layer under a classifier, in the architecture a model is.

    BERT, ALBERT and RoBERTa have tanh, DistilBERT ReLU, ELECTRA and DeBERTa GELU.

    Args:
        config: the encoder's, without a pooler.
        names: of the weights.
        tokenizer_kind: see `infer`.

    Example:
        >>> from kbert import family
        >>> usual_pooler(family("google/electra-small-discriminator"), [], None)
        'gelu'
    """
    return ARCHITECTURES[infer(config, names, tokenizer_kind)].pooler_activations[0]
