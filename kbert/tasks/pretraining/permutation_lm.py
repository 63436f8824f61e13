"""XLNet's pretraining: predicts each token from those before it in a permuted reading order.

Shapes: B rows, T tokens, P predictions of a row at most, V vocabulary.
"""

from typing import Any, ClassVar

import keras
from keras import ops

from kbert.configs.base import check_count
from kbert.configs.xlnet import XlnetConfig
from kbert.core.types import Tensor, Tensors, Terms
from kbert.heads import TokenLogits
from kbert.signatures import Signature
from kbert.tasks.corpora import PermutedCorpus
from kbert.tasks.encoder_task import EncoderTask
from kbert.tasks.losses import Prediction
from kbert.tasks.pretraining.fill_mask import FillMask, FillsMasks
from kbert.tasks.pretraining.row_memory import RemembersRows
from kbert.tasks.token_losses import token_losses
from kbert.tokenizers.base import Tokenizer
from kbert.training.step.state import DerivedMetrics


class PermutationLM(FillsMasks, RemembersRows, EncoderTask):
    """Permutation language modelling: predicts each token from those read before it.

    (Yang et al. 2019, "XLNet", section 2, https://arxiv.org/abs/1906.08237.) Train with `fit` on
    the batches of `kbert.data.pretraining_dataset(masking="permutation", segments="single")`. Their
    `order_ids` are the factorisation order: when each token is read. At a predicted position a
    query sees the tokens read before it; no token is masked or replaced. Loss: the mean over the
    predicted tokens. Metrics: `plm_loss`, `plm_accuracy`, `perplexity`.

    With `memory_length`, rows continue from batch to batch (`segments="runs"`). Every row then also
    attends to the hidden states of the `memory_length` tokens before it, as far as its text goes
    back (section 2.5; Dai et al. 2019, section 3.2, https://arxiv.org/abs/1901.02860). The memory
    is kept for each row of the global batch and saved with checkpoints; no gradient flows through
    it.

    `predict` fills masks: each is predicted from the text, not from other masks.

    Args:
        encoder: a `kbert.Encoder` with an `XlnetConfig`.
        tokenizer: tokenizer of the encoder.
        memory_length: tokens of the memory (M); 0 = none.
        batch_size: rows of a global batch, over all devices; required with a memory, else None.
        name: name of the model.

    Raises:
        TypeError: the encoder is not an XLNet.
        ValueError: the vocabularies differ, or only one of `memory_length` and `batch_size` is set.

    Example:
        >>> import kbert
        >>> tokenizer = kbert.WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "quick", "fox"])
        >>> config = kbert.configs.XlnetConfig(vocabulary_size=8, hidden_size=8, num_layers=1,
        ...                                    num_heads=2, intermediate_size=16)
        >>> task = PermutationLM(kbert.Encoder(config), tokenizer)
        >>> answer, = task.predict(["the quick [MASK]"], candidates=["fox", "the"])
        >>> answer["tokens"], len(answer["probabilities"][0])
        ([['fox', 'the']], 2)
    """

    kind = "permutation_lm"
    corpus_objective = PermutedCorpus
    knows_rows = ("order_ids",)
    shown_metrics = ("plm_loss", "plm_accuracy")
    derived_metrics: ClassVar[DerivedMetrics] = {"perplexity": ("plm_loss", ops.exp)}

    def __init__(
        self,
        encoder: keras.Model,
        tokenizer: Tokenizer,
        *,
        memory_length: int = 0,
        batch_size: int | None = None,
        name: str = "permutation_lm",
    ) -> None:
        super().__init__(encoder, tokenizer, name=name)
        check_count("memory_length", memory_length, minimum=0)
        if batch_size is not None:
            check_count("batch_size", batch_size, minimum=1)
        if (batch_size is None) != (memory_length == 0):
            raise ValueError(
                "A memory requires both its `memory_length` and its `batch_size`: pass both, or "
                "neither for no memory. "
                f"Received: memory_length={memory_length}, batch_size={batch_size}"
            )
        if encoder.config.kind != XlnetConfig.kind:
            raise TypeError(
                "The encoder must be an XLNet, made of an XlnetConfig. "
                f"Received: {encoder.config!r}"
            )
        table = encoder.token_embedding
        self.logits = TokenLogits(
            encoder.config, table, name="permutation_lm", dtype=encoder.dtype_policy
        )
        self.fill_mask = _FillMask(self, self.logits)
        self.memory_length = memory_length
        self.batch_size = batch_size
        if batch_size is not None:
            width = memory_length * encoder.config.hidden_size
            self.remember((encoder.config.num_layers, batch_size, width))
        self.build()

    @property
    def parts(self) -> dict[str, keras.layers.Layer]:
        return {**super().parts, "permutation_lm": self.logits}

    @property
    def settings(self) -> dict[str, Any]:
        if self.batch_size is None:
            return {}
        return {"memory_length": self.memory_length, "batch_size": self.batch_size}

    def call(self, batch: Tensors, training: bool = False) -> dict[str, Any]:
        """Returns logits `permutation_lm` (B, P, V) at the batch's `mask_positions`.

        If the batch has a "memory" (L, B, M, H), the next "memory" is returned too.
        """
        outputs = self._encoded(batch, training)
        memory = {"memory": outputs["memory"]} if "memory" in outputs else {}
        return {"permutation_lm": self.logits(outputs["queries"]), **memory}

    def _encoded(self, batch: Tensors, training: bool) -> Tensors:
        """Returns the encoder's outputs, among them "queries" (B, P, H)."""
        return self.encode({**batch, "target_positions": batch["mask_positions"]}, training)

    def loss_terms(self, batch: Tensors, training: bool) -> Terms:
        self.check_batch(batch)
        if self.state is None:
            queries = self._encoded(batch, training)["queries"]
        else:
            queries = self._remembering(batch, training)
        answer = (self.logits.token_output(queries), batch["mask_ids"], batch["mask_weights"])
        losses = token_losses(*answer, training=training)
        return {"plm_loss": losses.smoothed}, {"plm_accuracy": losses.accuracy()}

    def _remembering(self, batch: Tensors, training: bool) -> Tensor:
        """Returns the queries (B, P, H) of rows with a memory, and stores their new memory."""
        width = self.encoder.config.hidden_size
        state = self.recall(batch, training)  # (L, b, MH)
        layers, rows, _ = ops.shape(state)
        memory = ops.reshape(state, (layers, rows, self.memory_length, width))
        outputs = self._encoded({**batch, "memory": memory}, training)
        # Padding at the end of a row ends its text: the next row begins another one.
        goes_on = ops.min(batch["padding_mask"], axis=1)[:, None]
        state = ops.reshape(ops.cast(outputs["memory"], "float32"), ops.shape(state))
        self.keep(ops.where(goes_on > 0, state, 0.0), training)
        return outputs["queries"]

    def predictions(self, logits: Tensors, batch: Tensors) -> dict[str, Prediction]:
        """Returns the predictions of the head, for distillation."""
        answer = (logits["permutation_lm"], batch["mask_weights"])
        return {"permutation_lm": Prediction("classes", *answer)}

    def check_batch(self, batch: Tensors) -> None:
        super().check_batch(batch)
        if "order_ids" not in batch:
            raise ValueError(
                "A batch for this task must contain order_ids: make the dataset with "
                f'masking="permutation". Received: {", ".join(sorted(batch))}'
            )
        if self.state is not None and "begins" not in batch:
            raise ValueError(
                "With a `memory_length`, a batch must contain begins, since its sequences continue "
                'in the next batch: make the dataset with segments="runs". '
                f"Received: {', '.join(sorted(batch))}"
            )

    def signatures(self, top_k: int = 5) -> dict[str, Signature]:
        """Returns `fill_mask`, which is also `serving_default`, and `encode`; see `Pretraining`.

        `top_k` is the number of answers for each mask in `fill_mask`.
        """
        return {"fill_mask": self.fill_mask.signature(top_k), **super().signatures()}


class _FillMask(FillMask):
    """Fills masks through queries; masks come last in the reading order, so no token sees them."""

    def _masked(self, features: Tensors) -> Any:
        is_mask = features["token_ids"] == self.task.tokenizer.mask_id
        order = {"order_ids": ops.cast(is_mask, "int32")}
        targets = {"target_positions": features["mask_positions"]}
        return self.task.encode({**features, **order, **targets})["queries"]
