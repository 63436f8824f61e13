"""Students of encoder-decoders: fewer layers, copied from the teacher, to be fine-tuned."""

import re
from collections.abc import Sequence
from numbers import Integral
from typing import Any, cast

from kbert.models import Seq2Seq
from kbert.models.weights import get_arrays, set_arrays
from kbert.tasks import TextToText

_LAYER = re.compile(r"seq2seq/(encoder|decoder)_layers/(\d+)/(.*)")
Layers = int | Sequence[int] | None


def seq2seq_student(
    teacher: Seq2Seq | TextToText, decoder_layers: Layers = None, encoder_layers: Layers = None
) -> Seq2Seq | TextToText:
    """Returns a student with some of its teacher's layers, to shrink and fine-tune.

    (Shleifer and Rush 2020, section 3.1, https://arxiv.org/abs/2010.13002: DistilBART copies the
    whole encoder and every second decoder layer.) Decoding costs as many steps as an answer has
    tokens, each through the decoder alone, so fewer decoder layers save the most time. Fine-tune
    the student on the teacher's data, or on pairs of texts and the teacher's answers to them:

        student = kbert.distillation.seq2seq_student(teacher, decoder_layers=6)
        student.fit(texts, teacher.predict(texts), epochs=3)

    Args:
        teacher: an encoder-decoder, or a task on one.
        decoder_layers: number of the student's decoder layers, or the teacher's layers to copy,
            counted from 0. A number spreads them evenly from the first to the last layer: 6 of 12
            are 0, 2, 4, 7, 9 and 11. None = half of them.
        encoder_layers: the same for the encoder; None = all.

    Returns:
        An encoder-decoder, or a task of the same class and settings, not compiled.

    Raises:
        TypeError: the teacher is no encoder-decoder with a decoder of its own.
        ValueError: the teacher does not have a layer.

    Example:
        >>> import kbert
        >>> config = kbert.Seq2SeqConfig(vocabulary_size=9, hidden_size=8, num_layers=4,
        ...                              num_heads=2, intermediate_size=16)
        >>> student = seq2seq_student(kbert.Seq2Seq(config))
        >>> student.config.num_layers, student.config.decoder_layers
        (4, 2)
    """
    model = teacher.seq2seq if isinstance(teacher, TextToText) else teacher
    if not isinstance(model, Seq2Seq):
        raise TypeError(
            "The teacher must be a kbert.Seq2Seq, or a TextToText on one. Received: a "
            f"{type(model).__name__}"
        )
    depths = {"encoder": model.config.num_layers, "decoder": model.config.decoder_layers}
    chosen = {
        "encoder": _layers(encoder_layers, depths["encoder"], depths["encoder"], "encoder"),
        "decoder": _layers(
            decoder_layers, depths["decoder"], -(-depths["decoder"] // 2), "decoder"
        ),
    }
    sizes = {side: len(layers) for side, layers in chosen.items()}
    config = model.config.replace(
        num_layers=sizes["encoder"],
        num_decoder_layers=None if len(set(sizes.values())) == 1 else sizes["decoder"],
    )
    small = Seq2Seq(config, dtype=model.dtype_policy)
    arrays: dict[str, Any] = {}
    for name, array in get_arrays(model, Seq2Seq.prefix).items():
        place = _LAYER.fullmatch(name)
        if place is None:
            arrays[name] = array
            continue
        side, layer, rest = place.groups()
        for index, copied in enumerate(chosen[side]):
            if copied == int(layer):
                arrays[f"{Seq2Seq.prefix}/{side}_layers/{index}/{rest}"] = array
    set_arrays(small, Seq2Seq.prefix, arrays, "the teacher")
    if not isinstance(teacher, TextToText):
        return small
    return type(teacher)(small, teacher.tokenizer, **teacher.settings)


def _layers(asked: Layers, depth: int, usual: int, side: str) -> list[int]:
    """Returns the teacher's layer, from 0, of each layer of a side of the student.

    Args:
        asked: argument of `seq2seq_student`.
        depth: number of the teacher's layers.
        usual: number of layers for None.
        side: "encoder" or "decoder", for the message.
    """
    if isinstance(asked, bool):  # for Python an integer, but no number of layers
        layers: list[int] = []
    elif asked is None or isinstance(asked, Integral):
        count = usual if asked is None else int(asked)
        steps = max(count - 1, 1)
        layers = [round(i * (depth - 1) / steps) for i in range(count)] if count <= depth else []
    else:
        layers = [int(layer) for layer in cast(Sequence, asked)]
    if not layers or not all(0 <= layer < depth for layer in layers):
        raise ValueError(
            f"`{side}_layers` must be a number from 1 to {depth}, the teacher's, or a list of its "
            f"layers from 0 to {depth - 1}. Received: {side}_layers={asked}"
        )
    return layers
