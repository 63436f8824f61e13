r"""Translates: any number of texts in, one line of JSON each out.

  kbert-translate --preset=out/preset --input=texts.txt --output=translations.jsonl
  kbert-translate --preset=out/preset --input=texts.csv --text_column=en --output=de.jsonl
  kbert-translate --preset=out/preset --input=t.txt --output=t.jsonl --beam_width=8 --num_results=3
  cat texts.txt | kbert-translate --preset=out/preset --input=- --output=- --method=greedy

The model is a kbert.tasks.Translator, such as kbert-pretrain --recipe=transformer makes, or what
kbert-export wrote of one for ONNX Runtime: that one searches as it was exported.

What it reads, plain or .gz; - is text from standard input:

  texts.txt       one text per line; an empty line is an empty text
  *.csv, *.tsv    a header, then one record per line; --text_column names the column
  *.jsonl         one object per line, with "text" or what --text_column says

What it writes: {"text": "…", "translation": "…", "score": -1.8}; with --num_results
"translations" and "scores", the best first. A score is the logarithm of the translation's
probability, of a beam divided by its length penalty. A text that is too long for the model is cut
at its end, and a warning counts such: split texts into sentences.

Answers are in the order of the input, beside the text and an "id" where the input has one. Memory
does not grow with the input. Killed at any moment, the same command resumes where it was; another
input, model or setting is refused. To standard output an answer comes as soon as its batch is done:
with --batch_size=1 each line is answered before the next is read.
With --method=sampling what is drawn follows from --seed and the number of the text, so that it is
the same after a restart.
"""

from kbert.tasks.generation.options import TranslationOptions

from . import answering

PROGRAM = answering.text_program("kbert-translate", __doc__, "translate", TranslationOptions)
define_flags, main, run = PROGRAM.define_flags, PROGRAM.main, PROGRAM.run

if __name__ == "__main__":
    run()
