"""Translation of sentences into another language.

Shapes: B rows, S tokens of the source, T tokens of the target, V vocabulary, K results of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, cast

import keras
import numpy as np
from keras import ops

from kbert import inference
from kbert.checkpoints import Checkpoint
from kbert.configs.encoder import EncoderConfig
from kbert.core.late import tf
from kbert.core.options import Options
from kbert.core.protocols import TokenizerLike
from kbert.core.types import DType, Tensor, Tensors, Terms
from kbert.data.tables.table import Table
from kbert.decoding import Beam, Constraints, Decoded, DecodingOptions, Method
from kbert.decoding.constraints import FREE
from kbert.decoding.loop import check_method
from kbert.models import Encoder, PrefixSeq2Seq, Seq2Seq
from kbert.models.generators.seq2seq import INPUTS, POSITIONS
from kbert.signatures import Signature, text_tokens
from kbert.tasks.corpora import DenoisedCorpus
from kbert.tasks.file_answers import FileAnswers
from kbert.tasks.generation.base import (
    GenerationTask,
    WrittenRows,
    answer,
    check_constraints,
    check_max_new_tokens,
    check_seed,
    num_beams,
    padded,
    request_seed,
    tokenize,
    written,
)
from kbert.tasks.generation.options import TranslationOptions
from kbert.tasks.generation.pairs_objective import (
    TRANSFORMER,
    TRANSFORMER_WARMUP,
    PairsObjective,
)
from kbert.tasks.generation.translation_batches import (
    held_out_batches,
    holds_pairs,
    pair_batches,
    pairs_of,
)
from kbert.tasks.loading import load_encoder
from kbert.tasks.losses import accuracy, smoothed_cross_entropy
from kbert.tokenizers.base import Tokenizer
from kbert.training.optimization.optimizers import AdamW
from kbert.training.optimization.schedules import WarmupDecay
from kbert.training.optimization.settings import default_warmup
from kbert.training.step.state import DerivedMetrics

MAX_TOKENS = 4096  # tokens per side of a batch
LONGER = 50  # tokens by which a target may exceed its source
BEAM = Beam()  # width 4, length penalty 0.6


class SourceRows(WrittenRows):
    """Export of a `Translator`: rows are sources, outputs their translations."""

    inputs = ("encoder_token_ids", "encoder_padding_mask")

    def settings(  # type: ignore[override]  # arguments of `export`
        self,
        method: Method = BEAM,
        max_new_tokens: int | None = None,
        constraints: Constraints = FREE,
    ) -> dict[str, Any]:
        """Returns the settings that an export to another runtime fixes.

        Args:
            method: `Greedy` or `Beam`.
            max_new_tokens: most tokens of a translation; None = as many as the model has positions
                for. Each step reads the cache of all of them, so fewer are faster.
            constraints: rules that the tokens of a translation must obey.

        Raises:
            ValueError: a setting is out of range.
        """
        limit = self.task._max_new_tokens
        new_tokens = limit if max_new_tokens is None else max_new_tokens
        check_max_new_tokens(new_tokens, limit)
        return self.settings_of(method, new_tokens, self.task.stop_ids, constraints)

    def samples(self, texts: Sequence[str], **settings: Any) -> list[dict[str, tf.Tensor]]:
        """Returns two batches to check the export on: the first source, and all, truncated."""
        task = self.task
        sources = tokenize(task.tokenizer, [_stripped(text) for text in texts])
        ids = [x[: task._max_new_tokens] for x in sources]
        batches = [task._features(x, max(map(len, x)) + 1) for x in (ids[:1], ids)]
        return [{name: tf.constant(x) for name, x in batch.items()} for batch in batches]


class SourceAnswers(FileAnswers):
    """Translations of the records of a file."""

    program = "kbert-translate"
    options = TranslationOptions
    at_once = 256  # each takes many steps

    def answer(
        self, table: Table, options: Options, *, batch_size: int, first: int = 0
    ) -> tuple[Sequence[Any], int]:
        """Translates the column `text`; returns records and the number of truncated sources.

        A source that is too long is truncated, while `predict` raises. `options` are
        `TranslationOptions`; `first` is the number of the first record in the whole input.
        """
        task = self.task
        decoding = cast(DecodingOptions, options)
        method, max_new_tokens, constraints = task.decoding_of(decoding)
        task._check_limits(max_new_tokens, constraints)
        sources = tokenize(task.tokenizer, [_stripped(text) for text in table["text"]])
        limit = task.seq2seq.max_length - 1
        translations, scores = task._translate(
            [ids[:limit] for ids in sources],
            method,
            max_new_tokens,
            constraints,
            batch_size=batch_size,
            seed=decoding.seed or 0,
            jit_compile=decoding.jit_compile,
            first=first,
        )
        return written("translation", translations, scores), sum(len(x) > limit for x in sources)


class Translator(GenerationTask):
    """An encoder-decoder that translates, trained on sentence pairs.

    (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762.) Train with `fit` on the batches of
    `kbert.data.translation_dataset`, or on pairs of strings. On a corpus, `fit` pretrains it: the
    model restores text that was corrupted by noise (BART, T5, MASS, PEGASUS). The loss `lm_loss` is
    the cross entropy of the target tokens with label smoothing (section 5.4): the mean over all
    tokens with weight in the global batch. Metrics: `nll`, the loss without smoothing;
    `perplexity`, the exponential of `nll`; `accuracy`.

    The logits of a batch are float32 (B, T, V), including padding, and so are their gradients: 600
    MB each for 4,096 target tokens and a vocabulary of 37,000. `micro_batches` of `compile` divides
    that.

    Args:
        seq2seq: a `kbert.Seq2Seq`, or a `kbert.models.PrefixSeq2Seq`.
        tokenizer: tokenizer of both languages. Its "cls" token starts a target, its "sep" token
            ends source and target.
        label_smoothing: share of the label that is spread over the vocabulary.
        name: name of the task.

    Raises:
        TypeError: the model is of another class.
        ValueError: the vocabularies differ, or a value is out of range.

    Example:
        >>> import kbert
        >>> specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        >>> tokenizer = kbert.WordPieceTokenizer([*specials, "the", "sun", "die", "sonne"])
        >>> config = kbert.Seq2SeqConfig(vocabulary_size=9, hidden_size=8, num_layers=1,
        ...                              num_heads=2, intermediate_size=16)
        >>> translator = Translator(kbert.Seq2Seq(config), tokenizer)
        >>> len(translator.predict(["the sun", ""], max_new_tokens=3))
        2
    """

    kind = "translate"
    file_answers = SourceAnswers
    shown_metrics = ("perplexity", "bleu")
    model_classes = (Seq2Seq, PrefixSeq2Seq)
    model_inputs = INPUTS
    other_inputs = (POSITIONS,)
    corpus_objective = DenoisedCorpus
    row_export = SourceRows
    derived_metrics: ClassVar[DerivedMetrics] = {"perplexity": ("nll", ops.exp)}

    def __init__(
        self,
        seq2seq: keras.Model,
        tokenizer: Tokenizer,
        *,
        label_smoothing: float = 0.1,
        name: str = "translator",
    ) -> None:
        super().__init__(seq2seq, tokenizer, name=name)
        if tokenizer.cls_id is None:
            raise ValueError(
                'The tokenizer\'s special_tokens must name a "cls" token, which begins a target. '
                f"Received: a {type(tokenizer).__name__} without one"
            )
        if getattr(seq2seq.config, "target_vocabulary_size", None) is not None:
            raise ValueError(
                "A Translator has one tokenizer, so source and target must share their vocabulary: "
                "`target_vocabulary_size` of the model must be None. Received: "
                f"target_vocabulary_size={seq2seq.config.target_vocabulary_size}"
            )
        if not 0 <= label_smoothing < 1:
            raise ValueError(
                "`label_smoothing` must be at least 0 and less than 1. "
                f"Received: label_smoothing={label_smoothing!r}"
            )
        self.seq2seq = seq2seq
        self.label_smoothing = label_smoothing
        self.build()

    @property
    def model(self) -> keras.Model:
        """The encoder-decoder."""
        return self.seq2seq

    @property
    def settings(self) -> dict[str, Any]:
        return {"label_smoothing": self.label_smoothing}

    def loss_terms(self, batch: Tensors, training: bool) -> Terms:
        targets, weights = batch["targets"], batch["weights"]
        logits = self(batch, training=training)
        smoothed, plain = smoothed_cross_entropy(logits, targets, weights, self.label_smoothing)
        return {"lm_loss": smoothed}, {"nll": plain, "accuracy": accuracy(logits, targets, weights)}

    def usual_optimizer(self, total_steps: int | None) -> keras.optimizers.Optimizer:
        """Returns the paper's Adam: β2 = 0.98, linear warm-up, then inverse square root decay.

        The peak learning rate is that of the paper's base model, 7e-4. Warm-up is 4,000 steps, but
        at most a tenth of the run if its length is known.
        """
        total, warmup = 10 * TRANSFORMER_WARMUP, TRANSFORMER_WARMUP
        if total_steps is not None:
            total, warmup = total_steps, max(1, default_warmup(total_steps, TRANSFORMER_WARMUP))
        defaults: dict[str, Any] = dict(TRANSFORMER)
        schedule = WarmupDecay(
            defaults.pop("learning_rate"), total, warmup, decay=defaults.pop("decay")
        )
        return AdamW(schedule, **defaults)

    def make_objective(  # type: ignore[override]  # targets where others have labels
        self,
        data: Any,
        targets: Sequence[str] | None = None,
        *,
        validation_data: Any = None,
        **settings: Any,
    ) -> Any:
        if targets is None and DenoisedCorpus.takes(data):
            return super().make_objective(data, **settings)
        if not holds_pairs(data, targets):
            if validation_data is not None:
                settings["validation_data"] = held_out_batches(self, validation_data, MAX_TOKENS)
            return super().make_objective(data, targets, **settings)
        if "steps" in settings:
            held_out = None if validation_data is None else pairs_of(validation_data)
            pairs = pairs_of(data, targets)
            return PairsObjective(self, pairs, validation_data=held_out, **settings)
        names = ("max_tokens", "max_length", "seed")
        batch_options = {name: settings.pop(name) for name in names if name in settings}
        batch_options = {"max_tokens": MAX_TOKENS, **batch_options}
        epochs = settings.get("epochs", 1)
        batches = pair_batches(self, data, targets, epochs=epochs, **batch_options)
        if settings.get("steps_per_epoch") is None:
            settings["steps_per_epoch"] = int(batches.cardinality()) // epochs
        if validation_data is not None:
            max_tokens = batch_options["max_tokens"]
            settings["validation_data"] = held_out_batches(self, validation_data, max_tokens)
        return super().make_objective(batches, **settings)

    def fit(  # type: ignore[override]  # pairs where Keras has x and y
        self,
        data: Any,
        targets: Sequence[str] | None = None,
        **settings: Any,
    ) -> keras.callbacks.History:
        """Trains on pairs of strings, on a corpus or on batches; compiles it if nobody did.

        With `steps`, held-out pairs are evaluated by losses and BLEU, and a run with a `model_dir`
        resumes to the same numbers. With `epochs`, and on batches, this is Keras' `fit`.

        Args:
            data: pairs or batches. Pairs are a list of (source, target), sources with `targets`,
                columns `first` and `second` as in `kbert.data.as_table`, the result of
                `kbert.text.read_pairs`, or a `kbert.data.translation.pairs.EncodedPairs`. Batches
                are a dataset, or a dict of arrays. A corpus is a folder of
                `kbert.data.prepare_corpus`, several with their shares, or text; it requires
                `steps`, takes the fields of `DenoisedSettings`, such as `noise`, and is evaluated
                on its own held-out text.
            targets: translations of the sources, in the same order.
            **settings: `validation_data`, data to evaluate on, in the forms of `data` or as a tuple
                of sources and targets; `max_tokens`, the most tokens per side of a batch, including
                padding; `max_length`, the most tokens of a text: pairs with longer ones are skipped
                and counted in the log; `seed` of the order; `epochs` and `steps_per_epoch`, or
                `steps` and the fields of `PairsSettings`; and the arguments of `Task.fit`:
                `model_dir`, `resume`, `verbose`, `callbacks`.

        Returns:
            The losses and metrics of each epoch, or of the run.

        Raises:
            TypeError: an argument is unknown.
            ValueError: the numbers of sources and targets differ, there are no pairs, or an element
                is not a pair of strings.
        """
        return super().fit(data, targets, **settings)

    def evaluate(  # type: ignore[override]  # as `fit`
        self,
        x: Any = None,
        targets: Sequence[str] | None = None,
        *,
        max_tokens: int = MAX_TOKENS,
        **kwargs: Any,
    ) -> Any:
        """Computes losses and metrics on batches, or on pairs of strings; see `fit` for both.

        Args:
            x: pairs or batches, as `data` of `fit`.
            targets: translations of the sources, in the same order.
            max_tokens: most tokens per side of a batch of pairs, including padding.
            **kwargs: other arguments of Keras' `evaluate`, such as return_dict and verbose.

        Returns:
            The result of Keras' `evaluate`.
        """
        pairs = x if targets is None else (x, targets)
        return super().evaluate(held_out_batches(self, pairs, max_tokens), **kwargs)

    @classmethod
    def _make_model(cls, checkpoint: Checkpoint, dtype: DType) -> keras.Model:
        model = super()._make_model(checkpoint, dtype)
        return PrefixSeq2Seq(model) if isinstance(model, Encoder) else model

    @classmethod
    def _without_heads(
        cls, checkpoint: Checkpoint, tokenizer: TokenizerLike, dtype: DType, strict: bool
    ) -> keras.Model:
        """Returns a `Seq2Seq` whose two sides start with the weights of a folder's encoder.

        `checkpoint` is the content of the folder; with `strict` all of its weights must fit.
        """
        checkpoint.expect(EncoderConfig)
        encoder = load_encoder(checkpoint, tokenizer, dtype, strict=strict, pooler=False)
        return Seq2Seq.from_encoder(encoder)

    def prefill(self, features: Tensors, max_new_tokens: int) -> Any:
        ids = features["encoder_token_ids"]
        start_ids = ops.full_like(ids[:, 0], self.tokenizer.cls_id)
        return self.seq2seq.prefill(
            ids, features["encoder_padding_mask"], max_new_tokens, start_ids
        )

    def prefix(self, features: dict[str, Any]) -> Tensor:
        ids = features["encoder_token_ids"]
        return ops.full_like(ids[:, :1], self.tokenizer.cls_id, dtype="int32")

    def predict(
        self,
        texts: str | Sequence[str],
        *,
        method: Method = BEAM,
        max_new_tokens: int | None = None,
        constraints: Constraints = FREE,
        batch_size: int = inference.BATCH_SIZE,
        seed: int = 0,
        return_scores: bool = False,
        jit_compile: bool = False,
        verbose: str | int = "auto",
    ) -> Any:
        """Translates texts.

        A text without tokens, such as "", is translated to "" with a score of 0. Text that the
        vocabulary has no subwords for is read as the unknown token.

        Args:
            texts: strings, or one.
            method: decoding method of `kbert.decoding`.
            max_new_tokens: most tokens of a translation, including its end. None: 50 more than the
                source, whose length is rounded up to a multiple of 16, and at least the minimum of
                `constraints`; at most what the model's positions allow.
            constraints: rules that the tokens of a translation must obey, such as
                `kbert.decoding.Constraints(no_repeat_ngram_size=3)`.
            batch_size: texts that go through the model together.
            seed: seed for `Sampling`; draws depend on it and on the number of the text.
            return_scores: whether scores are returned too.
            jit_compile: whether XLA compiles on TensorFlow: faster if many batches have the same
                shape, after 5 to 15 s for each shape. JAX always does.
            verbose: "auto" for a bar that appears after two seconds, 1 for one at once, 0 for none.

        Returns:
            A list of N strings, in the order of the texts; for a `Beam` with several `num_results`,
            N lists of strings, best first. With `return_scores` also the scores, (N,) or (N, K)
            float32: see `kbert.decoding.Decoded`.

        Raises:
            TypeError: a text is not a string.
            ValueError: a text is longer than the model's positions (the message names the text), or
                a setting is out of range.
        """
        texts = inference.as_texts(texts)
        inference.check_batch_size(batch_size)
        check_method(method)
        check_seed(seed)
        self._check_limits(max_new_tokens, constraints)
        translations, scores = self._translate(
            self.source_ids(texts),
            method,
            max_new_tokens,
            constraints,
            batch_size=batch_size,
            seed=seed,
            jit_compile=jit_compile,
            verbose=verbose,
        )
        return answer(translations, scores, return_scores)

    def _translate(
        self,
        sources: Sequence[np.ndarray],
        method: Method,
        max_new_tokens: int | None,
        constraints: Constraints,
        **how: Any,
    ) -> tuple[list[list[str]], np.ndarray]:
        """Returns K translations of each of N sources, and their scores (N, K).

        `sources` are the token ids of each source, without the end token. `how`: other arguments
        of `write_each`.
        """

        def batch(rows: np.ndarray, width: int) -> tuple[dict[str, Any], int]:
            usual = max(width + LONGER, constraints.min_new_tokens)
            longest = max_new_tokens or min(usual, self._max_new_tokens)
            return self._features([sources[row] for row in rows], width), longest

        def texts(rows: np.ndarray, decoded: Decoded) -> list[list[str]]:
            return [[text.decode() for text in row] for row in self._texts(decoded).numpy()]

        lengths = np.array([len(ids) + (len(ids) > 0) for ids in sources], int)  # with the end
        how["constraints"] = constraints
        return self.write_each(lengths, self.seq2seq.max_length, batch, texts, method, **how)

    def _check_limits(self, max_new_tokens: int | None, constraints: Constraints) -> None:
        """Raises ValueError if the limits exceed the model's positions or each other."""
        if max_new_tokens is not None:
            check_max_new_tokens(max_new_tokens, self._max_new_tokens)
        check_constraints(constraints, max_new_tokens or self._max_new_tokens)

    def source_ids(self, texts: Sequence[str | bytes]) -> list[np.ndarray]:
        """Returns the token ids of each source, without the end token.

        White space around a text is removed: for byte-level tokens a line with its line break would
        be another text.

        Args:
            texts: strings to translate.

        Raises:
            ValueError: a text is longer than the model's positions.
        """
        sources = tokenize(self.tokenizer, [_stripped(text) for text in texts])
        self._check_lengths(np.array([len(ids) + 1 for ids in sources], int), texts)
        return sources

    @property
    def row_length(self) -> int:
        """Most tokens of a source, including its end."""
        return self.seq2seq.max_length

    @property
    def _max_new_tokens(self) -> int:
        """Most new tokens of a target: one position is for the start token."""
        return self.seq2seq.max_length - 1

    def _check_lengths(self, lengths: Any, texts: Sequence[str | bytes]) -> None:
        """Raises ValueError if a source has more tokens than the model supports.

        `lengths` (N,) are the numbers of tokens of `texts`, including the end token.
        """
        max_length = self.seq2seq.max_length
        too_long = np.flatnonzero(lengths > max_length)
        if len(too_long):
            first = too_long[0]
            start = texts[first][:40]
            raise ValueError(
                f"A source must have at most {max_length - 1} tokens (the model's maximum is "
                f"{max_length}, including the end token): split it into sentences. "
                f"Received: {lengths[first] - 1} "
                f"tokens in text {first}, which begins {start!r}; {len(too_long)} of "
                f"{len(texts)} are too long"
            )

    def _features(self, sources: Any, width: int) -> dict[str, np.ndarray]:
        """Returns the encoder's token ids and padding mask, (B, width) int32 each.

        `sources` are the token ids of each source; the end token is appended here.
        """
        pad_id = self.tokenizer.sep_id if self.tokenizer.pad_id is None else self.tokenizer.pad_id
        rows = [np.append(ids, self.tokenizer.sep_id) for ids in sources]
        ids, mask = padded(rows, width, pad_id)
        return {"encoder_token_ids": ids, "encoder_padding_mask": mask}

    def _texts(self, decoded: Any) -> tf.Tensor:
        """Returns the texts of `Decoded` tokens, stripped of white space, as (B, K) strings."""
        with tf.device("CPU"):
            # Byte-level tokens begin with the space before a word, even before the first word.
            texts = tf.strings.strip(self.tokenizer.decode(self.new_ids(decoded)))
            return tf.reshape(texts, tf.shape(decoded.scores))

    def signatures(
        self,
        method: Method = BEAM,
        max_new_tokens: int | None = None,
        seed: int | None = None,
        constraints: Constraints = FREE,
    ) -> dict[str, Signature]:
        """Returns the signature `translate`, which is also `serving_default`.

        Args:
            method: decoding method of `kbert.decoding`.
            max_new_tokens: most tokens of a translation; None = as many as the model has positions
                for.
            seed: seed for `Sampling`; None draws a new one for each request.
            constraints: rules that the tokens of a translation must obey.

        Returns:
            `translate`: `text` (B,) strings -> `translation` (B, K) strings, best first, and
            `scores` (B, K). A text without tokens gives "" and 0. A text that is too long for the
            model is truncated at its end, while `predict` raises.
        """
        check_method(method)
        new_tokens = self._max_new_tokens if max_new_tokens is None else max_new_tokens
        self._check_limits(new_tokens, constraints)
        if seed is not None:
            check_seed(seed)

        def translate(
            text: tf.Tensor, row_numbers: tf.Tensor | None = None
        ) -> dict[str, tf.Tensor]:
            with tf.device("CPU"):
                # An empty request gets one dummy row, which is removed from the result.
                rows = tf.shape(text)[0]
                text = tf.pad(text, [[0, tf.cast(rows == 0, tf.int32)]], constant_values="")
                ids = self.tokenizer.encode(tf.strings.strip(text))[:, : self._max_new_tokens]
                ends = tf.fill([tf.shape(text)[0], 1], self.tokenizer.sep_id)
                source_ids = tf.concat([ids, ends], axis=1)
                mask = tf.ones_like(source_ids).to_tensor()
            features = {"encoder_token_ids": source_ids.to_tensor(), "encoder_padding_mask": mask}
            features |= request_seed(method, seed, tf.shape(text)[0], row_numbers)
            decoded = self.decode(features, method, new_tokens, constraints=constraints)
            is_empty = (ids.row_lengths() == 0)[:, None]
            return {
                "translation": tf.where(is_empty, "", self._texts(decoded))[:rows],
                "scores": tf.where(is_empty, 0.0, decoded.scores)[:rows],
            }

        def tokens(text: tf.Tensor) -> tf.Tensor:
            source = text_tokens(self.seq2seq.max_length)(text)
            return (source + new_tokens) * num_beams(method)

        spec = [tf.TensorSpec([None], tf.string, "text")]
        entry = Signature(translate, spec, tokens, too_long="cut", numbered=True)
        return {"translate": entry}


def _stripped(text: str | bytes) -> str | bytes:
    """Strips ASCII white space from both ends, as TensorFlow does."""
    return text.strip(" \t\n\r\v\f") if isinstance(text, str) else text.strip()
