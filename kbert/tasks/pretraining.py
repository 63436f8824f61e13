"""BERT's pretraining: fill the masks, and tell whether the second segment follows the first.

Shapes: B rows, T tokens, P masked positions, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from kbert.heads import MaskedLMHead, SentenceHead
from kbert.serving import Signature
from kbert.tasks import fill_mask, inference
from kbert.tasks.losses import accuracy, cross_entropy
from kbert.tasks.task import Task

FOLLOWS = 0  # the class of a real next sentence; 1 is a random one (BERT, section 3.1)


class Pretraining(Task):
    """Masked language modelling and next-sentence prediction (BERT, section 3.1).

    Trained with `fit` on the batches of `kbert.data.pretraining_dataset`. The loss is the mean
    over real masked tokens plus the mean over rows; metrics are `mlm_loss`, `mlm_accuracy`,
    `perplexity`, `nsp_loss` and `nsp_accuracy`.

    Args:
        encoder: a `kbert.Encoder`.
        tokenizer: its tokenizer.
        next_sentence: whether to predict next sentences too; the encoder needs a pooler. False
            for RoBERTa and the like.
        name: of the model.

    Raises:
        ValueError: if the vocabularies differ, or the encoder has no pooler for `next_sentence`.

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

    derived_metrics = {"perplexity": ("mlm_loss", ops.exp)}

    def __init__(
        self,
        encoder: keras.Model,
        tokenizer: Any,
        *,
        next_sentence: bool = True,
        name: str = "pretraining",
    ):
        super().__init__(encoder, tokenizer, name=name)
        if next_sentence and encoder.config.pooler_activation is None:
            raise ValueError(
                "Next-sentence prediction reads the pooled vector, so the encoder must have a "
                "pooler; for one without, pass next_sentence=False. Received: "
                "next_sentence=True and a config with pooler_activation=None"
            )
        policy = encoder.dtype_policy
        self.next_sentence = next_sentence
        self.masked_lm = MaskedLMHead(encoder.config, encoder.token_embedding, dtype=policy)
        self.sentence = SentenceHead(encoder.config, dtype=policy) if next_sentence else None
        self._fill_mask = fill_mask.FillMask(self, self.masked_lm)
        if next_sentence:
            self._follow = inference.compiled(self._follow_probability, encoder, self.sentence)
            self._pack_pairs = inference.on_cpu(
                lambda a, b, rows: self.pack(tf.gather(a, rows), tf.gather(b, rows)),
                *(inference.IDS, inference.IDS, inference.ROWS),
            )
        self.build()

    @property
    def parts(self) -> dict[str, keras.layers.Layer]:
        sentence = {"sentence": self.sentence} if self.next_sentence else {}
        return {**super().parts, "masked_lm": self.masked_lm, **sentence}

    @property
    def settings(self) -> dict[str, Any]:
        return {"next_sentence": self.next_sentence}

    def call(self, batch, training=False):
        """`masked_lm` (B, P, V) and, with next sentences, `next_sentence` (B, 2) logits."""
        out = self.encode(batch, training)
        logits = {"masked_lm": self.masked_lm(out["sequence"], batch["mask_positions"])}
        if self.next_sentence:
            logits["next_sentence"] = self.sentence(out["pooled"])
        return logits

    def loss_terms(self, batch, training):
        if self.next_sentence and "next_sentence_labels" not in batch:
            raise ValueError(
                "The task predicts next sentences, so a batch must hold next_sentence_labels: make "
                "the dataset with next_sentence=True or the task with next_sentence=False. "
                f"Received: {', '.join(sorted(batch))}"
            )
        logits = self(batch, training=training)
        masked = (logits["masked_lm"], batch["mask_ids"], batch["mask_weights"])
        losses = {"mlm_loss": cross_entropy(*masked)}
        metrics = {"mlm_accuracy": accuracy(*masked)}
        if self.next_sentence:
            # A row that only fills the last batch up is all padding, its first column too.
            rows = batch["padding_mask"][:, 0]
            pair = (logits["next_sentence"], batch["next_sentence_labels"], rows)
            losses["nsp_loss"] = cross_entropy(*pair)
            metrics["nsp_accuracy"] = accuracy(*pair)
        return losses, metrics

    def _follow_probability(self, features):
        return ops.softmax(self.sentence(self.encode(features)["pooled"]))[:, FOLLOWS]  # (B,)

    def predict(
        self,
        texts: str | Sequence[str],
        top_k: int = 5,
        candidates: Sequence[str] | None = None,
        batch_size: int = inference.BATCH_SIZE,
    ) -> list[dict[str, list]]:
        """Fills the masks of texts.

        A text that is too long for the encoder is cut at the end, unless a mask would be lost.

        Args:
            texts: strings with any number of mask tokens ("[MASK]"), or one string.
            top_k: how many answers for each mask.
            candidates: give the probabilities of these tokens, in this order, instead of the
                `top_k` best. Each must be one vocabulary entry.
            batch_size: texts that go through the model together.

        Returns:
            For each text `{"tokens": …, "probabilities": …}`; both hold one list for each mask,
            of the best answers, the most probable first, or of the candidates. No mask: empty.

        Raises:
            ValueError: `top_k` or `batch_size` is out of range, a candidate is not one vocabulary
                entry, or a mask lies behind the longest text that the encoder takes.
        """
        texts = inference.as_texts(texts)
        inference.check_batch_size(batch_size)
        fill_mask.check_top_k(self.tokenizer, top_k)
        chosen = None
        if candidates is not None:
            names = inference.as_texts(candidates, "candidates")
            chosen = fill_mask.candidate_ids(self.tokenizer, names)

        answers = [{"tokens": [], "probabilities": []} for _ in texts]
        for text, probabilities in self._fill_mask.each_mask(texts, batch_size):
            ids = fill_mask.best(probabilities, top_k) if chosen is None else chosen
            answers[text]["tokens"].append([self.tokenizer.vocabulary[i] for i in ids])
            answers[text]["probabilities"].append(probabilities[ids].tolist())
        return answers

    def predict_next_sentence(
        self, pairs: Sequence[tuple[str, str]], batch_size: int = inference.BATCH_SIZE
    ) -> np.ndarray:
        """How probable it is that the second text of each pair follows the first.

        Args:
            pairs: (first, second) strings. Together too long, the longer one loses its end.
            batch_size: pairs that go through the model together.

        Returns:
            Probabilities (N,) float32.

        Raises:
            ValueError: the task was built without next sentences, or `batch_size` is below 1.
        """
        inference.check_batch_size(batch_size)
        if not self.next_sentence:
            raise ValueError(
                "The task has no next-sentence head: build it with next_sentence=True. "
                "Received: a task with next_sentence=False"
            )
        pairs = [inference.as_texts(pair, "a pair's texts") for pair in pairs]
        for number, pair in enumerate(pairs):
            if len(pair) != 2:
                raise ValueError(
                    f"A pair must hold two strings. Received: {pair!r} as number {number}"
                )
        answers = np.zeros(len(pairs), np.float32)
        for start, chunk in inference.chunks(pairs):
            texts = [tf.constant(list(texts), tf.string) for texts in zip(*chunk, strict=True)]
            first, second = (self.tokenizer.encode(x) for x in texts)
            lengths = (first.row_lengths() + second.row_lengths()).numpy()
            for rows in inference.by_length(lengths, batch_size):
                features = self._pack_pairs(first, second, rows)
                answers[start + rows] = self._follow(inference.pad(features))[: len(rows)]
        return answers

    def signatures(self, top_k: int = 5) -> dict[str, Signature]:
        """`fill_mask` (also `serving_default`), `next_sentence` and `encode`.

        Args:
            top_k: K, how many answers `fill_mask` gives for each mask.

        Returns:
            `fill_mask`: `text` (B,) strings -> `tokens` and `probabilities` (B, P, K), see
            `FillMask.signature`; a mask behind the longest text that the encoder takes is cut off
            with the text's end and gets no answer, where `predict` raises. `next_sentence`, if the
            task has it: `first` and `second` (B,) strings -> `probability` (B,) that the second
            follows. `encode`: see `Task.signatures`.
        """
        entries = {"fill_mask": self._fill_mask.signature(top_k)}
        if self.next_sentence:

            def next_sentence(first, second):
                first, second = self.tokenizer.encode(first), self.tokenizer.encode(second)
                return {"probability": self._follow_probability(self.pack(first, second))}

            text = [tf.TensorSpec([None], tf.string, name) for name in ("first", "second")]
            entries["next_sentence"] = Signature(next_sentence, text)
        return {**entries, **super().signatures()}
