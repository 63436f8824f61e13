"""One encoder that fills masks and generates text: masked and causal LM with one head.

Shapes: B rows, T tokens, P predictions of a row at most, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras
from keras import ops

from kbert.configs.base import check_real
from kbert.core.types import PathLike, Tensors, Terms
from kbert.layers.token_embeddings import whole_logits
from kbert.models.generators.as_decoder import as_decoder, config_of_decoder
from kbert.tasks.corpora import HybridCorpus
from kbert.tasks.generation.causal_lm import CausalLM
from kbert.tasks.losses import z_loss
from kbert.tasks.pretraining.pretraining import Pretraining
from kbert.tasks.token_losses import TokenLosses
from kbert.tokenizers.base import Tokenizer


class MaskedAndCausal(Pretraining):
    """GPT-BERT: predicts a masked token at the position before it, as a causal model does.

    (Charpentier and Samuel 2024, "GPT or BERT: why not both?", https://arxiv.org/abs/2410.24159.)
    So one head serves two kinds of rows. In masked rows all tokens attend to all. In causal rows
    nothing is masked and each token attends to those before it. Train with `fit` on the batches of
    `kbert.data.pretraining_dataset(causal_share=…, segments="single")`, with about one causal row
    in sixteen. A causal row has as many predictions as a masked one, so the head costs no more and
    each row has the same weight; the original predicts all tokens of a causal row.

    The loss is `prediction_loss`, the mean over all predictions. With `z_loss` it also has that
    weight times the mean square of the softmax' log-denominators. Metrics: `mlm_loss` and
    `mlm_accuracy` of masked rows, `lm_loss` and `lm_accuracy` of causal rows, `perplexity` of the
    masks.

    `predict` fills masks, `write` continues prompts, `causal_lm` returns the model as a `CausalLM`.

    Args:
        encoder: a `kbert.Encoder` whose config a `kbert.Decoder` can have: no `part`; learned,
            rotary or no positions; segments only with learned positions.
        tokenizer: tokenizer of the encoder.
        z_loss: weight of the z-loss; 0 = none. PaLM and GPT-BERT use 1e-4.
        name: name of the model.

    Raises:
        ValueError: the vocabularies differ, no decoder can have the encoder's config, or `z_loss`
            is negative.

    Example:
        >>> import kbert
        >>> tokenizer = kbert.WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "quick", "fox"])
        >>> config = kbert.EncoderConfig(vocabulary_size=8, hidden_size=8, num_layers=1,
        ...                              num_heads=2, intermediate_size=16, num_segments=0,
        ...                              positions="rotary", pooler_activation=None)
        >>> task = MaskedAndCausal(kbert.Encoder(config), tokenizer)
        >>> answer, = task.predict(["the quick [MASK]"], candidates=["fox", "the"])
        >>> answer["tokens"], len(task.write(["the quick"], max_new_tokens=2))
        ([['fox', 'the']], 1)
    """

    kind = "masked_and_causal"
    corpus_objective = HybridCorpus
    held_elsewhere = ()
    shown_metrics = ("mlm_loss", "mlm_accuracy", "lm_loss", "lm_accuracy")
    shift: ClassVar[int] = 1
    knows_rows = ("causal_mask",)

    def __init__(
        self,
        encoder: keras.Model,
        tokenizer: Tokenizer,
        *,
        z_loss: float = 0.0,
        name: str = "masked_and_causal",
    ) -> None:
        config_of_decoder(encoder.config)  # raises if no decoder can have this config
        check_real("z_loss", z_loss, "at least 0", lambda x: x >= 0)
        super().__init__(encoder, tokenizer, next_sentence=False, name=name)
        self.z_loss = z_loss

    @property
    def settings(self) -> dict[str, Any]:
        return {"z_loss": self.z_loss}

    def head_outputs(self, batch: Tensors, training: bool) -> dict[str, Any]:
        outputs = super().head_outputs(batch, training)
        return whole_logits(outputs) if self.z_loss else outputs

    def terms(self, logits: Tensors, batch: Tensors, training: bool = False) -> Terms:
        losses, metrics = super().terms(logits, batch, training)
        if self.z_loss:
            squares, count = z_loss(logits["masked_lm"], batch["mask_weights"])
            losses["z_loss"] = (self.z_loss * squares, count)
        return losses, metrics

    def masked_lm_terms(self, found: TokenLosses, batch: Tensors) -> Terms:
        # `causal_mask` at the position that predicts a token is 1 in causal rows or examples.
        causal = ops.take_along_axis(batch["causal_mask"], batch["mask_positions"], axis=1)
        causal = ops.cast(causal, "float32")  # (B, P)
        metrics = {}
        for name, kind in (("mlm", 1.0 - causal), ("lm", causal)):
            metrics[f"{name}_loss"] = found.plain(found.weights * kind)
            metrics[f"{name}_accuracy"] = found.accuracy(found.weights * kind)
        return {"prediction_loss": found.smoothed}, metrics

    def check_batch(self, batch: Mapping[str, Any]) -> None:
        super().check_batch(batch)
        if "causal_mask" not in batch:
            raise ValueError(
                "A batch for this task must contain causal_mask: make the dataset with a "
                f"causal_share, such as 1/16. Received: {', '.join(sorted(batch))}"
            )

    def causal_lm(self) -> CausalLM:
        """Returns a `CausalLM` with a copy of the current weights.

        It has a KV cache, and its own `save_to_preset`, `export`, `stream` and `score`.
        """
        return CausalLM(as_decoder(self.encoder, self.masked_lm), self.tokenizer, reads_cls=True)

    def write(self, prompts: str | Sequence[str], **settings: Any) -> Any:
        """Continues prompts; arguments and result are those of `CausalLM.predict`.

        Training never predicts the end of a text, so only `max_new_tokens` and `stop` limit a
        continuation. Each call copies the weights: for many calls, keep the result of `causal_lm`.
        """
        return self.causal_lm().predict(prompts, **settings)

    def save_to_preset(self, path: PathLike, format: str = "kbert", **options: Any) -> None:
        """Writes the task like `Task.save_to_preset`; raises ValueError for a format but "kbert".

        Other libraries fill a mask at its own position.
        """
        if format != "kbert":
            raise ValueError(
                'format must be "kbert": no other library predicts a mask from the position before '
                "it. Save the encoder alone, or the task that `causal_lm` returns. "
                f'Received: format="{format}"'
            )
        super().save_to_preset(path, format, **options)
