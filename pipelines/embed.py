r"""Embeds texts: any number of texts in, a vector for each out.

  kbert-embed --preset=out/preset --input=texts.txt --output=vectors.npy
  kbert-embed --preset=out/preset --input=texts.jsonl.gz --output=vectors.jsonl
  kbert-embed --preset=out/preset --input=q.csv --text_column=query --prompt=query --output=q.npy
  cat texts.txt | kbert-embed --preset=out/preset --input=- --output=-

The model is a kbert.tasks.TextEmbedder, a folder of sentence-transformers, or any encoder, whose
tokens' vectors are averaged then; or what kbert-export wrote of one for ONNX Runtime, OpenVINO or
LiteRT.

What it reads, plain or .gz; - is text from standard input:

  texts.txt       one text per line; an empty line is an empty text
  *.csv, *.tsv    a header, then one record per line; --text_column names the column
  *.jsonl         one object per line, with "text" or what --text_column says

The suffix of --output says what is written:

  .jsonl   {"text": "…", "vector": [0.12, …]}, which kbert-finetune --task=embed learns from too
  .npy     the vectors alone, float32, one row a text: NumPy's load(…), mmap_mode="r" for many

  index = kbert.search.Index(numpy.load("vectors.npy"))    # its ids are line numbers, from 0

Answers are in the order of the input, beside the text and an "id" where the input has one. Memory
does not grow with the input. Killed at any moment, the same command resumes where it was; another
input, model or setting is refused. To standard output an answer comes as soon as its batch is done:
with --batch_size=1 each line is answered before the next is read.
A .npy file that is not whole is none that NumPy reads. Cosines of pairs are written by
kbert-predict, and many files on many machines: kbert-predict --runner=beam.
"""

from kbert.tasks.embedding.options import EmbeddingOptions

from . import answering

PROGRAM = answering.text_program("kbert-embed", __doc__, "embed", EmbeddingOptions)
define_flags, main, run = PROGRAM.define_flags, PROGRAM.main, PROGRAM.run

if __name__ == "__main__":
    run()
