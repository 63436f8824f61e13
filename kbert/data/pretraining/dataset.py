"""Pretraining batches from a prepared corpus, or straight from text."""

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
    """Batches for pretraining with masked tokens, from shards or straight from text.

    How text is laid out in rows is said by `segments`:

    - "pairs": BERT's two segments, where half of the time B is from another document; always, as
      in BERT's code, where one sentence is left, so with short documents it is more than half;
    - "halves": ALBERT's two consecutive segments, swapped half of the time; where one sentence is
      left, B is from another document here too;
    - "consecutive": ELECTRA's one or two segments in their order, without a label;
    - "single": one run of text of one document, of full length where the document continues;
    - "doc_sentences": RoBERTa's whole sentences of one document, as many as fit;
    - "full_sentences": RoBERTa's whole sentences of one or more documents, with a separator
      between documents;
    - "runs": XLNet's long text in every row, which goes on in that row of the next batch, in two
      segments each time, with a separator between documents;
    - "aligned": XLM's text beside its translation, whose positions begin at 0 again, of a corpus of
      such pairs; "single" segments of what is mixed with it.

    Which tokens are predicted is said by `masking`:

    - "token": any tokens; "whole_word": words with all their pieces (BERT);
    - "ngram": one to three neighbouring words, n with a probability of c / n (ALBERT);
    - "span": one to ten neighbouring words, of geometric length with p = 0.2, replaced alike
      (SpanBERT);
    - "phrase": the phrases of a lexicon, and words outside of them (ERNIE, BERT-wwm);
    - "independent": tokens drawn one by one, some twice (ELECTRA).

    Args:
        data: folder written by `prepare_corpus`; several of them with their shares, `{folder:
            share}` or a `Mixture`, of whose held-out text every block is read once; or text as
            `prepare_corpus` takes it (a path, a glob, `docs:`, a list of them), which is prepared
            once into a folder under `cache_dir` with that function's defaults; where they do not
            fit (`field`, `on_bad_utf8`), call it.
        tokenizer: the tokenizer whose ids lie in the shards.
        split: "train" or "held_out".
        start: `position` of the batch to resume after, one row or all; None begins with the first.
        first_step: batches before `start`, of the `share_steps` over which the masked share
            changes: after a resumption, those that were trained on.
        cache_dir: where text is prepared to; None is the user's cache folder.
        **settings: the fields of its settings:

            {options}

    Returns:
        A dataset of one dict of tensors, of static shapes: `token_ids`, `segment_ids`,
        `padding_mask` (B / H, T) int32; `mask_positions`, `mask_ids` (B / H, P) int32 and
        `mask_weights` (B / H, P) float32, where P is 20 at T = 128 and 80 at 512;
        with "pairs" `next_sentence_labels` (B / H,) int32, 1 = random; with "halves"
        `sentence_order_labels` (B / H,) int32, 1 = swapped; with masking="span" `span_starts` and
        `span_ends` (B / H, P) int32, the first and last position of each prediction's span; and
        `position` (B / H, 3) int32: the `start` that resumes after this batch, on every row.
        With masking="permutation" `order_ids` (B / H, T) int32, when each token is read: 0 for the
        text, another number for each of the others; the rows end in [CLS].
        With segments="aligned" `position_ids` (B / H, T) int32.
        With segments="runs" `begins` (B / H,) int32, 1 in the first batch of a window.
        With `causal_share` `causal_mask` (B / H, T) int32, 1 for the tokens of causal rows.
        An empty row is 0 in `padding_mask` and `mask_weights`.

        With `pack` a row holds up to K examples, K the larger of 8 and T // 32: also `position_ids`
        (B / H, T) int32, from 0 on in each; `example_ids` (B / H, T) int32, their numbers from 1
        on, 0 = padding; `cls_positions` (B / H, K) int32, where each begins; the sentence labels
        are (B / H, K), with their weights, such as `next_sentence_weights`, (B / H, K) float32.

    Raises:
        FileNotFoundError: no corpus there, or a shard is missing.
        ValueError: a setting out of range, another tokenizer, a damaged shard, too little text.
        tf.errors.InvalidArgumentError: while reading: a corrupt record, by file and byte.

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
    missing = [r for r in ("pad", "cls", "sep", "mask") if getattr(tokenizer, f"{r}_id") is None]
    if missing:
        raise ValueError(
            "Pretraining with masked tokens needs a tokenizer with tokens for padding, for the "
            "beginning of a row, between segments and for what is masked. Received: one without "
            f"{', '.join(missing)}"
        )
