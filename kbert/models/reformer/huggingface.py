"""Hugging Face's Reformer."""

from collections.abc import Mapping
from typing import Any, ClassVar

from kbert.checkpoints.huggingface.architectures.base import (
    IGNORED,
    REQUIRED,
    Architecture,
    dense,
    norm,
)
from kbert.checkpoints.renames import Rule
from kbert.configs.reformer import LOCAL, ReformerConfig
from kbert.core.protocols import TokenizerLike
from kbert.core.types import Arrays

_ATTENTION = ("local", "lsh", "local", "lsh", "local", "lsh")
# Key of chunk settings -> field of kbert's config, with transformers' default.
_CHUNKS = {
    "local_attn_chunk_length": ("local_chunk_length", 64),
    "local_num_chunks_before": ("local_chunks_before", 1),
    "local_num_chunks_after": ("local_chunks_after", 0),
    "lsh_attn_chunk_length": ("lsh_chunk_length", 64),
    "lsh_num_chunks_before": ("lsh_chunks_before", 1),
    "lsh_num_chunks_after": ("lsh_chunks_after", 0),
}
_PROJECTIONS = {"local": ("query", "key", "value"), "lsh": ("query_key", "value")}

# Biases of the masked-LM head: that of its dense layer, and that of the head itself.
_BIAS, _OTHER_BIAS = "lm_head.decoder.bias", "lm_head.bias"


