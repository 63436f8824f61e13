"""Pretraining batches from a prepared corpus, or directly from text."""

from __future__ import annotations

import os
from typing import Any

from numpy.typing import ArrayLike

from kbert.core.late import tf
from kbert.core.options import takes
from kbert.data.masking.phrases import read_phrases
from kbert.data.pretraining import stream
from kbert.data.pretraining.settings import Settings
from kbert.tokenizers.base import Tokenizer


@takes(Settings)
def pretraining_dataset(
    data: stream.Data,
    tokenizer: Tokenizer,
    *,
    split: str = "train",
    start: ArrayLike | None = None,
    first_step: int = 0,
    cache_dir: str | os.PathLike | None = None,
    **settings: Any,
) -> tf.data.Dataset:
    """Returns batches for pretraining with masked tokens, from shards or directly from text.

    `segments` chooses how text is laid out in rows:

    - "pairs": BERT's two segments. B is from another document half of the time. As in BERT's code,
      it is always from another document if one sentence is left; so with short documents it is
      more than half;
    - "halves": ALBERT's two consecutive segments, swapped half of the time. If one sentence is
      left, B is from another document here too;
    - "consecutive": ELECTRA's one or two segments in order, without a label;
    - "single": contiguous text of one document, of full length where the document continues;
    - "doc_sentences": RoBERTa's whole sentences of one document, as many as fit;
    - "full_sentences": RoBERTa's whole sentences of one or more documents, with a separator
      between documents;
    - "runs": XLNet's long text in every row, which continues in the same row of the next batch,
      in two segments per row, with a separator between documents;
    - "aligned": XLM's text with its translation, whose positions begin at 0 again, from a corpus of
      such pairs. Other documents of a mixture become "single" segments.

    `masking` chooses which tokens are predicted:

    - "token": any tokens; "whole_word": words with all their subwords (BERT);
    - "ngram": one to three neighbouring words, n with a probability of c / n (ALBERT);
    - "token_ngram": a token, or in a fifth of the draws two or three neighbouring ones (UniLM);
    - "span": one to ten neighbouring words, of geometric length with p = 0.2, with the same kind of
      replacement (SpanBERT);
    - "phrase": the phrases of a lexicon, and words outside of them (ERNIE, BERT-wwm);
    - "independent": tokens drawn independently, some twice (ELECTRA).

    Args:
        data: one of
            a folder written by `prepare_corpus`;
            several such folders with their shares, as a `{folder: share}` mapping or a `Mixture`
            (every block of their held-out text is read once);
            text for `prepare_corpus` (a path, a glob, `docs:`, or a list of them). It is prepared
            once into a folder under `cache_dir`, with the defaults of that function; for other
            options (`field`, `on_bad_utf8`), call it yourself.
        tokenizer: tokenizer that made the ids in the shards.
        split: "train" or "held_out".
        start: `position` of the batch to resume after, whole or one row of it; None begins with the
            first batch.
        first_step: number of batches trained before `start`. It counts towards the `share_steps`
            over which the masked share changes.
        cache_dir: folder in which text is prepared; None is the user's cache folder.
        **settings: fields of `Settings`:

            {options}

    Returns:
        A dataset of dicts of tensors with static shapes: `token_ids`, `segment_ids`,
        `padding_mask` (B / H, T) int32; `mask_positions`, `mask_ids` (B / H, P) int32 and
        `mask_weights` (B / H, P) float32, where P is by default 20 at T = 128 and 80 at 512; and
        `position` (B / H, 3) int32, the `start` that resumes after this batch, in every row.
        With "pairs" also `next_sentence_labels` (B / H,) int32, 1 = random.
        With "halves" also `sentence_order_labels` (B / H,) int32, 1 = swapped.
        With masking="span" also `span_starts` and `span_ends` (B / H, P) int32, the first and last
        position of each prediction's span.
        With masking="permutation" also `order_ids` (B / H, T) int32, the factorisation order: 0 for
        the text, a different number for each other token; the rows end in [CLS].
        With segments="aligned" also `position_ids` (B / H, T) int32.
        With segments="runs" also `begins` (B / H,) int32, 1 in the first batch of a window.
        With `causal_share` also `causal_mask` (B / H, T) int32, 1 for the tokens of causal rows.
        With `attention_shares` also `attention_order` (B / H, T) int32: a token attends only to
        tokens whose number is at most its own. The segment ids then tell the kind of a row: 0 and 1
        bidirectional, 2 left to right, 3 right to left, 4 and 5 source and target.
        An empty row is 0 in `padding_mask` and `mask_weights`.

        With `pack` a row has up to K examples, K the larger of 8 and T // 32. There are also
        `position_ids` (B / H, T) int32, from 0 in each example; `example_ids` (B / H, T) int32, the
        number of each token's example from 1, 0 = padding; and `cls_positions` (B / H, K) int32,
        the position of each example's [CLS]. The sentence labels are (B / H, K), with weights such
        as `next_sentence_weights`, (B / H, K) float32.

    Raises:
        FileNotFoundError: a folder is not a corpus, or a shard is missing.
        ValueError: a setting out of range, another tokenizer, a damaged shard, or too little text.
        tf.errors.InvalidArgumentError: a corrupt record, while reading; the message names file and
            byte.

    Example:
        >>> import tempfile, kbert
        >>> tokenizer = kbert.WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"])
        >>> path = os.path.join(tempfile.mkdtemp(), "tiny.txt")
        >>> with open(path, "w") as file:
        ...     _ = file.write("a b c\\nc b\\n\\na a\\nb c c\\n\\nb b\\na c\\n")
        >>> batches = pretraining_dataset(path, tokenizer, sequence_length=16, batch_size=2,
        ...                               cache_dir=tempfile.mkdtemp())
        >>> batch = next(iter(batches))
        >>> batch["token_ids"].shape, batch["position"].numpy().tolist()
        (TensorShape([2, 16]), [[0, 0, 2], [0, 0, 2]])
    """
    options = Settings.from_arguments(settings, "pretraining_dataset")
    if first_step < 0:
        raise ValueError(f"`first_step` must not be negative. Received: {first_step}")
    _check_special_tokens(tokenizer)
    phrases = options.phrases
    lexicon = None if phrases is None else read_phrases(phrases, tokenizer)
    reader, position = stream.open_stream(options, data, tokenizer, split, start, cache_dir)
    return stream.batches(options, reader, tokenizer, position, lexicon, first_step)


def _check_special_tokens(tokenizer: Tokenizer) -> None:
    """Raises ValueError if a tokenizer lacks a token that pretraining with masks needs."""
    missing = [r for r in ("pad", "cls", "sep", "mask") if getattr(tokenizer, f"{r}_id") is None]
    if missing:
        raise ValueError(
            "Pretraining with masked tokens requires a tokenizer with pad, cls, sep and mask "
            f"tokens. Received: one without {', '.join(missing)}"
        )
