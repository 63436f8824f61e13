"""Runs texts through a frozen encoder, in batches of similar length.

Shapes: `N` texts, `B` batch, `T` tokens, `D` width of the features.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, cast

import keras
import numpy as np

from kbert import inference
from kbert.core.late import tf
from kbert.core.layer_choice import LayerChoice, choose_states
from kbert.data.tables.rows import Rows
from kbert.extraction.described import describe_tokens, describe_words
from kbert.extraction.inputs import Encoded, Texts, encode, encode_words
from kbert.extraction.plan import Layout, Window, plan_windows
from kbert.extraction.pooling import MERGES, check_pooling, merge_pieces
from kbert.extraction.readers import as_reader
from kbert.layers.scalar_mix import combine_states
from kbert.models import Static
from kbert.models.pooling import pool_tokens
from kbert.tokenizers.base import Tokenizer

_MULTIPLE = 8  # the length of a batch is padded to a multiple of this


class Extractor:
    """Function from texts to features; the arguments are those of `kbert.features`.

    Attributes:
        width: width of the features, D.
        cut: number of texts truncated so far.
    """

    def __init__(
        self,
        encoder: keras.Model,
        tokenizer: Tokenizer,
        *,
        layers: LayerChoice = "last",
        pooling: str | None = "mean",
        words: bool = False,
        merge: str = "mean",
        special_tokens: bool = True,
        max_length: int | None = None,
        doc_stride: int | None = None,
        batch_size: int = inference.BATCH_SIZE,
        with_tokens: bool = False,
    ) -> None:
        if not isinstance(encoder, keras.Model) or not hasattr(tokenizer, "encode_with_offsets"):
            kind = getattr(getattr(encoder, "config", None), "kind", None)
            hint = "; an ELMo has elmo.embed(texts) instead" if kind == "elmo" else ""
            raise TypeError(
                "Features require a kbert.Encoder and its tokenizer; Encoder.from_preset and "
                f"load_tokenizer load those of a preset{hint}. "
                f"Received: {encoder!r} and {tokenizer!r}"
            )
        if isinstance(encoder, Static):  # its rows have no [CLS], and its mean skips some tokens
            raise ValueError(
                "Features require an encoder with layers; for a static embedding table use "
                f"kbert.tasks.TextEmbedder. Received: a {type(encoder).__name__}"
            )
        reader = as_reader(encoder, tokenizer)
        config = reader.model.config
        self.encoder = reader.model
        self.tokenizer = tokenizer
        self.form = reader.form
        self._hidden_states = reader.hidden_states
        self.states = choose_states(layers, reader.model, trained=False)
        self.width = self.states.num_joined * config.hidden_size
        self.pooling = None if words else pooling
        self.words = words
        self.merge = merge
        self.special_tokens = special_tokens
        self.max_length = config.max_positions if max_length is None else max_length
        self.doc_stride = doc_stride
        self.batch_size = batch_size
        self.with_tokens = with_tokens
        self.cut = 0
        check_pooling(pooling, special_tokens, self.form.cls_id is not None)
        inference.check_batch_size(batch_size)
        self._check()
        self._runners = {
            pooling: inference.Runner(
                functools.partial(self.vectors, pooling=pooling),
                self.encoder,
                assemble=lambda columns: self.build_inputs(**columns),
            )
            for pooling in {None, self.pooling}
        }

    def _check(self) -> None:
        """Raises ValueError if a setting is out of range or does not fit the others."""
        most = self.encoder.config.max_positions
        if self.merge not in MERGES:
            raise ValueError(f"merge must be one of {', '.join(MERGES)}. Received: {self.merge!r}")
        if not 5 <= self.max_length <= most:
            raise ValueError(
                f"max_length must be between 5 and {most} (the encoder's max_positions). "
                f"Received: max_length={self.max_length}"
            )
        if self.doc_stride is not None and self.doc_stride < 1:
            raise ValueError(
                "doc_stride must be at least 1: the number of tokens from the start of one window "
                f"to that of the next. Received: doc_stride={self.doc_stride}"
            )
        if self.with_tokens and self.pooling is not None:
            raise ValueError(
                "Tokens and offsets require a vector per token: use pooling=None or words=True. "
                f"Received: pooling={self.pooling!r}"
            )

    def __call__(self, texts: Texts) -> np.ndarray | list:
        """Returns the features of texts, in their order.

        Args:
            texts: N texts from `as_inputs`.

        Returns:
            With pooling (N, D) float32, otherwise N arrays (T, D), or N `TextVectors`.
        """
        sides = self._encode(texts)
        windows, layouts = self._plan(texts, sides)
        numbers = np.array([window.text for window in windows], int)
        parts = _rows_of(windows, sides)
        is_whole = np.bincount(numbers, minlength=len(texts))[numbers] == 1
        in_graph = is_whole & (self.pooling is not None)
        pooled = np.zeros((len(texts), self.width), np.float32)
        for index, vectors in self._run(parts, np.flatnonzero(in_graph), self.pooling):
            pooled[numbers[index]] = vectors
        rows: list[list[tuple[Window, np.ndarray]]] = [[] for _ in layouts]
        for index, vectors in self._run(parts, np.flatnonzero(~in_graph), None):
            for window, row in zip((windows[i] for i in index), vectors, strict=True):
                layout = layouts[window.text]
                length = window.size + layout.begin + layout.separators + layout.end
                rows[window.text].append((window, row[:length].copy()))  # frees the padding
        if self.pooling is None:
            return [
                self._finish(texts, encoded, number, layout.stitch(parts), layout)
                for number, (encoded, layout, parts) in enumerate(
                    zip(zip(*sides, strict=True), layouts, rows, strict=True)
                )
            ]
        for number, parts in enumerate(rows):
            if parts:
                pooled[number] = self._pool_windows(layouts[number], parts)
        return pooled

    def _pool_windows(self, layout: Layout, parts: list[tuple[Window, np.ndarray]]) -> np.ndarray:
        """Returns the pooled features (D,) of a text that is read in windows.

        Args:
            layout: layout of the text's full sequence.
            parts: windows of the text, each with its vectors (tokens, D).
        """
        stitched = layout.stitch(parts)
        counted = np.full(len(stitched), True) if self.special_tokens else ~layout.is_special()
        return keras.ops.convert_to_numpy(
            pool_tokens(stitched[None], counted[None], cast(str, self.pooling), self.form.cls_last)
        )[0]

    def _encode(self, texts: Texts) -> list[list[Encoded]]:
        """Returns one list with the tokens of each text; for pairs two lists, one for each side."""
        if texts.in_words:
            return [encode_words(self.tokenizer, texts.first)]
        offsets = self.words or self.with_tokens
        columns = [texts.first] if texts.second is None else [texts.first, texts.second]
        return [encode(self.tokenizer, side, offsets=offsets) for side in columns]

    def _plan(
        self, texts: Texts, sides: Sequence[Sequence[Encoded]]
    ) -> tuple[list[Window], list[Layout]]:
        """Returns the windows of all texts, and the layout of each text's full sequence.

        Truncated texts are counted in `cut`; a truncated list of words raises ValueError.

        Args:
            texts: the texts.
            sides: tokens of the texts, from `_encode`.
        """
        separators = self.form.separators if len(sides) == 2 else 0
        lengths = np.array([[len(text.ids) for text in side] for side in sides], np.int64)
        first, second = lengths if len(sides) == 2 else (lengths[0], np.zeros_like(lengths[0]))
        begin, specials = self.form.begin, self.form.specials(1)
        budget = self.max_length - specials - separators
        windows, limits = plan_windows(first, second, budget, self.doc_stride)
        is_cut = limits.sum(1) < first + second
        if texts.in_words and is_cut.any():
            number = int(is_cut.argmax())
            raise ValueError(
                "Each word of a list requires a vector, so no text may be truncated: pass "
                f"`doc_stride`. Received: {first[number]} tokens in text number "
                f"{texts.start + number}, where {budget} fit"
            )
        self.cut += int(is_cut.sum())
        ends = (begin, specials - begin)
        return windows, [Layout(a, b, separators, *ends) for a, b in limits.tolist()]

    def _run(
        self, rows: Rows, chosen: np.ndarray, pooling: str | None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields (numbers of windows, their vectors), batch by batch.

        Args:
            rows: token ids of all windows.
            chosen: numbers of the windows to run.
            pooling: pooling of the vectors to (B, D); None = all vectors, (B, T, D).
        """
        return self._runners[pooling].each(rows, self.batch_size, numbers=chosen)

    def build_inputs(
        self, first: tf.RaggedTensor, second: tf.RaggedTensor | None = None
    ) -> dict[str, tf.Tensor]:
        """Returns the encoder's inputs (B, T), and `counted` (B, T), 1 for pooled tokens.

        Args:
            first: token ids (B, ragged) of the first texts, without special tokens.
            second: token ids of the second texts; None for single texts.
        """
        sizes = {"max_length": self.max_length, "multiple": _MULTIPLE}
        features = self.form.build_inputs(first, second, **sizes)
        counted = features["padding_mask"]
        if not self.special_tokens:
            ones = [None if side is None else tf.ones_like(side) for side in (first, second)]
            cls_id, sep_id, last_id = (
                None if token_id is None else 0
                for token_id in (self.form.cls_id, self.form.sep_id, self.form.last_id)
            )
            form = dataclasses.replace(
                self.form, cls_id=cls_id, sep_id=sep_id, last_id=last_id, pad_id=0
            )
            counted = form.build_inputs(*ones, **sizes)["token_ids"]
        if not getattr(self.encoder.config, "num_segments", 0):  # also an encoder-decoder's
            del features["segment_ids"]
        return {**features, "counted": counted}

    def vectors(self, features: dict[str, Any], pooling: str | None) -> Any:
        """Returns vectors for the output of `build_inputs`: (B, D), without pooling (B, T, D)."""
        features = dict(features)
        counted = features.pop("counted")
        vectors = combine_states(self._hidden_states(features), self.states)  # (B, T, D)
        if pooling is None:
            return vectors
        return pool_tokens(vectors, counted, pooling, self.form.cls_last)

    def _finish(
        self, texts: Texts, encoded: list[Encoded], number: int, whole: np.ndarray, layout: Layout
    ) -> Any:
        """Returns the requested features of one text, of its words or of its tokens.

        Args:
            texts: all texts.
            encoded: tokens of the text, or of both texts of a pair.
            number: number of the text.
            whole: vectors of its tokens (T, D), special tokens included.
            layout: layout of its full sequence.
        """
        if self.words:
            text = texts.first[number]
            around = (layout.begin, layout.end)
            word_of = np.pad(encoded[0].word_of[: layout.first], around, constant_values=-1)
            count = len(text) if texts.in_words else int(word_of.max()) + 1
            vectors = merge_pieces(whole, word_of, count, self.merge)
            return describe_words(vectors, text, encoded[0]) if self.with_tokens else vectors
        is_counted = np.full(len(whole), True) if self.special_tokens else ~layout.is_special()
        if self.with_tokens:
            return describe_tokens(whole, self.tokenizer, encoded, layout, self.form, is_counted)
        return whole[is_counted]


def _rows_of(windows: Sequence[Window], sides: Sequence[Sequence[Encoded]]) -> Rows:
    """Returns the token ids of windows as rows, with a column for each side (see `_encode`)."""
    first = [sides[0][w.text].ids[w.first_start : w.first_end] for w in windows]
    columns = {"first": inference.as_ragged(first)}
    if len(sides) == 2:
        second = [sides[1][w.text].ids[w.second_start : w.second_end] for w in windows]
        columns["second"] = inference.as_ragged(second)
    return inference.token_rows(np.array([window.size for window in windows]), **columns)
