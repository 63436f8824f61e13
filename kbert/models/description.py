"""Parameter counts and training memory of a model by formula, without allocating it."""

import dataclasses
from collections.abc import Iterable
from typing import Any, cast

from kbert.catalog.families import Row, family_row, published_rows
from kbert.configs.base import Config
from kbert.configs.encoder import EncoderConfig
from kbert.configs.transformer import GLOBAL
from kbert.core import late
from kbert.models.edits import count_edits
from kbert.models.memory import TrainingMemory, estimate_memory
from kbert.models.parts import part_of

# The default rows of `family_table`: common choices, smallest first within a family.
CHOICES = (
    "bert-tiny",
    "bert-mini",
    "bert-small",
    "bert-medium",
    "bert-base-uncased",
    "bert-base-cased",
    "bert-base-multilingual-cased",
    "bert-base-chinese",
    "bert-large-uncased",
    "bert-xlarge",
    "huawei-noah/TinyBERT_General_4L_312D",
    "nreimers/MiniLM-L6-H384-uncased",
    "microsoft/MiniLM-L12-H384-uncased",
    "google/mobilebert-uncased",
    "distilbert-base-uncased",
    "distilroberta-base",
    "albert-base-v2",
    "albert-xxlarge-v2",
    "google/electra-small-discriminator",
    "google/electra-base-discriminator",
    "google/electra-large-discriminator",
    "roberta-base",
    "roberta-large",
    "SpanBERT/spanbert-base-cased",
    "xlm-roberta-base",
    "xlm-roberta-large",
    "jhu-clsp/ettin-encoder-17m",
    "answerdotai/ModernBERT-base",
    "answerdotai/ModernBERT-large",
    "jhu-clsp/ettin-encoder-1b",
    "jhu-clsp/mmBERT-base",
    "EuroBERT/EuroBERT-210m",
    "chandar-lab/NeoBERT",
    "nghuyong/ernie-3.0-base-zh",
    "microsoft/deberta-v3-base",
    "microsoft/mpnet-base",
    "allenai/longformer-base-4096",
    "xlnet-base-cased",
    "google/reformer-enwik8",
)


@dataclasses.dataclass(frozen=True)
class Description:
    """Sizes and parameter counts of an encoder; `print` shows them as a table.

    Attributes:
        name: name passed to `describe`; for a config, the names of the published models that have
            it, or None.
        config: config of the encoder.
        parameters: number of parameters of the encoder as published, including its pooler if it was
            released with one.
        pooler_parameters: number of these that belong to the pooler.
        held_parameters: number of parameters of `kbert.Encoder(config)`. It is less than
            `parameters` if the published tables have unused rows (RoBERTa).
        tokenizer: kind of tokenizer: "wordpiece", "bpe" or "unigram"; None for a custom config.
    """

    name: str | None
    config: EncoderConfig
    parameters: int
    pooler_parameters: int
    held_parameters: int
    tokenizer: str | None

    def training_memory(
        self,
        batch_size: int,
        sequence_length: int,
        *,
        precision: str = "float32",
        optimizer_slots: int = 2,
        recompute: bool = False,
    ) -> TrainingMemory:
        """Estimates the memory in bytes of a masked-LM pretraining step, by formula.

        The estimate is for TensorFlow without XLA; with XLA a step takes less. On a CPU, processes
        of 0.4 to 1.2 GiB were measured to grow by 14 % more to 9 % less
        (`tests/models/test_memory.py`).

        Args:
            batch_size: sequences in a step on one device, or in a micro-batch.
            sequence_length: tokens in a sequence.
            precision: "float32", "mixed_bfloat16" or "mixed_float16".
            optimizer_slots: numbers that the optimizer stores for each weight: 2 for AdamW and
                LAMB.
            recompute: whether only the input of each layer is kept for the gradient
                (`task.compile(recompute=True)`, `kbert-pretrain --recompute`).

        Returns:
            The parts and their sum, in bytes.

        Raises:
            ValueError: a number is out of range, or the precision is unknown.

        Example:
            >>> f"{describe('bert-base-uncased').training_memory(8, 128).total / 1e9:.1f} GB"
            '3.0 GB'
            >>> bert = describe('bert-base-uncased')
            >>> for recompute in (False, True):
            ...     found = bert.training_memory(4, 512, recompute=recompute)
            ...     print(f"{found.activations / 1e9:.1f} GB")
            2.6 GB
            0.6 GB
        """
        return estimate_memory(
            self.config,
            self.held_parameters,
            batch_size=batch_size,
            sequence_length=sequence_length,
            precision=precision,
            optimizer_slots=optimizer_slots,
            recompute=recompute,
        )

    def __str__(self) -> str:
        config = self.config
        blocks = "" if config.num_blocks == config.num_layers else f", {config.num_blocks} held"
        narrow = config.embedding_width != config.hidden_size
        unheld = self.parameters - self.held_parameters
        pooler = f", {self.pooler_parameters:,} of them the pooler's"
        length = min(128, config.max_positions)
        pattern = config.attention_pattern
        defaults = {"norm": "layer", "block": "post_norm"}
        norms = [x for name, usual in defaults.items() if (x := getattr(config, name)) != usual]
        memory = self.training_memory(32, length).total
        lines = {
            "model": self.name or "a custom config",
            "layers": f"{config.num_layers}{blocks}",
            "hidden width": f"{config.hidden_size:,}, {config.num_heads} heads",
            "feed-forward width": f"{config.intermediate_size:,}, {config.activation}"
            + (", gated" if config.feed_forward == "gated" else ""),
            **({"normalisation": ", ".join(norms)} if norms else {}),
            **({"attention": ", ".join(map(str, pattern))} if set(pattern) != {GLOBAL} else {}),
            **({"part": str(config.part["name"])} if config.part is not None else {}),
            **({"edits": ", ".join(x["kind"] for x in config.edits)} if config.edits else {}),
            **({"embedding width": f"{config.embedding_width:,}"} if narrow else {}),
            "vocabulary": f"{config.vocabulary_size:,}"
            + (f", {self.tokenizer}" if self.tokenizer else ""),
            "positions": f"{config.max_positions:,}"
            + ("" if config.positions == "learned" else f", {config.positions}"),
            "segments": f"{config.num_segments or 'none'}",
            "parameters": f"{self.parameters:,}"
            + (pooler if self.pooler_parameters else ", no pooler"),
            **({"held by kbert": f"{self.held_parameters:,}"} if unheld else {}),
            "memory to train": f"about {memory / 2**30:.1f} GiB at 32 x {length} tokens in float32",
        }
        return "\n".join(f"{name:20}{value}" for name, value in lines.items())


