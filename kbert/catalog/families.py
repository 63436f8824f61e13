"""The tables of the family in one: name -> sizes and values of a published model.

Sizes are those of the releases (README.md and configs of google-research/bert, /albert, /electra,
facebookresearch's fairseq and SpanBERT, huawei-noah's TinyBERT, microsoft's UniLM, allenai's
bilm-tf, zihangdai's xlnet). Names are those of the Hugging Face hub for models that are on it.

Activations and dropout are what the original code trained with. `gelu` is the tanh form in Google's
BERT and ALBERT and in XLNet, and the erf form in ELECTRA and everything trained with PyTorch. The
Reformers' values are those of their configs on the hub. A checkpoint loaded from files uses the
values in its own config.
"""

import itertools

from kbert.catalog.decoders import DECODERS
from kbert.catalog.encoders import BILMS, FAMILY
from kbert.catalog.repositories import REPOSITORIES, SIZES, close_names
from kbert.catalog.rows import Row
from kbert.catalog.seq2seqs import SEQ2SEQS, TRANSFORMERS
from kbert.configs.base import Config
from kbert.configs.decoder import DecoderConfig
from kbert.configs.elmo import ElmoConfig
from kbert.configs.encoder import EncoderConfig
from kbert.configs.seq2seq import Seq2SeqConfig

TABLES = (FAMILY, BILMS, DECODERS, TRANSFORMERS, SEQ2SEQS)

ALIASES: dict[str, str] = {
    **SIZES,
    "sentence-transformers/all-MiniLM-L6-v2": "nreimers/MiniLM-L6-H384-uncased",
    "sentence-transformers/all-MiniLM-L12-v2": "microsoft/MiniLM-L12-H384-uncased",
    "sentence-transformers/all-mpnet-base-v2": "microsoft/mpnet-base",
}

# A model can be named without an owner (its old name) or with one.
_BY_REPOSITORY = {
    REPOSITORIES.get(name, name): row for table in TABLES for name, row in table.items()
}


def family_row(name: str) -> Row:
    """Returns the table entry of a published model.

    The names and errors are those of `family`: "bert-base-uncased", "gpt2", ….

    Example:
        >>> family_row("roberta-base").tokenizer
        'bpe'
    """
    if not isinstance(name, str):
        raise TypeError(f"The name of a model must be a string. Received: {name!r}")
    key = ALIASES.get(name, name)
    repository = REPOSITORIES.get(key, key)
    if repository not in _BY_REPOSITORY:
        names = [*ALIASES, *itertools.chain(*TABLES)]
        close = close_names(name, names)
        hint = f"Close: {', '.join(close)}." if close else f"Known: {', '.join(names)}."
        raise ValueError(f"No model of the family has this name. {hint} Received: {name!r}")
    return _BY_REPOSITORY[repository]


def published_rows(config: Config) -> dict[str, Row]:
    """Returns name -> table entry for all published models with exactly this config.

    Example:
        >>> list(published_rows(family("bert-large-cased")))
        ['bert-large-cased', 'bert-large-cased-whole-word-masking']
    """
    return {name: row for table in TABLES for name, row in table.items() if row.config == config}


def family(name: str) -> EncoderConfig | ElmoConfig | DecoderConfig | Seq2SeqConfig:
    """Returns the config of a published model.

    Args:
        name: name on the Hugging Face hub ("bert-base-uncased" or
            "google-bert/bert-base-uncased", "albert-base-v2",
            "google/electra-small-discriminator"); or a size of BERT: "bert-tiny", "-mini",
            "-small", "-medium", "-base", "-large" (uncased); or one of ELMo's language models:
            "elmo-original", "elmo-original-5.5b", "elmo-small", "elmo-medium"; or a decoder:
            "openai-gpt", "gpt2" and its sizes; or "transformer-base", "-big", "-small", "-tiny"; or
            a pretrained encoder-decoder: "facebook/bart-base", "t5-small", "google/flan-t5-base".

    Returns:
        The config, of the kind that `kbert.Encoder`, `kbert.Elmo`, `kbert.Decoder` or
        `kbert.Seq2Seq` is constructed from.

    Raises:
        TypeError: the name is not a string.
        ValueError: no model has that name; the message lists the close ones.

    Example:
        >>> family("bert-base-uncased").hidden_size
        768
        >>> family("albert/albert-base-v2").num_blocks
        1
        >>> family("elmo-original").lstm_size
        4096
        >>> family("gpt2").count_parameters()
        124439808
    """
    return family_row(name).config
