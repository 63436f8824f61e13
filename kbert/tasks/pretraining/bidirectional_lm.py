"""ELMo's pretraining: predicts the next and the previous word of one long text in every row.

Shapes: D = 2 directions (0 forward, 1 backward), B rows, T words, C characters of a word,
P projection, L layers, W entries of a row's state, V words of the softmax.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import keras
from keras import ops

from kbert.checkpoints import Checkpoint
from kbert.core.in_memory import column_or_rows
from kbert.core.types import DType, Pair, PathLike, Tensor, Tensors, Terms
from kbert.layers import Dropout
from kbert.models import Elmo
from kbert.models.elmo.elmo import words_of
from kbert.tasks.corpora import ELMO, WordsCorpus
from kbert.tasks.pretraining.row_memory import RemembersRows
from kbert.tasks.token_losses import token_losses
from kbert.tokenizers import WordTokenizer
from kbert.training.step.state import DerivedMetrics

DIRECTIONS = ("forward", "backward")
PREFIXES = ("", "reverse_")  # prefixes of a batch's features, one per direction
NEGATIVES = 8192  # bin/train_elmo.py of allenai/bilm-tf


class BidirectionalLM(RemembersRows):
    """A forward and a backward language model on the same words, with state across batches.

    (Peters et al. 2018, section 3.1, https://arxiv.org/abs/1802.05365; bilm/training.py of
    allenai/bilm-tf.) Train with `fit` on the batches of `kbert.data.language_model_dataset`. Row b
    of a batch continues where row b of the previous batch ended, and the LSTMs keep their state. No
    gradient flows into earlier batches (see `RemembersRows`).

    The loss `lm_loss` is the mean over the words of both directions. Its gradient is scaled by T,
    the words of a row, as the original multiplies its loss by T. The published clipping at 10 and
    Adagrad's initial sums of 1 assume this scale. If the vocabulary has more than `negatives`
    words, a sampled softmax estimates the loss in training. Evaluation always uses the full
    softmax. Metrics: `forward_loss`, `backward_loss` and their exponentials `forward_perplexity`,
    `backward_perplexity`. If `compile` was not called, `fit` trains with the published Adagrad at
    0.2.

    Args:
        elmo: a `kbert.Elmo` whose config has a `vocabulary_size`.
        tokenizer: the `kbert.WordTokenizer` of the softmax; None = the model's, if it has one.
        batch_size: rows of a global batch, over all devices.
        negatives: number of negative words of the sampled softmax, drawn for each direction.
        seed: seed of the sampled words.
        name: name of the model.

    Raises:
        ValueError: the model has no softmax, or a number is out of range.

    Example:
        >>> import kbert, numpy as np, tensorflow as tf
        >>> config = kbert.ElmoConfig(
        ...     filters=((1, 8),), num_highway=1, lstm_size=8, projection_size=4, vocabulary_size=6)
        >>> task = BidirectionalLM(kbert.Elmo(config), batch_size=2)
        >>> task.compile(keras.optimizers.Adagrad(0.2, 1.0), clip_norm=10.0)
        >>> words, ones = np.ones((2, 3, 50), "int32"), np.ones((2, 3), "int32")
        >>> batch = {"begins": np.zeros(2, "int32")}
        >>> for prefix in ("", "reverse_"):
        ...     batch |= {f"{prefix}character_ids": words, f"{prefix}targets": ones}
        ...     batch |= {f"{prefix}weights": ones.astype("float32")}
        >>> history = task.fit(tf.data.Dataset.from_tensors(batch).repeat(3), verbose=0).history
        >>> sorted(name for name in history if name.endswith("perplexity"))
        ['backward_perplexity', 'forward_perplexity']
    """

    shown_metrics = tuple(f"{direction}_perplexity" for direction in DIRECTIONS)
    kind = "bidirectional_lm"
    corpus_objective = WordsCorpus
    has_head = False
    derived_metrics: ClassVar[DerivedMetrics] = {
        f"{direction}_perplexity": (f"{direction}_loss", ops.exp) for direction in DIRECTIONS
    }

    def __init__(
        self,
        elmo: Elmo,
        tokenizer: WordTokenizer | None = None,
        *,
        batch_size: int,
        negatives: int = NEGATIVES,
        seed: int = 0,
        name: str = "bidirectional_lm",
    ) -> None:
        word_tokenizer: Any = elmo.tokenizer if tokenizer is None else tokenizer
        super().__init__(elmo, word_tokenizer, name=name)
        if elmo.softmax is None:
            raise ValueError(
                "A language model requires a softmax over words: set the config's vocabulary_size. "
                "Received: an Elmo with vocabulary_size=None"
            )
        for setting, number in (("batch_size", batch_size), ("negatives", negatives)):
            if number < 1:
                raise ValueError(f"`{setting}` must be at least 1. Received: {number}")
        elmo.tokenizer = word_tokenizer
        self.elmo = elmo
        self.batch_size = batch_size
        self.negatives = negatives
        self.seed = seed
        config = elmo.config
        self.output_dropout = Dropout(config.dropout)
        self.seed_generator = keras.random.SeedGenerator(seed)
        width = config.lstm_size + config.projection_size
        self.remember((config.num_layers, len(DIRECTIONS), batch_size, width))
        self.build()

    @property
    def model(self) -> Elmo:
        """The language model."""
        return self.elmo

    @property
    def model_parts(self) -> dict[str, keras.layers.Layer]:
        return {"elmo": self.elmo}

    @property
    def settings(self) -> dict[str, Any]:
        return {"batch_size": self.batch_size, "negatives": self.negatives, "seed": self.seed}

    def usual_optimizer(self, total_steps: int | None) -> keras.optimizers.Optimizer:
        """Returns the optimizer of bilm-tf: Adagrad at 0.2, with initial sums of 1."""
        return keras.optimizers.Adagrad(
            ELMO["learning_rate"], initial_accumulator_value=ELMO["initial_accumulator_value"]
        )

    def compile(
        self,
        optimizer: Any = None,
        *positional: Any,
        clip_norm: float | None = ELMO["clip_norm"],
        **settings: Any,
    ) -> None:
        """Like `kbert.training.TrainStep.compile`; micro-batches are not allowed.

        The default `clip_norm` is 10, as in the original.
        """
        super().compile(optimizer, *positional, clip_norm=clip_norm, **settings)

    def call(
        self, batch: Tensors, state: Any | None = None, training: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Runs both directions.

        Args:
            batch: `character_ids` and `reverse_character_ids` (B, T, C); other entries are ignored.
            state: (L, D, B, W) state after the previous words; None = there are none.
            training: whether dropout is active.

        Returns:
            The input of the softmax (D, B, T, P), and the state after the last word.
        """
        ids = [batch[f"{prefix}character_ids"] for prefix in PREFIXES]
        words = self.elmo.words(ops.concatenate(ids), training)  # (DB, T, P)
        words = ops.reshape(words, (len(PREFIXES), -1, *ops.shape(words)[1:]))
        layers, state = self.elmo.lstm(words, state=state, training=training)
        return self.output_dropout(layers[-1], training=training), state

    def loss_terms(self, batch: Tensors, training: bool) -> Terms:
        x, state = self(batch, state=self.recall(batch, training), training=training)
        self.keep(state, training)

        targets = [batch[f"{prefix}targets"] for prefix in PREFIXES]
        weights = [ops.cast(batch[f"{prefix}weights"], "float32") for prefix in PREFIXES]
        pairs = [
            self._losses_of(x[d], targets[d], weights[d], training) for d in range(len(DIRECTIONS))
        ]
        total = sum(loss for loss, _ in pairs)
        if training:
            total = _with_gradient_of(total, times=targets[0].shape[1])
        losses = {"lm_loss": (total, sum(count for _, count in pairs))}
        names = (f"{direction}_loss" for direction in DIRECTIONS)
        return losses, dict(zip(names, pairs, strict=True))

    def _losses_of(self, x: Tensor, targets: Tensor, weights: Tensor, training: bool) -> Pair:
        """Returns the loss of a direction, (sum of weight · loss, sum of weights).

        `x` (B, T, P) is the input of the softmax; `targets` and `weights` are (B, T). In training a
        sampled softmax estimates the loss if the vocabulary is large.
        """
        softmax: Any = self.elmo.softmax  # not None: the constructor checks it
        if not training or softmax.vocabulary_size <= self.negatives:
            output = softmax.token_output(x)
            return token_losses(output, targets, weights, training=training).smoothed
        states, words = ops.reshape(x, (-1, x.shape[-1])), ops.reshape(targets, (-1,))
        losses = softmax.sampled(states, words, self.negatives, self.seed_generator)
        return ops.sum(losses * ops.reshape(weights, (-1,))), ops.sum(weights)

    def predict(
        self, texts: str | Sequence[str | list[str]], top_k: int = 5
    ) -> list[dict[str, list[tuple[str, float]]]]:
        """Predicts the word that follows each text, and the word that precedes it.

        Args:
            texts: texts, which are split at white space, or lists of words; or one text.
            top_k: number of answers for each direction.

        Returns:
            One dict per text, with "forward" and "backward": lists of (word, probability), the
            likeliest first; see `Elmo.predict_next`.

        Raises:
            ValueError: the model has no tokenizer, or `top_k` is out of range.
        """
        rows = column_or_rows([texts] if isinstance(texts, str) else texts, ("words", "text"))
        return [self.elmo.predict_next(text, top_k) for text in rows]

    def save_to_preset(self, path: PathLike, format: str = "kbert", **options: Any) -> None:
        """Writes the model with its softmax and its words; see `Task.save_to_preset`.

        Args:
            path: folder to write to.
            format: "kbert", or "bilm" for the original's files, which have no softmax.
            **options: other arguments of `Task.save_to_preset`.
        """
        if format == "kbert":
            super().save_to_preset(path, **options)
        else:
            self.elmo.save_to_preset(path, format, **options)

    def export(self, directory: PathLike, **options: Any) -> str:
        """Writes a SavedModel that gives embeddings; see `Elmo.export`."""
        return self.elmo.export(directory, **options)

    @classmethod
    def _make_model(cls, checkpoint: Checkpoint, dtype: DType) -> Elmo:
        return Elmo(checkpoint.config, dtype=dtype)

    @classmethod
    def _read_tokenizer(cls, checkpoint: Checkpoint, folder: PathLike) -> Any:
        """Loads the words of the softmax; None if the folder is that of another task."""
        return words_of(folder)


def _with_gradient_of(loss: Tensor, times: Tensor) -> Tensor:
    """Returns the loss unchanged, with `times` its gradient."""
    return loss + (times - 1) * (loss - ops.stop_gradient(loss))
