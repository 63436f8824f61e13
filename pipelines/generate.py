r"""Generates texts: any number of prompts or sources in, one line of JSON each out.

  kbert-generate --preset=gpt2 --input=prompts.txt --output=texts.jsonl
  kbert-generate --preset=gpt2 --input=p.jsonl --text_column=prompt --output=texts.jsonl \
      --method=sampling --top_p=0.9 --temperature=0.8 --max_new_tokens=100 --seed=1
  kbert-generate --preset=gpt2 --input=p.txt --output=t.jsonl --method=beam --num_results=2
  echo 'The sea was' | kbert-generate --preset=gpt2 --input=- --output=- --stop=. --stop='!'

The model is a kbert.tasks.CausalLM, such as one trained by kbert-pretrain --recipe=gpt, which
continues prompts; or a kbert.tasks.TextToText, such as BART, T5, or what kbert-finetune
--task=summarize made of them, which answers sources:

  kbert-generate --preset=out/preset --input=articles.txt --output=summaries.jsonl

Without flags of decoding, an encoder-decoder decodes as its generation_config.json or its settings
say. The model can also be an export by kbert-export for ONNX Runtime, which fixes the decoding
method.

Input formats, plain or .gz; --input=- reads lines of text from standard input:

  texts.txt       one text per line; an empty line is an empty text
  *.csv, *.tsv    a header, then one record per line; --text_column names the column
  *.jsonl         one object per line; --text_column names the field, else "text"
  *.parquet, *.arrow, *.feather   one text per row, in that column (pip install 'kbert[arrow]')

Output: {"text": "…", "continuation": "…", "score": -12.3}, with "output" for an encoder-decoder;
with --num_results "continuations" or "outputs" and "scores", the best first. A score is the log
probability of the text; with --method=beam it is divided by the length penalty. Prompts that leave
too few positions for --max_new_tokens are truncated at the beginning, sources at the end, and a
warning reports their number.

Answers are in the order of the input, each with its text and, if the input has one, its "id".
Memory use does not grow with the input. After a kill at any moment, the same command resumes where
it stopped; another input, model or setting is refused. With --output=- the answers are printed as
soon as their batch is computed: with --batch_size=1 each line is answered before the next is read.
With --method=sampling the random numbers depend only on --seed and the number of the prompt, so the
samples are the same after a restart.
"""

from kbert.tasks.generation.options import GenerationOptions

from . import answering

PROGRAM = answering.text_program("kbert-generate", __doc__, "causal_lm", GenerationOptions)
define_flags, main, run = PROGRAM.define_flags, PROGRAM.main, PROGRAM.run

if __name__ == "__main__":
    run()