def describe(name_or_config: str | Config) -> Any:
    """Counts a model's parameters by formula: exactly, and without allocating it.

    Heads are not counted. Layers that share weights count once. ELMo's softmax counts if the config
    has one.

    Args:
        name_or_config: name of a model that `kbert.family` lists, or a config.

    Returns:
        A `Description`; an `ElmoDescription` for an ELMo, a `GeneratorDescription` for a
        decoder, a `Seq2SeqDescription` for an encoder-decoder.

    Raises:
        TypeError: the argument is neither a name nor a config.
        ValueError: no model has that name, or the part in a config is not registered.

    Example:
        >>> describe("bert-base-uncased").parameters
        109482240
        >>> roberta = describe("roberta-base")
        >>> roberta.parameters - roberta.held_parameters == 2 * 768
        True
        >>> describe("elmo-original").parameters
        93600848
        >>> describe("transformer-base").parameters
        63082496
    """
    if isinstance(name_or_config, Config):
        rows = published_rows(name_or_config)
        name = " or ".join(rows) or None
        row = next(iter(rows.values()), Row(cast(Any, name_or_config), tokenizer=None))
    else:
        name, row = name_or_config, family_row(name_or_config)
    config: Any = row.config
    if config.kind in late.TABLE["description"]:
        return late.load("description", config.kind)(row, name)
    pooler = config.count_pooler()
    held = config.count_embeddings() + config.count_blocks() + pooler
    held += part_of(config).count_parameters(config) + _count_edits(config)
    return Description(
        name,
        config,
        parameters=held + row.unused_rows * config.embedding_width,
        pooler_parameters=pooler,
        held_parameters=held,
        tokenizer=row.tokenizer,
    )


def family_table(names: Iterable[str] = CHOICES) -> str:
    """Compares the sizes of models in a Markdown table, as a help to choose one.

    The memory is that of a training step at 32 x 128 tokens in float32 with AdamW
    (`Description.training_memory`).

    Args:
        names: names of encoders that `kbert.family` lists; other models raise ValueError.

    Returns:
        The table.

    Example:
        >>> print(family_table(["bert-tiny"]).splitlines()[-1])
        | `bert-tiny` | 2 | 128 | 2 | 30,522 wordpiece | 4.4 M | 0.5 GiB |
    """
    lines = [
        "| model | layers | width | heads | vocabulary | parameters | to train 32 × 128 |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in names:
        description = describe(name)
        if not isinstance(description, Description):
            raise ValueError(f"`names` must be names of encoders. Received: {name!r}")
        config, memory = description.config, description.training_memory(32, 128).total
        cells = (
            f"`{description.name}`",
            f"{config.num_layers}" + (" (shared)" if config.num_blocks < config.num_layers else ""),
            f"{config.hidden_size:,}",
            f"{config.num_heads}",
            f"{config.vocabulary_size:,} {description.tokenizer or ''}".rstrip(),
            f"{description.parameters / 1e6:,.1f} M",
            f"{memory / 2**30:.1f} GiB",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _count_edits(config: EncoderConfig) -> int:
    part, layers = part_of(config), config.num_layers
    first = [-(-block * layers // config.num_blocks) for block in range(config.num_blocks)]
    return count_edits(config, [part.kernels(config, layer) for layer in first])
