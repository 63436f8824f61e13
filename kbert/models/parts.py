"""Parts of encoders that one family has in code: under a name, with settings of their own.

A config says a part by its name and options (`EncoderConfig.part`). So an encoder with a part is
saved, loaded, exported and described like every other, once the module that registers the part was
imported: a folder that names a part never makes anything be imported.
"""

from typing import Any, ClassVar

import keras

from kbert.configs.encoder import EncoderConfig
from kbert.core import registry
from kbert.core.options import Options
from kbert.core.registry import Registered


class Part(Registered, Options, sort="part"):
    """A frozen dataclass of its options that makes some of an encoder's layers.

    What it does not make is made as the config says. Layers that it makes are built by the encoder,
    and hold all of their weights themselves; layers inside them need a `name`, for weights are
    saved by their paths. A subclass is known by its `kind` once it is defined.

    Attributes:
        kind: What configs call it, as `name`.
        inputs: names of the inputs that the shared layer takes besides; the encoder takes them all.
        takes_causal_mask: whether with a "causal_mask" no token knows of those behind it. False
            where something else than the attention, or the part's own, reads other tokens.

    Example:
        >>> import kbert
        >>> from kbert.layers import SelfAttention
        >>> class Sharper(SelfAttention):
        ...     sharpness = 1.0
        ...     @property
        ...     def _scale(self):
        ...         return self.sharpness * super()._scale
        >>> class SharpAttention(Part):
        ...     kind = "sharp_attention"
        ...     sharpness: float = kbert.core.options.option(2.0, help="Factor of scores.", above=0)
        ...     def count_parameters(self, config):
        ...         return 0
        ...     def make_attention(self, config, *, layer, **kwargs):
        ...         made = Sharper(config.num_heads, **kwargs)
        ...         made.sharpness = self.sharpness
        ...         return made
        >>> config = kbert.family("bert-tiny").replace(
        ...     part={"name": "sharp_attention", "sharpness": 3.0})
        >>> kbert.Encoder(config).layer_blocks[0].attention.sharpness
        3.0
        >>> config.to_dict()["part"]
        {'name': 'sharp_attention', 'sharpness': 3.0}
    """

    inputs: ClassVar[tuple[str, ...]] = ()
    takes_causal_mask: ClassVar[bool] = True

    def check_config(self, config: EncoderConfig) -> None:
        """Raises ValueError where a config and these options do not fit."""

    def check_ungrouped(self, config: EncoderConfig) -> None:
        """Raises ValueError where queries share heads of keys; for attentions that know no such."""
        if config.num_key_value_heads is not None:
            raise ValueError(
                f"The attention of part={self.kind!r} has as many heads of keys and values as of "
                "queries: `num_key_value_heads` must be None. "
                f"Received: num_key_value_heads={config.num_key_value_heads}"
            )

    def count_parameters(self, config: EncoderConfig) -> int:
        """Weights of an encoder with this part beyond those that its config says.

        Negative where the part has fewer. `kbert.describe` counts by it.
        """
        raise NotImplementedError

    def head_size(self, config: EncoderConfig) -> int:
        """Width of an attention head, which "internals" have."""
        return config.hidden_size // config.num_heads

    def num_heads(self, config: EncoderConfig, layer: int) -> int:
        """Attention heads of a layer."""
        return config.num_heads

    def kernels(self, config: EncoderConfig, layer: int) -> list[tuple[int, int]]:
        """Shapes of the dense layers' kernels in the block of a layer."""
        return config.kernels()

    def output_columns(self, config: EncoderConfig) -> int:
        """Columns of the masked-LM head's output layer beside those of the token table.

        The transform before it is as wide as both together.
        """
        return 0

    def make_embeddings(self, config: EncoderConfig, **kwargs: Any) -> keras.layers.Layer | None:
        """In the place of `kbert.layers.Embeddings`; None = not of this part.

        Args:
            config: the encoder's.
            **kwargs: `name` and `dtype` of the layer.
        """
        return None

    def make_shared(self, config: EncoderConfig, **kwargs: Any) -> keras.layers.Layer | None:
        """A layer `(x, training) -> tensors` that is called once, with the embeddings' output.

        It is called with those of `inputs` besides that the batch has, by their names. Every
        attention gets what it gives, as `shared`. Arguments as of `make_embeddings`.
        """
        return None

    def make_attention(
        self, config: EncoderConfig, *, layer: int, **kwargs: Any
    ) -> keras.layers.Layer | None:
        """In the place of `kbert.layers.SelfAttention`, with its call.

        Args:
            config: the encoder's.
            layer: of which layer.
            **kwargs: `name` and `dtype` of the layer.
        """
        return None

    def make_feed_forward(
        self, config: EncoderConfig, *, layer: int, **kwargs: Any
    ) -> keras.layers.Layer | None:
        """In the place of `kbert.layers.FeedForward`. Arguments as of `make_attention`."""
        return None

    def make_block(
        self, config: EncoderConfig, *, layer: int, **kwargs: Any
    ) -> keras.layers.Layer | None:
        """In the place of `kbert.layers.Block`, with its call. Arguments as of `make_attention`."""
        return None


def part_of(config: EncoderConfig) -> Part:
    """The part that a config names, or one that makes nothing.

    Raises:
        ValueError: no part of that name was registered; the message lists the known ones. Or the
            part and the config exclude each other.
    """
    if config.part is None:
        return _Nothing()
    part = config.find_part()
    if part is None:
        raise ValueError(
            "A part is known once the module that registers it was imported; the programs import "
            f"one by --task_module. Known: {', '.join(registry.names('part')) or 'none'}. "
            f"Received: part={config.part['name']!r}"
        )
    part.check_config(config)
    return part


class _Nothing(Part):
    """Of a config without a part."""

    def count_parameters(self, config: EncoderConfig) -> int:
        return 0
