"""Text embeddings: close to each other for texts with the same meaning.

Shapes: N examples, B rows of a batch, A negatives (of the row with the most), T tokens, H hidden
width, D embedding width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

import keras
import numpy as np
from absl import logging
from keras import ops

from kbert import inference, metrics
from kbert.core.in_memory import number_of
from kbert.core.late import tf
from kbert.core.options import Options
from kbert.core.protocols import TokenizerLike
from kbert.core.types import Tensor, Tensors, Terms
from kbert.data.readers.tables import if_file
from kbert.data.tables.rows import Rows
from kbert.data.tables.table import Table, as_table
from kbert.layers import Dense
from kbert.models.pooling import pool_tokens
from kbert.search.exact import unit as unit_length
from kbert.signatures import Signature, text_tokens
from kbert.signatures.rows import Run
from kbert.tasks.columns import Columns
from kbert.tasks.embedding import global_batch
from kbert.tasks.embedding.data import (
    NUMBERS,
    RETRIEVAL,
    TARGETS,
    are_vectors,
    cosines_of,
    number_texts,
    padded_numbers,
    retrieval,
    scores_of,
    teacher_vectors,
)
from kbert.tasks.embedding.losses import SCORED, Compared, row_losses, unit
from kbert.tasks.embedding.options import PROMPTS, EmbeddingOptions, TextEmbedderOptions
from kbert.tasks.fine_tuning.base import FineTuningTask, TableAnswers
from kbert.tasks.fine_tuning.logit_rows import LogitRows
from kbert.tasks.losses import Prediction
from kbert.training.run.history import History
from kbert.training.step.state import Replicas

_ROWS_OF_A_TABLE = 512  # batch size for encoders without layers, which only look up tokens
# Text of an example -> the prefix of its features' names, and the name of its embeddings.
_TEXTS = {
    "first": ("", "embedding"),
    "second": ("second_", "second_embedding"),
    "negatives": ("negative_", "negative_embeddings"),
}
_INPUTS = ("token_ids", "segment_ids", "padding_mask")


class VectorAnswers(TableAnswers):
    """Files with embeddings of texts, or similarities of pairs."""

    program = "kbert-embed"
    pretrained = True
    options = EmbeddingOptions

    def answer(
        self, table: Table, options: Options, *, batch_size: int, first: int = 0
    ) -> tuple[Sequence[Any], int]:
        table = self.task._with_prompt(table, cast(EmbeddingOptions, options).prompt)
        return super().answer(table, options, batch_size=batch_size, first=first)

    def written(self, answers: Sequence) -> Sequence:
        """Returns one record per row: {"vector"} for a text; for a pair its cosine, a number.

        A student can be trained on a file of such vectors.
        """
        if np.ndim(answers) == 2:
            return [{"vector": vector} for vector in answers]
        return list(cosines_of(answers[:, 0], answers[:, 1]))  # type: ignore[call-overload]


class EmbeddingRows(LogitRows):
    """Exports the embedding of one text per row; each text of a pair is a separate row."""

    def outputs(self, features: Mapping[str, Any]) -> dict[str, Any]:
        return {"embedding": self.task(features)["embedding"]}

    def answer_by(self, run: Run) -> None:
        def embed(features: dict[str, Any]) -> Any:
            return run({n: ops.convert_to_numpy(x) for n, x in features.items()})["embedding"]

        def logits(features: Mapping[str, Any]) -> dict[str, Any]:
            embeddings = self.task._of_each_text(features, embed)
            return {name: ops.convert_to_numpy(x) for name, x in embeddings.items()}

        super().answer_by(logits)


class TextEmbedder(FineTuningTask):
    """Embeds texts: the embeddings of texts with the same meaning, or of answers, are close.

    (Reimers & Gurevych 2019, "Sentence-BERT", https://arxiv.org/abs/1908.10084.)

    `fit` accepts the following data, and chooses the default `objective` by it:

    - positive pairs, `[("how far is it?", "12 miles"), …]`, columns `first`, `second`;
    - triplets with a negative, `[("how far?", "12 miles", "12 o'clock"), …]`, or several negatives
      in the column `negatives`, a list for each row;
    - pairs with scores, `fit(pairs, labels=[0.8, …])`, column `label`;
    - texts alone, `["…", …]`, paired by dropout;
    - texts with a teacher's embeddings, column `vector`.

    A ranking compares every row with the texts of all other rows in the global batch: on all
    devices and in all micro-batches. Only one micro-batch at a time needs memory.

    `predict` returns an array (N, D) float32; for pairs (N, 2, D), for triplets (N, 3, D), with the
    first negative. `evaluate` returns, for pairs with scores, the correlations of cosines and
    scores; for pairs alone, retrieval scores of the second texts by the first; for triplets, how
    often the positive is closer than the first negative.

    `from_preset` loads folders of sentence-transformers (`modules.json`), and
    `save_to_preset(folder, "huggingface")` writes them.

    Args:
        encoder: a `kbert.Encoder`.
        tokenizer: the encoder's tokenizer.
        name: name of the model.
        **options: settings:

            {options}

    Raises:
        ValueError: a setting is out of range or does not fit the encoder.

    Example:
        >>> import kbert
        >>> tokenizer = kbert.WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "man", "eats"])
        >>> config = kbert.EncoderConfig(vocabulary_size=8, hidden_size=8, num_layers=1,
        ...                              num_heads=2, intermediate_size=16)
        >>> task = TextEmbedder(kbert.Encoder(config), tokenizer)
        >>> task.predict(["a man eats", "a man"]).shape
        (2, 8)
    """

    kind = "embed"
    averages = None  # two models' vectors have no axes in common
    row_export = EmbeddingRows
    file_answers = VectorAnswers
    columns: ClassVar = Columns(optional=("label", "negatives", TARGETS))
    prepares_rows = False  # equal texts have the same number in the whole table
    options: ClassVar = TextEmbedderOptions
    has_head = False  # a projection is loaded only if the folder's settings name one
    held_elsewhere = (
        *("max_length", "token_pooling", "normalize", "projection", "projection_activation"),
        *(f"{name}_prompt" for name in PROMPTS),
    )
    objective: str | None  # an option, which `fit` may set

    def __init__(self, encoder: keras.Model, tokenizer: TokenizerLike, **options: Any) -> None:
        super().__init__(encoder, tokenizer, **options)
        self.projection_layer = None
        if self.projection is not None:
            self.projection_layer = Dense(
                self.projection,
                activation=self.projection_activation,
                initializer_range=None,
                dtype=encoder.dtype_policy,
                name="projection",
            )
            self.projection_layer.build((None, self._token_width))
        self.build()

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.projection is None and self.projection_activation is not None:
            raise ValueError(
                "`projection_activation` requires `projection`, the width of its layer. Received: "
                f"projection_activation={self.projection_activation!r}, projection=None"
            )
        if too_wide := [width for width in self.matryoshka if width > self.width]:
            raise ValueError(
                f"`matryoshka` must be widths of at most {self.width}, that of the embeddings. "
                f"Received: {too_wide}"
            )

    @property
    def width(self) -> int:
        """Width of an embedding, D."""
        return self.projection or self._token_width

    @property
    def parts(self) -> dict[str, keras.layers.Layer]:
        projection = {} if self.projection_layer is None else {"projection": self.projection_layer}
        return {**super().parts, **projection}

    def as_table(self, data: Any, labels: Any = None) -> Table:
        """Converts data like `FineTuningTask.as_table`; tuples of three texts are triplets."""
        return as_table(if_file(data), labels, triplets=True)

    def tokenize(self, table: Table, labelled: bool) -> Rows:
        names = self._texts_of(table)
        objective = self._objective_of(table) if labelled else None
        prompts = {} if "first" not in names else {"first": "query", "second": "document"}
        columns: dict[str, Sequence] = {
            ("first" if name == "text" else name): table[name] for name in names
        }
        prompted: dict[str, Sequence] = {
            name: self._prompted(texts, prompts.get(name)) for name, texts in columns.items()
        }
        if "negatives" in table and "first" in names:
            columns["negatives"] = table["negatives"]
            prompted["negatives"] = [
                self._prompted(texts, "document") for texts in table["negatives"]
            ]
        ragged = {name: self._encode_column(column) for name, column in prompted.items()}
        lengths, cut = self._extent(ragged)
        dense = {}
        if objective is not None:
            if "second" not in columns and objective != "teacher":
                if not (self.encoder.config.dropout or self.encoder.config.attention_dropout):
                    logging.warning(
                        "Single texts are paired with themselves under other dropout, but the "
                        "encoder has no dropout: both are the same. Set a dropout in its config"
                    )
                ragged["second"] = ragged["first"]
                columns["second"] = columns["first"]
                lengths = 2 * lengths
            ragged |= number_texts(columns)
            if objective in SCORED:
                dense["labels"] = scores_of(table, objective)
            elif objective == "teacher":
                dense["labels"] = teacher_vectors(table, self.width)
        ragged_only = {name: x for name, x in ragged.items() if hasattr(x, "row_splits")}
        dense |= {name: x for name, x in ragged.items() if name not in ragged_only}
        return Rows(
            ragged=ragged_only,
            dense=dense,
            lengths=lengths,
            examples=np.arange(len(table)),
            cut=cut,
        )

    def _texts_of(self, table: Table) -> tuple[str, ...]:
        """Returns the names of a table's columns of texts; raises ValueError if it has none."""
        names = self.columns.found_in(table.columns)
        if names is None:
            raise ValueError(
                "The table must have the column `text`, or `first` and `second` for pairs; "
                "rename its columns with rename(). "
                f"Received: {', '.join(table.columns)}"
            )
        return names

    def _prompted(self, texts: Sequence[str], prompt: str | None) -> Sequence[str]:
        prefix = None if prompt is None else getattr(self, f"{prompt}_prompt")
        return texts if prefix is None else [prefix + text for text in texts]

    def _objective_of(self, table: Table) -> str:
        """Returns the setting `objective` or, for None, the default for the columns of a table.

        Raises ValueError if the table lacks a column that the objective needs or has one that it
        would ignore, if it is "teacher" and the task has `matryoshka` widths, or if it is "angle"
        and a width is odd.
        """
        columns = {name for name in ("first", "negatives", "label", TARGETS) if name in table}
        objective = self.objective
        if objective is None:
            objective = (
                "teacher" if TARGETS in columns else "cosent" if "label" in columns else "ranking"
            )
        required_columns = {"triplet": {"first", "negatives"}, "teacher": {TARGETS}}
        required = required_columns.get(
            objective, {"first", "label"} if objective in SCORED else set()
        )
        unused = (
            columns - required - {"first"} - ({"negatives"} if "ranking" in objective else set())
        )
        if missing := required - columns:
            raise ValueError(
                f"The objective {objective} requires the columns {', '.join(sorted(required))}. "
                f"Received: a table without {', '.join(sorted(missing))}"
            )
        if unused or (objective == "teacher" and "first" in columns):
            extra = sorted(unused) or ["first", "second"]
            raise ValueError(
                f"The objective {objective} does not support the columns {', '.join(extra)}: leave "
                "them out, or choose another `objective`. "
                f"Received: a table with {', '.join(table.columns)}"
            )
        if objective == "teacher" and self.matryoshka:
            raise ValueError(
                "The objective teacher does not support matryoshka. Received: "
                f"objective='teacher' with matryoshka={self.matryoshka}"
            )
        odd = [width for width in self.matryoshka or (self.width,) if width % 2]
        if objective == "angle" and odd:
            raise ValueError(
                "The objective angle requires embeddings of an even width: their halves are real "
                f"and imaginary parts. Received: {', '.join(map(str, odd))}"
            )
        return objective

    def _encode_column(self, column: Sequence) -> tf.RaggedTensor:
        """Returns the ids of a column: (N, ragged), or (N, ragged, ragged) for lists of texts."""
        if not column or isinstance(column[0], str):
            return self.encode_texts(column)
        counts = [len(texts) for texts in column]
        ids = self.encode_texts([text for texts in column for text in texts])
        return tf.RaggedTensor.from_row_lengths(ids, tf.constant(counts, ids.row_splits.dtype))

    def _extent(self, ragged: Mapping[str, tf.RaggedTensor]) -> tuple[np.ndarray, int]:
        """Returns the tokens of each example (N,), over all its texts, and how many are truncated.

        `ragged` are the token ids of the texts by column, (N, ragged) or (N, ragged, ragged).
        """
        total, is_truncated = 0, False
        for ids in ragged.values():
            specials = self.form.specials(1)
            if ids.ragged_rank == 1:
                longest = np.asarray(ids.row_lengths()) + specials
                total += np.minimum(longest, self.row_length)
            else:
                lengths = ids.row_lengths(axis=2) + specials
                longest = tf.reduce_max(lengths, axis=1).numpy()
                total += tf.reduce_sum(tf.minimum(lengths, self.row_length), axis=1).numpy()
            is_truncated |= longest > self.row_length
        return np.asarray(total), int(np.count_nonzero(is_truncated))

    def assemble(self, columns: dict[str, Any]) -> dict[str, tf.Tensor]:
        """Returns the encoder's inputs for each text of the rows, and the other columns.

        Those of second texts are `second_token_ids` …, (B, T); those of negatives are
        `negative_token_ids` …, (B, A, T).
        """
        columns = dict(columns)
        features: dict[str, Any] = {}
        for name, (prefix, _) in _TEXTS.items():
            if name not in columns:
                continue
            ids = columns.pop(name)
            if ids.ragged_rank == 1:
                inputs = self.build_inputs(ids)
            else:
                inputs = self._negative_inputs(ids)
                if (numbers := columns.get(name + NUMBERS)) is not None:
                    columns[name + NUMBERS] = padded_numbers(numbers)
            features |= {prefix + key: x for key, x in inputs.items()}
        return {**features, **columns}

    def _negative_inputs(self, ids: tf.RaggedTensor) -> dict[str, tf.Tensor]:
        """Packs token ids (B, ragged, ragged) to inputs (B, A, T); missing ones are empty texts."""
        counts = ids.row_lengths()
        real = tf.sequence_mask(counts, tf.maximum(tf.reduce_max(counts), 1))  # (B, A)
        alternative = tf.range(tf.shape(real, counts.dtype)[1])[None]
        index = tf.cumsum(counts, exclusive=True)[:, None] + alternative
        index = tf.where(real, index, ids.values.nrows())
        empty = tf.RaggedTensor.from_row_lengths(
            tf.zeros([0], ids.dtype), tf.zeros([1], counts.dtype)
        )
        texts = tf.gather(tf.concat([ids.values, empty], 0), tf.reshape(index, [-1]))
        shape = tf.shape(real)
        return {
            name: tf.reshape(x, tf.concat([shape, tf.shape(x)[1:]], 0))
            for name, x in self.build_inputs(texts).items()
        }

    def call(self, batch: Tensors, training: bool = False) -> Tensors:
        """Returns `embedding` (B, D), float32.

        If the batch has such texts, also `second_embedding` (B, D) and `negative_embeddings`
        (B, A, D).
        """
        return self._of_each_text(batch, lambda features: self._embed(features, training))

    def _of_each_text(
        self, batch: Mapping[str, Any], embed: Callable[[dict[str, Any]], Any]
    ) -> dict[str, Any]:
        """Returns the embeddings of a batch's texts by name, as `call` does.

        `embed` is the function from features (R, T) to embeddings (R, D).
        """
        embeddings = {}
        for prefix, name in _TEXTS.values():
            if f"{prefix}token_ids" not in batch:
                continue
            features = {k: batch[prefix + k] for k in _INPUTS if prefix + k in batch}
            shape = ops.shape(features["token_ids"])
            if len(shape) == 2:  # reshaping would hide from an export that rows stay rows
                embeddings[name] = embed(features)
                continue
            flat = {k: ops.reshape(x, (-1, shape[-1])) for k, x in features.items()}
            embeddings[name] = ops.reshape(embed(flat), (*shape[:-1], self.width))
        return embeddings

    def embed_rows(self, features: Mapping[str, Any], training: bool = False) -> Tensor:
        """Returns the embeddings of rows, never normalised.

        Args:
            features: features from `build_inputs`, (R, T) each.
            training: whether dropout is active.

        Returns:
            (R, D) float32.
        """
        mask = features["padding_mask"]
        if self.token_pooling == "cls":
            cls_columns = self.form.cls_columns(mask)[:, None]
            vectors = self.encode(features, training, positions=cls_columns)["sequence"][:, 0]
        else:
            outputs = self.encode(features, training)
            pooled_mask = outputs.get("counted", mask)  # some encoders pool fewer tokens
            sequence = ops.cast(outputs["sequence"], "float32")
            vectors = pool_tokens(sequence, pooled_mask, self.token_pooling)
        if self.projection_layer is not None:
            vectors = self.projection_layer(vectors, training=training)
        return ops.cast(vectors, "float32")

    def _embed(self, features: Mapping[str, Any], training: bool) -> Tensor:
        """Returns the embeddings of rows, (R, D), normalised if the task's are."""
        vectors = self.embed_rows(features, training)
        return unit(vectors) if self.normalize else vectors

    def terms(self, logits: Tensors, batch: Tensors) -> Terms:
        weights = ops.cast(batch["label_weights"], "float32")
        if global_batch.LOSS in batch:
            total = global_batch.cached_numerator(logits, batch, weights)
        else:
            total = ops.sum(self._row_losses(logits, batch) * weights)
        return {"contrast": (total, ops.sum(weights))}, {}

    def before_gradients(self, batch: Tensors, replicas: Replicas) -> Tensors:
        """Adds each row's loss, computed on the global batch, and the gradients of embeddings.

        Not needed with a single replica and micro-batch: the batch is returned unchanged.
        """
        if self.micro_batches == 1 and replicas.count == 1:
            return batch

        def forward(features: Tensors) -> Tensors:
            return self(features, training=True)

        parts = self._split({name: x for name, x in batch.items() if name.endswith(_INPUTS)})
        local_vectors = global_batch.vectors_by_parts(self, parts, self.micro_batches, forward)
        columns = {name: batch[name] for name in _COMPARED if name in batch}
        vectors, columns = (
            {name: replicas.gather(x) for name, x in tensors.items()}
            for tensors in (local_vectors, columns)
        )
        weights = ops.cast(columns["label_weights"], "float32")

        def total(vectors: Tensors) -> Tensor:
            return ops.sum(self._row_losses(vectors, columns) * weights)

        cached = {
            global_batch.GRADIENT + name: x
            for name, x in global_batch.gradients(total, vectors).items()
        }
        cached[global_batch.LOSS] = self._row_losses(vectors, columns)
        return {**batch, **{name: replicas.own(x) for name, x in cached.items()}}

    def _row_losses(self, vectors: Tensors, batch: Tensors) -> Tensor:
        """Returns the losses (B,) of the rows of a batch, which are compared with each other.

        `vectors` are the embeddings, as `call` returns them; `batch` has labels, weights and the
        numbers of the texts.
        """
        numbers = [batch[n + NUMBERS] for n in _TEXTS if n + NUMBERS in batch]
        labels = batch.get("labels")
        compared = Compared(
            **{name: vectors[key] for name, (_, key) in _TEXTS.items() if key in vectors},
            labels=None if labels is None else ops.cast(labels, "float32"),
            weights=batch["label_weights"],
            numbers=tuple(numbers),
        )
        objective = self.objective
        if objective is None:
            shape = () if labels is None else labels.shape
            objective = ("ranking", "cosent", "teacher")[len(shape)]
        widths = self.matryoshka
        return row_losses(
            compared, objective, widths=widths, scale=self.cosine_scale, margin=self.cosine_margin
        )

    def outputs(self, logits: Tensors, batch: Tensors) -> dict[str, Any]:
        embeddings = [logits["embedding"]]
        if "second_embedding" in logits:
            embeddings.append(logits["second_embedding"])
        if "negative_embeddings" in logits:
            embeddings.append(logits["negative_embeddings"][:, 0])
        return {"vectors": ops.stack(embeddings, axis=1)}

    def decode(self, table: Table, rows: Rows, outputs: Sequence[Tensors]) -> Any:
        vectors = np.array([output["vectors"] for output in outputs], np.float32)
        texts = 1 if "text" in self._texts_of(table) else -1
        vectors = vectors.reshape(len(outputs), vectors.shape[1] if outputs else 1, self.width)
        return vectors[:, 0] if texts == 1 else vectors

    @classmethod
    def adapt_table(
        cls, table: Table, columns: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> Table:
        """Converts labels to numbers, if there are any."""
        if "label" not in table:
            return table
        labels = []
        for row, label in enumerate(table["label"]):
            try:
                labels.append(float(number_of(label)))
            except (TypeError, ValueError):
                raise ValueError(
                    f"{table.place(row)}: the label of a pair must be a number, their similarity. "
                    f"Received: {label!r:.80}"
                ) from None
        return table.with_column("label", labels)

    def describe_example(self, table: Table, row: int) -> str:
        if "label" in table:
            return super().describe_example(table, row)
        negative = f", not {table['negatives'][row]!r:.80}" if "negatives" in table else ""
        return f"near {table['second'][row]!r:.80}{negative}" if "second" in table else "a text"

    def score(self, table: Table, answers: Sequence) -> dict[str, float]:
        if "first" not in table:
            if TARGETS not in table:
                return {}
            vectors = teacher_vectors(table, self.width)
            return {"cosine": float(np.mean(cosines_of(np.asarray(answers), vectors)))}
        first, second, *negatives = np.swapaxes(np.asarray(answers), 0, 1)
        cosines = cosines_of(first, second)
        if "label" in table:
            labels = scores_of(table, "cosent")
            return {
                "spearman": metrics.spearman(labels, cosines),
                "pearson": metrics.pearson(labels, cosines),
            }
        if (has_negative := _with_negatives(table)).any():
            is_nearer = cosines > cosines_of(first, negatives[0])
            return {"accuracy": float(np.mean(is_nearer[has_negative]))}
        return retrieval(first, second, table)

    def score_names(self, table: Table) -> list[str] | None:
        if "first" not in table:
            return ["cosine"] if TARGETS in table else []
        if "label" in table:
            return ["spearman", "pearson"]
        return ["accuracy"] if _with_negatives(table).any() else list(RETRIEVAL)

    def main_metric(self, held_out: Table) -> str:
        return next(iter(self.score_names(held_out) or []), "loss")

    def predictions(self, logits: Tensors, batch: Tensors) -> dict[str, Prediction]:
        weights = ops.broadcast_to(batch["label_weights"][:, None], ops.shape(logits["embedding"]))
        return {"embedding": Prediction("number", logits["embedding"], weights)}

    def fit(  # type: ignore[override]  # as in FineTuningTask
        self, data: Any, labels: Any = None, *, loss: str | None = None, **options: Any
    ) -> History:
        """Like `FineTuningTask.fit`; tuples of three texts are triplets.

        Args:
            data: texts, pairs or triplets; see the class.
            labels: scores of pairs.
            loss: objective to train with; it becomes the setting `objective`, which presets save.
            **options: further arguments of `FineTuningTask.fit`.

        Returns:
            Losses and values of each epoch.

        Raises:
            ValueError: data or settings do not fit, see `FineTuningTask.fit`; the data lacks a
                column that the objective needs, or has one that it would ignore.

        Example:
            >>> import kbert
            >>> tokenizer = kbert.WordPieceTokenizer(
            ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "far", "miles", "noon"])
            >>> encoder = kbert.Encoder(kbert.family("bert-tiny").replace(vocabulary_size=8))
            >>> task = kbert.tasks.TextEmbedder(encoder, tokenizer)
            >>> history = task.fit([("far", "miles", "noon")] * 4, epochs=1, verbose=0)
            >>> task.evaluate([("far", "miles", "noon")], verbose=0).keys()
            dict_keys(['loss', 'accuracy'])
        """
        previous_objective = self.objective
        if loss is not None:
            self.objective = loss
        try:
            return super().fit(data, labels, **options)
        except ValueError:  # nothing was trained
            self.objective = previous_objective
            raise

    def evaluate(  # type: ignore[override]  # as in FineTuningTask
        self, data: Any, labels: Any = None, **options: Any
    ) -> dict[str, float]:
        """Like `FineTuningTask.evaluate`; tuples of three texts are triplets."""
        options.setdefault("batch_size", self._usual_batch_size)
        return super().evaluate(data, labels, **options)

    def predict(self, data: Any, *, prompt: str | None = None, **options: Any) -> Any:
        """Returns the embeddings of texts.

        Args:
            data: texts, pairs or triplets, or one text.
            prompt: "query" or "document", which puts `query_prompt` or `document_prompt` before
                each text. In pairs the first text is always a query and the second a document.
            **options: `batch_size` and `verbose` of `FineTuningTask.predict`.

        Returns:
            (N, D) float32; for pairs (N, 2, D), for triplets (N, 3, D).

        Raises:
            ValueError: the task has no such prompt, or the data does not fit.
        """
        options.setdefault("batch_size", self._usual_batch_size)
        return super().predict(self._with_prompt(data, prompt), **options)

    def _with_prompt(self, data: Any, prompt: str | None) -> Any:
        """Returns a table of the texts with the task's prompt before each; unchanged data for None.

        `prompt` is "query" or "document"; ValueError if the task has no such prompt.
        """
        if prompt is None:
            return data
        if prompt not in PROMPTS or getattr(self, f"{prompt}_prompt") is None:
            raise ValueError(
                "`prompt` must be query or document, and the task must have a query_prompt or "
                f"document_prompt for it. Received: prompt={prompt!r}, "
                f"query_prompt={self.query_prompt!r}, document_prompt={self.document_prompt!r}"
            )
        table = self.as_table([data] if isinstance(data, str | bytes) else data)
        return table.with_column("text", list(self._prompted(table["text"], prompt)))

    @property
    def _usual_batch_size(self) -> int:
        """Default batch size; larger for encoders without layers.

        Their rows are so cheap that with small batches the calls would cost most of the time.
        """
        return inference.BATCH_SIZE if self.encoder.config.num_layers else _ROWS_OF_A_TABLE

    def similarity(self, texts: Any, others: Any = None, **options: Any) -> np.ndarray:
        """Returns the cosine similarities of texts.

        Args:
            texts: N texts, or their embeddings (N, D).
            others: M texts, or their embeddings (M, D); None = `texts`.
            **options: arguments of `predict`.

        Returns:
            (N, M) float32.
        """
        inputs = [texts] if others is None else [texts, others]
        embeddings = [
            unit_length(x if are_vectors(x) else self.predict(x, **options)) for x in inputs
        ]
        return embeddings[0] @ embeddings[-1].T

    def signatures(self) -> dict[str, Signature]:
        """Returns the entry point `embed`, also `serving_default`, and those with prompts.

        Returns:
            `embed`, and if the task has the prompts, `embed_query` and `embed_document`:
            `text` (B,) strings -> `embedding` (B, D). A text that is too long is truncated. Bytes
            that are not UTF-8 are dropped.
        """
        tokens = text_tokens(self.row_length)

        def entry(before: str) -> Signature:
            def texts(text: tf.Tensor) -> tf.Tensor:
                return tf.strings.join([before, text]) if before else text

            def embed(text: tf.Tensor) -> dict[str, tf.Tensor]:
                outputs = self(self.build_inputs(self.tokenizer.encode(texts(text))))
                return {"embedding": outputs["embedding"]}

            spec = [tf.TensorSpec([None], tf.string, "text")]
            return Signature(embed, spec, lambda text: tokens(texts(text)), too_long="cut")

        prompts = {f"embed_{name}": getattr(self, f"{name}_prompt") for name in PROMPTS}
        given_prompts = {name: before for name, before in prompts.items() if before is not None}
        return {name: entry(before) for name, before in {"embed": "", **given_prompts}.items()}


_COMPARED = ("label_weights", "labels", *(name + NUMBERS for name in _TEXTS))


def _with_negatives(table: Table) -> np.ndarray:
    """Returns whether each example of a table has a negative, (N,) bool."""
    negatives = table["negatives"] if "negatives" in table else [()] * len(table)
    return np.array([len(texts) > 0 for texts in negatives], bool)
