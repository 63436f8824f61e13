"""Training of unigram models with `sentencepiece`, on text prepared like the tokenizer's."""

from __future__ import annotations

import io
import random
from collections.abc import Iterable, Iterator
from typing import Any

from kbert.core.graphs import on_cpu
from kbert.core.in_memory import each_text
from kbert.core.late import tf
from kbert.tokenizers.batching import batches, with_progress
from kbert.tokenizers.unigram.layouts import PREPARED, layout_named
from kbert.tokenizers.unigram.normalization import TextPreparation

# As in ALBERT's 30k-clean.model; no other piece contains a user-defined one.
_ALBERT_CONTROL = ("[CLS]", "[SEP]", "[MASK]")
_ALBERT_USER_DEFINED = ("(", ")", '"', "-", ".", "–", "£", "€")
# SentencePiece's roles of the special pieces with which a model may begin.
_ROLES = {"<pad>": "pad", "<unk>": "unk", "<s>": "bos", "</s>": "eos"} | {
    "[PAD]": "pad", "[UNK]": "unk", "[CLS]": "bos", "[SEP]": "eos"
}  # fmt: skip
# As in XLNet's spiece.model, according to the README of zihangdai/xlnet.
_XLNET_CONTROL = ("<cls>", "<sep>", "<pad>", "<mask>", "<eod>")
_XLNET_USER_DEFINED = ("<eop>", ".", "(", ")", '"', "-", "–", "£", "€")
# A longer line is split at a space, or else anywhere; sentencepiece would skip it.
_LINE_BYTES = 4000
# The trainer adds up the sums of its threads in order, so that the rounding depends on the number
# of threads. Therefore the number is the same on every machine.
_NUM_THREADS = 4


def train_unigram(
    texts: Iterable[str | bytes],
    vocabulary_size: int,
    *,
    lowercase: bool | None = None,
    keep_accents: bool | None = None,
    preparation: bool | None = None,
    layout: str = "sentencepiece",
    user_defined: Iterable[str] | None = None,
    num_sentinels: int = 0,
    character_coverage: float = 0.9999,
    max_sentences: int = 2_000_000,
    seed: int = 0,
    progress: bool = False,
) -> bytes:
    """Trains a model for `UnigramTokenizer` on texts.

    The texts are streamed once. If there are more than `max_sentences` lines, a uniform sample of
    them is used, so memory is bounded. Equal texts in the same order give the same model on any
    machine with the same `sentencepiece`.

    Args:
        texts: lines or documents, UTF-8.
        vocabulary_size: maximum number of pieces, including special tokens; a small corpus yields
            fewer.
        lowercase: whether the tokenizer will lower-case texts. None = the value of `preparation`,
            but False for the layout "xlnet".
        keep_accents: whether the tokenizer will leave accents and compatibility forms to the model.
            None = the opposite of `preparation`.
        preparation: whether the tokenizer will prepare texts like ALBERT and XLNet. None = True for
            the layouts "sentencepiece" and "xlnet".
        layout: layout of the tokenizer, which sets the first pieces. "sentencepiece", ALBERT's:
            <pad>, <unk>, [CLS], [SEP], [MASK]. "fairseq", XLM-R's, "camembert", "mbart" and
            "mbart50": <unk>, <s>, </s>. "deberta", DeBERTa-v3's: [PAD], [CLS], [SEP], [UNK]. "t5"
            and "pegasus": <pad>, </s>, <unk>. "xlnet", XLNet's: <unk>, <s>, </s>, <cls>, <sep>,
            <pad>, <mask>, <eod>.
        user_defined: strings that are always separate pieces. None = ALBERT's ( ) " - . – £ €,
            for "xlnet" these and <eop>, and for the other layouts none.
        num_sentinels: number of "<extra_id_0>", "<extra_id_1>", …, T5's sentinels, which no text
            contains.
        character_coverage: share of the characters of the texts that are pieces.
        max_sentences: maximum number of lines to train on.
        seed: random seed of the sample of lines.
        progress: whether to show a progress bar.

    Returns:
        The model, as the bytes of a `.model` file.

    Raises:
        TypeError: `texts` is one string, or an item is neither str nor bytes.
        ValueError: no words in the texts, or a `vocabulary_size` too small for the characters.

    Example:
        >>> from kbert.tokenizers import UnigramTokenizer
        >>> tokenizer = UnigramTokenizer(train_unigram(["the light of the night"] * 9, 30))
        >>> tokenizer.vocabulary[:5]
        ['<pad>', '<unk>', '[CLS]', '[SEP]', '[MASK]']
    """
    import sentencepiece

    preparation = layout in PREPARED if preparation is None else preparation
    usual_case = preparation and layout != "xlnet"
    text = TextPreparation(
        albert=preparation,
        lowercase=usual_case if lowercase is None else lowercase,
        keep_accents=not preparation if keep_accents is None else keep_accents,
        stand_ins={},
        neutral=chr(0xE000),
    )
    lines = _lines(with_progress(texts, "reading text") if progress else texts, text)
    sample = _sample(lines, max_sentences, seed)
    if not sample:
        raise ValueError("Training a vocabulary requires texts with words. Received: none.")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sample),
            model_writer=model,
            model_type="unigram",
            vocab_size=vocabulary_size,
            hard_vocab_limit=False,
            character_coverage=character_coverage,
            max_sentence_length=2 * _LINE_BYTES,
            normalization_rule_name="nmt_nfkc",
            num_threads=_NUM_THREADS,
            minloglevel=2,
            **_pieces(layout, user_defined, num_sentinels),
        )
    except RuntimeError as error:
        reason = str(error).rpartition("] ")[2]  # without the line in sentencepiece's source
        raise ValueError(
            "A unigram vocabulary must contain the special tokens, every character that "
            "`character_coverage` keeps, and pieces. Received: "
            f"vocabulary_size={vocabulary_size}, for which sentencepiece reports: {reason}"
        ) from error
    return model.getvalue()


