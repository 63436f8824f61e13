"""UniLM: one encoder pretrained as a bidirectional, unidirectional and sequence-to-sequence model.

Shapes: B rows, T tokens, P predictions of a row at most.
"""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from kbert.core.types import Tensors, Terms
from kbert.data.pretraining.attention_kinds import KIND_OF_SEGMENT, KINDS, NUM_SEGMENTS
from kbert.tasks.corpora import MixedCorpus
from kbert.tasks.pretraining.pretraining import Pretraining
from kbert.tasks.token_losses import TokenLosses
from kbert.tokenizers.base import Tokenizer


class UniLM(Pretraining):
    """Masked language modelling under four kinds of attention.

    (Dong et al. 2019, https://arxiv.org/abs/1905.03197.) Each row is of one kind: all tokens attend
    to all; each token attends to those before it, or to those behind it; or the tokens of a target
    attend to a source and to the target up to themselves. Tokens are masked and predicted in all
    kinds. Train with `fit` on the batches of `kbert.data.pretraining_dataset(attention_shares=…,
    segments="consecutive", masking="token_ngram")`. The paper draws a third of the rows
    bidirectional, a third from sequence to sequence, and a sixth for each direction.

    The loss `mlm_loss` is the mean over all predictions. Metrics: `mlm_accuracy` and `perplexity`
    of all rows; a loss and an accuracy for each kind, such as `seq2seq_loss`.

    `predict` fills masks bidirectionally. Next sentences are not predicted: a task for them would
    need pairs that do not follow each other.

    Args:
        encoder: a `kbert.Encoder` whose config has num_segments=6, one or two for each kind, or 0.
        tokenizer: tokenizer of the encoder.
        name: name of the model.

    Raises:
        ValueError: the vocabularies differ, or the encoder has another number of segments, or a
            part in which tokens depend on later ones whatever the attention.

    Example:
        >>> import kbert
        >>> tokenizer = kbert.WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "quick", "fox"])
        >>> config = kbert.EncoderConfig(vocabulary_size=8, hidden_size=8, num_layers=1,
        ...                              num_heads=2, intermediate_size=16, num_segments=6)
        >>> task = UniLM(kbert.Encoder(config), tokenizer)
        >>> answer, = task.predict(["the quick [MASK]"], candidates=["fox", "the"])
        >>> answer["tokens"], len(answer["probabilities"][0])
        ([['fox', 'the']], 2)
    """

    kind = "unilm"
    corpus_objective = MixedCorpus
    held_elsewhere = ()
    shown_metrics = ("mlm_loss", "mlm_accuracy", *(f"{kind}_accuracy" for kind in KINDS))
    knows_rows = ("attention_order",)

    def __init__(self, encoder: keras.Model, tokenizer: Tokenizer, *, name: str = "unilm") -> None:
        super().__init__(encoder, tokenizer, next_sentence=False, name=name)
        if encoder.config.num_segments not in (0, NUM_SEGMENTS):
            raise ValueError(
                f"The encoder must have num_segments={NUM_SEGMENTS}, because the segments tell the "
                f"kinds of rows apart, or 0. Received: num_segments={encoder.config.num_segments}"
            )
        takes_order = "attention_order" in encoder.input_names and encoder.part.takes_causal_mask
        if not takes_order:
            raise ValueError(
                "The encoder must support `attention_order`, which hides tokens from each other. "
                f"Received: a {type(encoder).__name__} with part={encoder.config.part}"
            )

    @property
    def settings(self) -> dict[str, Any]:
        return {}

    def masked_lm_terms(self, found: TokenLosses, batch: Tensors) -> Terms:
        losses, metrics = super().masked_lm_terms(found, batch)
        kinds = ops.take(ops.convert_to_tensor(KIND_OF_SEGMENT), batch["segment_ids"], axis=0)
        kinds = ops.take_along_axis(kinds, batch["mask_positions"], axis=1)  # (B, P)
        for number, kind in enumerate(KINDS):
            weights = found.weights * ops.cast(kinds == number, "float32")
            metrics[f"{kind}_loss"] = found.plain(weights)
            metrics[f"{kind}_accuracy"] = found.accuracy(weights)
        return losses, metrics

    def check_batch(self, batch: Mapping[str, Any]) -> None:
        super().check_batch(batch)
        if "attention_order" not in batch:
            raise ValueError(
                "A batch for this task must contain attention_order: make the dataset with "
                f"attention_shares, such as (2, 2, 1, 1). Received: {', '.join(sorted(batch))}"
            )
