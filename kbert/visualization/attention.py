"""What a model looks at: pictures of the attention within a text, or between two."""

from collections.abc import Sequence
from typing import Any

from kbert.visualization.attention_map import check_view, draw
from kbert.visualization.attention_page import AttentionPage
from kbert.visualization.attention_reading import read_attention


def attention(
    model: Any,
    texts: str | Sequence[str],
    layer: int | None = None,
    head: int | None = None,
    *,
    tokenizer: Any = None,
    kind: str = "auto",
    view: str = "heatmap",
    title: str | None = None,
) -> Any:
    """The attention of a model, with the tokens of the text at its sides.

    A row says where a token looks; it sums to 1. Layer and head given: one picture. One of them:
    all heads of a layer, or a head in all layers. None of them: every head of every layer, small
    and without names.

    Args:
        model: a task, or a `kbert.Encoder`, `kbert.Decoder` or `kbert.Seq2Seq` with `tokenizer`.
        texts: one text; or a pair: two segments for an encoder, source and target for a
            `Seq2Seq`. A Translator writes the target itself where only a source is given. The mask
            token stands for a mask.
        layer, head: numbers from 0, negative ones from the last; None = all.
        tokenizer: the model's; None = the task's.
        kind: which attention: "encoder", "decoder", or "cross", from target to source. "auto" is
            what the model has; of a `Seq2Seq` "cross", and with `view="html"` all of them. A row of
            "cross" has the name of the token that is written there, not of the one before it that
            was read.
        view: "heatmap", "lines" (two columns of tokens with lines between them), or "html", an
            interactive page on which layers, heads and tokens are chosen.
        title: above the picture; None = what it shows.

    Returns:
        A matplotlib Figure; for "html" an `AttentionPage`, which a notebook shows and `save` writes
        to a file.

    Raises:
        TypeError: another kind of model, or something that is no text.
        ValueError: a layer, head, kind or view that there is not, more or fewer texts than the
            model reads, or more tokens than its positions or than a picture shows (128).

    Example:
        >>> import kbert
        >>> from kbert.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
        >>> tokenizer = WordPieceTokenizer([*SPECIAL_TOKENS, "it", "rains"])
        >>> encoder = kbert.Encoder(kbert.family("bert-tiny").replace(vocabulary_size=7))
        >>> figure = attention(encoder, "It rains", -1, 0, tokenizer=tokenizer)
        >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
        ['[CLS]', 'it', 'rains', '[SEP]']
        >>> attention(encoder, "It rains", tokenizer=tokenizer, view="html")
        AttentionPage(encoder: 2 layers, 2 heads, 4 × 4 tokens)
    """
    check_view(view)
    kinds = read_attention(model, texts, tokenizer)
    if kind != "auto":
        if kind not in kinds:
            raise ValueError(
                f'kind must be "auto" or what the model has: {", ".join(kinds)}. Received: {kind!r}'
            )
        kinds = {kind: kinds[kind]}
    first = next(iter(kinds))
    if view == "html":
        return AttentionPage(kinds, layer=layer, head=head, title=title)
    chosen = kinds[first].select(layer, head)
    if title is None:
        layers, heads, *_ = kinds[first].values.shape
        title = f"{first.capitalize()} attention"
        title += "" if layer is None else f", layer {layer % layers}"
        title += "" if head is None else f", head {head % heads}"
    return draw(chosen, view, title)
