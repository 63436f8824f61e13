"""Texts from texts by an encoder-decoder: summaries, translations, answers.

Shapes: B rows, S tokens of the source, T tokens of the target, V vocabulary, K results of a row.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
from absl import logging
from keras import ops

from kbert import inference
from kbert.checkpoints import Checkpoint
from kbert.configs.encoder import EncoderConfig
from kbert.configs.seq2seq import Seq2SeqConfig
from kbert.core.in_memory import has_columns, is_dataset
from kbert.core.late import tf
from kbert.core.options import Options
from kbert.core.protocols import TokenizerLike
from kbert.core.types import DType, Tensor, Tensors, Terms
from kbert.data.tables.rows import Rows
from kbert.data.tables.table import Table, as_table
from kbert.data.translation.framing import Framing
from kbert.data.translation.pairs import EncodedPairs
from kbert.decoding import Beam, Constraints, Decoded, DecodingOptions, Greedy, Method, Sampling
from kbert.decoding.constraints import FREE
from kbert.decoding.generation_config import (
    GenerationSettings,
    method_arguments,
    read_generation_config,
)
from kbert.decoding.loop import check_method
from kbert.metrics import bleu, chrf, rouge
from kbert.models import Encoder, PrefixSeq2Seq, Seq2Seq
from kbert.models.generators.seq2seq import INPUTS, POSITIONS
from kbert.models.initial_values import without_drawing
from kbert.models.weights import set_arrays
from kbert.signatures import Signature, text_tokens
from kbert.tasks.columns import Columns
from kbert.tasks.corpora import DenoisedCorpus
from kbert.tasks.fine_tuning.table_task import TableTask
from kbert.tasks.fine_tuning.task_options import options_of
from kbert.tasks.generation.base import (
    GenerationTask,
    answer,
    batches_of_like_width,
    check_constraints,
    check_max_new_tokens,
    check_seed,
    num_beams,
    request_seed,
)
from kbert.tasks.generation.continuation import TextStream, pieces
from kbert.tasks.generation.options import TextToTextOptions
from kbert.tasks.generation.pair_rows import PairRows, Sources, equally_many, references_of
from kbert.tasks.generation.pairs_objective import PairsObjective
from kbert.tasks.generation.source_answers import (
    SourceAnswers,
    SourceRows,
    TextPredictor,
    joined,
)
from kbert.tasks.generation.streaming import TokenStream
from kbert.tasks.input_form import TEXTS_ALONE
from kbert.tasks.loading import load_encoder
from kbert.text import Pairs
from kbert.tokenizers.base import Tokenizer
from kbert.training.step.keras_arguments import refusing_x
from kbert.training.step.state import DerivedMetrics

LONGER = 50  # tokens by which a target may exceed its source
# Settings of a task that its model was trained with: a new task on the model keeps them.
_OF_MODEL = ("generation", "special_tokens")


class TextToText(GenerationTask, TableTask):
    """An encoder-decoder that answers a text with a text: a summary, a translation, an answer.

    (BART, Lewis et al. 2020, https://arxiv.org/abs/1910.13461; T5, Raffel et al. 2020,
    https://arxiv.org/abs/1910.10683.) `fit` trains it on pairs of strings, or on a table with the
    columns `text` and `target`; a target may be a list of references. On a corpus, `fit` pretrains
    it: the model restores text that was corrupted by noise. `from_preset` of a Hugging Face folder
    decodes as its `generation_config.json` says.

    The loss `lm_loss` is the cross entropy of the target tokens, with label smoothing: the mean
    over all tokens with weight in the global batch. Metrics: `nll`, the loss without smoothing;
    `perplexity`, the exponential of `nll`; `accuracy`. `evaluate` also generates: `bleu`, `chrf`
    and the F1 of `rouge1`, `rouge2`, `rougeL` and `rougeLsum`, 0 to 100.

    The logits of a batch are float32 (B, T, V), including padding, and so are their gradients: 600
    MB each for 4,096 target tokens and a vocabulary of 37,000. `micro_batches` divides that.

    Args:
        seq2seq: a `kbert.Seq2Seq`, or a `kbert.models.PrefixSeq2Seq`.
        tokenizer: tokenizer of both sides. Its "sep" token ends source and target; its "cls" token
            begins a target, or without one its "pad" token, unless `generation` names another.
        name: name of the task.
        **options: settings:

            {options}

    Raises:
        TypeError: the model is of another class.
        ValueError: the vocabularies differ, or a value is out of range.

    Example:
        >>> import kbert
        >>> specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        >>> tokenizer = kbert.WordPieceTokenizer([*specials, "the", "sun", "shines", "sunshine"])
        >>> config = kbert.Seq2SeqConfig(vocabulary_size=9, hidden_size=8, num_layers=1,
        ...                              num_heads=2, intermediate_size=16)
        >>> task = TextToText(kbert.Seq2Seq(config), tokenizer)
        >>> history = task.fit([("the sun shines", "sunshine")], epochs=1, batch_size=1, verbose=0)
        >>> len(task.predict(["the sun shines", ""], max_new_tokens=3))
        2
    """

    kind = "text2text"
    columns = Columns(inputs=(("text",),), label="target")
    options: ClassVar[type[Options]] = TextToTextOptions
    file_answers = SourceAnswers
    row_export = SourceRows
    shown_metrics: tuple[str, ...] = ("perplexity",)
    model_classes: ClassVar[tuple[type[keras.Model], ...]] = (Seq2Seq, PrefixSeq2Seq)
    model_inputs: ClassVar[tuple[str, ...]] = INPUTS
    other_inputs: ClassVar[tuple[str, ...]] = (POSITIONS,)
    corpus_objective: ClassVar[Any] = DenoisedCorpus
    derived_metrics: ClassVar[DerivedMetrics] = {"perplexity": ("nll", ops.exp)}
    held_elsewhere = ("generation", "special_tokens", "beam_width")
    form = TEXTS_ALONE  # of rows that `tokenize` has framed
    # Share of the target tokens that are masked and predicted, as in UniLM; None = each one is
    # predicted from those before it.
    masked_share: float | None = None
    # Name of a text that the task generates, in files and exports; and of the export's signature.
    answer_name: ClassVar[str] = "output"
    signature_name: ClassVar[str] = "generate"
    # Decoding method if neither the settings nor the caller name one.
    usual_method: ClassVar[Method] = Greedy()

    def __init__(
        self,
        seq2seq: keras.Model,
        tokenizer: Tokenizer,
        *,
        name: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(seq2seq, tokenizer, name=name or self.kind)
        self.chosen = options_of(type(self), options)
        self.seq2seq = seq2seq
        rows, targets = self._target_rows, tokenizer.target
        has_own_rows = getattr(seq2seq.config, "target_vocabulary_size", None) is not None
        if targets.vocabulary_size > rows or (has_own_rows and targets is tokenizer):
            raise ValueError(
                "The targets' tokenizer must fit the decoder's table: one for both sides if they "
                "share the table, else one of their own, as a `MarianTokenizer` has. Received: "
                f"{targets.vocabulary_size} entries, {rows} rows in a table "
                f"{'of the decoder alone' if has_own_rows else 'of both sides'}"
            )
        self.pair_rows = PairRows(self)
        self._tokens = TokenStream(self)
        self.build()

    def _check_settings(self) -> None:
        super()._check_settings()
        self.pair_rows.check_lengths()
        start, rows = self.framing.start_id, self._target_rows
        if start is not None and not start < rows:
            raise ValueError(
                "generation: `decoder_start_token_id` must be an id of the decoder's table of "
                f"{rows} rows. Received: {start}"
            )
        self.decoding_settings()

    @property
    def model(self) -> keras.Model:
        """The encoder-decoder."""
        return self.seq2seq

    @property
    def settings(self) -> dict[str, Any]:
        # Defaults are omitted, so that runs of earlier versions resume.
        usual = {name: self.options.field_of(name).default for name in self.options.names()}
        chosen = self.chosen.to_dict()
        return {
            name: value
            for name, value in chosen.items()
            if name == "label_smoothing" or value != usual[name]
        }

    def _record_elsewhere(self) -> dict[str, Any]:
        """As `record`, with the decoding method in `generation`, as Hugging Face names it."""
        record, method = self.record, self._method
        record.pop("beam_width", None)
        generation = self.generation or {}
        if method != read_generation_config(generation).method:
            if isinstance(method, Beam) and method.normalisation == "wu":
                logging.warning(
                    "transformers has no length penalty of Wu et al.: the folder's beam divides by "
                    "length ** %g, so that some of its texts may differ",
                    method.length_penalty,
                )
            record["generation"] = {**generation, **method_arguments(method)}
        return record

    @property
    def _target_rows(self) -> int:
        """Rows of the decoder's token table."""
        config = self.seq2seq.config
        return getattr(config, "target_rows", config.vocabulary_size)

    @property
    def _generation(self) -> GenerationSettings:
        """How answers are decoded, by the setting `generation`."""
        chosen = getattr(self, "chosen", None)  # the base class asks before there are settings
        if chosen is None or chosen.generation is None:
            content = {}
        else:
            content = dict(chosen.generation)
            if chosen.beam_width is not None:
                content |= {"num_beams": chosen.beam_width, "do_sample": False}
        return read_generation_config(content, source="generation")

    @property
    def _rules(self) -> Constraints:
        """The constraints of `generation`; of languages the tokenizer's counts."""
        rules, begin = self._generation.constraints, self.framing.target.begin
        if not self.tokenizer.languages or not begin:
            return rules
        return dataclasses.replace(rules, forced_first_id=begin[0])

    @property
    def framing(self) -> Framing:
        """The special tokens of sources and targets, and the decoder's first token."""
        return Framing.of(self.tokenizer, self._generation.start_id, self.special_tokens)

    def loss_terms(self, batch: Tensors, training: bool) -> Terms:
        losses = self.token_losses(batch, _weights(batch), training, self.label_smoothing)
        return {"lm_loss": losses.smoothed}, {"nll": losses.plain(), "accuracy": losses.accuracy()}

    def make_objective(  # type: ignore[override]  # targets where others have labels
        self, data: Any, targets: Any = None, *, validation_data: Any = None, **settings: Any
    ) -> Any:
        on_corpus = "steps" in settings and DenoisedCorpus.takes(data)
        if targets is None and (on_corpus or _are_batches(data)):
            if validation_data is not None:
                settings["validation_data"] = validation_data
            return GenerationTask.make_objective(self, data, **settings)
        if "steps" in settings:
            held_out = None if validation_data is None else self._text_pairs(validation_data)
            pairs = self._text_pairs(data, targets)
            return PairsObjective(self, pairs, validation_data=held_out, **settings)
        return super().make_objective(data, targets, validation_data=validation_data, **settings)

    @refusing_x
    def fit(  # type: ignore[override]  # pairs where Keras has x and y
        self, data: Any, targets: Any = None, **settings: Any
    ) -> keras.callbacks.History:
        """Trains on pairs, on a corpus or on batches; compiles the task if nobody did.

        With `epochs`, a batch is a number of examples, as for every task on tables. With `steps`,
        it is a number of tokens, and held-out pairs are evaluated by losses and BLEU. Both resume
        from a `model_dir` with the same numbers.

        Args:
            data: examples, a corpus or batches. Examples are a list of (source, target), sources
                with `targets`, columns `text` and `target` in a form of `kbert.data.as_table`, a
                `kbert.text.Pairs`, or a folder of `kbert.tasks.prepare_rows`. A corpus is a folder
                of `kbert.data.prepare_corpus`, several with their shares, or text; it requires
                `steps`, and is evaluated on its own held-out text. Batches are a dataset, or a dict
                of arrays.
            targets: targets of the sources, in the same order: a string, or a list of references.
            **settings: `validation_data`, examples to evaluate on, also as a tuple of sources and
                targets; `epochs` and the fields of `FitSettings`, such as `batch_size` and
                `learning_rate`; or `steps` and the fields of `PairsSettings`, or on a corpus of
                `DenoisedSettings`, such as `noise`; and the arguments of `Task.fit`: `model_dir`,
                `resume`, `verbose`, `callbacks`.

        Returns:
            The losses and metrics of each epoch, or of the run.

        Raises:
            TypeError: an argument is unknown.
            ValueError: data or settings do not fit.
        """
        return GenerationTask.fit(self, data, targets, **settings)

    def as_table(self, data: Any, labels: Any = None) -> Table:
        """Converts pairs, or texts and their targets, to a table with `text` and `target`."""
        if labels is None and isinstance(data, tuple) and len(data) == 2:
            data, labels = data
        if not isinstance(data, Table) and not has_columns(data):
            data = list(data)
        table = as_table(data)
        names = {"first": "text", "second": "target"}
        table = table.rename({old: new for old, new in names.items() if old in table})
        return table if labels is None else table.with_column("target", labels)

    @classmethod
    def adapt_table(
        cls, table: Table, columns: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> Table:
        """Joins several columns of references to lists; an empty reference is left out."""
        names = columns.get("target")
        if not isinstance(names, list | tuple):
            return table
        rows = zip(*(table[name] for name in names), strict=True)
        return table.with_column("target", [list(filter(None, row)) for row in rows])

    def _text_pairs(self, data: Any, targets: Any = None) -> Any:
        """Returns (source, target) pairs, for a run of a number of steps."""
        if targets is None and isinstance(data, Pairs | EncodedPairs):
            return data
        table = self.as_table(data, targets)
        return list(zip(table["text"], references_of(table), strict=True))

    def tokenize(self, table: Table, labelled: bool) -> Rows:
        return self.pair_rows.rows(table, labelled)

    def assemble(self, columns: dict[str, Any]) -> dict[str, tf.Tensor]:
        return self.pair_rows.assemble(columns)

    @functools.cached_property
    def predictor(self) -> TextPredictor:
        """The `TextPredictor` that runs the task over tables."""
        return TextPredictor(self)

    def score(self, table: Table, answers: Sequence[str]) -> dict[str, float]:
        """Returns BLEU, chrF and the F1 of ROUGE-1, -2, -L and -Lsum, 0 to 100.

        Several references count as in `kbert.metrics`. ROUGE reads Latin letters and digits; it is
        left out if the references have none.
        """
        references = references_of(table)
        answers = [x if isinstance(x, str) else x[0] for x in answers]  # the best of several
        even = equally_many(references)
        scores = {"bleu": bleu(answers, even).score, "chrf": chrf(answers, even)}
        if _has_latin(references):
            found = rouge(answers, references)
            scores |= {kind: score.f1 for kind, score in found.items()}
        return scores

    def score_names(self, table: Table) -> list[str]:
        rouges = ["rouge1", "rouge2", "rougeL", "rougeLsum"]
        return ["bleu", "chrf", *(rouges if _has_latin(references_of(table)) else [])]

    @refusing_x
    def predict(  # type: ignore[override]  # texts, and how they are decoded
        self,
        data: Any,
        *,
        method: Method | None = None,
        max_new_tokens: int | None = None,
        constraints: Constraints | None = None,
        batch_size: int = inference.BATCH_SIZE,
        seed: int = 0,
        return_scores: bool = False,
        jit_compile: bool = False,
        verbose: str | int = "auto",
    ) -> Any:
        """Generates a text for each text.

        A text without tokens, such as "", is answered by "" with a score of 0. Text that the
        vocabulary has no subwords for is read as the unknown token.

        Args:
            data: strings, or one; or a table with a column `text`.
            method: decoding method of `kbert.decoding`; None = that of the task's settings, else
                greedy (a `Translator`: a beam of width 4).
            max_new_tokens: most tokens of an answer, including its end. None: as in `generation`,
                else 50 more than the source, whose length is rounded up to a multiple of 16, and at
                least the minimum of `constraints`; at most what the model's positions allow.
            constraints: rules that the tokens of an answer must obey, such as
                `kbert.decoding.Constraints(no_repeat_ngram_size=3)`; None = those of `generation`.
            batch_size: texts that go through the model together.
            seed: seed for `Sampling`; draws depend on it and on the number of the text.
            return_scores: whether scores are returned too.
            jit_compile: whether XLA compiles on TensorFlow: faster if many batches have the same
                shape, after 5 to 15 s for each shape. JAX always does.
            verbose: "auto" for a bar that appears after two seconds, 1 for one at once, 0 for none.

        Returns:
            A list of N strings, in the order of the texts; for a `Beam` with several `num_results`,
            N lists of strings, best first. With `return_scores` also the scores, (N,) or (N, K)
            float32: see `kbert.decoding.Decoded`; those of a text's windows are added.

        Raises:
            TypeError: a text is not a string.
            ValueError: with long_sources="refuse" a text is too long (the message names it), or a
                setting is out of range.
        """
        is_table = isinstance(data, Table) or has_columns(data)
        texts = self.as_table(data)["text"] if is_table else inference.as_texts(data)
        inference.check_batch_size(batch_size)
        check_seed(seed)
        settings = self.decoding_settings(method, max_new_tokens, constraints)
        sources = self.pair_rows.sources(texts)
        self.report_cut(sources.cut, len(texts))
        generated, scores = self.write(
            sources,
            len(texts),
            *settings,
            batch_size=batch_size,
            seed=seed,
            jit_compile=jit_compile,
            verbose=verbose,
        )
        return answer(generated, scores, return_scores)

    @refusing_x
    def evaluate(self, data: Any, labels: Any = None, **options: Any) -> Any:  # type: ignore[override]
        """Returns the mean loss on examples, and the metrics of the texts generated for them.

        Args:
            data: examples in the form of `fit`. For batches this is Keras' `evaluate`, with the
                losses alone.
            labels: targets of the sources, if `data` has none.
            **options: `batch_size` and `verbose`; for batches the arguments of Keras' `evaluate`.

        Returns:
            `loss`, and the values of `score`.
        """
        if labels is None and _are_batches(data):
            return GenerationTask.evaluate(self, data, **options)
        return super().evaluate(data, labels, **options)

    def stream(
        self,
        text: str,
        *,
        method: Greedy | Sampling | None = None,
        max_new_tokens: int | None = None,
        constraints: Constraints | None = None,
        seed: int = 0,
        jit_compile: bool = False,
    ) -> Iterator[str]:
        """Streams the answer to a text, piece by piece; `predict` returns the same text.

        A piece is yielded once no later token can change it: never half a character, and for
        WordPiece only whole words.

        Args:
            text: a string.
            method: `Greedy` or `Sampling`; None = greedy.
            max_new_tokens: most tokens of the answer, as in `predict`.
            constraints: rules that the tokens must obey, as in `predict`.
            seed: seed for `Sampling`.
            jit_compile: whether XLA compiles on TensorFlow; JAX always does.

        Returns:
            An iterator of strings, none of them empty.

        Raises:
            TypeError: the text is not a string.
            ValueError: a setting is out of range.
        """
        if not isinstance(text, str | bytes):
            raise TypeError(f"A text must be one string. Received: {text!r}")
        check_seed(seed)
        settings = self.decoding_settings(method or Greedy(), max_new_tokens, constraints)
        method, longest, rules = settings
        ids = self.pair_rows.sources([text]).ids
        if not len(ids[0]):
            return iter(())
        if len(ids) > 1:
            raise ValueError(
                'A text that is streamed must fit the model, also with long_sources="windows". '
                f"Received: a text of {len(ids)} windows"
            )
        width, _ = next(batches_of_like_width(np.array([len(ids[0])]), self.row_length, 1))
        features = self.pair_rows.features(ids, width)
        rules = self._begun(rules)
        numbers = self._tokens(
            features,
            method=method,
            max_new_tokens=self._longest(longest, width, rules),
            stop_ids=self.stop_ids,
            banned_ids=self.banned_ids(self.stop_ids),
            constraints=rules,
            prefix=np.array([[self.framing.start_id]]) if rules.reads_tokens else None,
            seed=seed if isinstance(method, Sampling) else None,
            jit_compile=jit_compile,
        )
        text_ids = (number for number in numbers if number not in self.stop_ids)
        return _stripped_pieces(pieces(TextStream(self.tokenizer.target, [], ()), text_ids))

    def decoding_settings(
        self,
        method: Method | None = None,
        max_new_tokens: int | None = None,
        constraints: Constraints | None = None,
    ) -> tuple[Method, int | None, Constraints]:
        """Returns how answers are decoded: the arguments, and for None the task's settings.

        The number of new tokens is None if it depends on the source.

        Raises:
            ValueError: a setting is out of range.
        """
        usual = self._generation
        if constraints is None:
            constraints = self._rules
        if max_new_tokens is None and usual.max_new_tokens is not None:
            max_new_tokens = min(usual.max_new_tokens, self.new_tokens_limit)
        method = self._method if method is None else method
        check_method(method)
        if max_new_tokens is not None:
            check_max_new_tokens(max_new_tokens, self.new_tokens_limit)
        check_constraints(constraints, max_new_tokens or self.new_tokens_limit)
        return method, max_new_tokens, constraints

    @property
    def _method(self) -> Method:
        """Decoding method of the task's settings."""
        width, usual = self.beam_width, self.usual_method
        if self.generation is not None:
            return self._generation.method
        if width is None:
            return usual
        if width == 1:
            return Greedy()
        return dataclasses.replace(usual if isinstance(usual, Beam) else Beam(), width=width)

    def decoding_of(self, options: DecodingOptions) -> tuple[Method, int | None, Constraints]:
        method, longest, constraints = super().decoding_of(options)
        if self._runtime is None and options.is_usual:
            return self.decoding_settings()
        return self.decoding_settings(method, longest, constraints)

    @property
    def new_tokens_limit(self) -> int:
        """Most new tokens of an answer: one position is for the start token."""
        return self.seq2seq.max_length - 1

    def write(
        self,
        sources: Sources,
        count: int,
        method: Method,
        max_new_tokens: int | None,
        constraints: Constraints,
        **how: Any,
    ) -> tuple[list[list[str]], np.ndarray]:
        """Generates K texts for each of `count` texts; returns them and their scores (`count`, K).

        Args:
            sources: rows of the texts, from `PairRows.sources`.
            count: number of texts.
            method: decoding method.
            max_new_tokens: most tokens of an answer; None depends on the source.
            constraints: rules that the tokens must obey.
            **how: other arguments of `write_each`.
        """

        def batch(rows: np.ndarray, width: int) -> tuple[dict[str, Any], int]:
            longest = self._longest(max_new_tokens, width, constraints)
            return self.pair_rows.features([sources.ids[row] for row in rows], width), longest

        def texts(rows: np.ndarray, decoded: Decoded) -> list[list[str]]:
            return [[text.decode() for text in row] for row in self._texts(decoded).numpy()]

        lengths = np.array([len(ids) for ids in sources.ids], int)
        how["constraints"] = constraints
        written = self.write_each(lengths, self.seq2seq.max_length, batch, texts, method, **how)
        return joined(*written, sources.examples, count)

    def _longest(self, max_new_tokens: int | None, width: int, constraints: Constraints) -> int:
        """Returns the most new tokens for sources of `width` tokens; see `predict` for None."""
        usual = max(width + LONGER, constraints.min_new_tokens)
        return max_new_tokens or min(usual, self.new_tokens_limit)

    @property
    def row_length(self) -> int:
        """Most tokens of a source, special tokens included."""
        return self.max_length or self.seq2seq.max_length

    @property
    def pair_length(self) -> int:
        """Most tokens of a source and of a target, in batches of a number of tokens."""
        return min(self.row_length, self.max_target_length or self.row_length)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return self._generation.stop_ids or (self.tokenizer.target.sep_id,)

    def banned_ids(self, stop_ids: Sequence[int]) -> tuple[int, ...]:
        tokenizer, rules = self.tokenizer.target, self._rules
        inputs = {tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.mask_id}
        banned = {*inputs, *range(tokenizer.vocabulary_size, self._target_rows)}
        forced = {rules.forced_first_id, rules.forced_last_id, *self.framing.target.begin}
        return tuple(sorted(banned - {None, *stop_ids, *forced}))

    def decode(  # type: ignore[override]  # of `GenerationTask`, not of tables
        self,
        features: dict[str, Any],
        method: Method,
        max_new_tokens: int,
        stop_ids: Sequence[int] | None = None,
        constraints: Constraints = FREE,
    ) -> Decoded:
        rules = self._begun(constraints)
        return super().decode(features, method, max_new_tokens, stop_ids, rules)

    def _begun(self, constraints: Constraints) -> Constraints:
        """Returns constraints that force the token which begins every target, if there is one."""
        if not self.framing.target.begin or constraints.forced_first_id is not None:
            return constraints
        return dataclasses.replace(constraints, forced_first_id=self.framing.target.begin[0])

    def prefill(self, features: Tensors, max_new_tokens: int) -> Any:
        ids = features["encoder_token_ids"]
        start_ids = ops.full_like(ids[:, 0], self.framing.start_id)
        mask = features["encoder_padding_mask"]
        return self.seq2seq.prefill(ids, mask, max_new_tokens, start_ids)

    def prefix_ids(self, features: dict[str, Any]) -> Tensor:
        ids = features["encoder_token_ids"]
        return ops.full_like(ids[:, :1], self.framing.start_id, dtype="int32")

    def _texts(self, decoded: Any) -> tf.Tensor:
        """Returns the texts of `Decoded` tokens, stripped of white space, as (B, K) strings."""
        with tf.device("CPU"):
            # Byte-level tokens begin with the space before a word, even before the first word.
            texts = tf.strings.strip(self.tokenizer.target.decode(self.new_ids(decoded)))
            return tf.reshape(texts, tf.shape(decoded.scores))

    def signatures(
        self,
        method: Method | None = None,
        max_new_tokens: int | None = None,
        seed: int | None = None,
        constraints: Constraints | None = None,
    ) -> dict[str, Signature]:
        """Returns the one signature of the task, which is also `serving_default`.

        Args:
            method: decoding method of `kbert.decoding`; None = the task's.
            max_new_tokens: most tokens of an answer; None = the task's, else as many as the model
                has positions for.
            seed: seed for `Sampling`; None draws a new one for each request.
            constraints: rules that the tokens of an answer must obey; None = the task's.

        Returns:
            `generate`: `text` (B,) strings -> `output` (B, K) strings, best first, and `scores`
            (B, K); for a `Translator` `translate`, with `translation`. A text without tokens gives
            "" and 0. A text that is too long for the model is truncated at its end, whatever
            `long_sources` says.
        """
        method, longest, rules = self.decoding_settings(method, max_new_tokens, constraints)
        new_tokens = self.new_tokens_limit if longest is None else longest
        if seed is not None:
            check_seed(seed)

        def generate(text: tf.Tensor, row_numbers: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
            with tf.device("CPU"):
                # An empty request gets one dummy row, which is removed from the result.
                rows = tf.shape(text)[0]
                text = tf.pad(text, [[0, tf.cast(rows == 0, tf.int32)]], constant_values="")
                features, is_empty = self.pair_rows.served(tf.strings.strip(text))
            features |= request_seed(method, seed, tf.shape(text)[0], row_numbers)
            decoded = self.decode(features, method, new_tokens, constraints=rules)
            return {
                self.answer_name: tf.where(is_empty, "", self._texts(decoded))[:rows],
                "scores": tf.where(is_empty, 0.0, decoded.scores)[:rows],
            }

        def tokens(text: tf.Tensor) -> tf.Tensor:
            source = text_tokens(self.row_length)(text)
            return (source + new_tokens) * num_beams(method)

        spec = [tf.TensorSpec([None], tf.string, "text")]
        entry = Signature(generate, spec, tokens, too_long="cut", numbered=True)
        return {self.signature_name: entry}

    @classmethod
    def _make_model(cls, checkpoint: Checkpoint, dtype: DType) -> keras.Model:
        model = super()._make_model(checkpoint, dtype)
        return PrefixSeq2Seq(model) if isinstance(model, Encoder) else model

    @classmethod
    def _without_heads(
        cls, checkpoint: Checkpoint, tokenizer: TokenizerLike, dtype: DType, strict: bool
    ) -> keras.Model:
        """Returns the encoder-decoder of a folder; from an encoder, one that starts with it.

        Both sides of the latter start with the encoder's weights. `checkpoint` is the content of
        the folder; with `strict` all of its weights must fit.
        """
        if isinstance(checkpoint.config, Seq2SeqConfig):
            with without_drawing():
                model = cls._make_model(checkpoint, dtype)
                arrays = checkpoint.part(f"{Seq2Seq.prefix}/")
                set_arrays(model, Seq2Seq.prefix, arrays, checkpoint.source, strict)
            return model
        checkpoint.expect(EncoderConfig)
        encoder = load_encoder(checkpoint, tokenizer, dtype, strict=strict, pooler=False)
        return Seq2Seq.from_encoder(encoder)

    @classmethod
    def _settings_of_model(cls, checkpoint: Checkpoint) -> dict[str, Any]:
        saved = checkpoint.task or {}
        return {name: saved[name] for name in _OF_MODEL if name in saved}


def _has_latin(references: Sequence[Sequence[str]]) -> bool:
    """Whether a reference has a token of ROUGE: a letter from a to z, or a digit."""
    return any(re.search("[a-z0-9]", text.lower()) for row in references for text in row)


def _weights(batch: Tensors) -> Tensor:
    """Returns the weights (B, T) of a batch's targets, with those of its examples."""
    weights = ops.cast(batch["weights"], "float32")
    examples = batch.get("label_weights")
    return weights if examples is None else weights * ops.cast(examples, "float32")[:, None]


def _are_batches(data: Any) -> bool:
    """Whether data are batches: a dataset, or a dict of arrays, with "encoder_token_ids"."""
    batch = data.element_spec if is_dataset(data) else data
    return isinstance(batch, Mapping) and "encoder_token_ids" in batch


def _stripped_pieces(pieces: Iterator[str]) -> Iterator[str]:
    """Yields the pieces of a text without white space at its two ends."""
    begun, held = False, ""
    for piece in pieces:
        text = held + piece if begun else piece.lstrip()
        shown = text.rstrip()
        held = text[len(shown) :]
        begun = begun or bool(shown)
        if shown:
            yield shown
