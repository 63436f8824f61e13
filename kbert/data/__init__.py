"""Text to shards, shards to batches: everything between a corpus and `fit`."""

from kbert.data.causal import causal_dataset
from kbert.data.examples import show_examples
from kbert.data.language_model import language_model_dataset
from kbert.data.manifest import Manifest, read_manifest, verify_corpus
from kbert.data.prepare import prepare_corpus
from kbert.data.pretraining import pretraining_dataset
from kbert.data.preview import preview_corpus
from kbert.data.readers import (
    read_choices,
    read_conll,
    read_conllu,
    read_glue,
    read_squad,
    read_table,
    write_glue_submission,
)
from kbert.data.table import Table, as_table
from kbert.data.translation import translation_dataset
from kbert.data.translation_pairs import encode_pairs
from kbert.data.vocabulary import train_or_reuse_tokenizer

__all__ = [
    "Manifest",
    "Table",
    "as_table",
    "causal_dataset",
    "encode_pairs",
    "language_model_dataset",
    "prepare_corpus",
    "pretraining_dataset",
    "preview_corpus",
    "read_choices",
    "read_conll",
    "read_conllu",
    "read_glue",
    "read_manifest",
    "read_squad",
    "read_table",
    "show_examples",
    "translation_dataset",
    "train_or_reuse_tokenizer",
    "verify_corpus",
    "write_glue_submission",
]
