"""Labels of words: named entities, parts of speech.

Shapes: B rows, T tokens, C classes, W words of a row or of all rows together, M words of windows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import keras
import numpy as np
from absl import logging

from kbert import inference, metrics
from kbert.core.late import tf
from kbert.core.protocols import TokenizerLike
from kbert.core.types import Tensors, Terms
from kbert.data.tables.rows import Rows
from kbert.data.tables.table import Table
from kbert.data.tables.words import split_at_white_space
from kbert.heads import TokenHead
from kbert.signatures import Signature, text_tokens
from kbert.tasks.columns import Columns
from kbert.tasks.fine_tuning import tagging
from kbert.tasks.fine_tuning.base import FineTuningTask
from kbert.tasks.fine_tuning.labels import Labels, check_several, class_weights_of
from kbert.tasks.fine_tuning.options import TokenClassifierOptions
from kbert.tasks.losses import Prediction, accuracy, cross_entropy


class TokenClassifier(FineTuningTask):
    """Predicts a label for each word of a sentence.

    Each word is split into subwords separately. The label is trained on and predicted from the
    first subword (BERT, section 5.3, https://arxiv.org/abs/1810.04805). A sentence that is too long
    for the encoder is read in overlapping windows of whole words. The logits of a word in several
    windows are pooled. A single word that is too long is truncated to its first subwords.

    Labels such as "B-person", "I-person" and "O" (BIO, BIOES or BILOU) name entities. `predict`
    then also returns the entities, and `evaluate` their precision, recall and F1, like seqeval. For
    other labels, such as parts of speech, `evaluate` returns accuracy and macro F1. The attribute
    `scheme` shows the kind of labels.

    The data has the columns `words` and `labels`, lists; `text` instead of `words` is split at
    white space. `predict` returns for each sentence

        {"words": ["Ada", "Lovelace", "wrote"], "labels": ["B-person", "I-person", "O"],
         "probabilities": [0.98, 0.97, 0.99],
         "entities": [{"label": "person", "start": 0, "end": 2, "text": "Ada Lovelace"}]}

    with starts and ends counted in words, the end exclusive. For a text there are also `starts` and
    `ends` of the words, so that `text[start:end]` is the word, and `start_character` and
    `end_character` of the entities.

    Args:
        encoder: a `kbert.Encoder`, a `kbert.models.ElmoEncoder` or a `kbert.models.Seq2SeqEncoder`.
        tokenizer: the encoder's tokenizer.
        labels: names of the labels, or their number, for LABEL_0, LABEL_1, …; required.
            `kbert.class_names` returns those of labelled data.
        name: name of the model.
        **options: settings; without a `doc_stride` the windows of a long sentence overlap by half:

            {options}

    Attributes:
        scheme: "BIO", "BIOES" or "BILOU" if the labels name entities, else None.

    Raises:
        ValueError: a setting is out of range, there is only one label, or the tokenizer has no
            unknown token.

    Example:
        >>> import kbert
        >>> tokenizer = kbert.WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ada", "love", "##lace"])
        >>> config = kbert.EncoderConfig(vocabulary_size=8, hidden_size=8, num_layers=1,
        ...                              num_heads=2, intermediate_size=16)
        >>> task = TokenClassifier(kbert.Encoder(config), tokenizer, ["O", "B-name", "I-name"])
        >>> task.scheme
        'BIO'
        >>> answer, = task.predict(["Ada Lovelace"])
        >>> answer["words"], answer["starts"], len(answer["labels"])
        (['Ada', 'Lovelace'], [0, 4], 2)
    """

    kind = "tag"
    columns: ClassVar = Columns(inputs=(("words",), ("text",)), label="labels", shown=("text",))
    options: ClassVar = TokenClassifierOptions
    held_elsewhere = ("labels",)
    prediction_settings = ("labels",)
    shown_metrics = ("accuracy",)
    takes_characters = True
    takes_seq2seq = True
    augmentable = True
    predicts_per = "token"

    def __init__(
        self,
        encoder: keras.Model,
        tokenizer: TokenizerLike,
        labels: Sequence[str] | int | None = None,
        **options: Any,
    ) -> None:
        self._classes = Labels(labels)
        super().__init__(encoder, tokenizer, labels=self._classes.names, **options)
        check_several(self.labels, type(self).__name__)
        if tokenizer.unk_id is None:
            raise ValueError(
                "The tokenizer must have an unknown token, for words that have no other tokens. "
                f"Received: a {type(tokenizer).__name__} without one"
            )
        self.scheme = metrics.find_scheme(self.labels)
        self.head_dropout = self.make_dropout()
        self.tokens = TokenHead(
            encoder.config,
            len(self.labels),
            width=self._token_width,
            dtype=encoder.dtype_policy,
        )
        self.build()
        logging.info(
            "Labels %s: measured by %s",
            *(
                ("without a scheme", "accuracy")
                if self.scheme is None
                else (self.scheme, "entity F1")
            ),
        )

    @property
    def labels(self) -> list[str]:
        """Names of the labels, in the order of the logits."""
        return self._classes.names

    @property
    def metric(self) -> str:  # type: ignore[override]  # by the task's labels
        """Name of the value by which `fit` selects the best weights."""
        return "accuracy" if self.scheme is None else "f1"

    @property
    def parts(self) -> dict[str, keras.layers.Layer]:
        return {**super().parts, "tokens": self.tokens}

    def as_table(self, data: Any, labels: Any = None) -> Table:
        if isinstance(data, tuple) and (labels is not None or isinstance(data[0], str | bytes)):
            return super().as_table(data, labels)  # raises
        if isinstance(data, tuple) and len(data) == 2:
            data, labels = data  # as Keras' validation_data
        table = super().as_table(data)
        if labels is None:
            return table
        if "labels" in table:
            raise ValueError("Pass the labels once: the data has a column 'labels' already")
        return table.with_column("labels", labels)

    def tokenize(self, table: Table, labelled: bool) -> Rows:
        words = tagging.words_of(table).words
        windows = self._windows(words)
        ragged = {"first": windows.ids, "places": windows.places, "words": windows.words}
        if labelled:
            labels = tagging.word_labels(self.labels, table, words)
            ragged["labels"], ragged["label_weights"] = tagging.piece_columns(windows, labels)
        return Rows(
            ragged=ragged,
            dense={},
            lengths=windows.ids.row_lengths().numpy() + 2,
            examples=windows.sentences.numpy(),
        )

    def _windows(self, words: Any) -> Any:
        budget = self.row_length - 2
        doc_stride = self.doc_stride or max(budget // 2, 1)
        return tagging.windows_of(words, self.tokenizer.encode_words, budget, doc_stride)

    def assemble(self, columns: dict[str, Any]) -> dict[str, tf.Tensor]:
        features = self.build_inputs(columns["first"])
        width = tf.shape(features["token_ids"])[1]
        aux = {k: columns[k] for k in ("labels", "label_weights") if k in columns}
        begin = self.form.begin
        for name, x in aux.items():
            features[name] = tagging.aligned_with_tokens(x, begin, width)
        return features

    def weigh_classes(self, rows: Rows, class_weights: str | Mapping[str, float]) -> Rows:
        labels, token_weights = (rows.ragged[name] for name in ("labels", "label_weights"))
        ids, shares = labels.values.numpy(), token_weights.values.numpy()
        is_word = shares > 0  # a word in several windows has a share in each
        weight_of_class = class_weights_of(
            self.labels, class_weights, ids[is_word], shares[is_word]
        )
        weights = token_weights.with_values(token_weights.values * weight_of_class[ids])
        return dataclasses.replace(rows, ragged={**rows.ragged, "label_weights": weights})

    def check_held_out(self, table: Table, held_out: Table) -> None:
        self._classes.check_seen(table, held_out, "labels")

    def call(self, batch: Tensors, training: bool = False) -> dict[str, Any]:
        sequence = self.encode(batch, training)["sequence"]
        return {"tokens": self.tokens(self.head_dropout(sequence, training=training))}

    def terms(self, logits: Tensors, batch: Tensors) -> Terms:
        answer = (logits["tokens"], batch["labels"], batch["label_weights"])
        return {"cross_entropy": cross_entropy(*answer)}, {"accuracy": accuracy(*answer)}

    def predictions(self, logits: Tensors, batch: Tensors) -> dict[str, Prediction]:
        return {"tokens": Prediction("classes", logits["tokens"], batch["label_weights"])}

    def outputs(self, logits: Tensors, batch: Tensors) -> dict[str, Any]:
        return {"logits": logits["tokens"]}

    def decode(self, table: Table, rows: Rows, outputs: Sequence[Tensors]) -> Sequence:
        words, starts, ends = tagging.words_of(table)
        positions = rows.ragged["places"].to_list()
        # The token that begins a row may precede its first subword.
        windows, begin = zip(outputs, positions, strict=True), self.form.begin
        window_logits = [
            output["logits"][np.add(index, begin, dtype=int)] for output, index in windows
        ]
        window_logits.append(np.zeros((0, len(self.labels)), np.float32))
        ids, probabilities = self._best(
            np.concatenate(window_logits), rows.ragged["words"].values, tf.size(words.values)
        )
        ids, probabilities = ids.numpy().tolist(), probabilities.numpy().tolist()
        splits = words.row_splits.numpy().tolist()
        answers = []
        for row, (begin, end) in enumerate(pairwise(splits)):
            answer = {
                "words": [word.decode() for word in words[row].numpy()],
                "labels": [self.labels[i] for i in ids[begin:end]],
                "probabilities": probabilities[begin:end],
            }
            text = None
            if starts is not None and ends is not None:
                text = table["text"][row]
                answer |= {
                    "starts": starts[row].numpy().tolist(),
                    "ends": ends[row].numpy().tolist(),
                }
            if self.scheme is not None:
                answer["entities"] = tagging.entities(answer, text)
            answers.append(answer)
        return answers

    def _best(self, logits: Any, words: Any, num_words: int) -> Any:
        """Returns the class of each of W words and its probability, (W,) each.

        `logits` (M, C) are those of the words of all windows. `words` (M,) are the indices of
        these words among all W = `num_words`; a word in several windows is pooled.
        """
        logits = tagging.pooled(logits, words, num_words, self.pooling)
        return tf.argmax(logits, 1), tf.reduce_max(tf.nn.softmax(logits), 1)

    def check_labels(self, table: Table) -> None:
        self._named(table)

    def score(self, table: Table, answers: Sequence[Any]) -> dict[str, float]:
        labels, predictions = self._named(table), [answer["labels"] for answer in answers]
        flat = (
            [label for row in labels for label in row],
            [label for row in predictions for label in row],
        )
        if not flat[0]:
            raise ValueError("An evaluation needs words. Received: sentences without any")
        scores = {"accuracy": metrics.accuracy(*flat)}
        if self.scheme is None:
            return {**scores, "macro_f1": metrics.macro_f1(*flat)}
        return {**metrics.entity_report(labels, predictions).scores, **scores}

    def score_names(self, table: Table) -> list[str] | None:
        if self.scheme is None:
            return ["accuracy", "macro_f1"]
        labels = self._named(table)  # a type that is only predicted has an F1 too, which is 0
        return [*metrics.entity_report(labels, labels).scores, "accuracy"]

    def reports(self, table: Table, answers: Sequence[Any]) -> list[Any]:
        """Returns a report on entities, if the labels name some, and a report on labels."""
        labels, predictions = self._named(table), [answer["labels"] for answer in answers]
        flat = [[label for row in side for label in row] for side in (labels, predictions)]
        label_report = metrics.classification_report(flat[0], flat[1], self.labels)
        if self.scheme is None:
            return [label_report]
        return [metrics.entity_report(labels, predictions), label_report]

    def describe_example(self, table: Table, row: int) -> str:
        return f"{len(table['words'][row])} words"

    def token_marks(self, features: Tensors) -> dict[int, str]:
        """Returns token index -> "/LABEL" for the first subword of each word of a labelled row."""
        positions = np.flatnonzero(features["label_weights"]).tolist()
        return {position: f"/{self.labels[features['labels'][position]]}" for position in positions}

    def _named(self, table: Table) -> Any:
        """Returns the names of the labels of a table's words, a list for each row."""
        words = tagging.words_of(table).words
        ids = tagging.word_labels(self.labels, table, words).tolist()
        splits = words.row_splits.numpy().tolist()
        return [[self.labels[i] for i in ids[begin:end]] for begin, end in pairwise(splits)]

    def signatures(self) -> dict[str, Signature]:
        """Returns the entry points `tag` for texts, also `serving_default`, and `tag_words`.

        Returns:
            `tag`: `text` (B,) strings -> `words` (B, W), split at white space, `labels` (B, W)
            strings, `scores` (B, W), their probabilities, `starts` and `ends` (B, W), positions of
            the words in the text, in characters. W is the number of words of the longest text;
            shorter ones are padded with "" and 0. A text is read whole, in windows, up to the
            export's `max_bytes`; a longer one raises an error, as do words of a row that are
            longer together. Each byte that is not UTF-8 counts as one character.
            `tag_words`: `words` (B, W) strings -> `labels` and `scores` (B, W); "" after the last
            word of a row is padding.
        """

        def tag(text: tf.Tensor) -> dict[str, tf.Tensor]:
            words, starts, ends = split_at_white_space(text)
            columns = {"words": words, **self._tagged(words), "starts": starts, "ends": ends}
            return {name: column.to_tensor() for name, column in columns.items()}

        def tag_words(words: tf.RaggedTensor) -> dict[str, tf.Tensor]:
            width = tf.shape(words)[1]
            word_numbers = tf.where(words == "", 0, tf.range(1, width + 1))
            counts = tf.reduce_max(tf.pad(word_numbers, [[0, 0], [1, 0]]), 1)  # (B,)
            tagged = self._tagged(tf.RaggedTensor.from_tensor(words, tf.cast(counts, tf.int64)))
            dense = {name: column.to_tensor() for name, column in tagged.items()}
            return {k: tf.pad(x, [[0, 0], [0, width - tf.shape(x)[1]]]) for k, x in dense.items()}

        return {
            "tag": Signature(tag, [tf.TensorSpec([None], tf.string, "text")], text_tokens()),
            "tag_words": Signature(
                tag_words, [tf.TensorSpec([None, None], tf.string, "words")], text_tokens()
            ),
        }

    def _tagged(self, words: Any) -> Any:
        """Returns "labels" (names) and "scores" of words, (B, ragged) each; runs in a graph."""

        def forward(ids: tf.Tensor) -> tf.Tensor:
            logits = tf.convert_to_tensor(self(self.build_inputs(ids))["tokens"])
            return logits[:, self.form.begin :]

        windows = self._windows(words)
        most_tokens = inference.BATCH_SIZE * self.row_length
        logits = tagging.window_logits(forward, windows, len(self.labels), most_tokens)
        num_words = tf.size(words.values)
        ids, probabilities = self._best(logits, windows.words.values, num_words)
        labels = tf.gather(tf.constant(self.labels), ids)
        return {"labels": words.with_values(labels), "scores": words.with_values(probabilities)}
