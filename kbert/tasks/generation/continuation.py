"""Turns new tokens into the text that continues a prompt, at once or token by token.

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
    """Returns the text that new tokens add to their prompts, in a graph or eagerly.

    The text of a token depends on what precedes it: the space between two words belongs to the
    second. If joining changes the text of the prompt itself ("it '" and "s" give "it's"), the
    result is the text of the new tokens alone.

    Args:
        tokenizer: tokenizer of the ids.
        prompts: (B, None) ids of the prompts.
        new: (B, None) ids of the new tokens.

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
        prompt_texts = tokenizer.decode(prompts)
        full_texts = tokenizer.decode(tf.concat([prompts, new], axis=1))
        lengths = tf.strings.length(prompt_texts)
        continues = tf.strings.substr(full_texts, tf.zeros_like(lengths), lengths) == prompt_texts
        starts = tf.minimum(lengths, tf.strings.length(full_texts))
        added_texts = tf.strings.substr(full_texts, starts, tf.strings.length(full_texts) - starts)
        return tf.where(continues, added_texts, tokenizer.decode(new))


def cut(text: str, stop: Sequence[str]) -> str:
    """Truncates a text before the first stop string in it.

    Example:
        >>> cut("one. two. three", ["two", "three"])
        'one. '
    """
    positions = [text.find(string) for string in stop if string in text]
    return text[: min(positions, default=len(text))]


class TextStream:
    """Streams text token by token, without half characters or words that may still change.

    Args:
        tokenizer: tokenizer of the ids.
        prompt: token ids of the prompt.
        stop: strings before which the text ends; the stream contains neither them nor parts of
            them.

    Attributes:
        ended: whether a stop string occurred.

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
        """Adds a token and returns the text that has become final with it."""
        self._ids.append(int(token_id))
        certain = self._certain(self._text())
        final_text = cut(certain, self._stop)
        if final_text != certain:
            self.ended = True
            return self._give(final_text)
        # The end of the certain text may be the beginning of a stop string.
        num_held_back = max(
            (n for s in self._stop for n in range(1, len(s)) if certain.endswith(s[:n])), default=0
        )
        return self._give(certain[: len(certain) - num_held_back])

    def finish(self) -> str:
        """Returns the remaining text, when no more tokens follow."""
        return "" if self.ended else self._give(cut(self._text(), self._stop))

    def _text(self) -> str:
        new_ids = tf.ragged.constant([self._ids], tf.int32)
        return continuations(self._tokenizer, self._prompt, new_ids).numpy()[0].decode()

    def _certain(self, text: str) -> str:
        if self._tokenizer.kind == "wordpiece":
            return text[: max(text.rfind(" "), 0)]  # a word may continue, a space may be dropped
        return text.rstrip(_REPLACEMENT)  # a character whose remaining bytes are still to come

    def _give(self, text: str) -> str:
        new_text = text[self._given :]
        self._given = max(self._given, len(text))
        return new_text


def pieces(stream: TextStream, token_ids: Iterator[int]) -> Iterator[str]:
    """Yields the text that each token makes final in `stream`, without empty strings.

    Ends after the last token, or once a stop string occurs.
    """
    for token_id in token_ids:
        piece = stream.add(token_id)
        if piece:
            yield piece
        if stream.ended:
            return
    last_piece = stream.finish()
    if last_piece:
        yield last_piece
