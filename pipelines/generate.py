r"""Continues prompts with a language model: any number of prompts in, one line of JSON each out.

  kbert-generate --preset=gpt2 --input=prompts.txt --output=texts.jsonl
  kbert-generate --preset=gpt2 --input=p.jsonl --text_column=prompt --output=texts.jsonl \
      --method=sampling --top_p=0.9 --temperature=0.8 --max_new_tokens=100 --seed=1
  kbert-generate --preset=gpt2 --input=p.txt --output=t.jsonl --method=beam --num_results=2
  echo 'The sea was' | kbert-generate --preset=gpt2 --input=- --output=- --stop=. --stop='!'

The model is a kbert.tasks.CausalLM, such as one trained by kbert-pretrain --recipe=gpt. It can also
be an export of one by kbert-export for ONNX Runtime, which fixes the decoding method.

Input formats, plain or .gz; --input=- reads lines of text from standard input:

  texts.txt       one text per line; an empty line is an empty text
  *.csv, *.tsv    a header, then one record per line; --text_column names the column
  *.jsonl         one object per line; --text_column names the field, else "text"

Output: {"text": "…", "continuation": "…", "score": -12.3}; with --num_results "continuations" and
"scores", the best first. A score is the log probability of the continuation; with --method=beam it
is divided by the length penalty. Prompts that leave too few positions for --max_new_tokens are
truncated at the beginning, and a warning reports their number.

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
