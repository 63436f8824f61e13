"""A small GPT against three-grams: perplexity of held-out text, per token and per word.

The decoder is pretrained from text as `kbert-pretrain --recipe=gpt` does it, at a size and with a
rate for some minutes on two cores, over a byte-level BPE of the training text. A perplexity per
token says little beside that of another vocabulary: so the sum over all tokens of -log p, ends of
articles among them, is also divided by the words of the text, which stand between spaces and are
the same for everyone. The three-grams (`_kneser_ney.py`) predict words of a closed vocabulary,
every type of the training text, and the ends of sentences; their sum is divided by the same words.
The decoder sees no text before its row's first token, which makes its numbers a little worse.

Where the text comes from is said by --corpus, as for `benchmarks.elmo`.

`python -m benchmarks.gpt --corpus FOLDER [--epochs 3] [--output_dir DIR]`
"""

import argparse
import functools
import math
from pathlib import Path
from typing import Any

import numpy as np

import kbert
from benchmarks import _experiments as experiments, elmo
from benchmarks._kneser_ney import KneserNey
from kbert.training import AdamW, WarmupDecay

SIZES = {
    "hidden_size": 256,
    "num_layers": 4,
    "num_heads": 4,
    "intermediate_size": 1024,
    "max_positions": 128,
    "attention_dropout": 0.0,
}
VOCABULARY, ROWS, LENGTH, RATE = 8000, 16, 128, 1e-3
GLANCE = 12  # batches of the test text that are measured on the way


def prepare(folder: Path) -> tuple[Path, Path, Any]:
    """Shards of BPE of the two texts that `elmo.prepare` wrote; made once."""
    for name in ("train", "test"):
        shards = folder / f"bpe-{name}"
        if (shards / "manifest.json").exists():
            continue
        text = folder / f"{name}.txt"
        if name == "train":
            lines = text.read_text("utf-8").splitlines()
            model = kbert.tokenizers.train_byte_pair(
                lines, VOCABULARY, special_tokens=["<|endoftext|>"]
            )
            tokenizer = kbert.BytePairTokenizer(*model)
        else:
            tokenizer = kbert.load_tokenizer(folder / "bpe-train")
        kbert.data.prepare_corpus(str(text), shards, tokenizer, held_out_share=0.0)
    return folder / "bpe-train", folder / "bpe-test", kbert.load_tokenizer(folder / "bpe-train")


def batches(shards: Path, tokenizer: Any, **settings: Any):
    """The stream of a folder's only split that has text."""
    settings = {"sequence_length": LENGTH, "batch_size": ROWS, "threads": 1, **settings}
    return kbert.data.causal_dataset(shards, tokenizer, **settings)


def three_grams(train: Path, test: Path, tokenizer: Any) -> dict[str, float]:
    """The baseline: perplexity per word and end of a sentence, and both counted."""
    seen, unseen = (elmo.targets(shards, tokenizer)[""] for shards in (train, test))
    model = KneserNey(seen, tokenizer.vocabulary_size, tokenizer.cls_id, tokenizer.sep_id)
    words = int(np.sum(unseen != tokenizer.sep_id))
    return {"perplexity": model.perplexity(unseen), "steps": len(unseen), "words": words}


def language_model(
    train: Path, test: Path, tokenizer: Any, epochs: float, dropout: float, folder: Path
) -> dict[str, Any]:
    """Pretrains a decoder, measures it on the way on a part of the test text, at the end on all."""
    config = kbert.DecoderConfig(
        **SIZES, vocabulary_size=tokenizer.vocabulary_size, dropout=dropout
    )
    task = kbert.tasks.CausalLM(kbert.Decoder(config), tokenizer)
    manifest = kbert.data.read_manifest(train).split("train")
    steps = int(epochs * (manifest.tokens + manifest.documents) / (ROWS * LENGTH))
    rate = WarmupDecay(RATE, steps, steps // 20, decay="cosine", join="after")
    held_out = batches(test, tokenizer, epochs=1)
    result = experiments.learn(
        task,
        batches(train, tokenizer),
        held_out.take(GLANCE),
        steps,
        AdamW(rate, beta_2=0.98, bias_correction=True),
    )
    task.save_to_preset(folder)
    found = task.evaluate(held_out, return_dict=True, verbose=0)
    tokens = sum(float(batch["weights"].sum()) for batch in held_out.as_numpy_iterator())
    found = {name: float(value) for name, value in found.items()}
    return {**result, **found, "tokens": tokens, "steps": steps}


def per_word(loss: float, steps: float, words: int) -> float:
    """The perplexity of a word, from the mean of -log p of a step."""
    return math.exp(loss * steps / words)


def main() -> None:
    flags = argparse.ArgumentParser(prog="python -m benchmarks.gpt", description=__doc__)
    flags.add_argument("--corpus", type=Path, required=True, help="folder of train and test text")
    flags.add_argument("--epochs", type=float, default=3.0, help="of the decoder")
    flags.add_argument("--dropout", type=float, default=0.0, help="0.1 for ten epochs or more")
    flags.add_argument("--output_dir", default="bench-gpt", help="results, kept between starts")
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--threads", type=int, help="of TensorFlow (default: one a core)")
    options = flags.parse_args()
    experiments.set_threads(options.threads)
    folder = experiments.results_folder(options.output_dir, corpus=str(options.corpus))
    *words, by_word = elmo.prepare(options.corpus, folder)
    baseline = three_grams(*words, by_word)
    *shards, tokenizer = prepare(folder)
    key = {"name": "gpt", "seed": options.seed, "epochs": options.epochs, "rate": RATE, **SIZES}
    key |= {"rows": ROWS, "length": LENGTH, "dropout": options.dropout}
    preset = folder / f"decoder-{options.epochs:g}-{options.seed}"
    compute = functools.partial(
        language_model, *shards, tokenizer, options.epochs, options.dropout, preset
    )
    found = experiments.once(folder / "results", key, compute)
    print(
        f"{baseline['words']:,} words of test text: {baseline['steps']:,} with the ends of "
        f"sentences, {found['tokens']:,.0f} tokens of {tokenizer.vocabulary_size:,} with the ends "
        "of articles"
    )
    grams = math.log(baseline["perplexity"]), baseline["steps"]
    experiments.print_table(
        ("model", "parameters", "seconds", "perplexity per step", "per word"),
        [
            (
                *("3-gram, modified Kneser-Ney", "", ""),
                f"{baseline['perplexity']:.1f}",
                f"{per_word(*grams, baseline['words']):.1f}",
            ),
            (
                f"GPT, {options.epochs:g} epochs",
                f"{found['parameters'] / 1e6:.2f} M",
                f"{found['seconds']:.0f}",
                f"{found['perplexity']:.1f}",
                f"{per_word(found['lm_loss'], found['tokens'], baseline['words']):.1f}",
            ),
        ],
    )
    print(
        "The decoder on the way, per token on a part of the text: "
        + ", ".join(
            f"{point['perplexity']:.0f} after {point['step']:,} steps" for point in found["curve"]
        )
    )


if __name__ == "__main__":
    main()
