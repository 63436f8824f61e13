"""Reads a model in one format and writes it in another."""

import contextlib
import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from kbert.checkpoints import Checkpoint, read_checkpoint, write_checkpoint
from kbert.checkpoints.keras_hub.checkpoint import without_place
from kbert.configs.decoder import DecoderConfig
from kbert.configs.elmo import ElmoConfig
from kbert.configs.encoder import EncoderConfig
from kbert.conversion.heads import HEADS, check_heads
from kbert.conversion.lengthening import lengthen
from kbert.core.types import PathLike
from kbert.hub import locate
from kbert.io import atomic
from kbert.io.paths import Path, is_remote, remove_tree
from kbert.models import Encoder
from kbert.models.generators.decoder import Decoder
from kbert.models.initial_values import without_drawing
from kbert.models.weights import named_weights, set_arrays
from kbert.tokenizers import load_tokenizer
from kbert.tokenizers.base import Tokenizer

_SLOT = re.compile(r"/((?:adam|lamb)_[mv]|Adam(?:_1)?)$")
_SHOWN = 12


@dataclasses.dataclass(frozen=True)
class Conversion:
    """Result of a conversion; `str` formats it as a report.

    Attributes:
        source: folder that was read.
        target: folder that was written.
        format: format of the target.
        shapes: weight name -> shape.
        dtypes: distinct dtypes of the weights, sorted by name.
        left: names of what the target lacks: unused tensors of the source, and heads and labels
            that the format cannot store.
        tokenizer: kind and size of the tokenizer; None if the source has none.
    """

    source: Path
    target: Path
    format: str
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: tuple[str, ...]
    left: tuple[str, ...]
    tokenizer: str | None

    @property
    def parameters(self) -> int:
        """The number of parameters of the model and its heads together."""
        return sum(int(np.prod(shape)) for shape in self.shapes.values())

    def __str__(self) -> str:
        rows = [("weights", "tensors", "shape", "parameters")]
        for (name, shape), count in _grouped(self.shapes.items(), _without_layer).items():
            size = f"{count * int(np.prod(shape)):,}"
            rows.append((name, str(count), " × ".join(map(str, shape)), size))
        rows.append(("all", str(len(self.shapes)), "", f"{self.parameters:,}"))
        width = [max(len(row[i]) for row in rows) for i in range(4)]
        table = [
            f"{a:<{width[0]}}  {b:>{width[1]}}  {c:<{width[2]}}  {d:>{width[3]}}".rstrip()
            for a, b, c, d in rows
        ]
        return "\n".join(
            [
                f"{self.source} -> {self.target} ({self.format}, {', '.join(self.dtypes)})",
                *table,
                *_listed(self.left),
                f"tokenizer: {self.tokenizer or 'none in the source'}",
            ]
        )


