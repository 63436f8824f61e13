r"""Fills masks: any number of texts with masks in, one line of JSON each out.

  kbert-fill-mask --preset=bert-base-uncased --input=texts.txt --output=words.jsonl --top_k=3
  kbert-fill-mask --preset=bert-base-uncased --input=texts.txt --output=a.jsonl --candidates=he,she
  echo 'The [MASK] is wet.' | kbert-fill-mask --preset=bert-base-uncased --input=- --output=-

The model is one with a masked-LM head, such as kbert-pretrain makes, or what kbert-export wrote of
one for ONNX Runtime, OpenVINO or LiteRT. A mask is written as the tokenizer has it, [MASK] or
<mask>, any number of them in a text.

What it reads, plain or .gz; - is text from standard input:

  texts.txt       one text per line; an empty line is an empty text
  *.csv, *.tsv    a header, then one record per line; --text_column names the column
  *.jsonl         one object per line, with "text" or what --text_column says

What it writes: {"text": "…", "tokens": [["dog", "cat"]], "probabilities": [[0.4, 0.1]]}, a list
for each mask, from left to right. With --candidates these tokens and their probabilities, in that
order. A text that is too long is cut at its end, and a warning counts such; one that would lose a
mask ends the program, by its line.

Answers are in the order of the input, beside the text and an "id" where the input has one. Memory
does not grow with the input. Killed at any moment, the same command resumes where it was; another
input, model or setting is refused. To standard output an answer comes as soon as its batch is done:
with --batch_size=1 each line is answered before the next is read.
"""

from kbert.tasks.pretraining.options import FillMaskOptions

from . import answering

PROGRAM = answering.text_program("kbert-fill-mask", __doc__, "pretrain", FillMaskOptions)
define_flags, main, run = PROGRAM.define_flags, PROGRAM.main, PROGRAM.run

if __name__ == "__main__":
    run()
