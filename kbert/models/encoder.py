"""The encoder of the BERT family.

Shapes: `B` batch, `T` tokens, `H` hidden width, `N` heads, `V` vocabulary, `E` embedding width, `K`
examples of a packed row.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self, cast

import keras
from keras import ops

from kbert import inference
from kbert.checkpoints import write_checkpoint
from kbert.configs.encoder import EncoderConfig
from kbert.core import registry
from kbert.core.registry import Registered
from kbert.core.types import DType, PathLike, Shape, Tensor, Tensors
from kbert.io.arrays import check_finite
from kbert.layers import gather_positions
from kbert.layers.bias import layer_biases
from kbert.layers.positions import number_tokens
from kbert.layers.recompute import run_layer
from kbert.models.blocks import Reads, embeddings_of, last_norm, layer_block, run_blocks
from kbert.models.from_config import FromConfig
from kbert.models.inputs_and_outputs import named_inputs, output_spec
from kbert.models.parts import part_of
from kbert.models.pooling import ALL_TOKENS, make_pooler, pool, pooled_positions
from kbert.models.weights import get_arrays

# The last three are for packed rows.
INPUTS = (
    *("token_ids", "segment_ids", "padding_mask", "causal_mask", "attention_order"),
    *("position_ids", "example_ids", "cls_positions"),
)


class Layers(NamedTuple):
    """Outputs of all layers of an encoder in one call.

    Attributes:
        hidden_states: the embeddings (B, T, H), then the output of each layer. The last one has
            only the requested positions; the others can be None if they were not requested.
        attention: attention probabilities or internals of each layer, None if not requested.
        more: further outputs that a subclass of `Encoder` returns, by name.
    """

    hidden_states: list[Any]
    attention: list[Any]
    more: Mapping[str, Any] = {}


@keras.saving.register_keras_serializable(package="kbert")
class Encoder(Registered, FromConfig, keras.Model, sort="encoder"):
    """Encodes token ids as contextual embeddings: BERT and all models that differ only in config.

    The constructor builds the encoder, so it has weights at once. It is saved and revived from its
    config alone.

    An encoder that runs its layers in another way is a subclass with its own `config_class`, a
    subclass of `EncoderConfig` with a `kind`. It defines `_make_layers` and `_run_layers`, and has
    the same inputs and outputs, so every task accepts it. `Encoder(config)` and
    `Encoder.from_preset` choose the class by the config.

    Args:
        config: sizes and options of the encoder.
        name: first part of the weights' paths.
        dtype: a Keras dtype policy or its name, e.g. "mixed_bfloat16".

    Example:
        >>> import numpy as np
        >>> config = EncoderConfig(vocabulary_size=10, hidden_size=8, num_layers=2, num_heads=2,
        ...                        intermediate_size=16)
        >>> encoder = Encoder(config)
        >>> out = encoder({"token_ids": np.array([[2, 5, 3, 0]]),
        ...                "padding_mask": np.array([[1, 1, 1, 0]])})
        >>> tuple(out["sequence"].shape), tuple(out["pooled"].shape)
        ((1, 4, 8), (1, 8))
    """

    kind = EncoderConfig.kind
    config_class: ClassVar[type[EncoderConfig]] = EncoderConfig
    prefix = "encoder"
    config: EncoderConfig
    INPUTS: ClassVar[tuple[str, ...]] = INPUTS

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if "config_class" in cls.__dict__:
            cls.kind = cls.config_class.kind
        super().__init_subclass__(**kwargs)

    def __new__(cls, config: EncoderConfig | None = None, *args: Any, **kwargs: Any) -> Self:
        if cls is Encoder and isinstance(config, EncoderConfig):
            cls = cast(type[Self], registry.get("encoder", config.kind))
        return super().__new__(cls, config, *args, **kwargs)

    def __init__(
        self,
        config: EncoderConfig,
        *,
        name: str = "encoder",
        dtype: DType = None,
        **kwargs: Any,
    ) -> None:
        kind = self.config_class
        if not isinstance(config, EncoderConfig) or config.kind != kind.kind:
            raise TypeError(
                f"The config of this class must be of the class {kind.__name__} (of kbert.Elmo: "
                f"ElmoConfig). Received: {config!r}"
            )
        super().__init__(name=name, dtype=dtype, autocast=False, **kwargs)
        self.config = config
        self.part = part_of(config)
        self._make_layers()
        self.build()
        self.apply_edits()

    def _make_embeddings(self) -> keras.layers.Layer:
        options: dict[str, Any] = {"name": "embeddings", "dtype": self.dtype_policy}
        embeddings = self.part.make_embeddings(self.config, **options)
        return embeddings_of(self.config, **options) if embeddings is None else embeddings

    def _make_layers(self) -> None:
        """Makes embeddings, shared layer, blocks, last norm and pooler; subclasses override it."""
        config, policy = self.config, {"dtype": self.dtype_policy}
        self.embeddings: Any = self._make_embeddings()
        self.shared = self.part.make_shared(config, name="shared", **policy)
        self.blocks = [self._make_block(group) for group in range(config.num_blocks)]
        self.norm = last_norm(config, kind=config.norm, name="norm", **policy)
        self.pooler: Any = make_pooler(config, name="pooler", **policy)

    def _make_block(self, group: int) -> keras.layers.Layer:
        """Builds block `group`; several consecutive layers use it if they share weights."""
        config, policy = self.config, {"dtype": self.dtype_policy}
        options: dict[str, Any] = {"name": f"layers_{group}", **policy}
        layer = -(-group * config.num_layers // config.num_blocks)  # the group's first
        block = self.part.make_block(config, layer=layer, **options)
        if block is not None:
            return block
        attention = self.part.make_attention(config, layer=layer, name="attention", **policy)
        feed_forward = self.part.make_feed_forward(
            config, layer=layer, name="feed_forward", **policy
        )
        return layer_block(
            config, layer=layer, attention=attention, feed_forward=feed_forward, **options
        )

    def build(self, input_shape: Shape | None = None) -> None:
        self.embeddings.build((None, None))
        for block in self.blocks:
            block.build((None, None, self.config.hidden_size))
        for layer in (self.shared, self.norm, self.pooler):
            if layer is not None:
                layer.build((None, self.config.hidden_size))

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs: those of every encoder, and those that the part adds."""
        return tuple(dict.fromkeys((*self.INPUTS, *self.part.inputs)))

    @property
    def id_rows(self) -> dict[str, int]:
        rows = {"token_ids": self.config.vocabulary_size}
        if getattr(self.embeddings, "segment", None) is not None:
            rows["segment_ids"] = self.config.num_segments
        if getattr(self.embeddings, "position", None) is not None:
            rows["position_ids"] = self.config.max_positions
        return rows

    @property
    def exported_inputs(self) -> dict[str, tuple[int | None, ...]]:
        names = ("token_ids", "segment_ids", "padding_mask")
        names = names if "segment_ids" in self.id_rows else ("token_ids", "padding_mask")
        return dict.fromkeys(names, (None, None))

    @property
    def token_embedding(self) -> keras.Variable:
        """The token table (V, E), for heads that tie their output matrix to it.

        Raises:
            ValueError: the table is a sum of two, see `kbert.layers.Embeddings.add_base`.
        """
        self._check_one_table()
        return self.embeddings.token

    @property
    def layer_blocks(self) -> list[keras.layers.Layer]:
        """The block of each layer; blocks that layers share are repeated."""
        layers = self.config.num_layers
        return [self.blocks[layer * len(self.blocks) // layers] for layer in range(layers)]

    @property
    def layer_heads(self) -> Sequence[int]:
        """Number of attention heads of each layer."""
        layers = range(self.config.num_layers)
        heads: Sequence[int] = [self.part.num_heads(self.config, layer) for layer in layers]
        for edit in self.edits:
            heads = edit.layer_heads(self.config, heads)
        return heads

    def call(
        self,
        inputs: Tensors,
        training: bool = False,
        return_hidden_states: bool = False,
        return_attention: bool = False,
        return_internals: bool = False,
        output_positions: Tensor | None = None,
    ) -> dict[str, Any]:
        """Encodes a batch.

        Args:
            inputs: token ids (B, T), or a dict with "token_ids" and optionally "segment_ids"
                and "padding_mask" (1 = token, 0 = padding), all (B, T) integers. Without a
                padding mask no token is padding; without segment ids every token is in segment 0.
                "causal_mask" (B, T) is 1 for tokens that do not attend to later tokens.
                "attention_order" (B, T): a token attends only to tokens whose number is at most its
                own (UniLM).
                Packed rows of several examples have three more inputs. "example_ids" (B, T) number
                the examples from 1, with 0 for padding, and replace the padding mask: tokens attend
                to their own example only. "position_ids" (B, T) start again in each example.
                "cls_positions" (B, K) are the first tokens of the examples, or the last ones with
                pooling="last". The part may add inputs, see `input_names`, such as
                "global_positions" of `kbert.models.longformer.attention.GlobalTokens`.
            training: whether dropout is active.
            return_hidden_states: whether "hidden_states" is returned.
            return_attention: whether "attention" is returned.
            return_internals: whether "internals" is returned, which distillation compares.
            output_positions: (B, P), positions of the tokens in "sequence"; None = all. If
                possible, the last layer computes only these and the tokens that "pooled" needs. P
                may be 0.

        Returns:
            A dict: "sequence" (B, T, H), or (B, P, H) with `output_positions`; "pooled" (B, H)
            if the family has a pooler, (B, K, H) with "cls_positions";
            "hidden_states", a list of num_layers + 1 tensors (B, T, H), from the embeddings to the
            "sequence" of all tokens;
            "attention", a list of num_layers tensors (B, N, T, T), probabilities before dropout;
            "internals", a list of num_layers dicts with "probabilities" and their "scores" (B, N,
            T, T) in float32 and without the bias for padding, and "query", "key" and "value" (B, N,
            T, H / N).

        Raises:
            ValueError: an input is unknown, missing or too long, there are segment ids for a model
                without segments, example ids without position ids or, with pooling="mean" or
                "late", without CLS positions, or a causal mask or attention order for a part that
                does not support it.
        """
        inputs = self._named_inputs(inputs)
        reads = Reads(return_hidden_states, return_attention, return_internals)
        kind = None if self.pooler is None else self.config.pooling
        positions = None if output_positions is None else ops.cast(output_positions, "int32")
        if (
            positions is None or kind in ALL_TOKENS or any(reads)
        ):  # the last layer computes all tokens
            layers = self._run_layers(inputs, training, reads, None)
            sequence = layers.hidden_states[-1]
            pooled = None if kind is None else pool(self.pooler, kind, sequence, inputs)
            if positions is not None:
                sequence = gather_positions(sequence, positions)
        elif kind is None:
            layers = self._run_layers(inputs, training, reads, positions)
            sequence, pooled = layers.hidden_states[-1], None
        else:  # the last layer computes the pooler's tokens, then the requested ones
            first = pooled_positions(kind, inputs)
            layers = self._run_layers(
                inputs, training, reads, ops.concatenate([first, positions], 1)
            )
            starts = inputs.get("cls_positions")
            number = 1 if starts is None else starts.shape[1]  # in a graph `first` may have no size
            sequence = layers.hidden_states[-1]
            pooled, sequence = self.pooler(sequence[:, :number]), sequence[:, number:]
            pooled = pooled[:, 0] if starts is None else pooled
        outputs = {**layers.more, "sequence": sequence}
        if pooled is not None:
            outputs["pooled"] = pooled
        if return_hidden_states:
            outputs["hidden_states"] = layers.hidden_states
        if return_attention:
            outputs["attention"] = [
                x["probabilities"] if return_internals else x for x in layers.attention
            ]
        if return_internals:
            outputs["internals"] = layers.attention
        return outputs

    def _run_layers(
        self, inputs: dict[str, Any], training: bool, reads: Reads, positions: Tensor | None
    ) -> Layers:
        """Runs the model from the token ids to the last layer's output.

        Args:
            inputs: inputs of `call`, by name.
            training: whether dropout is active.
            reads: which outputs of the layers are returned besides the last hidden state.
            positions: (B, P), positions of the tokens in the last hidden state; None = all.
        """
        *biases, last_bias = self._layer_biases(inputs, in_blocks=not reads.weights)
        options: dict[str, Any] = {"training": training}
        # Options are omitted if unused: other embeddings and blocks may lack the argument.
        embedding_options = {}
        if inputs.get("position_ids") is not None:
            embedding_options["places"] = inputs["position_ids"]
            if self.config.padding_id is not None and inputs.get("example_ids") is not None:
                embedding_options["places"] = number_tokens(
                    inputs["token_ids"], self.config.padding_id, inputs["position_ids"]
                )
            if self.config.positions_in_attention:
                options["position_ids"] = inputs["position_ids"]
        segments = inputs.get("segment_ids")
        x = self.embeddings(inputs["token_ids"], segments, training=training, **embedding_options)
        if self.shared is not None:
            part_inputs = {name: inputs.get(name) for name in self.part.inputs}
            part_inputs = {name: value for name, value in part_inputs.items() if value is not None}
            options["shared"] = self.shared(x, training=training, **part_inputs)
        *blocks, last = self.layer_blocks
        hidden_states, weights = run_blocks(blocks, x, biases, reads=reads, **options)
        whole_rows = last_bias is None or len(last_bias.shape) == 4
        if positions is not None and whole_rows and getattr(last, "takes_positions", False):
            options["positions"], positions = positions, None
        sequence, attention = run_layer(
            last, hidden_states[-1], last_bias, select=reads.select, **options
        )
        if self.norm is not None:
            sequence = self.norm(sequence, training=training)
        if positions is not None:
            sequence = gather_positions(sequence, positions)
        return Layers([*hidden_states, sequence], [*weights, attention])

    def _named_inputs(self, inputs: Any) -> dict[str, Any]:
        names = self.input_names
        return self.integers(named_inputs(inputs, names[0], names[1:], "An encoder"))

    def _layer_biases(self, inputs: Tensors, in_blocks: bool) -> list[Tensor | None]:
        """Returns the bias of each layer's attention scores; None where all tokens attend to all.

        Args:
            inputs: inputs of `call`, by name.
            in_blocks: whether biases of layers with a window may be in blocks, see `layer_biases`;
                False if attention scores are returned.

        Raises:
            ValueError: example ids without position ids, or a causal mask or attention order that
                the part does not support.
        """
        if inputs.get("example_ids") is not None and inputs.get("position_ids") is None:
            raise ValueError(  # all examples but the first would get other positions
                "`example_ids` require `position_ids`, which restart in each example. Received: "
                f"{', '.join(inputs)}"
            )
        for name in ("causal_mask", "attention_order"):
            if inputs.get(name) is not None and not self.part.takes_causal_mask:
                raise ValueError(
                    f"`{name}` is not supported by the part of this encoder: its tokens depend on "
                    f"later ones whatever the attention mask. Received: part={self.config.part}"
                )
        return layer_biases(
            [self.config.window(layer) for layer in range(self.config.num_layers)],
            ops.shape(inputs["token_ids"])[1],
            inputs.get("padding_mask"),
            inputs.get("example_ids"),
            causal_mask=inputs.get("causal_mask"),
            order=inputs.get("attention_order"),
            in_blocks=in_blocks,
        )

    def _number_of_keys(self, inputs: Tensors) -> int | None:
        """Returns the number of keys a token attends to, for static shapes; None = unknown."""
        return inputs["token_ids"].shape[1]

    def compute_output_spec(
        self,
        inputs: Tensors,
        training: bool = False,
        return_hidden_states: bool = False,
        return_attention: bool = False,
        return_internals: bool = False,
        output_positions: Tensor | None = None,
    ) -> dict[str, Any]:
        inputs = self._named_inputs(inputs)
        batch, length = inputs["token_ids"].shape
        keys = self._number_of_keys(inputs)
        hidden = (batch, length, self.config.hidden_size)
        layers, heads = self.config.num_layers, self.layer_heads
        scores = [(batch, number, length, keys) for number in heads]
        shapes: dict[str, Any] = {"sequence": hidden}
        if output_positions is not None:
            shapes["sequence"] = (batch, output_positions.shape[1], hidden[-1])
        if self.pooler is not None:
            firsts = inputs.get("cls_positions")
            examples = () if firsts is None else firsts.shape[1:]
            shapes["pooled"] = (batch, *examples, self.config.hidden_size)
        if return_hidden_states:
            shapes["hidden_states"] = [hidden] * (layers + 1)
        if return_attention:
            shapes["attention"] = scores
        if return_internals:
            width = self.part.head_size(self.config)
            shapes["internals"] = [
                {
                    **dict.fromkeys(("probabilities", "scores"), of_layer),
                    "query": (batch, number, length, width),
                    **dict.fromkeys(("key", "value"), (batch, number, keys, width)),
                }
                for number, of_layer in zip(heads, scores, strict=True)
            ]
        spec = output_spec(shapes, self.compute_dtype)
        for of_layer, shape in zip(spec.get("internals", ()), scores, strict=False):
            of_layer["scores"] = keras.KerasTensor(shape, dtype="float32")
        return spec

    def save_to_preset(
        self,
        path: PathLike,
        format: str = "kbert",
        *,
        architecture: str | None = None,
        max_shard_size: int | None = None,
        weight_dtype: str = "float32",
    ) -> None:
        """Writes config and weights to a folder that `from_preset` reads.

        Args:
            path: the folder; created if it is missing.
            format: format of the folder: "kbert", "huggingface" (for transformers) or "keras_hub"
                (for KerasHub).
            architecture: kind of the model in the other library, e.g. "roberta"; None = inferred
                from the config (for Hugging Face by
                `kbert.checkpoints.huggingface.architectures.infer`).
            max_shard_size: for "huggingface", largest number of bytes of weights in one file; None
                = all in one file.
            weight_dtype: for "huggingface", type of the weights in the files: "float32" or
                "bfloat16".

        Raises:
            ValueError: the format is unknown, the other library has no such model, or weights or
                outputs are not finite.
        """
        arrays = get_arrays(self, self.prefix)
        check_finite(arrays, os.fspath(path))
        inference.check_sample(self.sample_outputs, os.fspath(path))
        write_checkpoint(
            path,
            self.config,
            arrays,
            format,
            edits=self.variants.record(),
            architecture=architecture,
            max_shard_size=max_shard_size,
            weight_dtype=weight_dtype,
        )

    def get_config(self) -> dict[str, Any]:
        self._check_one_table()
        return super().get_config()

    def _check_one_table(self) -> None:
        """Raises ValueError if the token table is a sum, see `Embeddings.add_base`."""
        if getattr(self.embeddings, "base_tables", dict)():
            raise ValueError(
                "A discriminator's tables are sums of the generator's and its own until the task "
                "is saved: save the task with save_to_preset, and load the encoder from that "
                f"folder. Received: {self.name!r} of a task with "
                "embedding_sharing='gradient_disentangled'"
            )
