"""Pretraining batches on one core: kbert's dataset beside KerasHub's `BertMaskedLMPreprocessor`.

Millions of padded tokens a second of processor time, best of some rounds; the two take turns, so a
busy machine is busy for both. Same text, same vocabulary, batches of 256 and 64, one thread.

They do not do the same work. kbert reads shards that were tokenized once (`prepare_corpus`; its
time is printed first), fills rows with sentences and draws pairs and masks anew in every epoch,
reproducibly. KerasHub's pipeline has no such stage: each epoch it reads lines, tokenizes and masks
them, one line a row and no pairs, so most of a row is padding. Hence the figures in brackets: the
same without the padding. Then every masking scheme (on BERT's pairs) and every segment scheme (with
token masks) of kbert alone, every noise of encoder-decoders (tokens of both sides), and the streams
of words that ELMo reads (words of both directions, in millions a second).
`python -m benchmarks.dataset [--text FILE] [--vocabulary vocab.txt]
[--only-schemes | --only-noise | --only-streams]`.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

from kbert.core.late import TABLE
from kbert.data import (
    denoising_dataset,
    language_model_dataset,
    prepare_corpus,
    pretraining_dataset,
)
from kbert.data.masking.schemes import MASKING_SCHEMES, max_predictions
from kbert.data.pretraining.segment_schemes import SEGMENT_SCHEMES
from kbert.text import documents, open_sources
from kbert.tokenizers import (
    WordPieceTokenizer,
    WordTokenizer,
    load_tokenizer,
    read_vocabulary,
    train_wordpiece,
    train_words,
)

SECONDS = 4.0  # of each measurement


def hub_dataset(path: str, tokenizer: WordPieceTokenizer, length: int, batch: int):
    import keras_hub

    preprocessor = keras_hub.models.BertMaskedLMPreprocessor(
        keras_hub.models.BertTokenizer(tokenizer.vocabulary, lowercase=True),
        sequence_length=length,
        mask_selection_length=max_predictions(length),
    )
    lines = tf.data.TextLineDataset(path, "GZIP" if path.endswith(".gz") else "")
    lines = lines.filter(lambda line: tf.strings.length(line) > 0).repeat()
    lines = lines.batch(batch, drop_remainder=True).map(preprocessor, num_parallel_calls=1)
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    options.threading.max_intra_op_parallelism = 1
    return lines.map(lambda features, labels, weights: features).with_options(options)


def speed(batches: Iterator, masks: Sequence[str] = ("padding_mask",)) -> tuple[float, float]:
    """Millions of tokens a second of processor time, with padding and without."""
    next(batches)
    padded, text = 0, []
    start = time.process_time()
    while (seconds := time.process_time() - start) < SECONDS:
        batch = next(batches)
        for mask in (batch[name] for name in masks):
            padded += mask.shape[0] * mask.shape[1]
            text.append(mask)
    real = sum(int(tf.math.count_nonzero(mask)) for mask in text)
    return padded / seconds / 1e6, real / seconds / 1e6


def race(folder: str, text: str, tokenizer: WordPieceTokenizer, rounds: int) -> None:
    print(f"{'M tokens/s per core':20} {'kbert':>14} {'KerasHub':>14}    kbert is")
    for length, batch in ((128, 256), (128, 64), (512, 256), (512, 64)):
        sides = (
            iter(
                pretraining_dataset(
                    folder, tokenizer, sequence_length=length, batch_size=batch, threads=1
                )
            ),
            iter(hub_dataset(text, tokenizer, length, batch)),
        )
        best = [(0.0, 0.0)] * 2
        for _ in range(rounds):
            best = [max(best[side], speed(sides[side])) for side in (0, 1)]
        cells = " ".join(f"{padded:6.1f} ({real:5.1f})" for padded, real in best)
        ratios = f"{best[0][0] / best[1][0]:5.1f} x ({best[0][1] / best[1][1]:.1f} x)"
        print(f"{f'length {length} batch {batch}':20} {cells}  {ratios}", flush=True)


# A lexicon for masking="phrase".
PHRASES = [
    "of the",
    "in the",
    "at the same time",
    "new york",
    "old man",
    "do not know",
    "one of the",
]


def schemes(folder: str, tokenizer: WordPieceTokenizer, rounds: int) -> None:
    """The speed of every scheme, at 128 and at 512 tokens a row."""
    print(f"{'M tokens/s per core':44} {'128':>14} {'512':>14}")
    names = [(masking, "pairs") for masking in MASKING_SCHEMES]
    names += [("token", segments) for segments in SEGMENT_SCHEMES if segments != "pairs"]
    for masking, segments in names:
        cells = []
        for length, batch in ((128, 256), (512, 64)):
            batches = iter(
                pretraining_dataset(
                    folder,
                    tokenizer,
                    sequence_length=length,
                    batch_size=batch,
                    threads=1,
                    masking=masking,
                    segments=segments,
                    phrases=PHRASES if masking == "phrase" else None,
                )
            )
            cells.append(max(speed(batches) for _ in range(rounds)))
        row = " ".join(f"{padded:6.1f} ({real:5.1f})" for padded, real in cells)
        print(f"{f'masking {masking}, segments {segments}':44} {row}", flush=True)


def noises(folder: str, tokenizer: WordPieceTokenizer, rounds: int) -> None:
    """The speed of every noise, at 128 and at 512 tokens a row."""
    print(f"{'M tokens/s per core':44} {'128':>14} {'512':>14}")
    masks = ("encoder_padding_mask", "decoder_padding_mask")
    for noise in TABLE["noise"]:
        cells = []
        for length, batch in ((128, 256), (512, 64)):
            settings = {"sequence_length": length, "batch_size": batch, "threads": 1}
            batches = iter(denoising_dataset(folder, tokenizer, noise=noise, **settings))
            cells.append(max(speed(batches, masks) for _ in range(rounds)))
        row = " ".join(f"{padded:6.1f} ({real:5.1f})" for padded, real in cells)
        print(f"{f'noise {noise}':44} {row}", flush=True)


def streams(source: str, rounds: int) -> None:
    """The speed of ELMo's batches, of the paper's shape and of a larger one."""
    lines = (line for document in documents(source) for line in document)
    tokenizer = WordTokenizer(train_words(lines))
    with tempfile.TemporaryDirectory() as folder:
        prepare_corpus(source, folder, tokenizer)
        for length, batch in ((20, 128), (40, 512)):
            settings = {"sequence_length": length, "batch_size": batch, "threads": 1}
            batches = iter(language_model_dataset(folder, tokenizer, **settings))
            masks = ("weights", "reverse_weights")
            padded, real = max(speed(batches, masks) for _ in range(rounds))
            name = f"streams of {batch} rows of {length} words"
            print(f"{name:44} {padded:6.1f} ({real:5.1f})", flush=True)


def restart(folder: str, tokenizer: WordPieceTokenizer) -> str:
    """Time from nothing to the first batch, begun anew and gone on after a thousand batches."""
    settings = {"batch_size": 256, "threads": 1}
    for batch in pretraining_dataset(folder, tokenizer, **settings).take(1000):
        deep = batch["position"][0]
    seconds = {}
    for name, start in (("the first", None), (f"the one at {deep.numpy().tolist()}", deep)):
        began = time.perf_counter()
        next(iter(pretraining_dataset(folder, tokenizer, **settings, start=start)))
        seconds[name] = time.perf_counter() - began
    return "first batch after " + ", ".join(f"{s:.2f} s: {name}" for name, s in seconds.items())


def peak_memory(folder: str) -> str:
    """Peak RSS of a process that makes batches and nothing else, and what it had before."""
    code = (
        "import kbert, tensorflow, tensorflow_text, keras\n"
        "def peak():\n"
        "    lines = open('/proc/self/status').read().splitlines()\n"
        "    return int(next(x for x in lines if x.startswith('VmHWM')).split()[1]) / 2**20\n"
        f"tokenizer = kbert.load_tokenizer({folder!r})\n"
        "before = peak()\n"
        f"batches = kbert.data.pretraining_dataset({folder!r}, tokenizer, threads=1)\n"
        "for batch in batches.take(1000): pass\n"
        "print(f'peak RSS {peak():.2f} GiB, of which {before:.2f} GiB before the first batch')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dataset", description=__doc__)
    parser.add_argument("--text", default="docs:", help="a .txt or .txt.gz file")
    parser.add_argument("--vocabulary", help="vocab.txt (default: trained on the text)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only-schemes", action="store_true", help="leave out the rest")
    parser.add_argument("--only-noise", action="store_true", help="noise of encoder-decoders alone")
    parser.add_argument("--only-streams", action="store_true", help="ELMo's batches alone")
    options = parser.parse_args()

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    tf.config.threading.set_intra_op_parallelism_threads(1)
    (source,) = open_sources(options.text)
    if not (options.only_schemes or options.only_noise):
        streams(source.path, options.rounds)
    if options.only_streams:
        return
    with tempfile.TemporaryDirectory() as folder:
        if options.vocabulary:
            vocabulary = read_vocabulary(options.vocabulary)
        else:
            vocabulary = train_wordpiece(
                (line for document in documents(source.path) for line in document),
                8000,
                num_unused=100,  # sentinels of T5's noise
            )
        start = time.process_time()
        corpus = prepare_corpus(source.path, folder, WordPieceTokenizer(vocabulary)).splits["train"]
        seconds = time.process_time() - start
        print(f"prepared once: {corpus.tokens / 1e6:.1f} M tokens in {seconds:.1f} s")
        if not options.only_noise:
            schemes(folder, load_tokenizer(folder), options.rounds)
        if not options.only_schemes:
            noises(folder, load_tokenizer(folder), options.rounds)
        if options.only_schemes or options.only_noise:
            return
        race(folder, source.path, load_tokenizer(folder), options.rounds)
        print(restart(folder, load_tokenizer(folder)))
        print(peak_memory(folder))


if __name__ == "__main__":
    main()
