"""From a corpus to the batches of `fit`: text to shards, and shards to batches."""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.data.corpus.manifest import (
        Manifest as Manifest,
        read_manifest as read_manifest,
        verify_corpus as verify_corpus,
    )
    from kbert.data.corpus.mixture import Mixture as Mixture
    from kbert.data.corpus.prepare import prepare_corpus as prepare_corpus
    from kbert.data.corpus.preview import preview_corpus as preview_corpus
    from kbert.data.corpus.vocabulary import train_or_reuse_tokenizer as train_or_reuse_tokenizer
    from kbert.data.denoising.dataset import denoising_dataset as denoising_dataset
    from kbert.data.pretraining.causal import causal_dataset as causal_dataset
    from kbert.data.pretraining.dataset import pretraining_dataset as pretraining_dataset
    from kbert.data.pretraining.examples import show_examples as show_examples
    from kbert.data.pretraining.language_model import (
        language_model_dataset as language_model_dataset,
    )
    from kbert.data.readers import (
        read_choices as read_choices,
        read_conll as read_conll,
        read_conllu as read_conllu,
        read_glue as read_glue,
        read_squad as read_squad,
        read_super_glue as read_super_glue,
        read_table as read_table,
        read_tfds as read_tfds,
        table_parts as table_parts,
        write_glue_submission as write_glue_submission,
        write_super_glue_submission as write_super_glue_submission,
    )
    from kbert.data.tables.neighbours import neighbours as neighbours
    from kbert.data.tables.shards import StoredRows as StoredRows, read_rows as read_rows
    from kbert.data.tables.table import Table as Table, as_table as as_table
    from kbert.data.translation.dataset import translation_dataset as translation_dataset
    from kbert.data.translation.pairs import encode_pairs as encode_pairs
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
