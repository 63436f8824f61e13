"""Attention heads that find the syntactic head of a word.

Source: Clark et al. 2019, "What Does BERT Look At? An Analysis of BERT's Attention",
https://arxiv.org/abs/1906.04341, section 4.

Shapes: B batch, L layers, N attention heads, T tokens, W words.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from kbert import inference
from kbert.extraction.inputs import Encoded, as_inputs, encode_words
from kbert.tasks.input_form import InputForm, check_encoder, input_form
from kbert.tokenizers.base import Tokenizer

DIRECTIONS = ("dependent to head", "head to dependent")
_OFFSETS = [offset for offset in range(-10, 11) if offset]


@dataclasses.dataclass(frozen=True)
class RelationScore:
    """The attention head that finds the heads of a relation best.

    Attributes:
        accuracy: share of the relation's words whose syntactic head is found.
        layer, head: number of the attention head, both from 0.
        direction: "dependent to head" if the word attends to its head, "head to dependent" if the
            head attends to the word.
        baseline: accuracy of the best fixed offset.
        offset: that offset in words; 1 = the next word.
        count: number of words with the relation.
    """

    accuracy: float
    layer: int
    head: int
    direction: str
    baseline: float
    offset: int
    count: int


@dataclasses.dataclass(frozen=True)
class SyntacticHeads:
    """How well each attention head finds syntactic heads.

    Attributes:
        correct: relation -> (2, L, N), share of its words whose head is found, by direction.
        offsets: relation -> {offset in words: share of its words with the head there}.
        counts: relation -> number of words.
    """

    correct: Mapping[str, np.ndarray]
    offsets: Mapping[str, Mapping[int, float]]
    counts: Mapping[str, int]

    def best(self, relation: str) -> RelationScore:
        """Returns the best attention head for a relation, next to the best fixed offset."""
        if relation not in self.correct:
            raise ValueError(
                f"relation must be one of {', '.join(self.correct)}. Received: {relation!r}"
            )
        scores, offsets = self.correct[relation], self.offsets[relation]
        direction, layer, head = (int(i) for i in np.unravel_index(scores.argmax(), scores.shape))
        offset = max(offsets, key=offsets.__getitem__)
        return RelationScore(
            accuracy=float(scores.max()),
            layer=layer,
            head=head,
            direction=DIRECTIONS[direction],
            baseline=offsets[offset],
            offset=offset,
            count=self.counts[relation],
        )

    def __str__(self) -> str:
        lines = [f"{'relation':12} {'words':>6} {'head':>6} {'accuracy':>8} {'offset':>13}"]
        for relation in sorted(self.counts, key=self.counts.__getitem__, reverse=True):
            best = self.best(relation)
            place, baseline = f"{best.layer}-{best.head}", f"{best.baseline:.3f} ({best.offset:+})"
            lines.append(
                f"{relation:12} {best.count:6} {place:>6} {best.accuracy:8.3f} {baseline:>13}  "
                f"{best.direction}"
            )
        return "\n".join(lines)


def syntactic_heads(
    encoder: keras.Model,
    tokenizer: Tokenizer,
    words: Sequence[Sequence[str]],
    heads: Sequence[Sequence[int]],
    relations: Sequence[Sequence[str]],
    *,
    batch_size: int = inference.BATCH_SIZE,
) -> SyntacticHeads:
    """Compares each attention head with the trees of sentences, relation by relation.

    Attention is read between words: attention to a word of several tokens is the sum over its
    tokens, attention from it the mean. An attention head finds the syntactic head of a word that
    gets most of the word's attention ("dependent to head"), or that attends to the word most ("head
    to dependent"); special tokens and the word itself are left out. Roots have no head and are not
    counted. The best head and offset are chosen on the same sentences, as in the paper.

    Args:
        encoder: a `kbert.Encoder`.
        tokenizer: tokenizer of the encoder.
        words: the words of each sentence, as in the column FORM of CoNLL-U.
        heads: for each word the number of its head from 1, or 0 for the root (HEAD).
        relations: for each word its relation to the head (DEPREL).
        batch_size: sentences of a batch.

    Raises:
        TypeError: `encoder` is not an encoder.
        ValueError: numbers of words, heads and relations differ, a sentence has no words, a head is
            outside its sentence, or a sentence is longer than the encoder's `max_positions`.

    Example:
        >>> import kbert
        >>> from kbert.tokenizers import SPECIAL_TOKENS
        >>> tokenizer = kbert.WordPieceTokenizer([*SPECIAL_TOKENS, "the", "dog", "sleep", "##s"])
        >>> encoder = kbert.Encoder(kbert.family("bert-tiny").replace(vocabulary_size=9))
        >>> sentence = ["the", "dog", "sleeps"]
        >>> found = syntactic_heads(encoder, tokenizer, [sentence], [[2, 3, 0]],
        ...                         [["det", "nsubj", "root"]])
        >>> found.counts, found.correct["det"].shape, found.best("det").offset
        ({'det': 1, 'nsubj': 1}, (2, 2, 2), 1)
    """
    check_encoder(encoder, "kbert.analysis.syntactic_heads")
    _check_trees(words, heads, relations)
    hits: dict[str, list[np.ndarray]] = {}
    distances: dict[str, list[int]] = {}
    for number, attention in _word_attention(encoder, tokenizer, words, batch_size):
        own = np.eye(attention.shape[-1], dtype=bool)
        attention = np.where(own, -1.0, attention)
        guesses = np.stack([attention.argmax(-1), attention.argmax(-2)])  # (2, L, N, W)
        for word, (head, relation) in enumerate(zip(heads[number], relations[number], strict=True)):
            if head:
                hits.setdefault(relation, []).append(guesses[..., word] == head - 1)
                distances.setdefault(relation, []).append(head - 1 - word)
    return SyntacticHeads(
        correct={relation: np.mean(x, axis=0) for relation, x in hits.items()},
        offsets={
            relation: {offset: float(np.mean(np.array(x) == offset)) for offset in _OFFSETS}
            for relation, x in distances.items()
        },
        counts={relation: len(x) for relation, x in hits.items()},
    )


def tree_depths(heads: Sequence[int]) -> list[int]:
    """Returns the depth of each word in its tree: 0 for the root, 1 for its dependents, ….

    As labels of words they are a property to probe (Hewitt and Manning 2019,
    https://aclanthology.org/N19-1419).

    Args:
        heads: for each word the number of its head from 1, or 0 for the root.

    Raises:
        ValueError: the heads are no tree, or one is outside the sentence.

    Example:
        >>> tree_depths([2, 3, 0, 3])  # the dog sleeps here
        [2, 1, 0, 1]
    """
    _check_heads(heads, "a sentence")
    depths = []
    for word in range(1, len(heads) + 1):
        depth = -1
        while word and depth < len(heads):
            word, depth = heads[word - 1], depth + 1
        if word:
            raise ValueError(f"The heads of a tree must lead to the root. Received: {[*heads]}")
        depths.append(depth)
    return depths


def _check_trees(
    words: Sequence[Sequence[str]],
    heads: Sequence[Sequence[int]],
    relations: Sequence[Sequence[str]],
) -> None:
    """Raises ValueError unless each word has a head inside its sentence, and a relation.

    Sentences without words raise ValueError too.
    """
    sizes = [[len(x) for x in column] for column in (words, heads, relations)]
    if sizes[0] != sizes[1] or sizes[0] != sizes[2] or not sizes[0]:
        raise ValueError(
            "Each word must have a head and a relation. Received: "
            f"{len(words)} sentences with {', '.join(str(sum(x)) for x in sizes)} words, heads and "
            "relations"
        )
    for number, sentence in enumerate(heads):
        if not len(sentence):
            raise ValueError(
                f"A sentence must have at least one word. Received: none in sentence {number}"
            )
        _check_heads(sentence, f"sentence {number}")


def _check_heads(heads: Sequence[int], sentence: str) -> None:
    """Raises ValueError unless each head is in its sentence; `sentence` is its name in messages."""
    if not all(0 <= head <= len(heads) for head in heads):
        raise ValueError(
            "A head must be the number of a word from 1, or 0 for the root. Received: "
            f"{[*heads]} for {sentence} of {len(heads)} words"
        )


def _word_attention(
    encoder: Any, tokenizer: Tokenizer, words: Sequence[Sequence[str]], batch_size: int
) -> Iterator[tuple[int, np.ndarray]]:
    """Yields (number of a sentence, its attention between words, (L, N, W, W))."""
    form = input_form(encoder, tokenizer)
    encoded = encode_words(tokenizer, as_inputs(words, words=True).first)
    lengths = np.array([len(sentence.ids) for sentence in encoded])
    most = encoder.config.max_positions
    if lengths.max() + form.specials(1) > most:
        raise ValueError(
            f"A sentence must not be longer than the encoder's max_positions={most}. Received: "
            f"{lengths.max()} tokens in sentence {lengths.argmax()}, and special tokens"
        )
    rows = inference.token_rows(lengths, first=inference.as_ragged([x.ids for x in encoded]))
    runner = inference.Runner(
        functools.partial(_attention, encoder),
        encoder,
        assemble=functools.partial(_assemble, form, encoder.config),
    )
    for index, attention in runner.each(rows, batch_size):
        for number, weights in zip(index, attention, strict=True):
            yield int(number), _between_words(weights, encoded[number], form)


def _assemble(form: InputForm, config: Any, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the encoder's inputs (B, T) for a batch of token ids."""
    inputs = form.build_inputs(columns["first"], max_length=config.max_positions, multiple=8)
    if not config.num_segments:
        del inputs["segment_ids"]
    return inputs


def _attention(encoder: keras.Model, inputs: Mapping[str, Any]) -> Any:
    """Returns the attention of all layers, (B, L, N, T, T) float32."""
    outputs = encoder(inputs, training=False, return_attention=True)
    return ops.stack([ops.cast(x, "float32") for x in outputs["attention"]], axis=1)


def _between_words(weights: np.ndarray, sentence: Encoded, form: InputForm) -> np.ndarray:
    """Returns attention (L, N, T, T) between tokens as attention (L, N, W, W) between words."""
    texts = slice(form.begin, form.begin + len(sentence.ids))
    word_of = sentence.word_of[None] == np.arange(sentence.word_of.max() + 1)[:, None]  # (W, T)
    belongs = word_of.astype(np.float32)
    means = belongs / belongs.sum(1, keepdims=True)
    return means @ weights[..., texts, texts] @ belongs.T