class Reformer(Architecture):
    """Reformer: the masked-LM head has its own output matrix, in transformers and in kbert.

    kbert has no head for causal models. Classifiers in transformers have a dense layer that halves
    the width, which kbert's classifiers lack.
    """

    model_type = "reformer"
    title = "Reformer"
    config_class = ReformerConfig
    class_prefix = "Reformer"
    prefix = "reformer"
    heads = ("lm_head.", "classifier.", "qa_outputs.")
    fields: ClassVar[Mapping[str, str]] = {
        "vocab_size": "vocabulary_size",
        "num_attention_heads": "num_heads",
        "attention_head_size": "head_size",
        "feed_forward_size": "intermediate_size",
        "max_position_embeddings": "max_positions",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
        "local_attention_probs_dropout_prob": "attention_dropout",
        "lsh_attention_probs_dropout_prob": "lsh_dropout",
        "layer_norm_eps": "layer_norm_epsilon",
        "initializer_range": "initializer_range",
        "num_buckets": "num_buckets",
        "num_hashes": "num_hashes",
        "hash_seed": "hash_seed",
        **{key: field for key, (field, _) in _CHUNKS.items()},
    }
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 320,
        "num_attention_heads": 12,
        "attention_head_size": 64,
        "feed_forward_size": 512,
        "max_position_embeddings": 4096,
        "hidden_act": "relu",
        "hidden_dropout_prob": 0.05,
        "local_attention_probs_dropout_prob": 0.05,
        "lsh_attention_probs_dropout_prob": 0.0,
        "layer_norm_eps": 1e-12,
        "initializer_range": 0.02,
        "num_buckets": None,
        "num_hashes": 1,
        "hash_seed": None,
        **{key: default for key, (_, default) in _CHUNKS.items()},
    }
    required: ClassVar[Mapping[str, tuple]] = {
        **{key: REQUIRED[key] for key in REQUIRED if key not in ("is_decoder",)},
        "tie_word_embeddings": (False, None),
    }
    # Read in `read_fields`, except the last line: keys of initialisation, of the head's chunks, and
    # of the first versions, which later versions do not read.
    ignored = IGNORED | frozenset(
        "hidden_size num_hidden_layers attn_layers is_decoder axial_pos_embds axial_pos_shape "
        "axial_pos_embds_dim chunk_size_feed_forward "
        "axial_norm_std chunk_size_lm_head attention_probs_dropout_prob num_chunks_before "
        "num_chunks_after sinusoidal_pos_embds intermediate_size type_vocab_size".split()
    )
    own_fields = (
        *("hidden_size", "num_layers", "attention_pattern", "attention", "positions"),
        *("axial_shape", "axial_sizes", "feed_forward_chunk"),
    )

    def rules(self, config: Any, head: str | None) -> list[Rule]:
        module = "reformer.embeddings"
        positions = f"{module}.position_embeddings"
        table = [Rule("encoder/embeddings/token", (f"{module}.word_embeddings.weight",))]
        if config.positions == "learned":
            table.append(Rule("encoder/embeddings/position", (f"{positions}.embedding.weight",)))
        else:
            axes = zip(config.axial_shape, config.axial_sizes, strict=True)
            (rows, of_rows), (columns, of_columns) = axes
            shapes = {
                "rows": ((rows, of_rows), (rows, 1, of_rows)),
                "columns": ((columns, of_columns), (1, columns, of_columns)),
            }
            table += [
                Rule(f"encoder/embeddings/{name}", (f"{positions}.weights.{i}",), shapes=shape)
                for i, (name, shape) in enumerate(shapes.items())
            ]
        for i in range(config.num_layers):
            kind = config.layer_attention(i)
            path, module = f"encoder/layers/{i}", f"reformer.encoder.layers.{i}"
            inner = f"{module}.attention.self_attention"
            sources = tuple(f"{inner}.{part}.weight" for part in _PROJECTIONS[kind])
            projection = "qkv" if kind == LOCAL else "qk_v"
            kernels = {
                projection: sources,
                "output": (f"{module}.attention.output.dense.weight",),
            }
            table += [
                *(
                    Rule(f"{path}/attention/{name}/kernel", parts, transpose=True)
                    for name, parts in kernels.items()
                ),
                *norm(f"{path}/attention_input_norm", f"{module}.attention.layer_norm"),
                *norm(f"{path}/feed_forward_input_norm", f"{module}.feed_forward.layer_norm"),
                *dense(f"{path}/feed_forward/intermediate", f"{module}.feed_forward.dense.dense"),
                *dense(f"{path}/feed_forward/output", f"{module}.feed_forward.output.dense"),
            ]
        table += norm("encoder/norm", "reformer.encoder.layer_norm")
        if config.attention != "causal":
            table += [
                Rule("masked_lm/table", ("lm_head.decoder.weight",)),
                Rule("masked_lm/bias", (_BIAS,)),
            ]
        return [*table, *dense("span/dense", "qa_outputs")]

    def fold(self, arrays: Arrays, content: Mapping[str, Any]) -> Arrays:
        """Returns the arrays with one bias of the masked-LM head: its dense layer's, else its own.

        In transformers 4 both names are one weight. 5.23 has only the head's own bias and does not
        add it to anything. Since 5.24 the head's own bias is an unused weight.
        """
        folded = dict(arrays)
        bias = folded.pop(_OTHER_BIAS, None)
        return folded if bias is None else {_BIAS: bias, **folded}

    def unfold(self, arrays: Arrays, content: Mapping[str, Any]) -> Arrays:
        """Writes the bias under both names, for any version of transformers."""
        bias = arrays.get(_BIAS)
        return arrays if bias is None else {**arrays, _OTHER_BIAS: bias}

    def read_fields(self, content: Mapping[str, Any], source: str) -> dict[str, Any]:
        pattern = content.get("attn_layers", _ATTENTION)
        if not isinstance(pattern, list | tuple) or not pattern:
            raise ValueError(
                f"`attn_layers` must name the attention of each layer. Received: {pattern!r} in "
                f"{source}"
            )
        layers = content.get("num_hidden_layers", len(pattern))
        if layers != len(pattern):
            raise ValueError(
                "`num_hidden_layers` must be the number of `attn_layers`. "
                f"Received: {layers} and {len(pattern)} in {source}"
            )
        width = content.get("hidden_size", 256)
        if not isinstance(width, int) or isinstance(width, bool):
            raise ValueError(f"`hidden_size` must be a number. Received: {width!r} in {source}")
        axial = content.get("axial_pos_embds", True)
        return {
            **super().read_fields(content, source),
            "hidden_size": 2 * width,
            "num_layers": len(pattern),
            "attention_pattern": tuple(pattern),
            "attention": "causal" if content.get("is_decoder") else "bidirectional",
            "positions": "axial" if axial else "learned",
            "axial_shape": content.get("axial_pos_shape", [64, 64]) if axial else None,
            "axial_sizes": content.get("axial_pos_embds_dim", [64, 192]) if axial else None,
            "feed_forward_chunk": content.get("chunk_size_feed_forward") or None,
        }

    def write_fields(self, config: Any, tokenizer: TokenizerLike | None) -> dict[str, Any]:
        layers = range(config.num_layers)
        fields = {
            **super().write_fields(config, tokenizer),
            "hidden_size": config.stream_size,
            "attn_layers": [config.layer_attention(layer) for layer in layers],
            "is_decoder": config.attention == "causal",
            "tie_word_embeddings": False,
            # transformers would compute absent ones from the first sequence that it reads.
            "num_buckets": list(config.bucket_factors),
            "axial_pos_embds": config.positions == "axial",
            "chunk_size_feed_forward": config.feed_forward_chunk or 0,
        }
        if len(config.bucket_factors) == 1:
            (fields["num_buckets"],) = config.bucket_factors
        if config.positions == "axial":
            fields["axial_pos_shape"] = list(config.axial_shape)
            fields["axial_pos_embds_dim"] = list(config.axial_sizes)
        return fields

    def classifier(self, content: Mapping[str, Any], arrays: Any) -> str | None:
        return None  # its dense layer has no counterpart in kbert

    def misfits(self, config: Any) -> list[str]:
        misfits = []
        if config.pooler_activation is not None:
            misfits.append("it has no pooler")
        return misfits