def convert(
    source: PathLike,
    target: PathLike,
    *,
    format: str = "kbert",
    architecture: str | None = None,
    revision: str | None = None,
    strict: bool = True,
    ignore: Collection[str] = (),
    window: int | None = None,
    max_positions: int | None = None,
) -> Conversion:
    """Converts an encoder or decoder: config, weights, all heads and tokenizer.

    Args:
        source: folder in any format that kbert reads, or a name (see `kbert.hub.locate`).
        target: folder to write to; it must be empty or not exist yet.
        format: one of the config's `FORMATS`: "kbert", "huggingface" or, for encoders, "keras_hub".
        architecture: kind of the model in the other library ("bert", "roberta", …); None = chosen
            by the config.
        revision: branch, tag or commit of a repository on the hub.
        strict: False = skip, and list, tensors that have no place in kbert.
        ignore: keys of a Hugging Face `config.json`, unknown to kbert, that do not affect the
            model. A key of another architecture, or whose name mentions norms, scales, windows and
            the like, still raises an error.
        window: window size in tokens; turns the encoder into one for long sequences with windows
            and global tokens, as Longformer was made from RoBERTa (see `lengthen`). None = no
            change.
        max_positions: number of positions of the lengthened encoder; None = unchanged.

    Returns:
        The report. `kbert.conversion.check` checks that both compute the same.

    Raises:
        FileNotFoundError: nothing has the name of the source.
        ValueError: weights are missing, left over, of another shape or not finite; the tokenizer
            has more entries than the token table; the target is not empty; the format cannot store
            the model; or `max_positions` comes without a window.

    Example:
        >>> import tempfile
        >>> from kbert import Encoder, EncoderConfig
        >>> folder = tempfile.mkdtemp()
        >>> config = EncoderConfig(vocabulary_size=10, hidden_size=8, num_layers=1, num_heads=2,
        ...                        intermediate_size=16)
        >>> Encoder(config).save_to_preset(f"{folder}/here")
        >>> convert(f"{folder}/here", f"{folder}/there", format="huggingface").parameters
        4880
    """
    target = Path(target)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"The target must be an empty folder or not exist. Received: {target}")
    folder = locate(source, revision=revision)
    checkpoint = read_checkpoint(folder, ignore=ignore)
    _refuse_unsupported(checkpoint)
    checkpoint = _lengthened(checkpoint, window, max_positions)
    with without_drawing():
        model, prefix = _empty(checkpoint)
        arrays, unknown = _split(checkpoint, model, prefix, strict)
        # Raises for weights that do not fit, as loading the model does.
        part = {name: array for name, array in arrays.items() if name.startswith(f"{prefix}/")}
        set_arrays(model, prefix, part, checkpoint.source)
        check_heads(model, arrays, checkpoint.source)
    unwritten = _without_place(checkpoint, arrays, format, architecture)
    arrays = {name: array for name, array in arrays.items() if name not in unwritten}
    if format == "keras_hub" and checkpoint.labels:
        unwritten.append(f"labels: {', '.join(checkpoint.labels)}")
    tokenizer = _tokenizer(folder, checkpoint.config.vocabulary_size)
    with _appearing(target) as temporary:
        write_checkpoint(
            temporary,
            checkpoint.config,
            arrays,
            format,
            task=checkpoint.task,
            tokenizer=tokenizer,
            labels=checkpoint.labels,
            architecture=architecture,
        )
        if tokenizer is not None:
            tokenizer.save(temporary)
    return Conversion(
        source=folder,
        target=target,
        format=format,
        shapes={name: array.shape for name, array in arrays.items()},
        dtypes=tuple(sorted({str(array.dtype) for array in arrays.values()})),
        left=(*checkpoint.left, *unknown, *unwritten),
        tokenizer=f"{tokenizer.kind}, {tokenizer.vocabulary_size:,} entries" if tokenizer else None,
    )


@contextlib.contextmanager
def _appearing(target: Path) -> Iterator[Path]:
    """Yields a temporary folder and renames it to the target once everything is written.

    So the target never contains half a model. Folders in an object store cannot be renamed: there
    the target itself is yielded.
    """
    if is_remote(target):
        target.mkdir(parents=True, exist_ok=True)
        yield target
        return
    temporary = Path(atomic.temporary_name(str(target)))
    try:
        with atomic.naming(str(target)):
            temporary.mkdir(parents=True)
        yield temporary
        with atomic.naming(str(target)):
            temporary.replace(target)  # which may be an empty folder
    finally:
        remove_tree(temporary)


def _lengthened(
    checkpoint: Checkpoint, window: int | None, max_positions: int | None
) -> Checkpoint:
    """Returns the checkpoint of the lengthened encoder; the same checkpoint if `window` is None.

    Raises ValueError if `max_positions` comes without a window; see `lengthen` for both.
    """
    if window is None:
        if max_positions is not None:
            raise ValueError(
                "`max_positions` requires `window`: only encoders with windows get more "
                f"positions. Received: max_positions={max_positions}, window=None"
            )
        return checkpoint
    encoder = checkpoint.expect(EncoderConfig)
    config, arrays = lengthen(
        encoder.config, encoder.arrays, window=window, max_positions=max_positions
    )
    return dataclasses.replace(encoder, config=config, arrays=arrays)


def _refuse_unsupported(checkpoint: Checkpoint) -> None:
    """Raises ValueError for an ELMo, and for a task whose head reads chosen layers or an LSTM."""
    if checkpoint.config.kind == ElmoConfig.kind:
        raise ValueError(
            "Encoders and decoders can be converted; an ELMo has two formats, which "
            'Elmo.from_preset(folder).save_to_preset(target, "bilm" or "kbert") writes. Received: '
            f"an ELMo in {checkpoint.source}"
        )
    task = checkpoint.task or {}
    if given := [name for name in ("feature_layers", "head") if task.get(name) is not None]:
        raise ValueError(
            "A head on chosen layers or with a BiLSTM cannot be converted: no other format has "
            f"one. Received: {', '.join(f'{name}={task[name]!r}' for name in given)} in "
            f"{checkpoint.source}"
        )