def _pieces(layout: str, user_defined: Iterable[str] | None, num_sentinels: int) -> dict[str, Any]:
    """Returns sentencepiece's arguments for special and user-defined pieces, by name.

    `user_defined`: strings that are always separate pieces; None = the usual ones of `layout`.
    """
    control: tuple[str, ...] = ()
    if first := layout_named(layout).first:
        pieces: dict[str, Any] = {f"{role}_id": -1 for role in _ROLES.values()}
        pieces |= {f"{_ROLES[piece]}_id": number for number, piece in enumerate(first)}
        pieces |= {f"{_ROLES[piece]}_piece": piece for piece in first}
        usual: tuple[str, ...] = ()
    elif layout == "xlnet":
        pieces = {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1}
        control = _XLNET_CONTROL
        usual = _XLNET_USER_DEFINED
    else:
        pieces = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1}
        control = _ALBERT_CONTROL
        usual = _ALBERT_USER_DEFINED
    sentinels = [f"<extra_id_{number}>" for number in range(num_sentinels)]
    chosen = usual if user_defined is None else user_defined
    return pieces | {
        "control_symbols": [*control, *sentinels],
        "user_defined_symbols": list(chosen),
    }


def _sample(lines: Iterable[bytes], size: int, seed: int) -> list[bytes]:
    """Draws a uniform sample of at most `size` lines (reservoir sampling, Algorithm R).

    The trainer's own sampling differs from process to process.
    """
    generator = random.Random(seed)
    sample: list[bytes] = []
    for number, line in enumerate(lines):
        if number < size:
            sample.append(line)
        elif (index := generator.randrange(number + 1)) < size:
            sample[index] = line
    return sample


def _lines(texts: Iterable[str | bytes], text: TextPreparation) -> Iterator[bytes]:
    """Yields the lines of texts in UTF-8, prepared by `text`; skips lines of white space only."""
    prepare = on_cpu(lambda lines: text(text.hide(lines)), tf.TensorSpec([None], tf.string))
    for batch in batches(_cut(texts)):
        for line in prepare(tf.constant(batch)).numpy():
            if line.strip():
                yield line


def _cut(texts: Iterable[str | bytes]) -> Iterator[bytes]:
    """Yields the lines of texts; splits those above `_LINE_BYTES`, at a space if there is one."""
    for text in each_text(texts):
        for line in (text.encode() if isinstance(text, str) else text).split(b"\n"):
            while len(line) > _LINE_BYTES:
                space = line.rfind(b" ", 1, _LINE_BYTES)
                end = space if space > 0 else _character_start(line, _LINE_BYTES)
                yield line[:end]
                line = line[end:]
            yield line


def _character_start(line: bytes, end: int) -> int:
    """Returns the last position at or before `end` where a UTF-8 character begins."""
    while end > 1 and line[end] & 0xC0 == 0x80:
        end -= 1
    return end
