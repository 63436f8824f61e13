"""What packing gains: real tokens a second of whole training steps, packed rows and unpacked.

The same shards, task and shapes; the two take turns, batch by batch. A step is what `fit` runs:
forward, backward, clipping, AdamW. Padding is what a row has left; the gain is bound by the share
of tokens that were padding, less what the masks of examples and more sentence labels cost.
`python -m benchmarks.packing [--text FILE] [--vocabulary vocab.txt] [--model bert-base-uncased]`.
"""

import argparse
import os
import statistics
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

import kbert
from kbert.data import prepare_corpus, pretraining_dataset
from kbert.text import documents, open_sources
from kbert.tokenizers import WordPieceTokenizer, read_vocabulary, train_wordpiece
from kbert.training import AdamW
from pipelines.masked_text import tokenizer_fields

CASES = ((512, "pairs", "token"), (512, "doc_sentences", "span"), (128, "pairs", "token"))
MANY = 64  # batches whose padding is measured, without training


def contender(task: kbert.tasks.Task, folder: str, case: tuple, rows: int, pack: bool):
    length, segments, masking = case
    tokenizer = task.tokenizer
    dataset = pretraining_dataset(
        folder,
        tokenizer,
        sequence_length=length,
        batch_size=rows,
        segments=segments,
        masking=masking,
        pack=pack,
    )
    share = statistics.fmean(
        float(tf.reduce_mean(tf.cast(batch["padding_mask"], tf.float32)))
        for batch in dataset.take(MANY)
    )
    task.compile(AdamW(1e-4), jit_compile=False)
    task.prepare(dataset.element_spec)
    step, batches = task.make_train_function(), iter(dataset)

    def run() -> float:
        start = time.perf_counter()
        float(step(batches)["loss"])
        return time.perf_counter() - start

    run()
    return run, share


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.packing", description=__doc__)
    parser.add_argument("--text", default="docs:", help="a .txt or .txt.gz file")
    parser.add_argument("--vocabulary", help="vocab.txt (default: trained on the text)")
    parser.add_argument("--model", default="bert-small")
    parser.add_argument("--precision", default="float32", help="or mixed_bfloat16")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=2048, help="tokens of a batch")
    options = parser.parse_args()

    (source,) = open_sources(options.text)
    with tempfile.TemporaryDirectory() as folder:
        if options.vocabulary:
            vocabulary = read_vocabulary(options.vocabulary)
        else:
            lines = (line for document in documents(source.path) for line in document)
            vocabulary = train_wordpiece(lines, 8000)
        tokenizer = WordPieceTokenizer(vocabulary)
        prepare_corpus(source.path, folder, tokenizer)
        title = f"{options.model}, {options.precision}, {options.tokens} tokens a batch"
        print(f"{title:44} {'padding':>16} {'ms a step':>16} {'real tokens/s':>16}  gain")
        for case in CASES:
            length, segments, masking = case
            config = kbert.family(options.model)
            config = config.replace(**tokenizer_fields(config, tokenizer), max_positions=512)
            rows = options.tokens // length
            runs, shares, times = [], [], ([], [])
            for pack in (False, True):
                task = kbert.tasks.Pretraining(
                    kbert.Encoder(config, dtype=options.precision),
                    tokenizer,
                    next_sentence=segments == "pairs",
                    span_boundary=masking == "span",
                )
                run, share = contender(task, folder, case, rows, pack)
                runs.append(run)
                shares.append(share)
            for _ in range(options.rounds):
                for run, seconds in zip(runs, times, strict=True):
                    seconds.append(run())
            seconds = [statistics.median(x) for x in times]
            speeds = [rows * length * x / s for x, s in zip(shares, seconds, strict=True)]
            cells = (
                " and ".join(f"{100 * (1 - x):.1f}%" for x in shares),
                " and ".join(f"{1000 * x:.0f}" for x in seconds),
                " and ".join(f"{x:.0f}" for x in speeds),
            )
            name = f"{length} tokens, {segments}, {masking} masks"
            gain = speeds[1] / speeds[0]
            print(f"{name:44} " + " ".join(f"{x:>16}" for x in cells) + f"  {gain:.2f}", flush=True)


if __name__ == "__main__":
    main()
