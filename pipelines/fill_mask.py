r"""Fills masks: any number of texts with masks in, one line of JSON each out.

  kbert-fill-mask --preset=bert-base-uncased --input=texts.txt --output=words.jsonl --top_k=3
  kbert-fill-mask --preset=bert-base-uncased --input=texts.txt --output=a.jsonl --candidates=he,she
  echo 'The [MASK] is wet.' | kbert-fill-mask --preset=bert-base-uncased --input=- --output=-

The model must have a masked-LM head, such as one trained by kbert-pretrain. It can also be an
export of such a model, written by kbert-export for ONNX Runtime, OpenVINO or LiteRT. A text may
have any number of masks, written as the tokenizer's mask token: [MASK] or <mask>.

Input formats, plain or .gz; --input=- reads lines of text from standard input:

  texts.txt       one text per line; an empty line is an empty text
  *.csv, *.tsv    a header, then one record per line; --text_column names the column
  *.jsonl         one object per line; --text_column names the field, else "text"
  *.parquet, *.arrow, *.feather   one text per row, in that column (pip install 'kbert[arrow]')

Output: {"text": "…", "tokens": [["dog", "cat"]], "probabilities": [[0.4, 0.1]]}, with a list for
each mask, from left to right. With --candidates the lists have these tokens, in the given order.
Texts that are too long are truncated at the end, and a warning reports their number. If a text
would lose a mask, the program ends with an error that names the line.

Answers are in the order of the input, each with its text and, if the input has one, its "id".
Memory use does not grow with the input. After a kill at any moment, the same command resumes where
it stopped; another input, model or setting is refused. With --output=- the answers are printed as
soon as their batch is computed: with --batch_size=1 each line is answered before the next is read.
"""

from kbert.tasks.pretraining.options import FillMaskOptions

from . import answering

PROGRAM = answering.text_program("kbert-fill-mask", __doc__, "pretrain", FillMaskOptions)
define_flags, main, run = PROGRAM.define_flags, PROGRAM.main, PROGRAM.run

if __name__ == "__main__":
    run()
