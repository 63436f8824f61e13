"""From new tokens to the text that continues a prompt, at once or as they come.

Shapes: B rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kbert.core.late import tf
from kbert.tokenizers.base import Tokenizer

_REPLACEMENT = "\ufffd"


def continuations(
    tokenizer: Tokenizer, prompts: tf.RaggedTensor, new: tf.RaggedTensor
) -> tf.Tensor:
    """What the new tokens add to the text of the prompts, in a graph or eagerly.

    A piece's text depends on what is before it: the space between two words belongs to the second.
    Where joining changes the text of the prompt itself, as "it '" and "s" make "it's", it is the
    text of the new tokens alone.

    Args:
        tokenizer: the ids are of.
        prompts: (B, None) ids.
        new: (B, None) ids.

    Returns:
        (B,) strings.

    Example:
        >>> from kbert.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
        >>> tokenizer = WordPieceTokenizer([*SPECIAL_TOKENS, "flight", "##less", "bird"])
        >>> prompts = tf.ragged.constant([[5]], dtype=tf.int32)
        >>> continuations(tokenizer, prompts, tf.ragged.constant([[6, 7]], dtype=tf.int32)).numpy()
        array([b'less bird'], dtype=object)
    """
    with tf.device("CPU"):
        before = tokenizer.decode(prompts)
        whole = tokenizer.decode(tf.concat([prompts, new], axis=1))
        lengths = tf.strings.length(before)
        continues = tf.strings.substr(whole, tf.zeros_like(lengths), lengths) == before
        at = tf.minimum(lengths, tf.strings.length(whole))
        rest = tf.strings.substr(whole, at, tf.strings.length(whole) - at)
        return tf.where(continues, rest, tokenizer.decode(new))


def cut(text: str, stop: Sequence[str]) -> str:
    """The text up to the first of the stop strings in it.

    Example:
        >>> cut("one. two. three", ["two", "three"])
        'one. '
    """
    places = [text.find(string) for string in stop if string in text]
    return text[: min(places, default=len(text))]


class TextStream:
    """Text as its tokens come: no half characters, no words that the next piece may change.

    Args:
        tokenizer: the ids are of.
        prompt: ids of what is before.
        stop: strings at which the text ends; none of them is given out, nor a part of one.

    Attributes:
        ended: whether a stop string came.

    Example:
        >>> from kbert.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
        >>> tokenizer = WordPieceTokenizer([*SPECIAL_TOKENS, "flight", "##less", "bird"])
        >>> stream = TextStream(tokenizer, [7])
        >>> [*map(stream.add, (5, 6, 7)), stream.finish()]
        ['', '', ' flightless', ' bird']
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int], stop: Sequence[str] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._prompt = tf.ragged.constant([list(prompt)], tf.int32)
        self._stop = tuple(stop)
        self._ids: list[int] = []
        self._given = 0  # characters
        self.ended = False

    def add(self, token_id: int) -> str:
        """The text that is certain now and was not before."""
        self._ids.append(int(token_id))
        certain = self._certain(self._text())
        found = cut(certain, self._stop)
        if found != certain:
            self.ended = True
            return self._give(found)
        # The end of what is certain may be the beginning of a stop string.
        held = max(
            (n for s in self._stop for n in range(1, len(s)) if certain.endswith(s[:n])), default=0
        )
        return self._give(certain[: len(certain) - held])

    def finish(self) -> str:
        """The rest, where no more tokens come."""
        return "" if self.ended else self._give(cut(self._text(), self._stop))

    def _text(self) -> str:
        new = tf.ragged.constant([self._ids], tf.int32)
        return continuations(self._tokenizer, self._prompt, new).numpy()[0].decode()

    def _certain(self, text: str) -> str:
        if self._tokenizer.kind == "wordpiece":
            return text[: max(text.rfind(" "), 0)]  # a word may continue, a space may be dropped
        return text.rstrip(_REPLACEMENT)  # bytes of a character whose rest is to come

    def _give(self, text: str) -> str:
        new = text[self._given :]
        self._given = max(self._given, len(text))
        return new


def pieces(stream: TextStream, token_ids: Iterator[int]) -> Iterator[str]:
    """The non-empty pieces of text that tokens give, until they or the text end."""
    for token_id in token_ids:
        piece = stream.add(token_id)
        if piece:
            yield piece
        if stream.ended:
            return
    rest = stream.finish()
    if rest:
        yield rest
