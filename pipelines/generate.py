r"""Continues prompts with a language model: any number in, one line of JSON each out.

  kbert-generate --preset=gpt2 --input=prompts.txt --output=texts.jsonl
  kbert-generate --preset=gpt2 --input=p.jsonl --text_column=prompt --output=texts.jsonl \
      --method=sampling --top_p=0.9 --temperature=0.8 --max_new_tokens=100 --seed=1
  kbert-generate --preset=gpt2 --input=p.txt --output=t.jsonl --method=beam --num_results=2
  echo 'The sea was' | kbert-generate --preset=gpt2 --input=- --output=- --stop=. --stop='!'

The model is a kbert.tasks.CausalLM, such as kbert-pretrain --recipe=gpt makes, or what
kbert-export wrote of one for ONNX Runtime: that one writes as it was exported.

What it reads, plain or .gz; - is text from standard input:

  texts.txt       one text per line; an empty line is an empty text
  *.csv, *.tsv    a header, then one record per line; --text_column names the column
  *.jsonl         one object per line, with "text" or what --text_column says

What it writes: {"text": "…", "continuation": "…", "score": -12.3}; with --num_results
"continuations" and "scores", the best first. A score is the logarithm of the continuation's
probability, of a beam divided by its length penalty. A prompt that leaves no place for
--max_new_tokens loses its beginning, and a warning counts such.

Answers are in the order of the input, beside the text and an "id" where the input has one. Memory
does not grow with the input. Killed at any moment, the same command resumes where it was; another
input, model or setting is refused. To standard output an answer comes as soon as its batch is done:
with --batch_size=1 each line is answered before the next is read.
With --method=sampling what is drawn follows from --seed and the number of the prompt, so that it is
the same after a restart.
"""

from kbert.tasks.generation.options import GenerationOptions

from . import answering

PROGRAM = answering.text_program("kbert-generate", __doc__, "causal_lm", GenerationOptions)
define_flags, main, run = PROGRAM.define_flags, PROGRAM.main, PROGRAM.run

if __name__ == "__main__":
    run()