def _empty(checkpoint: Checkpoint) -> tuple[Encoder | Decoder, str]:
    """Returns a model of the checkpoint's config, without its weights, and their names' prefix."""
    if isinstance(checkpoint.config, DecoderConfig):
        return Decoder(checkpoint.config), Decoder.prefix
    return Encoder(checkpoint.expect(EncoderConfig).config), "encoder"


def _split(
    checkpoint: Checkpoint, model: Encoder | Decoder, prefix: str, strict: bool
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Splits a checkpoint's arrays into those with a place in kbert and the names of the others.

    Args:
        checkpoint: checkpoint of the source.
        model: model of the checkpoint's config.
        prefix: prefix of the names of the model's weights.
        strict: whether to raise ValueError if there are others.
    """
    names_in_model = named_weights(model, prefix)
    heads = HEADS if isinstance(model, Encoder) else ("classifier",)
    known, unknown = {}, []
    for name, array in checkpoint.arrays.items():
        if name in names_in_model or name.split("/")[0] in heads:
            known[name] = array
        else:
            unknown.append(name.removeprefix(f"{prefix}/"))
    if unknown and strict:
        raise ValueError(
            "Every tensor must have a counterpart in kbert; strict=False leaves out the others. "
            f"Received: {', '.join(unknown)} in {checkpoint.source}"
        )
    return known, unknown


def _without_place(
    checkpoint: Checkpoint, names: Iterable[str], format: str, architecture: str | None
) -> list[str]:
    """Returns the names of the weights that the target's format cannot store.

    Args:
        checkpoint: checkpoint of the source.
        names: names of the weights.
        format: format of the target.
        architecture: kind of the model in the other library; None = chosen by the config.
    """
    if format == "huggingface":
        return [name for name in names if name.startswith("span_boundary/")]
    if format == "keras_hub" and isinstance(checkpoint.config, EncoderConfig):
        return without_place(checkpoint.config, names, architecture)
    return []


def _tokenizer(folder: PathLike, rows: int) -> Tokenizer | None:
    """Loads the tokenizer of a folder; returns None if there is none.

    Raises ValueError if it has more entries than the token table has `rows`.
    """
    try:
        # Models with a character tokenizer never get here: their weights cannot be converted.
        tokenizer = cast(Tokenizer, load_tokenizer(folder))
    except FileNotFoundError:
        return None
    if tokenizer.vocabulary_size > rows:
        raise ValueError(
            f"The token table must have a row for each vocabulary entry; it has {rows}. "
            f"Received: {tokenizer.vocabulary_size} entries in the tokenizer of {folder}"
        )
    return tokenizer


def _without_layer(name: str) -> str:
    return re.sub(r"\d+", "*", name)


def _kind(name: str) -> str:
    """Returns the name of the group that a report counts a weight in.

    For the slot of an optimizer this is the slot's name, such as "*/adam_m", because there are two
    slots for each weight. For any other weight it is the name with "*" for each number.
    """
    slot = _SLOT.search(name)
    return f"*/{slot[1]}" if slot else _without_layer(name)


def _grouped(
    items: Iterable[tuple[str, Any]], rename: Callable[[str], str]
) -> Counter[tuple[str, Any]]:
    """Counts items by renamed name and value, in order of first appearance.

    Args:
        items: (name, value) of each item.
        rename: function of a name; returns the name of its group.
    """
    return Counter((rename(name), value) for name, value in items)


def _listed(left: Sequence[str]) -> list[str]:
    """Returns the lines of a report that list the names the target lacks, at most 12 groups."""
    if not left:
        return ["left out: nothing"]
    groups = [
        name if count == 1 else f"{name} (× {count})"
        for (name, _), count in _grouped(((name, None) for name in left), _kind).items()
    ]
    more = [f"  … and {len(groups) - _SHOWN} more"] if len(groups) > _SHOWN else []
    head = f"left out, {len(left)} that the target does not have:"
    return [head, *(f"  {group}" for group in groups[:_SHOWN]), *more]
