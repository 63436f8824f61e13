"""A small ELMo against three-grams: perplexity of held-out text, in both directions.

The biLM is pretrained from text as `kbert-pretrain --recipe=elmo` does it, at a size and with an
optimizer for some minutes on two cores: narrow layers, AdamW instead of Adagrad, sampled words in
training, the whole softmax when it is measured. The three-grams (`_kneser_ney.py`) see exactly the
same words, sentences and vocabulary: every type of the training text. Read backward, both begin
with the end of a sentence.

Where the text comes from is said by --corpus: a folder with `train.txt` (or `train.txt.gz`) and
`test.txt` of words between spaces, an article after each ` = title = `, as WikiText has them.

`python -m benchmarks.elmo --corpus FOLDER [--epochs 2] [--output_dir DIR]`
"""

import argparse
import functools
import gzip
import re
import time
from pathlib import Path
from typing import Any

import numpy as np

import kbert
from benchmarks import _experiments as experiments
from benchmarks._kneser_ney import KneserNey
from kbert.training import AdamW, WarmupDecay

SIZES = {
    "character_size": 16,
    "filters": ((1, 32), (2, 32), (3, 64), (4, 128)),
    "num_highway": 1,
    "max_characters": 24,
    "lstm_size": 384,
    "projection_size": 128,
    "num_layers": 2,
    "dropout": 0.0,  # a short run underfits
}
ROWS, LENGTH, NEGATIVES = 32, 20, 2048
RATE = 2e-3
GLANCE = 40  # batches of the test text that are measured on the way
TITLE = re.compile(r" = [^=].*[^=] = ")


def prepare(corpus: Path, folder: Path) -> tuple[Path, Path, kbert.WordTokenizer]:
    """Shards of the training and of the test text, an article a document; made once."""
    for name in ("train", "test"):
        if not (folder / name / "manifest.json").exists():
            text = folder / f"{name}.txt"
            text.write_text("\n\n".join(articles(corpus, name)), encoding="utf-8")
            if name == "train":
                words = kbert.tokenizers.train_words(text.read_text("utf-8").splitlines())
            else:
                words = kbert.load_tokenizer(folder / "train").vocabulary
            tokenizer = kbert.WordTokenizer(words)
            kbert.data.prepare_corpus(str(text), folder / name, tokenizer, held_out_share=0.0)
    return folder / "train", folder / "test", kbert.load_tokenizer(folder / "train")


def articles(corpus: Path, name: str) -> list[str]:
    """The articles of a file, without blank lines."""
    path = corpus / f"{name}.txt"
    opened = open if path.exists() else gzip.open
    found: list[list[str]] = []
    path = path if path.exists() else path.with_suffix(".txt.gz")
    with opened(path, "rt", encoding="utf-8") as file:
        for line in file:
            if TITLE.fullmatch(line.rstrip("\n")) or not found:
                found.append([])
            if line.strip():
                found[-1].append(line.strip())
    return ["\n".join(lines) for lines in found]


def batches(shards: Path, tokenizer: Any, **settings: Any):
    """The stream of a folder's only split that has text."""
    settings = {"sequence_length": LENGTH, "batch_size": ROWS, "threads": 1, **settings}
    return kbert.data.language_model_dataset(
        shards, tokenizer, max_characters=SIZES["max_characters"], **settings
    )


def targets(shards: Path, tokenizer: Any) -> dict[str, np.ndarray]:
    """All words in the order of the stream, as one row reads them: forward and backward."""
    whole = batches(shards, tokenizer, batch_size=1, sequence_length=2**14, epochs=1)
    found: dict[str, list] = {"": [], "reverse_": []}
    for batch in whole.as_numpy_iterator():
        for prefix, words in found.items():
            words.append(batch[f"{prefix}targets"][batch[f"{prefix}weights"] > 0])
    return {prefix: np.concatenate(words).astype(np.int64) for prefix, words in found.items()}


