"""Text to shards, shards to batches: everything between a corpus and `fit`."""

from kbert.data.corpus.manifest import Manifest, read_manifest, verify_corpus
from kbert.data.corpus.mixture import Mixture
from kbert.data.corpus.prepare import prepare_corpus
from kbert.data.corpus.preview import preview_corpus
from kbert.data.corpus.vocabulary import train_or_reuse_tokenizer
from kbert.data.pretraining.causal import causal_dataset
from kbert.data.pretraining.dataset import pretraining_dataset
from kbert.data.pretraining.examples import show_examples
from kbert.data.pretraining.language_model import language_model_dataset
from kbert.data.readers import (
    read_choices,
    read_conll,
    read_conllu,
    read_glue,
    read_squad,
    read_table,
    write_glue_submission,
)
from kbert.data.tables.table import Table, as_table
from kbert.data.translation.dataset import translation_dataset
from kbert.data.translation.pairs import encode_pairs

__all__ = [
    "Manifest",
    "Mixture",
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
    "train_or_reuse_tokenizer",
    "translation_dataset",
    "verify_corpus",
    "write_glue_submission",
]
