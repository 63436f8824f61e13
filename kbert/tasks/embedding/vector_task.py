"""What gives texts vectors, however it was trained.

Shapes: N texts, R rows, T tokens, D width of a vector.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np
import tensorflow as tf
from keras import ops

from kbert import inference
from kbert.data.tables.table import Table, as_table
from kbert.models.pooling import pool_tokens
from kbert.options import Options, option
from kbert.serving import Signature, text_tokens
from kbert.tasks.columns import Columns
from kbert.tasks.embedding.losses import unit
from kbert.tasks.fine_tuning.base import FineTuningTask
from kbert.tasks.fine_tuning.task_options import RowOptions
from kbert.types import Tensor

POOLINGS = ("mean", "cls", "max", "weighted")
PROMPTS = ("query", "document")
_ROWS_OF_A_TABLE = 512  # that are looked up together


class VectorOptions(RowOptions):
    """What the vectors of a task are.

    Args:
        {options}
    """

    token_pooling: str = option(
        "mean",
        help="How tokens' vectors become one: their mean, the first token's, the largest of each "
        "entry, or a mean in which later tokens count more.",
        choices=POOLINGS,
    )
    normalize: bool = option(True, help="Whether a vector is given length 1.")
    query_prompt: str | None = option(None, help='Put before a query, such as "query: ".')
    document_prompt: str | None = option(None, help="Put before a text that is searched for.")


class EmbeddingOptions(Options):
    """What is put before the texts that are embedded.

    Args:
        {options}
    """

    prompt: str | None = option(
        None,
        help="Put the task's query_prompt or document_prompt before each text.",
        choices=PROMPTS,
    )


class VectorTask(FineTuningTask):
    """Gives each text a vector; a subclass says how it learns to.

    `predict` gives an array (N, D) float32.

    Args:
        encoder: a `kbert.Encoder`.
        tokenizer: its tokenizer.
        name: of the model.
        **options: the fields of the class's `options`.
    """

    program = "kbert-embed"
    answer_options = EmbeddingOptions
    columns: ClassVar = Columns()
    options: ClassVar[type[Options]] = VectorOptions

    @property
    def width(self) -> int:
        """D."""
        return self.encoder.config.hidden_size

    def project(self, vectors: Tensor, training: bool) -> Tensor:
        """What lies between pooled tokens (R, H) and a vector (R, D): here nothing."""
        return vectors

    def texts_of(self, table: Table) -> tuple[str, ...]:
        names = self.columns.asked(table.columns)
        if names is None:
            raise ValueError(
                "A table of texts has the column `text`, or `first` and `second` for pairs; "
                "rename() gives a table's columns these names. "
                f"Received: {', '.join(table.columns)}"
            )
        return names

    def prompted(self, texts: Sequence[str], prompt: str | None) -> Sequence[str]:
        before = None if prompt is None else getattr(self, f"{prompt}_prompt")
        return texts if before is None else [before + text for text in texts]

    def embed_rows(self, features: Mapping[str, Any], training: bool = False) -> Tensor:
        """The vectors of rows as they are, whatever `normalize` says.

        Args:
            features: what `build_inputs` gives, (R, T) each.
            training: whether dropout is active.

        Returns:
            (R, D) float32.
        """
        mask = features["padding_mask"]
        if self.token_pooling == "cls":
            first = self.form.cls_columns(mask)[:, None]
            vectors = self.encode(features, training, positions=first)["sequence"][:, 0]
        else:
            outputs = self.encode(features, training)
            counted = outputs.get("counted", mask)  # some encoders count fewer tokens
            sequence = ops.cast(outputs["sequence"], "float32")
            vectors = pool_tokens(sequence, counted, self.token_pooling)
        return ops.cast(self.project(vectors, training), "float32")

    def normalized(self, vectors: Tensor) -> Tensor:
        """Vectors as the task gives them: of length 1, if it is set so."""
        return unit(vectors) if self.normalize else vectors

    def written(self, answers: Sequence) -> Sequence:
        """Of texts `vector`, as a student learns it from a file; of pairs `score`, their cosine."""
        if np.ndim(answers) == 2:
            return [{"vector": vector} for vector in answers]
        return list(cosines_of(answers[:, 0], answers[:, 1]))  # type: ignore[call-overload]

    def predict(self, data: Any, *, prompt: str | None = None, **options: Any) -> Any:
        """The vectors of texts.

        Args:
            data: texts, or pairs, or one text.
            prompt: "query" or "document" puts `query_prompt` or `document_prompt` before texts; of
                pairs the first is a query and the second a document in any case.
            **options: `batch_size` and `verbose` of `FineTuningTask.predict`.

        Returns:
            (N, D) float32; of pairs (N, 2, D), of triplets (N, 3, D).

        Raises:
            ValueError: no such prompt, or data that does not fit.
        """
        options.setdefault("batch_size", self._usual_batch_size)
        return super().predict(self._with_prompt(data, prompt), **options)

    def answer_table(
        self, table: Table, options: Options, *, batch_size: int, first: int = 0
    ) -> tuple[Sequence[Any], int]:
        table = self._with_prompt(table, cast(EmbeddingOptions, options).prompt)
        return super().answer_table(table, options, batch_size=batch_size, first=first)

    def _with_prompt(self, data: Any, prompt: str | None) -> Any:
        """Texts behind what the task puts before a query or a document."""
        if prompt is None:
            return data
        if prompt not in PROMPTS or getattr(self, f"{prompt}_prompt") is None:
            raise ValueError(
                "`prompt` is query or document, and the task's setting of that name is put "
                f"before the texts. Received: prompt={prompt!r}, "
                f"query_prompt={self.query_prompt!r}, document_prompt={self.document_prompt!r}"
            )
        table = as_table([data] if isinstance(data, str | bytes) else data)
        return table.with_column("text", list(self.prompted(table["text"], prompt)))

    @property
    def _usual_batch_size(self) -> int:
        """Without layers a row costs so little that the calls of small batches would cost most."""
        return inference.BATCH_SIZE if self.encoder.config.num_layers else _ROWS_OF_A_TABLE

    def similarity(self, texts: Any, others: Any = None, **options: Any) -> np.ndarray:
        """Cosines of the vectors of texts.

        Args:
            texts: N of them, or their vectors (N, D).
            others: M of them, or their vectors; None = the same.
            **options: of `predict`.

        Returns:
            (N, M) float32.
        """
        each = [texts] if others is None else [texts, others]
        found = [unit_vectors(x if _are_vectors(x) else self.predict(x, **options)) for x in each]
        return found[0] @ found[-1].T

    def row_outputs(self, features: Mapping[str, Any]) -> dict[str, Any]:
        return {"embedding": self(features)["embedding"]}

    def signatures(self) -> dict[str, Signature]:
        """`embed`, also `serving_default`, and `embed_query` and `embed_document` with prompts.

        Returns:
            `text` (B,) strings -> `embedding` (B, D). A text that is too long is cut. Bytes that
            are not UTF-8 are dropped.
        """
        tokens = text_tokens(self.row_length)

        def entry(before: str) -> Signature:
            def texts(text: tf.Tensor) -> tf.Tensor:
                return tf.strings.join([before, text]) if before else text

            def embed(text: tf.Tensor) -> dict[str, tf.Tensor]:
                return self.row_outputs(self.build_inputs(self.tokenizer.encode(texts(text))))

            spec = [tf.TensorSpec([None], tf.string, "text")]
            return Signature(embed, spec, lambda text: tokens(texts(text)), too_long="cut")

        prompts = {f"embed_{name}": getattr(self, f"{name}_prompt") for name in PROMPTS}
        given = {name: before for name, before in prompts.items() if before is not None}
        return {name: entry(before) for name, before in {"embed": "", **given}.items()}


def unit_vectors(vectors: Any) -> np.ndarray:
    """Vectors (…, D) of length 1, as float32; zeros stay zeros."""
    vectors = np.asarray(vectors, np.float32)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def cosines_of(first: Any, second: Any) -> np.ndarray:
    """(…,) of vectors (…, D)."""
    return (unit_vectors(first) * unit_vectors(second)).sum(-1)


def _are_vectors(data: Any) -> bool:
    return not isinstance(data, str | bytes) and np.ndim(data) == 2 and not isinstance(data, Table)
