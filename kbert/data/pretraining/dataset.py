"""Pretraining batches from a prepared corpus, or straight from text."""

import os
from collections.abc import Sequence

import tensorflow as tf
from numpy.typing import ArrayLike

from kbert.data.corpus.blocks import WINDOW_BLOCKS, BlockReader
from kbert.data.corpus.manifest import Manifest, read_manifest
from kbert.data.corpus.prepared import prepared_folder
from kbert.data.masking.phrases import read_phrases
from kbert.data.pipeline import exact_options
from kbert.data.position import checked_start
from kbert.data.pretraining import stream
from kbert.data.pretraining.settings import Settings
from kbert.tokenizers.base import Tokenizer


def pretraining_dataset(
    data: str | os.PathLike | Sequence[str],
    tokenizer: Tokenizer,
    *,
    sequence_length: int = 128,
    batch_size: int = 256,
    seed: int = 0,
    masking: str = "token",
    masked_share: float = 0.15,
    phrases: str | os.PathLike | Sequence[str] | None = None,
    replacement: tuple[float, float] | None = None,
    segments: str | None = None,
    next_sentence: bool | None = None,
    short_sequence_share: float | None = None,
    static_masks: int | None = None,
    split: str = "train",
    start: ArrayLike | None = None,
    epochs: int | None = None,
    drop_remainder: bool = False,
    num_hosts: int = 1,
    host_index: int = 0,
    threads: int | None = None,
    window_blocks: int = WINDOW_BLOCKS,
    cache_dir: str | os.PathLike | None = None,
) -> tf.data.Dataset:
    """Batches for pretraining with masked tokens, from shards or straight from text.

    How text is laid out in rows is said by `segments`:

    - "pairs": BERT's two segments, where half of the time B is from another document;
    - "halves": ALBERT's two consecutive segments, swapped half of the time;
    - "consecutive": ELECTRA's one or two segments in their order, without a label;
    - "single": one run of text of one document, of full length where the document goes on;
    - "doc_sentences": RoBERTa's whole sentences of one document, as many as fit;
    - "full_sentences": RoBERTa's whole sentences of one or more documents, with a separator
      between documents.

    Which tokens are predicted is said by `masking`:

    - "token": any tokens; "whole_word": words with all their pieces (BERT);
    - "ngram": one to three neighbouring words, n with a probability of c / n (ALBERT);
    - "span": one to ten neighbouring words, of geometric length with p = 0.2, replaced alike
      (SpanBERT);
    - "phrase": the phrases of a lexicon, and words outside of them (ERNIE, BERT-wwm);
    - "independent": tokens drawn one by one, some twice (ELECTRA).

    Args:
        data: folder written by `prepare_corpus`; or text as `prepare_corpus` takes it (a path, a
            glob, `docs:`, a list of them), which is prepared once into a folder under `cache_dir`
            with that function's defaults; where they do not fit (`field`, `on_bad_utf8`), call it.
        tokenizer: the tokenizer whose ids lie in the shards.
        sequence_length: T, specials included; at least 8.
        batch_size: B, rows of a batch of all hosts together.
        seed: seed of the order of blocks, pairs and masks.
        masking: which tokens are predicted, see above.
        masked_share: share of the tokens that is predicted.
        phrases: the lexicon of masking="phrase": strings, or the path of a UTF-8 file of one phrase
            a line.
        replacement: shares of the chosen tokens that the model sees as [MASK] and as a random
            token of the vocabulary; the others stay. None is the scheme's own: (0.8, 0.1), and
            (0.85, 0.0) for "independent".
        segments: how rows are laid out, see above; None is "pairs".
        next_sentence: True asks for "pairs"; False, with `segments` left out, for "single".
        short_sequence_share: share of rows that is cut shorter, to a random length; None is the
            scheme's own: 0.1; 0.05 for "consecutive" and 0 for whole sentences.
        static_masks: this many versions of an epoch, with fixed order, rows and masks, come in
            turn; None makes every epoch new.
        split: "train" or "held_out".
        start: `position` of the batch to go on after, one row or all; None begins with the first.
        epochs: passes over the data; None never ends.
        drop_remainder: leave out the last rows of the last epoch where they do not fill a batch;
            otherwise empty rows, of no weight, fill it.
        num_hosts: H hosts share the work: each makes its slice of every batch. Divides B.
        host_index: which of them this is.
        threads: threads that make batches; None lets TensorFlow decide.
        window_blocks: blocks (of 64k tokens) among which rows are mixed and random next sentences
            are found; at least 2. More takes more memory and time to start.
        cache_dir: where text is prepared to; None is the user's cache folder.

    Returns:
        A dataset of one dict of tensors, of static shapes: `token_ids`, `segment_ids`,
        `padding_mask` (B / H, T) int32; `mask_positions`, `mask_ids` (B / H, P) int32 and
        `mask_weights` (B / H, P) float32, where P is 20 at T = 128 and 80 at 512;
        with "pairs" `next_sentence_labels` (B / H,) int32, 1 = random; with "halves"
        `sentence_order_labels` (B / H,) int32, 1 = swapped; with masking="span" `span_starts` and
        `span_ends` (B / H, P) int32, the first and last position of each prediction's span; and
        `position` (B / H, 3) int32: the `start` that goes on after this batch, on every row.
        An empty row is 0 in `padding_mask` and `mask_weights`.

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
    settings = Settings(
        sequence_length=sequence_length,
        batch_size=batch_size,
        seed=seed,
        masking=masking,
        masked_share=masked_share,
        replacement=replacement,
        segments=segments,
        next_sentence=next_sentence,
        short_sequence_share=short_sequence_share,
        static_masks=static_masks,
        epochs=epochs,
        drop_remainder=drop_remainder,
        num_hosts=num_hosts,
        host_index=host_index,
        threads=threads,
        window_blocks=window_blocks,
    )
    if (masking == "phrase") != (phrases is not None):
        raise ValueError(
            'masking="phrase" needs `phrases`, and no other masking reads them. '
            f"Received: masking={masking!r}, phrases={phrases!r:.100}"
        )
    _check_special_tokens(tokenizer)
    lexicon = None if phrases is None else read_phrases(phrases, tokenizer)
    manifest = read_manifest(prepared_folder(data, tokenizer, cache_dir))
    manifest.check_tokenizer(tokenizer)
    _check_enough_text(manifest, split, settings)
    reader = BlockReader.from_manifest(manifest, split, seed, window_blocks)
    start = checked_start(start, reader.windows)
    batches = stream.batches(settings, reader, tokenizer, start, lexicon)
    return batches.with_options(exact_options(threads))


def _check_special_tokens(tokenizer: Tokenizer) -> None:
    missing = [r for r in ("pad", "cls", "sep", "mask") if getattr(tokenizer, f"{r}_id") is None]
    if missing:
        raise ValueError(
            "Pretraining with masked tokens needs a tokenizer with tokens for padding, for the "
            "beginning of a row, between segments and for what is masked. Received: one without "
            f"{', '.join(missing)}"
        )


def _check_enough_text(manifest: Manifest, split: str, settings: Settings) -> None:
    documents = manifest.split(split).documents
    needed = settings.segment_scheme.documents
    if documents < needed:
        raise ValueError(
            f"The {split!r} split of {manifest.folder} has too few documents: "
            f"segments={settings.segments!r} needs {needed}, as the second segment may come from "
            'another document. Documents are told apart by blank lines; segments="single" '
            f"(next_sentence=False) needs one. Received: {documents} document(s)"
        )
