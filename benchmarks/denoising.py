"""What pretraining on unpaired sentences adds to a translator of few pairs: BART, MASS and T5.

One small encoder-decoder per noise is pretrained on the sentences of both languages of Multi30k,
each a document of its own and without its translation. It is then fine-tuned on 1,000, 5,000 and
29,000 pairs, English to German, beside the same model with random weights. Every noise has the same
number of updates and about the same number of text tokens in a batch: T5's rows are joined from
several sentences, so its batches have fewer rows. BART's sentences are not permuted, because a
document has one.

Every fine-tuning has the same settings. Its steps are chosen on validation pairs: of several evenly
spaced evaluations, greedy BLEU chooses the weights that translate the test set. BLEU is sacrebleu's
on raw text. A last table says whether the pretrained decoders read their sources.

Where the text comes from is said by --data: a folder with `train.en` (or `train.en.gz`), `val.en`,
`test_2016_flickr.en` and the same in `.de`.

`python -m benchmarks.denoising --data FOLDER [--pairs 1000 …] [--seeds 0 1 2] [--only none bart …]`

Each result is a file of its own, and a pretraining resumes from its checkpoint: stopped or killed,
the same command continues. `--smoke` runs all of it on tiny models in a minute.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

import kbert
from benchmarks import _experiments as experiments
from benchmarks._data import add_data
from benchmarks.translation import pairs as read_pairs
from kbert.decoding import Greedy
from kbert.metrics import bleu

VOCABULARY, SENTINELS = 8_000, 16
SIZES = {
    "hidden_size": 192,
    "num_layers": 2,
    "num_heads": 4,
    "intermediate_size": 768,
    "max_positions": 128,
    "dropout": 0.1,
    "attention_dropout": 0.0,
}
PRETRAINING = {
    "steps": 2_000,
    "learning_rate": 1.5e-3,
    "decay": "linear",
    "beta_2": 0.98,
    "bias_correction": True,
    "checkpoint_every": 250,
    "keep_checkpoints": 1,
}
# Noise -> its name with options, tokens of a source and rows of a batch. Sentences have 14 tokens
# on average. T5's rows are joined sentences; a short one would have one span, always at its end.
NOISES = {
    "bart": ("bart:permuted_share=0", 24, 64),
    "mass": ("mass", 24, 64),
    "t5": ("t5", 96, 8),
}
FINE_TUNING = {
    "max_tokens": 1_024,
    "num_shapes": 4,
    "learning_rate": 1e-3,
    "decay": "linear",
    "beta_2": 0.98,
    "bias_correction": True,
    "weight_decay": 0.0,
    "beam_width": 1,
}
STEPS = {1_000: 600, 5_000: 1_000, 29_000: 2_000}  # pairs -> largest number of updates
EVALUATIONS, VALIDATION = 5, 200  # evaluations of a fine-tuning, and pairs of each
SOURCE_BATCHES = 6  # of each loss in the table of sources
SMOKE_SIZES = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 32}


class Laboratory:
    """The data, the tokenizer of both languages and the pretrained models, made when needed.

    Args:
        data: folder with the sentence pairs.
        folder: folder for results.
        smoke: whether models are tiny and runs a few steps long.
    """

    def __init__(self, data: Path, folder: Path, smoke: bool) -> None:
        self.folder, self.smoke = folder, smoke
        names = ("train", "val", "test_2016_flickr")
        self.pairs = {name: read_pairs(data, name) for name in names}
        self.validation = VALIDATION
        if smoke:
            self.pairs = {name: pairs[:200] for name, pairs in self.pairs.items()}
            self.pairs["test_2016_flickr"], self.validation = self.pairs["val"][:8], 8
        self.tokenizer = self._tokenizer()

    def _tokenizer(self) -> kbert.BytePairTokenizer:
        path = self.folder / "tokenizer"
        if not path.exists():
            texts = (text for pair in self.pairs["train"] for text in pair)
            size = 400 if self.smoke else VOCABULARY
            pieces, merges = kbert.tokenizers.train_byte_pair(
                texts, size - SENTINELS, add_prefix_space=True
            )
            pieces += [f"<extra_id_{number}>" for number in range(SENTINELS)]
            tokenizer = kbert.BytePairTokenizer(pieces, merges, add_prefix_space=True)
            tokenizer.save(path)
        return kbert.load_tokenizer(path)

    def translator(self) -> kbert.tasks.Translator:
        """Returns a translator with random weights."""
        sizes = {**SIZES, **(SMOKE_SIZES if self.smoke else {})}
        config = kbert.Seq2SeqConfig(vocabulary_size=self.tokenizer.vocabulary_size, **sizes)
        return kbert.tasks.Translator(kbert.Seq2Seq(config), self.tokenizer)

    def corpus(self) -> Path:
        """Returns shards of the sentences of both languages, each a document."""
        folder = self.folder / "corpus"
        if not (folder / "manifest.json").exists():
            text = self.folder / "sentences.txt"
            sides = zip(*self.pairs["train"], strict=True)
            text.write_text(
                "".join(f"{line.strip()}\n\n" for side in sides for line in side), encoding="utf-8"
            )
            kbert.data.prepare_corpus(text, folder, self.tokenizer, held_out_share=0.02)
        return folder

    def pretrained(self, name: str) -> tuple[Path, dict[str, Any]]:
        """Returns the weights' file of a noise's model, and the result of its pretraining."""
        path = self.folder / f"{name}.weights.h5"
        noise, length, rows = NOISES[name]
        settings = {**PRETRAINING, **({"steps": 10} if self.smoke else {})}
        settings |= {"noise": noise, "sequence_length": length, "batch_size": rows}
        key = {"name": f"pretraining-{name}", "seed": 0, **settings, **SIZES}

        def compute() -> dict[str, Any]:
            task = self.translator()
            began = time.process_time()
            run = task.fit(
                self.corpus(), model_dir=self.folder / f"run-{name}", verbose=0, **settings
            )
            check_finished(run)
            seconds = time.process_time() - began
            task.seq2seq.save_weights(path)
            return {"seconds": seconds, **run.evaluations[-1]}

        return path, experiments.once(self.folder / "results", key, compute)

    def fine_tuned(self, name: str, count: int, seed: int) -> dict[str, Any]:
        """Returns the result of training on the first `count` pairs; "none": from random weights.

        Example of a result: {"bleu": 12.3, "step": 400, "curve": {…}}.
        """
        steps = 2 * EVALUATIONS if self.smoke else STEPS[count]
        key = {"name": f"{name}-{count}", "seed": seed, "steps": steps, **FINE_TUNING, **SIZES}
        if name != "none":
            weights, _ = self.pretrained(name)
            key |= {"pretraining_steps": PRETRAINING["steps"], "noise": NOISES[name][0]}

        def compute() -> dict[str, Any]:
            task = self.translator()
            if name != "none":
                task.seq2seq.load_weights(weights)
            began = time.process_time()
            run = task.fit(
                self.pairs["train"][:count],
                validation_data=self.pairs["val"][: self.validation],
                steps=steps,
                seed=seed,
                evaluate_every=steps // EVALUATIONS,
                metric="bleu",
                verbose=0,
                model_dir=self.folder / f"run-{name}-{count}-{seed}",
                keep_checkpoints=1,
                **FINE_TUNING,
            )
            check_finished(run)
            curve = {point["step"]: point["bleu"] for point in run.evaluations}
            sources, references = zip(*self.pairs["test_2016_flickr"], strict=True)
            answers = task.predict(sources, method=Greedy(), verbose=0)
            return {
                "bleu": bleu(answers, references).score,
                "curve": curve,
                "step": run.best_step,
                "seconds": time.process_time() - began,
            }

        return experiments.once(self.folder / "results", key, compute)

    def source_losses(self, name: str) -> tuple[float, float]:
        """Returns a pretrained model's held-out loss: with each row's own source, with another's.

        If both are equal, the decoder does not read its source.
        """
        task = self.translator()
        task.seq2seq.load_weights(self.pretrained(name)[0])
        noise, length, rows = NOISES[name]
        batches = kbert.data.denoising_dataset(
            self.corpus(),
            self.tokenizer,
            split="held_out",
            noise=noise,
            sequence_length=length,
            batch_size=rows,
        )
        pairs = []
        for batch in batches.take(SOURCE_BATCHES):
            moved = {
                k: tf.roll(x, 1, 0) if k.startswith("encoder") else x for k, x in batch.items()
            }
            losses = [task.loss_terms(b, training=False)[0]["lm_loss"] for b in (batch, moved)]
            pairs.append([float(numerator / denominator) for numerator, denominator in losses])
        own, other = zip(*pairs, strict=True)
        return statistics.mean(own), statistics.mean(other)


def check_finished(run: Any) -> None:
    """Ends the program if a signal ended a run, so that no unfinished result is kept."""
    if run.interrupted:
        raise SystemExit(f"{run}: the same command continues")


def report(
    lab: Laboratory, names: Sequence[str], counts: Sequence[int], seeds: Sequence[int]
) -> None:
    """Computes and prints the cells, one row of the table per number of pairs."""
    header, rows = ("pairs", *names), []
    for count in counts:
        cells = [[lab.fine_tuned(name, count, seed) for seed in seeds] for name in names]
        rows.append((f"{count:,}", *(experiments.mean(cell, "bleu", ".1f") for cell in cells)))
        for name, cell in zip(names, cells, strict=True):
            print(f"{count:,} pairs, {name}: steps {[result['step'] for result in cell]}")
        experiments.print_table(header, rows)
    sources = [
        (name, *(f"{loss:.2f}" for loss in lab.source_losses(name)))
        for name in names
        if name != "none"
    ]
    experiments.print_table(("held-out loss", "own source", "another source"), sources)


def main() -> None:
    flags = argparse.ArgumentParser(prog="python -m benchmarks.denoising", description=__doc__)
    splits = ("train", "val", "test_2016_flickr")
    add_data(flags, [f"{name}.{language}*" for name in splits for language in ("en", "de")])
    models = ["none", *NOISES]
    flags.add_argument("--only", nargs="+", choices=models, default=models, help="models to train")
    flags.add_argument("--pairs", nargs="+", type=int, choices=list(STEPS), default=list(STEPS))
    flags.add_argument("--seeds", nargs="+", type=int, default=[0])
    flags.add_argument("--output_dir", default="bench-denoising", help="kept between starts")
    flags.add_argument("--threads", type=int, help="of TensorFlow (default: one a core)")
    flags.add_argument("--smoke", action="store_true", help="tiny models, a few steps")
    options = flags.parse_args()
    experiments.set_threads(options.threads)
    settings = {"data": str(options.data), "smoke": options.smoke}
    folder = experiments.results_folder(options.output_dir, **settings)
    lab = Laboratory(options.data, folder, options.smoke)
    report(lab, options.only, options.pairs, options.seeds)


if __name__ == "__main__":
    main()
