"""Pretraining by masked language modelling, and by the relation of two segments.

Shapes: B rows, T tokens, P masked positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from kbert import inference
from kbert.core.in_memory import pair_rows
from kbert.core.late import tf
from kbert.core.types import MaybeNone, Pair, Tensors, Terms
from kbert.heads import MaskedLMHead, SentenceHead, SpanBoundaryHead
from kbert.heads.span_boundary import MAX_TARGETS, place_in_span
from kbert.layers.token_embeddings import whole_logits
from kbert.signatures import Signature, text_tokens
from kbert.signatures.row_export import EncoderRows
from kbert.signatures.rows import Run
from kbert.tasks.corpora import MaskedCorpus, SentencesCorpus
from kbert.tasks.encoder_task import EncoderTask
from kbert.tasks.losses import Prediction, accuracy, cross_entropy
from kbert.tasks.pretraining.fill_mask import FillMask, FillsMasks, shifted
from kbert.tasks.token_losses import TokenLosses, token_losses
from kbert.tokenizers.base import Tokenizer

NSP_LABELS, SOP_LABELS = "next_sentence_labels", "sentence_order_labels"
SPANS = ("span_starts", "span_ends")
# Class of a pair in its original order. Class 1 is a random second sentence (BERT, section 3.1) or
# two swapped segments (ALBERT, section 3.1).
AS_WRITTEN = 0


class MaskedRows(EncoderRows):
    """Export from rows with masks to `probabilities` (B, P, V) at `mask_positions` (B, P)."""

    inputs = (*EncoderRows.inputs, "mask_positions")

    def outputs(self, features: Mapping[str, Any]) -> dict[str, Any]:
        if self.task.masked_lm is None:
            return super().outputs(features)
        return {"probabilities": self.task.fill_mask.probabilities(features)}

    def samples(self, texts: Sequence[str]) -> list[dict[str, tf.Tensor]]:
        batches = super().samples(texts)
        for masks, batch in enumerate(batches, 1):
            rows = tf.shape(batch["token_ids"])[0]
            batch["mask_positions"] = tf.tile(tf.range(masks)[None], [rows, 1])
        return batches

    def answer_by(self, run: Run) -> None:
        runner = self.task.fill_mask.runner
        runner.forward = lambda features: run(features)["probabilities"]


class Pretraining(FillsMasks, EncoderTask):
    """Masked language modelling, optionally with a sentence and a span boundary objective.

    Train with `fit` on the batches of `kbert.data.pretraining_dataset`. The loss is a sum of means:
    over masked tokens (without padding) for the masks, over rows for the pairs. Metrics:

    - `mlm_loss`, `mlm_accuracy` and `perplexity` with masks, unless `masked_lm` is False;
    - `nsp_loss`, `nsp_accuracy` with next sentences (BERT, section 3.1,
      https://arxiv.org/abs/1810.04805);
    - `sop_loss`, `sop_accuracy` with sentence order (ALBERT, section 3.1,
      https://arxiv.org/abs/1909.11942);
    - `nsp_negatives` or `sop_negatives`, the share of pairs with a random or swapped second
      segment (above a half if documents have one sentence), and `nsp_majority` or `sop_majority`,
      the accuracy of always predicting the more frequent class;
    - `sbo_loss`, `sbo_accuracy` with the span boundary objective (SpanBERT, section 3.2,
      https://arxiv.org/abs/1907.10529), which also predicts masked tokens from the ends of their
      span.

    Args:
        encoder: a `kbert.Encoder`.
        tokenizer: tokenizer of the encoder.
        next_sentence: whether to predict next sentences, for batches of `segments="pairs"`; the
            encoder needs a pooler. None: yes, unless `sentence_order` is True. False for RoBERTa
            and similar models.
        sentence_order: whether to predict if two segments are swapped, instead of next sentences,
            for batches of `segments="halves"`; the encoder needs a pooler.
        span_boundary: whether to also predict masked spans from their ends, for batches of
            `masking="span"`.
        masked_lm: whether to predict masks. False for a sentence objective alone, as in Hugging
            Face's `BertForNextSentencePrediction`.
        name: name of the model.

    Raises:
        ValueError: the vocabularies differ, the encoder has no pooler for a sentence objective,
            both sentence objectives are set, or there is nothing to predict.

    Example:
        >>> import kbert
        >>> tokenizer = kbert.WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "quick", "fox"])
        >>> config = kbert.EncoderConfig(vocabulary_size=8, hidden_size=8, num_layers=1,
        ...                              num_heads=2, intermediate_size=16)
        >>> task = Pretraining(kbert.Encoder(config), tokenizer)
        >>> answer, = task.predict(["the quick [MASK]"], candidates=["fox", "the"])
        >>> answer["tokens"], len(answer["probabilities"][0])
        ([['fox', 'the']], 2)
    """

    kind = "pretrain"
    row_export = MaskedRows
    corpus_objective: ClassVar[type[MaskedCorpus]] = SentencesCorpus
    held_elsewhere: tuple[str, ...] = (
        "masked_lm",
        "next_sentence",
        "sentence_order",
        "span_boundary",
    )
    shown_metrics: tuple[str, ...] = (
        *("mlm_loss", "mlm_accuracy", "nsp_accuracy", "nsp_majority"),
        *("sop_accuracy", "sop_majority", "sbo_accuracy"),
    )
    unknown_elsewhere = ("span_boundary",)
    # Distance from a masked token back to the position that predicts it.
    shift: ClassVar[int] = 0

    def __init__(
        self,
        encoder: keras.Model,
        tokenizer: Tokenizer,
        *,
        next_sentence: bool | None = None,
        sentence_order: bool = False,
        span_boundary: bool = False,
        masked_lm: bool = True,
        name: str = "pretraining",
    ) -> None:
        super().__init__(encoder, tokenizer, name=name)
        next_sentence = not sentence_order if next_sentence is None else next_sentence
        _check_sentence_objective(encoder.config, next_sentence, sentence_order)
        if not masked_lm and (span_boundary or not (next_sentence or sentence_order)):
            raise ValueError(
                "masked_lm=False requires next_sentence or sentence_order, and excludes "
                f"span_boundary. Received: masked_lm=False, next_sentence={next_sentence}, "
                f"sentence_order={sentence_order}, span_boundary={span_boundary}"
            )
        policy, table = encoder.dtype_policy, encoder.token_embedding
        self.next_sentence = next_sentence
        self.sentence_order = sentence_order
        self.span_boundary_head: SpanBoundaryHead | MaybeNone = None
        self.masked_lm: MaskedLMHead | MaybeNone = None
        if masked_lm:
            self.masked_lm = MaskedLMHead(encoder.config, table, dtype=policy)
            self._fill_mask = FillMask(self, self.masked_lm, self.shift)
        if span_boundary:
            self.span_boundary_head = SpanBoundaryHead(encoder.config, table, dtype=policy)
        self.sentence: SentenceHead | MaybeNone = None
        if next_sentence or sentence_order:
            self.sentence = SentenceHead(encoder.config, dtype=policy)
            self._pair_runner = inference.Runner(
                self._as_written,
                *(encoder, self.sentence),
                assemble=lambda columns: self.build_inputs(columns["first"], columns["second"]),
            )
        self.build()

    @property
    def derived_metrics(self) -> Mapping[str, Any]:  # type: ignore[override]  # by its heads
        """Perplexity, if masks are predicted, and the baseline accuracy of a sentence objective."""
        derived = {} if self.masked_lm is None else {"perplexity": ("mlm_loss", ops.exp)}
        if self.sentence is not None:
            name = self._sentence_name
            derived[f"{name}_majority"] = (f"{name}_negatives", lambda x: ops.maximum(x, 1 - x))
        return derived

    @property
    def _sentence_name(self) -> str:
        return "sop" if self.sentence_order else "nsp"

    @property
    def parts(self) -> dict[str, keras.layers.Layer]:
        parts = {
            "masked_lm": self.masked_lm,
            "sentence": self.sentence,
            "span_boundary": self.span_boundary_head,
        }
        return super().parts | {name: part for name, part in parts.items() if part is not None}

    @property
    def settings(self) -> dict[str, Any]:
        settings = {
            "next_sentence": self.next_sentence,
            "sentence_order": self.sentence_order,
            "span_boundary": self.span_boundary_head is not None,
        }
        # Omitted when True, so that runs of earlier versions resume.
        return settings if self.masked_lm is not None else {**settings, "masked_lm": False}

    def call(self, batch: Tensors, training: bool = False) -> dict[str, Any]:
        """Returns the logits of the heads that the task has.

        They are `masked_lm` (B, P, V), `sentence` (B, 2) and `span_boundary` (B, P, V). For rows
        that pack K examples `sentence` is (B, K, 2).
        """
        return whole_logits(self.head_outputs(batch, training))

    def head_outputs(self, batch: Tensors, training: bool) -> dict[str, Any]:
        """Returns what `call` returns, with a `TokenOutput` for logits over the vocabulary."""
        if self.masked_lm is None:
            return {"sentence": self.sentence(self.encode_pooled(batch, training))}
        positions = shifted(batch["mask_positions"], self.shift)
        found = {}
        if self.span_boundary_head is None:
            outputs = self.encode(batch, training, positions=positions)
            found["masked_lm"] = self.masked_lm.token_output(outputs["sequence"])
        else:  # the span boundary head also reads tokens around the masks
            outputs = self.encode(batch, training)
            sequence, spans = outputs["sequence"], (batch["span_starts"], batch["span_ends"])
            found["masked_lm"] = self.masked_lm.token_output(sequence, positions)
            head = self.span_boundary_head
            found["span_boundary"] = head.token_output(sequence, positions, *spans)
        if self.sentence is not None:
            found["sentence"] = self.sentence(outputs["pooled"])
        return found

    def sample_outputs(self) -> dict[str, Any]:
        outputs = super().sample_outputs()
        if self.masked_lm is not None:
            outputs["masked_lm"] = self.masked_lm(outputs["sequence"][:, :1])
        if self.sentence is not None:
            outputs["sentence"] = self.sentence(outputs["pooled"])
        return outputs

    def loss_terms(self, batch: Tensors, training: bool) -> Terms:
        self.check_batch(batch)
        return self.terms(self.head_outputs(batch, training), batch, training)

    def terms(self, logits: Tensors, batch: Tensors, training: bool = False) -> Terms:
        """Computes the losses and metrics of a batch.

        Both are dicts name -> (Σ weight · value, Σ weight).

        Args:
            logits: results of `call` or of `head_outputs`.
            batch: the batch.
            training: whether chunks of tokens compute the gradient, see `token_losses`.
        """
        losses: dict[str, Pair] = {}
        metrics: dict[str, Pair] = {}
        if self.masked_lm is not None:
            answer = (logits["masked_lm"], batch["mask_ids"], batch["mask_weights"])
            losses, metrics = self.masked_lm_terms(token_losses(*answer, training=training), batch)
        if self.sentence is not None:
            name = self._sentence_name
            labels = batch[SOP_LABELS if self.sentence_order else NSP_LABELS]
            sentence = (logits["sentence"], labels, self._sentence_weights(batch))
            losses[f"{name}_loss"] = cross_entropy(*sentence)
            metrics[f"{name}_accuracy"] = accuracy(*sentence)
        if self.span_boundary_head is not None:
            index_in_span = place_in_span(batch["mask_positions"], batch["span_starts"])
            weights = batch["mask_weights"] * ops.cast(index_in_span < MAX_TARGETS, "float32")
            answer = (logits["span_boundary"], batch["mask_ids"], weights)
            found = token_losses(*answer, training=training)
            losses["sbo_loss"], metrics["sbo_accuracy"] = found.smoothed, found.accuracy()
        if self.sentence is not None:
            _, labels, weights = sentence
            negatives, weights = (ops.cast(x, "float32") for x in (labels != AS_WRITTEN, weights))
            share = (ops.sum(negatives * weights), ops.sum(weights))
            metrics[f"{self._sentence_name}_negatives"] = share
        return losses, metrics

    def masked_lm_terms(self, found: TokenLosses, batch: Tensors) -> Terms:
        """Returns the losses and metrics of the masked-LM head, see `terms`."""
        return {"mlm_loss": found.smoothed}, {"mlm_accuracy": found.accuracy()}

    def predictions(self, logits: Tensors, batch: Tensors) -> dict[str, Prediction]:
        """Returns the predictions of the heads, for distillation."""
        predictions = {}
        if self.masked_lm is not None:
            logits_of_masks = logits["masked_lm"]
            predictions["masked_lm"] = Prediction("classes", logits_of_masks, batch["mask_weights"])
        if self.sentence is not None:
            weights = self._sentence_weights(batch)
            predictions["sentence"] = Prediction("classes", logits["sentence"], weights)
        return predictions

    def _sentence_weights(self, batch: Tensors) -> Any:
        """Returns the weights of the sentence objective: 0 where there is no example.

        They are (B,), or (B, K) for rows that pack K examples.
        """
        labels = SOP_LABELS if self.sentence_order else NSP_LABELS
        # A row that only fills up the last batch is all padding, even in the first column.
        is_row = batch["padding_mask"][:, 0]
        return batch.get(labels.replace("_labels", "_weights"), is_row)

    def predictions_everywhere(self, sequence: Any, padding_mask: Any) -> Prediction:
        """Returns the masked-LM predictions for every token, masked or not.

        Args:
            sequence: (B, T, H) output of the encoder.
            padding_mask: (B, T) mask, used as the weights of the predictions.
        """
        rows, length = ops.shape(padding_mask)
        positions = ops.broadcast_to(ops.arange(length, dtype="int32")[None], (rows, length))
        return Prediction("classes", self.masked_lm(sequence, positions), padding_mask)

    def check_batch(self, batch: Tensors) -> None:
        super().check_batch(batch)
        for is_needed, names, settings in (
            (self.next_sentence, (NSP_LABELS,), ('segments="pairs"', "next_sentence")),
            (self.sentence_order, (SOP_LABELS,), ('segments="halves"', "sentence_order")),
            (self.span_boundary_head, SPANS, ('masking="span"', "span_boundary")),
        ):
            if is_needed and any(name not in batch for name in names):
                raise ValueError(
                    f"A batch for this task must contain {', '.join(names)}: make the dataset with "
                    f"{settings[0]} or the task with {settings[1]}=False. "
                    f"Received: {', '.join(sorted(batch))}"
                )

    def _as_written(self, features: Tensors) -> Any:
        logits = self.sentence(self.encode_pooled(features))
        return ops.softmax(logits)[:, AS_WRITTEN]  # (B,)

    @property
    def fill_mask(self) -> FillMask:  # type: ignore[override]  # made only with a masked LM
        """The `FillMask` that fills masks in texts; a task without masked LM raises ValueError."""
        self._check_has("masked-LM", "masked_lm", self.masked_lm is not None)
        return self._fill_mask

    def predict_next_sentence(
        self, pairs: Sequence[tuple[str, str]], batch_size: int = inference.BATCH_SIZE
    ) -> np.ndarray:
        """Predicts the probability that the second text of each pair follows the first.

        Args:
            pairs: (first, second) strings. If a pair is too long, the longer text is truncated.
            batch_size: pairs that go through the model together.

        Returns:
            Probabilities (N,) float32.

        Raises:
            ValueError: the task was built without next sentences, or `batch_size` is below 1.
        """
        self._check_has("next-sentence", "next_sentence", self.next_sentence)
        return self._predict_pairs(pairs, batch_size)

    def predict_sentence_order(
        self, pairs: Sequence[tuple[str, str]], batch_size: int = inference.BATCH_SIZE
    ) -> np.ndarray:
        """Predicts the probability that the two texts of each pair are in their original order.

        Args:
            pairs: (first, second) strings. If a pair is too long, the longer text is truncated.
            batch_size: pairs that go through the model together.

        Returns:
            Probabilities (N,) float32.

        Raises:
            ValueError: the task was built without sentence order, or `batch_size` is below 1.
        """
        self._check_has("sentence-order", "sentence_order", self.sentence_order)
        return self._predict_pairs(pairs, batch_size)

    def _check_has(self, what: str, setting: str, has: bool) -> None:
        if has is None or has is False:
            raise ValueError(
                f"The task has no {what} head: build it with {setting}=True. "
                f"Received: a task with {setting}=False"
            )

    def _predict_pairs(self, pairs: Any, batch_size: int) -> Any:
        """Returns the probability (N,) that each pair of texts is in its original order.

        Raises ValueError if a pair is not two strings, or `batch_size` is below 1.
        """
        inference.check_batch_size(batch_size)
        pairs = [inference.as_texts(pair, "a pair's texts") for pair in pair_rows(pairs)]
        for number, pair in enumerate(pairs):
            if len(pair) != 2:
                raise ValueError(
                    f"A pair must be two strings. Received: {pair!r} as number {number}"
                )
        answers = np.zeros(len(pairs), np.float32)
        for start, chunk in inference.chunks(pairs):
            texts = [tf.constant(list(texts), tf.string) for texts in zip(*chunk, strict=True)]
            first, second = (self.tokenizer.encode(x) for x in texts)
            lengths = (first.row_lengths() + second.row_lengths()).numpy()
            rows = inference.token_rows(lengths, first=first, second=second)
            for index, probabilities in self._pair_runner.each(rows, batch_size):
                answers[start + index] = probabilities
        return answers

    def signatures(self, top_k: int = 5) -> dict[str, Signature]:
        """Returns the signatures `fill_mask`, `next_sentence` or `sentence_order`, and `encode`.

        Only those of the task's heads are included; the first one is also `serving_default`.

        Args:
            top_k: K, the number of answers for each mask in `fill_mask`.

        Returns:
            `fill_mask`: `text` (B,) strings -> `tokens` and `probabilities` (B, P, K), see
            `FillMask.signature`. A mask beyond the encoder's maximum length is truncated with the
            end of the text and gets no answer, while `predict` raises. `next_sentence` or
            `sentence_order`, if the task has one: `first` and `second` (B,) strings ->
            `probability` (B,) that the second follows, or that the two are in their original order.
            `encode`: see `EncoderTask.signatures`.
        """
        entries = {}
        if self.masked_lm is not None:
            entries["fill_mask"] = self.fill_mask.signature(top_k)
        if self.sentence is not None:

            def classify(first: Any, second: Any) -> dict[str, tf.Tensor]:
                first, second = self.tokenizer.encode(first), self.tokenizer.encode(second)
                return {"probability": self._as_written(self.build_inputs(first, second))}

            text = [tf.TensorSpec([None], tf.string, name) for name in ("first", "second")]
            name = "sentence_order" if self.sentence_order else "next_sentence"
            tokens = text_tokens(self.row_length)
            entries[name] = Signature(classify, text, tokens, too_long="cut")
        return {**entries, **super().signatures()}


def _check_sentence_objective(config: Any, next_sentence: bool, sentence_order: bool) -> None:
    """Raises ValueError if both objectives are True, or if the config's pooling does not fit one.

    `config` is the encoder's; the other arguments are the task's settings.
    """
    if next_sentence and sentence_order:
        raise ValueError(
            "next_sentence and sentence_order exclude each other, since a batch has the labels of "
            "one. Received: next_sentence=True, sentence_order=True"
        )
    if (next_sentence or sentence_order) and config.pooler_activation is None:
        name = "next_sentence" if next_sentence else "sentence_order"
        raise ValueError(
            "A sentence objective reads the pooled vector, so the encoder must have a pooler; for "
            'one without, pass next_sentence=False and batches of segments="single". Received: '
            f"{name}=True and a config with pooler_activation=None"
        )
    if (next_sentence or sentence_order) and config.pooling == "last":
        raise ValueError(
            "A sentence objective requires an encoder that pools the first token, [CLS]; one that "
            "pools the last token, such as XLNet, would pool [SEP]: pass next_sentence=False. "
            "Received: a config with pooling='last'"
        )