def three_grams(train: Path, test: Path, tokenizer: Any) -> dict[str, Any]:
    """The baseline of both directions."""
    began = time.perf_counter()
    seen, unseen = targets(train, tokenizer), targets(test, tokenizer)
    first, last = tokenizer.cls_id, tokenizer.sep_id
    found = []
    for prefix, begin, end in (("", first, last), ("reverse_", last, first)):
        model = KneserNey(seen[prefix], tokenizer.vocabulary_size, begin, end)
        found.append(model.perplexity(unseen[prefix]))
    return {
        "forward_perplexity": found[0],
        "backward_perplexity": found[1],
        "words": len(unseen[""]),
        "train_words": len(seen[""]),
        "seconds": time.perf_counter() - began,
    }


def language_model(
    train: Path, test: Path, tokenizer: Any, epochs: float, folder: Path
) -> dict[str, Any]:
    """Pretrains a biLM, measures it on the way on a part of the test text, at the end on all.

    It is saved to `folder`, for `benchmarks.elmo_tagging`.
    """
    elmo = kbert.Elmo(
        kbert.ElmoConfig(**SIZES, vocabulary_size=tokenizer.vocabulary_size), tokenizer=tokenizer
    )
    task = kbert.tasks.BidirectionalLM(elmo, batch_size=ROWS, negatives=NEGATIVES)
    steps = int(epochs * len(targets(train, tokenizer)[""]) / (ROWS * LENGTH))
    rate = WarmupDecay(RATE, steps, steps // 20, decay="cosine", join="after")
    held_out = batches(test, tokenizer, epochs=1)
    result = experiments.learn(
        task,
        batches(train, tokenizer),
        held_out.take(GLANCE),
        steps,
        AdamW(rate, weight_decay=0.0, beta_2=0.99, bias_correction=True),
        clip_norm=10.0,
        jit_compile="auto",
    )
    elmo.save_to_preset(folder)
    found = task.evaluate(held_out, return_dict=True, verbose=0)
    found = {name: float(value) for name, value in found.items()}
    return {**result, **found, "parameters": elmo.count_params()}


def main() -> None:
    flags = argparse.ArgumentParser(prog="python -m benchmarks.elmo", description=__doc__)
    flags.add_argument("--corpus", type=Path, required=True, help="folder of train and test text")
    flags.add_argument("--epochs", type=float, default=2.0, help="of the biLM")
    flags.add_argument("--output_dir", default="bench-elmo", help="results, kept between starts")
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--threads", type=int, help="of TensorFlow (default: one a core)")
    options = flags.parse_args()
    experiments.set_threads(options.threads)
    folder = experiments.results_folder(options.output_dir, corpus=str(options.corpus))
    data = prepare(options.corpus, folder)
    baseline = three_grams(*data)
    key = {"name": "elmo", "seed": options.seed, "epochs": options.epochs, "rate": RATE, **SIZES}
    key |= {"rows": ROWS, "length": LENGTH, "negatives": NEGATIVES}
    preset = folder / f"bilm-{options.epochs:g}-{options.seed}"
    compute = functools.partial(language_model, *data, options.epochs, preset)
    found = experiments.once(folder / "results", key, compute)
    print(
        f"{baseline['train_words']:,} words of training text, {data[-1].vocabulary_size:,} types; "
        f"{baseline['words']:,} words of test text, ends of sentences among them"
    )
    experiments.print_table(
        ("model", "parameters", "seconds", "perplexity forward", "perplexity backward"),
        [
            ("3-gram, modified Kneser-Ney", "", *row(baseline)),
            (f"biLM, {options.epochs:g} epochs", f"{found['parameters'] / 1e6:.2f} M", *row(found)),
        ],
    )
    print(
        "The biLM on the way, on a part of the text: "
        + ", ".join(
            f"{point['forward_perplexity']:.0f} after {point['step']:,} steps"
            for point in found["curve"]
        )
    )


def row(result: dict[str, Any]) -> tuple[str, ...]:
    """Of the table."""
    perplexities = (f"{result[f'{way}_perplexity']:.1f}" for way in ("forward", "backward"))
    return f"{result['seconds']:.0f}", *perplexities


if __name__ == "__main__":
    main()
