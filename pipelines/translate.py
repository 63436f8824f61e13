r"""Translates texts: any number in, one line of JSON each out.

  kbert-translate --preset=out/preset --input=texts.txt --output=translations.jsonl
  kbert-translate --preset=out/preset --input=texts.csv --text_column=en --output=de.jsonl
  kbert-translate --preset=out/preset --input=t.txt --output=t.jsonl --beam_width=8 --num_results=3
  cat texts.txt | kbert-translate --preset=out/preset --input=- --output=- --method=greedy

The model is a kbert.tasks.Translator, such as one trained by kbert-pretrain --recipe=transformer.
It can also be an export of one by kbert-export for ONNX Runtime, which fixes the decoding method.

Input formats, plain or .gz; --input=- reads lines of text from standard input:

  texts.txt       one text per line; an empty line is an empty text
  *.csv, *.tsv    a header, then one record per line; --text_column names the column
  *.jsonl         one object per line; --text_column names the field, else "text"
  *.parquet, *.arrow, *.feather   one text per row, in that column (pip install 'kbert[arrow]')

Output: {"text": "…", "translation": "…", "score": -1.8}; with --num_results "translations" and
"scores", the best first. A score is the log probability of the translation; with a beam it is
divided by the length penalty. Texts that are too long for the model are truncated at the end, and a
warning reports their number: split long texts into sentences.

Answers are in the order of the input, each with its text and, if the input has one, its "id".
Memory use does not grow with the input. After a kill at any moment, the same command resumes where
it stopped; another input, model or setting is refused. With --output=- the answers are printed as
soon as their batch is computed: with --batch_size=1 each line is answered before the next is read.
With --method=sampling the random numbers depend only on --seed and the number of the text, so the
samples are the same after a restart.
"""

from kbert.tasks.generation.options import TranslationOptions

from . import answering

PROGRAM = answering.text_program("kbert-translate", __doc__, "translate", TranslationOptions)
define_flags, main, run = PROGRAM.define_flags, PROGRAM.main, PROGRAM.run

if __name__ == "__main__":
    run()
