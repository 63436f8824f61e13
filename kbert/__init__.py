"""kbert: the BERT family for Keras 3 and TensorFlow, from raw text to a model that answers.

Public names load on first use, so that `import kbert` costs what its dependencies cost.

Example:
    >>> import kbert
    >>> kbert.family("bert-tiny").hidden_size
    128
"""

from importlib import import_module
from typing import Any

from kbert.version import __version__

# Public name -> module that defines it. Subpackages (`kbert.data`, `kbert.tasks`, …) are names too.
_NAMES = {
    "CharacterTokenizer": "kbert.tokenizers",
    "Client": "kbert.service",
    "Decoder": "kbert.models.generators.decoder",
    "DecoderConfig": "kbert.configs.decoder",
    "Elmo": "kbert.models.elmo.elmo",
    "ElmoConfig": "kbert.configs.elmo",
    "EncoderConfig": "kbert.configs.encoder",
    "Encoder": "kbert.models.encoder",
    "BytePairTokenizer": "kbert.tokenizers",
    "Seq2Seq": "kbert.models.generators.seq2seq",
    "Seq2SeqConfig": "kbert.configs.seq2seq",
    "TextFeatures": "kbert.extraction",
    "Translator": "kbert.tasks.generation.translator",
    "UnigramTokenizer": "kbert.tokenizers",
    "WordPieceTokenizer": "kbert.tokenizers",
    "WordTokenizer": "kbert.tokenizers",
    "describe": "kbert.models.description",
    "family": "kbert.catalog.families",
    "features": "kbert.extraction",
    "load_tokenizer": "kbert.tokenizers",
    "recipe": "kbert.catalog.recipes",
    "student": "kbert.distillation",
}
_SUBPACKAGES = (
    "adapters",
    "catalog",
    "checkpoints",
    "configs",
    "conversion",
    "core",
    "data",
    "decoding",
    "demo",
    "distillation",
    "experiments",
    "extraction",
    "heads",
    "hub",
    "io",
    "layers",
    "metrics",
    "models",
    "pruning",
    "quantization",
    "search",
    "service",
    "serving",
    "tasks",
    "text",
    "tokenizers",
    "training",
    "visualization",
    "word_vectors",
)

__all__ = ["__version__", *sorted(_NAMES), *_SUBPACKAGES]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        value = getattr(import_module(_NAMES[name]), name)
    elif name in _SUBPACKAGES:
        value = import_module(f"kbert.{name}")
    else:
        raise AttributeError(f"module 'kbert' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
