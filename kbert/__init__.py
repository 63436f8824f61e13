"""kbert: the BERT family for Keras 3 and TensorFlow, from raw text to a model that answers.

Public names load on first use, so that `import kbert` costs what its dependencies cost.

Example:
    >>> import kbert
    >>> kbert.family("bert-tiny").hidden_size
    128
"""

from importlib import import_module

from kbert.version import __version__

# Public name -> module that defines it. Rooms (`kbert.data`, `kbert.tasks`, …) are names too.
_NAMES = {
    "CharacterTokenizer": "kbert.tokenizers",
    "Decoder": "kbert.models.decoder",
    "DecoderConfig": "kbert.decoder_config",
    "Elmo": "kbert.models.elmo",
    "ElmoConfig": "kbert.elmo_config",
    "EncoderConfig": "kbert.config",
    "Encoder": "kbert.models.encoder",
    "BytePairTokenizer": "kbert.tokenizers",
    "Seq2Seq": "kbert.models.seq2seq",
    "Seq2SeqConfig": "kbert.seq2seq_config",
    "TextFeatures": "kbert.extraction",
    "Translator": "kbert.tasks.translator",
    "UnigramTokenizer": "kbert.tokenizers",
    "WordPieceTokenizer": "kbert.tokenizers",
    "WordTokenizer": "kbert.tokenizers",
    "describe": "kbert.models.description",
    "family": "kbert.models.family",
    "features": "kbert.extraction",
    "load_tokenizer": "kbert.tokenizers",
    "recipe": "kbert.recipes",
    "student": "kbert.distillation",
}
_ROOMS = (
    "checkpoints",
    "config",
    "conversion",
    "data",
    "distillation",
    "extraction",
    "finetuning",
    "heads",
    "hub",
    "layers",
    "metrics",
    "models",
    "recipes",
    "serving",
    "tasks",
    "text",
    "tokenizers",
    "training",
    "visualization",
)

__all__ = ["__version__", *sorted(_NAMES), *_ROOMS]


def __getattr__(name: str):
    if name in _NAMES:
        value = getattr(import_module(_NAMES[name]), name)
    elif name in _ROOMS:
        value = import_module(f"kbert.{name}")
    else:
        raise AttributeError(f"module 'kbert' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
