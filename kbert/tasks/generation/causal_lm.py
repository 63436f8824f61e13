"""Causal language model: trained on text, it continues a prompt.

Shapes: B rows, T tokens, P tokens of a prompt, V vocabulary, K results of a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, cast

import keras
import numpy as np
from keras import ops

from kbert import inference
from kbert.core.late import tf
from kbert.core.options import Options
from kbert.core.types import Tensor, Tensors, Terms
from kbert.data.tables.table import Table
from kbert.decoding import Constraints, Decoded, Greedy, Method, Sampling
from kbert.decoding.constraints import FREE
from kbert.decoding.loop import check_method
from kbert.models.generators.decoder import Decoder
from kbert.signatures import Signature, text_tokens
from kbert.tasks.corpora import GPT, GPT_WARMUP, CausalCorpus
from kbert.tasks.file_answers import FileAnswers
from kbert.tasks.generation.base import (
    SHORTEST,
    GenerationTask,
    WrittenRows,
    answer,
    batches_of_like_width,
    check_constraints,
    check_max_new_tokens,
    check_seed,
    is_integer,
    num_beams,
    padded,
    request_seed,
    tokenize,
    written,
)
from kbert.tasks.generation.continuation import TextStream, continuations, cut, pieces
from kbert.tasks.generation.likelihood import Likelihood
from kbert.tasks.generation.options import GenerationOptions
from kbert.tasks.generation.streaming import TokenStream
from kbert.tasks.task import usual_schedule
from kbert.tokenizers.base import Tokenizer
from kbert.training.optimization.optimizers import AdamW
from kbert.training.step.state import DerivedMetrics

# Radford et al. 2018, section 4.1.
NEW_TOKENS = 64
GREEDY = Greedy()
Stop = str | int | Sequence[str | int]


class PromptRows(WrittenRows):
    """Export of a `CausalLM`: rows are prompts, outputs their continuations."""

    inputs = ("token_ids", "padding_mask")

    def settings(  # type: ignore[override]  # arguments of `export`
        self,
        method: Method = GREEDY,
        max_new_tokens: int | None = None,
        stop_ids: Sequence[int] = (),
        constraints: Constraints = FREE,
    ) -> dict[str, Any]:
        """Returns the settings that an export to another runtime fixes.

        Args:
            method: `Greedy` or `Beam`.
            max_new_tokens: most tokens of a continuation. None: 64, but at most half of the
                positions.
            stop_ids: token ids that end a continuation, in addition to the end of a text.
            constraints: rules that the tokens of a continuation must obey.

        Raises:
            ValueError: a setting is out of range, or the new tokens leave too few positions.
        """
        longest = self.task._longest(max_new_tokens)
        stop_ids = self.task._checked_ids(longest, stop_ids, 0)
        limit = self.task.decoder.config.max_positions - SHORTEST
        if longest > limit:
            raise ValueError(
                f"`max_new_tokens` of an export to another runtime must be at most {limit}, so "
                f"that prompts of {SHORTEST} tokens fit the model's max_positions. "
                f"Received: {longest}"
            )
        return self.settings_of(method, longest, stop_ids, constraints)

    def fixed(self, **settings: Any) -> dict[str, Any]:
        return {**super().fixed(**settings), "stop": settings["stop_ids"]}

    def samples(  # type: ignore[override]  # what `settings` returns
        self, texts: Sequence[str], *, max_new_tokens: int, **settings: Any
    ) -> list[dict[str, tf.Tensor]]:
        """Returns two batches to check the export on: the first prompt alone, and all prompts.

        Prompts that leave too few positions for the new tokens lose their beginning.
        """
        task = self.task
        max_prompt_length = task.decoder.config.max_positions - max_new_tokens
        ids = task._begun([x[-(max_prompt_length - 1) :] for x in tokenize(task.tokenizer, texts)])
        batches = [padded(x, max(map(len, x)), task.stop_ids[0]) for x in (ids[:1], ids)]
        return [dict(zip(self.inputs, map(tf.constant, x), strict=True)) for x in batches]


class PromptAnswers(FileAnswers):
    """Continuations for the records of a file."""

    program = "kbert-generate"
    options = GenerationOptions
    at_once = 256  # each takes many steps

    def answer(
        self, table: Table, options: Options, *, batch_size: int, first: int = 0
    ) -> tuple[Sequence[Any], int]:
        """Continues the prompts in the column `text`; returns records and a count of cut prompts.

        A prompt that is too long loses its beginning, while `predict` raises. `options` are
        `GenerationOptions`; `first` is the number of the first record in the whole input.
        """
        task = self.task
        decoding = cast(GenerationOptions, options)
        method, longest, constraints = task.decoding_of(decoding)
        longest, seed = task._longest(longest), decoding.seed or 0
        strings, stop_ids = task._checked(longest, decoding.stop, seed, constraints)
        if task._runtime is not None:
            stop_ids = task._runtime.stop_ids
        ids = tokenize(task.tokenizer, table["text"])
        budget = task.decoder.config.max_positions - longest - task.reads_cls
        texts, scores = task._continue(
            task._begun([x[max(0, len(x) - budget) :] for x in ids]),
            method,
            longest,
            strings=strings,
            stop_ids=stop_ids,
            constraints=constraints,
            batch_size=batch_size,
            seed=seed,
            jit_compile=decoding.jit_compile,
            first=first,
        )
        return written("continuation", texts, scores), sum(len(x) > budget for x in ids)


class CausalLM(GenerationTask):
    """A decoder that predicts the next token.

    (GPT, Radford et al. 2018; GPT-2, 2019.) Train with `fit` on the batches of
    `kbert.data.causal_dataset`. The loss `lm_loss` is the mean cross entropy over all tokens with
    weight in the global batch. Metrics: `lm_accuracy`, and `perplexity`, the exponential of the
    loss, per token of this tokenizer.

    Args:
        decoder: a `kbert.Decoder`.
        tokenizer: tokenizer of the decoder; its "sep" token, or else its "eos", ends a text.
        reads_cls: whether the "cls" token is read before every prompt. Models made from an encoder
            are trained that way (see `MaskedAndCausal`). If False, only an empty prompt gets a
            token before it: the one that ends a text.
        name: name of the task.

    Raises:
        TypeError: the model is not a `Decoder`.
        ValueError: the vocabularies differ, or `reads_cls` is True and there is no "cls" token.

    Example:
        >>> import kbert
        >>> specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        >>> tokenizer = kbert.WordPieceTokenizer([*specials, "the", "sun", "shines"])
        >>> config = kbert.DecoderConfig(vocabulary_size=8, hidden_size=8, num_layers=1,
        ...                              num_heads=2, intermediate_size=16, max_positions=16)
        >>> task = CausalLM(kbert.Decoder(config), tokenizer)
        >>> texts = task.predict(["the sun", ""], max_new_tokens=3)
        >>> len(texts), "".join(task.stream("the sun", max_new_tokens=3)) == texts[0]
        (2, True)
    """

    kind = "causal_lm"
    corpus_objective = CausalCorpus
    file_answers = PromptAnswers
    shown_metrics = ("perplexity",)
    model_classes = (Decoder,)
    model_inputs = ("token_ids", "padding_mask")
    row_export = PromptRows
    derived_metrics: ClassVar[DerivedMetrics] = {"perplexity": ("lm_loss", ops.exp)}

    def __init__(
        self,
        decoder: keras.Model,
        tokenizer: Tokenizer,
        *,
        reads_cls: bool = False,
        name: str = "causal_lm",
    ) -> None:
        super().__init__(decoder, tokenizer, name=name)
        if reads_cls and tokenizer.cls_id is None:
            raise ValueError(
                'reads_cls=True requires a tokenizer with a "cls" token. '
                f"Received: reads_cls=True, a {type(tokenizer).__name__} without it"
            )
        self.reads_cls = reads_cls
        self.decoder = decoder
        self._likelihood = Likelihood(decoder, tokenizer, self._begin_id)
        self._tokens = TokenStream(self)
        self.build()

    @property
    def model(self) -> keras.Model:
        """The decoder."""
        return self.decoder

    @property
    def settings(self) -> dict[str, Any]:
        # Omitted when False, so that runs of earlier versions resume.
        return {"reads_cls": True} if self.reads_cls else {}

    def loss_terms(self, batch: Tensors, training: bool) -> Terms:
        losses = self.token_losses(batch, batch["weights"], training)
        return {"lm_loss": losses.smoothed}, {"lm_accuracy": losses.accuracy()}

    def usual_optimizer(self, total_steps: int | None) -> keras.optimizers.Optimizer:
        """Returns GPT's AdamW: 2.5e-4, linear warm-up over 2,000 steps, cosine decay to 0.

        Warm-up is at most a tenth of the run. If the length of the run is unknown, the learning
        rate stays at its peak.
        """
        cosine = {"decay": GPT["decay"], "join": GPT["decay_join"]}
        schedule = usual_schedule(GPT["learning_rate"], total_steps, GPT_WARMUP, **cosine)
        return AdamW(schedule, bias_correction=GPT["bias_correction"])

    def prefill(self, features: Tensors, max_new_tokens: int) -> Any:
        return self.decoder.prefill(features["token_ids"], features["padding_mask"], max_new_tokens)

    def prefix_ids(self, features: dict[str, Any]) -> Tensor:
        ids = ops.cast(features["token_ids"], "int32")
        mask = ops.cast(features["padding_mask"], "int32")
        # Prompts are padded at their end: move their tokens there.
        padding = ops.shape(mask)[1] - ops.sum(mask, axis=1, keepdims=True)
        index = ops.arange(ops.shape(mask)[1], dtype="int32") - padding
        shifted = ops.take_along_axis(ids, ops.maximum(index, 0), axis=1)
        return ops.where(index >= 0, shifted, -1)

    def predict(
        self,
        prompts: str | Sequence[str],
        *,
        method: Method = GREEDY,
        max_new_tokens: int | None = None,
        constraints: Constraints = FREE,
        stop: Stop = (),
        batch_size: int = inference.BATCH_SIZE,
        seed: int = 0,
        include_prompt: bool = False,
        return_scores: bool = False,
        jit_compile: bool = False,
        verbose: str | int = "auto",
    ) -> Any:
        """Continues prompts, up to the end of the text.

        The default is greedy, so the answer to a prompt is always the same.
        `kbert.decoding.Sampling(top_p=0.9)` writes texts that people like to read. For an empty
        prompt the model starts a new text, from the end-of-text token ("cls" with `reads_cls`).

        Args:
            prompts: strings, or one.
            method: decoding method of `kbert.decoding`.
            max_new_tokens: most tokens of a continuation; with the prompt it must fit the model's
                positions. None: 64, but at most half of the positions.
            constraints: rules that the tokens of a text must obey, such as
                `kbert.decoding.Constraints(no_repeat_ngram_size=3)`.
            stop: strings and token ids, one or several, at which a text ends too. The text is
                truncated before a string after decoding; a token id ends decoding.
            batch_size: prompts that go through the model together.
            seed: seed for `Sampling`; draws depend on it and on the number of the prompt.
            include_prompt: whether a text begins with its prompt.
            return_scores: whether scores are returned too.
            jit_compile: whether XLA compiles on TensorFlow: faster if many batches have the same
                shape, after 5 to 15 s for each shape. JAX always does.
            verbose: "auto" for a bar that appears after two seconds, 1 for one at once, 0 for none.

        Returns:
            A list of N strings, in the order of the prompts; for a `Beam` with several
            `num_results`, N lists of strings, best first. With `return_scores` also the scores,
            (N,) or (N, K) float32, over all new tokens: see `kbert.decoding.Decoded`.

        Raises:
            TypeError: a prompt is not a string.
            ValueError: prompt and new tokens exceed the positions (the message names the prompt),
                or a setting is out of range.
        """
        prompts = inference.as_texts(prompts, "prompts")
        inference.check_batch_size(batch_size)
        check_method(method)
        max_new_tokens = self._longest(max_new_tokens)
        strings, stop_ids = self._checked(max_new_tokens, stop, seed, constraints)
        texts, scores = self._continue(
            self._prompt_ids(prompts, max_new_tokens),
            method,
            max_new_tokens,
            strings=strings,
            stop_ids=stop_ids,
            constraints=constraints,
            batch_size=batch_size,
            seed=seed,
            jit_compile=jit_compile,
            verbose=verbose,
        )
        if include_prompt:
            texts = [
                [_as_str(prompt) + text for text in row]
                for prompt, row in zip(prompts, texts, strict=True)
            ]
        return answer(texts, scores, return_scores)

    @property
    def remedy(self) -> str:
        return ": the beginning of a prompt is removed, so that it and the new tokens fit"

    def _continue(
        self,
        ids: Sequence[np.ndarray],
        method: Method,
        max_new_tokens: int,
        *,
        strings: Sequence[str],
        stop_ids: tuple[int, ...],
        **how: Any,
    ) -> tuple[list[list[str]], np.ndarray]:
        """Returns K continuations of each of N prompts, and their scores (N, K).

        `ids` are the token ids of each prompt. Texts are truncated before the first of the stop
        `strings`; decoding ends with one of `stop_ids`. `how`: other arguments of `write_each`.
        """

        def batch(rows: np.ndarray, width: int) -> tuple[dict[str, Any], int]:
            inputs = padded([ids[row] for row in rows], width, self.stop_ids[0])
            return dict(zip(PromptRows.inputs, inputs, strict=True)), max_new_tokens

        def texts(rows: np.ndarray, decoded: Decoded) -> list[list[str]]:
            prompts = inference.as_ragged([ids[row] for row in rows])
            added_texts = self._texts(prompts, decoded, stop_ids).numpy()
            return [[cut(text.decode(), strings) for text in row] for row in added_texts]

        lengths = np.array([len(x) for x in ids], int)
        max_prompt_length = self.decoder.config.max_positions - max_new_tokens
        return self.write_each(
            lengths, max_prompt_length, batch, texts, method, stop_ids=stop_ids, **how
        )

    def stream(
        self,
        prompt: str,
        *,
        method: Greedy | Sampling = GREEDY,
        max_new_tokens: int | None = None,
        constraints: Constraints = FREE,
        stop: Stop = (),
        seed: int = 0,
        jit_compile: bool = False,
    ) -> Iterator[str]:
        """Streams the continuation of a prompt, piece by piece; `predict` returns the same text.

        A piece is yielded once no later token can change it: never half a character, and for
        WordPiece only whole words.

        Args:
            prompt: a string.
            method: decoding method: `Greedy` or `Sampling`.
            max_new_tokens: most tokens of the continuation; with the prompt it must fit the model's
                positions. None: 64, but at most half of the positions.
            constraints: rules that the tokens of the text must obey.
            stop: strings and token ids, one or several, at which the text and decoding end too.
            seed: seed for `Sampling`.
            jit_compile: whether XLA compiles on TensorFlow; JAX always does.

        Returns:
            An iterator of strings, none of them empty.

        Raises:
            TypeError: the prompt is not a string.
            ValueError: prompt and new tokens exceed the positions, or a setting is out of range.
        """
        if not isinstance(prompt, str | bytes):
            raise TypeError(f"A prompt must be one string. Received: {prompt!r}")
        max_new_tokens = self._longest(max_new_tokens)
        strings, stop_ids = self._checked(max_new_tokens, stop, seed, constraints)
        ids = self._prompt_ids([prompt], max_new_tokens)[0]
        width, _ = next(
            batches_of_like_width(
                np.array([len(ids)]), self.decoder.config.max_positions - max_new_tokens, 1
            )
        )
        token_ids, mask = padded([ids], width, self.stop_ids[0])
        numbers = self._tokens(
            {"token_ids": token_ids, "padding_mask": mask},
            method=method,
            max_new_tokens=max_new_tokens,
            stop_ids=stop_ids,
            banned_ids=self.banned_ids(stop_ids),
            constraints=constraints,
            prefix=ids[None] if constraints.reads_tokens else None,
            seed=seed if isinstance(method, Sampling) else None,
            jit_compile=jit_compile,
        )
        text_ids = (number for number in numbers if number not in stop_ids)
        return pieces(TextStream(self.tokenizer, ids.tolist(), strings), text_ids)

    def score(
        self, texts: str | Sequence[str], *, batch_size: int = 8, verbose: str | int = "auto"
    ) -> dict[str, np.ndarray]:
        """Computes the log-likelihood and the perplexity of texts.

        The model reads the token that ends texts ("cls" with `reads_cls`) before each text. The end
        of the text itself is not scored. A text longer than the model's positions is read in parts
        of that length, as in training; a part does not see the parts before it.

        Args:
            texts: strings, or one.
            batch_size: rows that go through the model together.
            verbose: "auto" for a bar that appears after two seconds, 1 for one at once, 0 for none.

        Returns:
            `log_likelihood` (N,) float64, the sum of the natural log-probabilities of a text's
            tokens; `tokens` (N,), their number; `perplexity` (N,), the exponential of the mean
            negative log-probability, 1 for a text without tokens.
        """
        texts = inference.as_texts(texts)
        inference.check_batch_size(batch_size)
        return self._likelihood(texts, batch_size, verbose)

    def signatures(
        self,
        method: Method = GREEDY,
        max_new_tokens: int | None = None,
        stop_ids: Sequence[int] = (),
        seed: int | None = None,
        constraints: Constraints = FREE,
    ) -> dict[str, Signature]:
        """Returns the signature `generate`, which is also `serving_default`.

        Args:
            method: decoding method of `kbert.decoding`.
            max_new_tokens: most tokens of a continuation. None: 64, but at most half of the
                positions.
            stop_ids: token ids that end a continuation, in addition to the end of a text.
            seed: seed for `Sampling`; None draws a new one for each request.
            constraints: rules that the tokens of a continuation must obey.

        Returns:
            `generate`: `prompt` (B,) strings -> `continuation` (B, K) strings, best first, and
            `scores` (B, K). A prompt that leaves too few positions for the new tokens loses its
            beginning, while `predict` raises.
        """
        check_method(method)
        max_new_tokens = self._longest(max_new_tokens)
        stop_ids = self._checked_ids(max_new_tokens, stop_ids, 0 if seed is None else seed)
        check_constraints(constraints, max_new_tokens)
        budget = self.decoder.config.max_positions - max_new_tokens

        def generate(
            prompt: tf.Tensor, row_numbers: tf.Tensor | None = None
        ) -> dict[str, tf.Tensor]:
            with tf.device("CPU"):
                # An empty request gets one dummy row, which is removed from the result.
                rows = tf.shape(prompt)[0]
                prompt = tf.pad(prompt, [[0, tf.cast(rows == 0, tf.int32)]], constant_values="")
                ids = self.tokenizer.encode(prompt)
                prompt_budget = budget - self.reads_cls
                ids = ids[:, -prompt_budget:] if prompt_budget > 0 else ids[:, :0]
                is_empty = tf.cast(ids.row_lengths() == 0, tf.int64)
                if self.reads_cls:
                    is_empty = tf.ones_like(is_empty)
                begin_ids = tf.fill(
                    [tf.reduce_sum(is_empty)], tf.constant(self._begin_id, tf.int32)
                )
                ids = tf.concat(
                    [tf.RaggedTensor.from_row_lengths(begin_ids, is_empty), ids], axis=1
                )
                mask = tf.ones_like(ids).to_tensor()
            features = {"token_ids": ids.to_tensor(), "padding_mask": mask}
            features |= request_seed(method, seed, tf.shape(prompt)[0], row_numbers)
            decoded = self.decode(features, method, max_new_tokens, stop_ids, constraints)
            texts = self._texts(ids, decoded, stop_ids)
            return {"continuation": texts[:rows], "scores": decoded.scores[:rows]}

        def tokens(prompt: tf.Tensor) -> tf.Tensor:
            return (text_tokens(budget)(prompt) + max_new_tokens) * num_beams(method)

        spec = [tf.TensorSpec([None], tf.string, "prompt")]
        entry = Signature(generate, spec, tokens, too_long="cut_before", numbered=True)
        return {"generate": entry}

    @property
    def row_length(self) -> int:
        """Most tokens of a prompt: one position is left for a new token."""
        return self.decoder.config.max_positions - 1

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Id of the token that ends a text; without `reads_cls` it also begins an empty prompt."""
        return (_end_id(self.tokenizer),)

    @property
    def _begin_id(self) -> int:
        """Id of the token read before a text: "cls" with `reads_cls`, else that of `stop_ids`."""
        return self.tokenizer.cls_id if self.reads_cls else self.stop_ids[0]

    def _longest(self, max_new_tokens: int | None) -> int:
        """Returns `max_new_tokens`; for None the default, 64 but at most half of the positions."""
        default = min(NEW_TOKENS, max(1, self.decoder.config.max_positions // 2))
        return default if max_new_tokens is None else max_new_tokens

    def _checked(
        self, max_new_tokens: int, stop: Any, seed: int, constraints: Constraints = FREE
    ) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Checks the settings of a call; returns the strings and the token ids at which texts stop.

        `stop` is one string or token id, or several. The task's own `stop_ids` are added to the
        ids, which are sorted. Raises ValueError for a setting out of range.
        """
        check_max_new_tokens(max_new_tokens, self.decoder.config.max_positions - 1)
        check_constraints(constraints, max_new_tokens)
        check_seed(seed)
        stop = list(stop) if isinstance(stop, list | tuple | set | np.ndarray) else [stop]
        size = self.tokenizer.vocabulary_size
        for entry in stop:
            is_id = is_integer(entry) and 0 <= entry < size
            if not is_id and not (isinstance(entry, str) and entry):
                raise ValueError(
                    "`stop` must contain strings that are not empty, or ids from 0 to "
                    f"{size - 1}. Received: {entry!r}"
                )
        strings = tuple(entry for entry in stop if isinstance(entry, str))
        ids = {int(entry) for entry in stop if not isinstance(entry, str)}
        return strings, tuple(sorted({*self.stop_ids, *ids}))

    def _checked_ids(self, max_new_tokens: int, stop_ids: Any, seed: int) -> tuple[int, ...]:
        """Checks the settings of an export; returns its sorted stop ids, with the task's own.

        Raises ValueError for a setting out of range, and for a string: its graph compares ids.
        """
        strings, ids = self._checked(max_new_tokens, stop_ids, seed)
        if strings:
            raise ValueError(
                "`stop_ids` of an export must be ids: tokenizer(text) returns those of a text; "
                f"only `predict` stops at strings. Received: {', '.join(map(repr, strings))}"
            )
        return ids

    def _prompt_ids(self, prompts: Sequence[str | bytes], max_new_tokens: int) -> list[np.ndarray]:
        """Returns the token ids of each prompt, with the begin token as in `_begun`.

        Raises ValueError if prompt and `max_new_tokens` together exceed the model's positions.
        """
        ids = self._begun(tokenize(self.tokenizer, prompts))
        max_positions = self.decoder.config.max_positions
        for number, x in enumerate(ids):
            if len(x) + max_new_tokens > max_positions:
                raise ValueError(
                    "Prompt and new tokens together must not exceed the model's "
                    f"max_positions={max_positions}: shorten the prompt, or lower max_new_tokens. "
                    f"Received: max_new_tokens={max_new_tokens} and {len(x)} tokens in prompt "
                    f"{number}, which begins {prompts[number][:40]!r}"
                )
        return ids

    def _begun(self, ids: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Prepends `_begin_id` to the ids of each prompt with `reads_cls`, else of empty ones."""
        begin = np.array([self._begin_id], "int32")
        return [np.append(begin, x) if self.reads_cls or not len(x) else x for x in ids]

    def _texts(
        self, prompt_ids: tf.RaggedTensor, decoded: Any, stop_ids: Sequence[int]
    ) -> tf.Tensor:
        """Returns the texts that K decoded results add to each of B prompts, (B, K) strings.

        `prompt_ids` are (B, ragged); `decoded` are `Decoded` tensors. Tokens in `stop_ids` are
        left out.
        """
        with tf.device("CPU"):
            shape = tf.shape(decoded.scores)
            index = tf.repeat(tf.range(shape[0]), shape[1])
            repeated = tf.gather(prompt_ids.with_row_splits_dtype(tf.int64), index)
            new_ids = self.new_ids(decoded, stop_ids)
            return tf.reshape(continuations(self.tokenizer, repeated, new_ids), shape)


def _end_id(tokenizer: Tokenizer) -> int:
    """Returns the id of the token that ends a text: "sep", else "eos"; None without both."""
    if tokenizer.sep_id is None and "eos" in tokenizer.special_tokens:
        return tokenizer.token_to_id(tokenizer.special_tokens["eos"])
    return tokenizer.sep_id


def _as_str(text: str | bytes) -> str:
    return text.decode() if isinstance(text, bytes) else text
