r"""Embeds texts: any number of texts in, a vector for each out.

  kbert-embed --preset=out/preset --input=texts.txt --output=vectors.npy
  kbert-embed --preset=out/preset --input=texts.jsonl.gz --output=vectors.jsonl
  kbert-embed --preset=out/preset --input=q.csv --text_column=query --prompt=query --output=q.npy
  cat texts.txt | kbert-embed --preset=out/preset --input=- --output=-

The model is a kbert.tasks.TextEmbedder, a folder of sentence-transformers, or any encoder, which
embeds a text by the mean of its token vectors. It can also be an export of these, written by
kbert-export for ONNX Runtime, OpenVINO or LiteRT. --layers and --pooling select other vectors of
the model: --layers=concat_last_four --pooling=cls.

Input formats, plain or .gz; --input=- reads lines of text from standard input:

  texts.txt       one text per line; an empty line is an empty text
  *.csv, *.tsv    a header, then one record per line; --text_column names the column
  *.jsonl         one object per line; --text_column names the field, else "text"
  *.parquet, *.arrow, *.feather   one text per row, in that column (pip install 'kbert[arrow]')

The suffix of --output selects the format:

  .jsonl   {"text": "…", "vector": [0.12, …]}, on which kbert-finetune --task=embed can train
  .npy     only the vectors, float32, one row per text; for many numpy.load(…, mmap_mode="r")

  index = kbert.search.Index(numpy.load("vectors.npy"))    # its ids are line numbers, from 0

Answers are in the order of the input, each with its text and, if the input has one, its "id".
Memory use does not grow with the input. After a kill at any moment, the same command resumes where
it stopped; another input, model or setting is refused. With --output=- the answers are printed as
soon as their batch is computed: with --batch_size=1 each line is answered before the next is read.
NumPy cannot read a .npy file before it is complete. kbert-predict writes cosines of text pairs, and
embeds many files on many machines with --runner=beam.
"""

from kbert.core.options import Options
from kbert.tasks.embedding.options import EmbeddingOptions, TextEmbedderOptions

from . import answering


class VectorOptions(Options):
    """Options for the vectors of tokens that are pooled."""

    layers: str | None = TextEmbedderOptions.with_default(
        "feature_layers",
        None,
        help="Hidden states whose vectors are pooled, as `layers` of kbert.features: a name such "
        "as sum_last_four, or indices such as 11 or sum:9,10. Default: the model's.",
    )
    pooling: str | None = TextEmbedderOptions.with_default(
        "token_pooling",
        None,
        help="Pooling of the token vectors: their mean, the first token's, the maximum of each "
        "dimension, or a mean with larger weights for later tokens. Default: the model's.",
    )


PROGRAM = answering.text_program(
    "kbert-embed",
    __doc__,
    "embed",
    EmbeddingOptions,
    (VectorOptions, {"layers": "feature_layers", "pooling": "token_pooling"}),
)
define_flags, main, run = PROGRAM.define_flags, PROGRAM.main, PROGRAM.run

if __name__ == "__main__":
    run()
