"""Variable names in the code of the TensorFlow Model Garden (tensorflow/models).

official/nlp/modeling/networks: bert_encoder.py, albert_encoder.py; layers/masked_lm.py and
cls_head.py; models/bert_pretrainer.py, bert_classifier.py, bert_span_labeler.py. The first releases
(November 2019 to spring 2020) have the names in BERT_NAME_REPLACEMENTS of
official/nlp/tools/tf1_bert_checkpoint_converter_lib.py. Exports to TF Hub keep the names.
"""

import re
from collections.abc import Callable

import numpy as np

from kbert.checkpoints.renames import Rule, dense, norm
from kbert.configs.encoder import EncoderConfig
from kbert.core.types import Arrays

# The model's own name, before these, differs between classes and versions.
_KNOWN = re.compile(
    r"^(?:.*?/)?((?:word_embeddings|position_embedding|type_embeddings)/embeddings$"
    r"|embeddings/layer_norm/|embedding_projection/|transformer/|pooler_transform/"
    r"|cls/predictions/|predictions/transform/logits/|(?:sentence_prediction|next_sentence)/)"
)
# Name in the first releases -> name today.
_FIRST = (
    ("/embedding_postprocessor/type_embeddings", "/type_embeddings/embeddings"),
    ("/embedding_postprocessor/position_embeddings", "/position_embedding/embeddings"),
    ("/embedding_postprocessor/layer_norm/", "/embeddings/layer_norm/"),
    ("/encoder/layer_", "/transformer/layer_"),
    ("/self_attention_output/", "/self_attention/attention_output/"),
)
_MASKED_LM, _LOGITS = "cls/predictions", "predictions/transform/logits"


def garden_name(name: str) -> str:
    """Returns a variable's name in the Model Garden's current code, without the name of its model.

    Names of other code stay unchanged.

    Example:
        >>> garden_name("bert_model/encoder/layer_0/self_attention_output/bias")
        'transformer/layer_0/self_attention/attention_output/bias'
        >>> garden_name("bert/cls/predictions/output_bias/bias")
        'cls/predictions/output_bias/bias'
        >>> garden_name("bert/encoder/layer_0/output/dense/bias")  # of TensorFlow 1: as it is
        'bert/encoder/layer_0/output/dense/bias'
    """
    if name.startswith("bert_model/"):
        for first, today in _FIRST:
            name = name.replace(first, today)
    return _KNOWN.sub(r"\1", name)


def garden_rules(albert: bool) -> Callable[..., tuple[list[Rule], tuple[str, ...]]]:
    """Returns the `rules` of an `Architecture` in `checkpoint.py`, for the Model Garden's names.

    The layer `predictions/transform/logits` is the sentence head if there is a masked-LM head
    (bert_pretrainer.py). Without one, a layer with two outputs predicts the start and end of an
    answer (bert_span_labeler.py); one with another number predicts classes of tokens
    (bert_token_classifier.py).

    Args:
        albert: whether all layers share their weights.
    """

    def rules(config: EncoderConfig, tensors: Arrays) -> tuple[list[Rule], tuple[str, ...]]:
        width, heads = config.hidden_size, config.num_heads
        table = [
            *_table("token", "word_embeddings"),
            *_table("position", "position_embedding"),
            *_table("segment", "type_embeddings"),
            *norm("encoder/embeddings/norm", "embeddings/layer_norm"),
            *dense("encoder/embeddings/projection", "embedding_projection"),
        ]
        for i in range(config.num_blocks):
            layer, source = (
                f"encoder/layers/{i}",
                "transformer" if albert else f"transformer/layer_{i}",
            )
            table += [
                *_attention(f"{layer}/attention", f"{source}/self_attention", width, heads),
                *norm(f"{layer}/attention_norm", f"{source}/self_attention_layer_norm"),
                *dense(f"{layer}/feed_forward/intermediate", f"{source}/intermediate"),
                *dense(f"{layer}/feed_forward/output", f"{source}/output"),
                *norm(f"{layer}/feed_forward_norm", f"{source}/output_layer_norm"),
            ]
        heads_table, skipped_prefixes = _heads(tensors)
        return [*table, *heads_table], skipped_prefixes

    return rules


def _heads(tensors: Arrays) -> tuple[list[Rule], tuple[str, ...]]:
    """Returns the rules of heads and pooler, and the prefixes of variables to leave out.

    A head's own pooler is read instead of the encoder's, which was not trained with the head.
    """
    pooler, skipped_prefixes = "pooler_transform", ()
    for head in ("next_sentence", "sentence_prediction"):
        if f"{head}/pooler_dense/kernel" in tensors:
            pooler, skipped_prefixes = f"{head}/pooler_dense", ("pooler_transform/",)
    logits = tensors.get(f"{_LOGITS}/kernel", np.zeros((0, 2)))
    token_head = "span" if logits.shape[-1:] == (2,) else "tokens"
    has_masked_lm = any(name.startswith(f"{_MASKED_LM}/") for name in tensors)
    return [
        *dense("encoder/pooler", pooler),
        *dense("masked_lm/transform", f"{_MASKED_LM}/transform/dense"),
        *norm("masked_lm/norm", f"{_MASKED_LM}/transform/LayerNorm"),
        Rule("masked_lm/bias", (f"{_MASKED_LM}/output_bias/bias",)),
        *dense(f"{'sentence' if has_masked_lm else token_head}/dense", _LOGITS),
        *dense("sentence/dense", "next_sentence/logits"),
        *dense("classifier/dense", "sentence_prediction/logits"),
    ], skipped_prefixes


def _attention(name: str, scope: str, width: int, heads: int) -> tuple[Rule, ...]:
    """Returns the rules of an attention layer; the Model Garden's kernels have an axis of heads.

    Args:
        name: kbert's name of the layer.
        scope: name of the layer in the Model Garden.
        width: hidden width.
        heads: number of heads.
    """
    split = (heads, width // heads)
    parts = [f"{scope}/{part}" for part in ("query", "key", "value")]
    kernels, biases = (tuple(f"{part}/{kind}" for part in parts) for kind in ("kernel", "bias"))
    return (
        Rule(f"{name}/qkv/kernel", kernels, shapes=((width, width), (width, *split))),
        Rule(f"{name}/qkv/bias", biases, shapes=((width,), split)),
        Rule(
            f"{name}/output/kernel",
            (f"{scope}/attention_output/kernel",),
            shapes=((width, width), (*split, width)),
        ),
        Rule(f"{name}/output/bias", (f"{scope}/attention_output/bias",)),
    )


def _table(name: str, layer: str) -> tuple[Rule, ...]:
    return (Rule(f"encoder/embeddings/{name}", (f"{layer}/embeddings",)),)
