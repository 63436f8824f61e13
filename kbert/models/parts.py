"""Parts: layers of one family of encoders that are defined in code, with a name and options.

A config refers to a part by its name and options (`EncoderConfig.part`). So an encoder with a part
is saved, loaded, exported and described like every other. The module that registers the part must
be imported before: loading a folder that names a part never imports it.
"""

from typing import Any, ClassVar

import keras

from kbert.configs.encoder import EncoderConfig
from kbert.core import registry
from kbert.core.options import Options
from kbert.core.registry import Registered


class Part(Registered, Options, sort="part"):
    """Makes some of an encoder's layers; a frozen dataclass of the part's options.

    The other layers are made from the config. The encoder builds the layers of the part, which must
    own all of their weights. Layers inside them need a `name`, because weights are saved by their
    paths. A subclass is registered under its `kind` when it is defined.

    Attributes:
        kind: Name of the part in configs.
        inputs: names of additional inputs of the shared layer; they become inputs of the encoder.
        takes_causal_mask: whether a "causal_mask" or an "attention_order" keeps tokens from
            depending on later ones. False if the part also reads later tokens in another way.

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
        """Raises ValueError if the config and these options are inconsistent."""

    def check_ungrouped(self, config: EncoderConfig) -> None:
        """Raises ValueError if the config has grouped-query attention.

        For parts whose attention has as many heads of keys and values as of queries.
        """
        if config.num_key_value_heads is not None:
            raise ValueError(
                f"`num_key_value_heads` must be None: the attention of part={self.kind!r} has as "
                "many heads of keys and values as of queries. Received: "
                f"num_key_value_heads={config.num_key_value_heads}"
            )

    def count_parameters(self, config: EncoderConfig) -> int:
        """Counts the weights that the part adds to those of the config's own layers.

        Negative if the part has fewer. `kbert.describe` uses it.
        """
        raise NotImplementedError

    def head_size(self, config: EncoderConfig) -> int:
        """Returns the width of an attention head in "internals"."""
        return config.hidden_size // config.num_heads

    def num_heads(self, config: EncoderConfig, layer: int) -> int:
        """Returns the number of attention heads of a layer."""
        return config.num_heads

    def kernels(self, config: EncoderConfig, layer: int) -> list[tuple[int, int]]:
        """Returns the shapes (inputs, outputs) of all dense kernels in the block of a layer."""
        return config.kernels()

    def output_columns(self, config: EncoderConfig) -> int:
        """Returns how many columns the masked-LM output matrix has besides the token table's.

        The transform before the output matrix is as wide as all columns together.
        """
        return 0

    def make_embeddings(self, config: EncoderConfig, **kwargs: Any) -> keras.layers.Layer | None:
        """Returns a layer to use instead of `kbert.layers.Embeddings`; None = the default.

        Args:
            config: config of the encoder.
            **kwargs: `name` and `dtype` of the layer.
        """
        return None

    def make_shared(self, config: EncoderConfig, **kwargs: Any) -> keras.layers.Layer | None:
        """Returns a layer `(x, training) -> tensors` to call once on the embeddings, or None.

        Inputs of the batch that are listed in `inputs` are passed by name. Every attention gets the
        result as `shared`. The arguments are those of `make_embeddings`.
        """
        return None

    def make_attention(
        self, config: EncoderConfig, *, layer: int, **kwargs: Any
    ) -> keras.layers.Layer | None:
        """Returns a layer to use instead of `SelfAttention`, with its `call`; None = the default.

        Args:
            config: config of the encoder.
            layer: index of the encoder's layer.
            **kwargs: `name` and `dtype` of the attention.
        """
        return None

    def make_feed_forward(
        self, config: EncoderConfig, *, layer: int, **kwargs: Any
    ) -> keras.layers.Layer | None:
        """Returns a layer to use instead of `FeedForward`; like `make_attention`."""
        return None

    def make_block(
        self, config: EncoderConfig, *, layer: int, **kwargs: Any
    ) -> keras.layers.Layer | None:
        """Returns a layer to use instead of `Block`, with its `call`; like `make_attention`."""
        return None


def part_of(config: EncoderConfig) -> Part:
    """Returns the part of a config, or one that makes no layers if the config has none.

    Raises:
        ValueError: no part of that name is registered (the message lists the known ones), or part
            and config are inconsistent.
    """
    if config.part is None:
        return _Nothing()
    part = config.find_part()
    if part is None:
        raise ValueError(
            "`part` must be registered: import the module that registers it (programs: "
            f"--task_module). Known: {', '.join(registry.names('part')) or 'none'}. Received: "
            f"part={config.part['name']!r}"
        )
    part.check_config(config)
    return part


class _Nothing(Part):
    """Part of a config without one: makes no layers."""

    def count_parameters(self, config: EncoderConfig) -> int:
        return 0
