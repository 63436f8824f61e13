"""One encoder that fills masks and writes: masked and causal language modelling of one head.

Shapes: B rows, T tokens, P predictions of a row at most, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras
from keras import ops

from kbert.configs.base import check_real
from kbert.core.types import PathLike, Tensors, Terms
from kbert.models.generators.as_decoder import as_decoder, config_of_decoder
from kbert.tasks.corpora import HybridCorpus
from kbert.tasks.generation.causal_lm import CausalLM
from kbert.tasks.losses import accuracy, cross_entropy, z_loss
from kbert.tasks.pretraining.pretraining import Pretraining
from kbert.tokenizers.base import Tokenizer


class MaskedAndCausal(Pretraining):
    """GPT-BERT: a masked token is predicted at the place before it, as a causal model does it.

    (Charpentier and Samuel 2024, "GPT or BERT: why not both?", https://arxiv.org/abs/2410.24159.)
    So one head serves rows in which tokens are masked and all attend to all, and rows in which
    nothing is masked and each token attends to those before it. Trained with `fit` on the batches
    of `kbert.data.pretraining_dataset(causal_share=…, segments="single")`, of which every
    sixteenth row or so is causal. In a causal row as many tokens are predicted as in a masked one,
    so that the head costs no more and each row weighs the same; the original predicts all of them.

    The loss is the mean over all predictions, `prediction_loss`, and with `z_loss` that times the
    mean square of the softmax' log-denominators. Metrics: `mlm_loss` and `mlm_accuracy` of masked
    rows, `lm_loss` and `lm_accuracy` of causal ones, `perplexity` of the masks.

    `predict` fills masks, `write` continues prompts; `causal_lm` is the model as a `CausalLM`.

    Args:
        encoder: a `kbert.Encoder` that a `kbert.Decoder` could be: without a part, with learned,
            rotary or no positions, and segments only where positions are learned.
        tokenizer: its tokenizer.
        z_loss: weight of the z-loss; 0 = none. PaLM's and GPT-BERT's is 1e-4.
        name: of the model.

    Raises:
        ValueError: the vocabularies differ, no decoder is of such a config, or `z_loss` is
            negative.

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
        config_of_decoder(encoder.config)  # raises where it could not write
        check_real("z_loss", z_loss, "at least 0", lambda x: x >= 0)
        super().__init__(encoder, tokenizer, next_sentence=False, name=name)
        self.z_loss = z_loss

    @property
    def settings(self) -> dict[str, Any]:
        return {"z_loss": self.z_loss}

    def terms(self, logits: Tensors, batch: Tensors) -> Terms:
        found, labels, weights = logits["masked_lm"], batch["mask_ids"], batch["mask_weights"]
        losses = {"prediction_loss": cross_entropy(found, labels, weights)}
        if self.z_loss:
            squares, count = z_loss(found, weights)
            losses["z_loss"] = (self.z_loss * squares, count)
        # The place that a token is predicted from says of which kind its row, or example, is.
        causal = ops.take_along_axis(batch["causal_mask"], batch["mask_positions"], axis=1)
        causal = ops.cast(causal, "float32")  # (B, P)
        metrics = {}
        for name, kind in (("mlm", 1.0 - causal), ("lm", causal)):
            answers = (found, labels, weights * kind)
            metrics[f"{name}_loss"] = cross_entropy(*answers)
            metrics[f"{name}_accuracy"] = accuracy(*answers)
        return losses, metrics

    def check_batch(self, batch: Mapping[str, Any]) -> None:
        super().check_batch(batch)
        if "causal_mask" not in batch:
            raise ValueError(
                "A batch for this task must hold causal_mask: make the dataset with "
                f"causal_share=1/16 or another. Received: {', '.join(sorted(batch))}"
            )

    def causal_lm(self) -> CausalLM:
        """The model as it is now, with a copy of the weights, as a task that writes.

        It has a KV cache, and `save_to_preset`, `export`, `stream` and `score` of its own.
        """
        return CausalLM(as_decoder(self.encoder, self.masked_lm), self.tokenizer, reads_cls=True)

    def write(self, prompts: str | Sequence[str], **settings: Any) -> Any:
        """Goes on with prompts; arguments and result as of `CausalLM.predict`.

        Ends of texts are never predicted in training, so that a continuation is as long as
        `max_new_tokens` and `stop` let it be. Each call copies the weights: to write often, keep
        what `causal_lm` gives.
        """
        return self.causal_lm().predict(prompts, **settings)

    def save_to_preset(self, path: PathLike, format: str = "kbert", **options: Any) -> None:
        """As `Task.save_to_preset`, in kbert's format alone: others fill a mask at its place."""
        if format != "kbert":
            raise ValueError(
                "No other library fills a mask at the place before it: save the encoder alone, or "
                f'the task that `causal_lm` gives. Received: format="{format}"'
            )
        super().save_to_preset(path, format, **options)
