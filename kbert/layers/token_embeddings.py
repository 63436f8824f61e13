"""One token table for both input and output (tied embeddings).

Shapes: `B` batch, `T` tokens, `H` hidden width, `V` vocabulary.
"""

from typing import Any, NamedTuple

import keras
from keras import ops

from kbert.core.types import Shape, Tensor, Tensors
from kbert.layers.ids import take_rows, whole_numbers
from kbert.layers.slots import Editable

# Most logits of a chunk, 64 MB, but at least of so many tokens: each chunk adds to the gradient of
# the table, which takes as long as the products of about 20 tokens (`benchmarks.chunks masked`).
MAX_LOGITS, MIN_TOKENS = 2**24, 256


class TokenEmbeddings(Editable):
    """Token embeddings, and logits with the same table transposed.

    (Press & Wolf 2017, https://arxiv.org/abs/1608.05859; Vaswani et al. 2017, section 3.4.)

    Args:
        vocabulary_size: rows of the table.
        hidden_size: width of the table.
        scale: factor of the embeddings at the input; logits do not use it.
        initializer_range: standard deviation of the initial table.

    Example:
        >>> embeddings = TokenEmbeddings(9, 4)
        >>> x = embeddings(ops.array([[1, 2, 3]]))
        >>> tuple(x.shape), tuple(embeddings.logits(x).shape)
        ((1, 3, 4), (1, 3, 9))
    """

    def __init__(
        self,
        vocabulary_size: int,
        hidden_size: int,
        *,
        scale: float = 1.0,
        initializer_range: float = 0.02,
        **kwargs: Any,
    ) -> None:
        super().__init__(autocast=False, **kwargs)  # half precision would round ids
        self.shape = (vocabulary_size, hidden_size)
        self.scale = scale
        self.initializer_range = initializer_range

    def build(self, token_ids_shape: Shape | None = None) -> None:
        self.token = self.add_weight(
            name="token",
            shape=self.shape,
            initializer=keras.initializers.TruncatedNormal(stddev=self.initializer_range),
            # The lookup comes before the cast: casting the whole table first costs more.
            autocast=False,
        )

    def call(self, token_ids: Tensor) -> Tensor:
        """Maps token ids (B, T) to embeddings (B, T, H), multiplied by `scale`."""
        rows = take_rows(self.token, whole_numbers(token_ids, "token_ids"))
        for edit in self.edits:
            rows = edit(rows)
        x = ops.cast(rows, self.compute_dtype)
        return x if self.scale == 1.0 else x * ops.cast(self.scale, x.dtype)

    def logits(self, x: Tensor) -> Tensor:
        """Returns the logits (…, V) float32 of hidden states x (…, H): products with the table."""
        return tied_logits(x, self.token)


class TokenOutput(NamedTuple):
    """What logits of tokens are the product of.

    Attributes:
        rows: hidden states (…, H).
        table: token table (V, H), a tensor or a variable.
        bias: bias (V,) of the entries, or None.
    """

    rows: Tensor
    table: Any
    bias: Any = None

    def logits(self) -> Tensor:
        """Returns the logits (…, V) float32."""
        logits = tied_logits(self.rows, self.table)
        return logits if self.bias is None else ops.add(logits, self.bias)


def whole_logits(outputs: Tensors) -> dict[str, Any]:
    """Returns a model's outputs by name, with the logits of each `TokenOutput` among them."""
    return {k: x.logits() if isinstance(x, TokenOutput) else x for k, x in outputs.items()}


def tokens_of_chunk(entries: int) -> int:
    """Returns how many tokens have their logits over `entries` of a vocabulary computed together.

    Training computes the logits of more tokens in chunks, see `kbert.tasks.token_losses`.
    """
    return max(MAX_LOGITS // entries, MIN_TOKENS)


def tied_logits(x: Tensor, table: Tensor) -> Tensor:
    """Returns the products (…, V) float32 of x (…, H) with the rows of a token table (V, H)."""
    *leading, width = ops.shape(x)
    # float32 under any policy: bfloat16 would round each logit to eight bits.
    x = ops.cast(ops.reshape(x, (-1, width)), "float32")
    if len(leading) == 1:
        # One vector per row, as in decoding. TensorFlow's CPU kernel multiplies the table by a few
        # vectors faster than a few vectors by the table: 14 ms instead of 22 for 8 rows of GPT-2.
        return ops.transpose(ops.matmul(table, ops.transpose(x)))
    logits = ops.matmul(x, ops.transpose(table))
    return ops.reshape(logits, (*leading, table.shape[0]))
