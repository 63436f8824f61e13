"""A small Transformer on Multi30k, English to German: BLEU, time and memory on two cores.

It is trained as `kbert-pretrain --recipe=transformer` does it (label smoothing, Adam with β2 0.98,
inverse square root of the step, mean of the last checkpoints) at a size and with batches for half
an hour: 3 + 3 layers of width 256, 8,000 entries of a vocabulary that both languages share. BLEU is
sacrebleu's on raw text, capitals and punctuation as they stand.

Where the text comes from is said by --data: a folder with `train.en` (or `train.en.gz`), `val.en`,
`test_2016_flickr.en` and the same in `.de`.

`python -m benchmarks.translation --data FOLDER [--epochs 20] [--output_dir DIR]`

Stopped or killed, the same command goes on where it was.
"""

import argparse
import functools
import time
from pathlib import Path
from typing import Any

import kbert
from benchmarks import _experiments as experiments
from benchmarks._data import add_data
from kbert.decoding import Beam, Greedy
from kbert.metrics import bleu
from kbert.training import AdamW, WarmupDecay
from kbert.training.run.estimates import peak_memory

VOCABULARY = 8_000
SIZES = {
    "hidden_size": 256,
    "num_layers": 3,
    "num_heads": 4,
    "intermediate_size": 512,
    "max_positions": 128,
    "dropout": 0.3,  # 29,000 pairs are few
    "attention_dropout": 0.0,
}
TOKENS, SHAPES = 2048, 12
WARMUP, RATE = 1_000, 1.4e-3
EVALUATIONS, AVERAGED = 6, 5
METHODS = {"greedy": Greedy(), "beam of 4": Beam(width=4, length_penalty=0.6)}


def pairs(data: Path, name: str) -> list[tuple[str, str]]:
    """The sentences of a split and their translations."""
    paths = [data / f"{name}.{language}" for language in ("en", "de")]
    return list(kbert.text.read_pairs(*(p if p.exists() else f"{p}.gz" for p in paths)))


def learn(data: Path, epochs: float, seed: int, folder: Path) -> dict[str, Any]:
    """Trains a translator and measures it on the test set."""
    source = {name: pairs(data, name) for name in ("train", "val", "test_2016_flickr")}
    if not (folder / "tokenizer").exists():
        texts = (text for pair in source["train"] for text in pair)
        kbert.tokenizers.train_tokenizer(texts, VOCABULARY, kind="bpe").save(folder / "tokenizer")
    tokenizer = kbert.load_tokenizer(folder / "tokenizer")
    config = kbert.Seq2SeqConfig(vocabulary_size=tokenizer.vocabulary_size, **SIZES)
    task = kbert.tasks.Translator(kbert.Seq2Seq(config), tokenizer, label_smoothing=0.1)
    settings = {"max_tokens": TOKENS, "num_shapes": SHAPES, "max_length": SIZES["max_positions"]}

    one = kbert.data.translation_dataset(source["train"], tokenizer, epochs=1, **settings)
    steps = round(epochs * int(one.cardinality()))
    rate = WarmupDecay(RATE, steps, min(WARMUP, steps // 5), "inverse_sqrt")
    adam = AdamW(rate, weight_decay=0.0, beta_2=0.98, epsilon=1e-9, bias_correction=True)
    task.compile(adam, clip_norm=None, jit_compile=True)

    def translate(name: str, method) -> float:
        texts, references = zip(*source[name], strict=True)
        return bleu(task.predict(texts, method=method, verbose=0), references).score

    began = time.perf_counter()
    run = task.fit(
        source["train"],
        validation_data=source["val"],
        steps=steps,
        seed=seed,
        evaluate_every=steps // EVALUATIONS,
        checkpoint_every=steps // (4 * AVERAGED),
        keep_checkpoints=AVERAGED,
        average_checkpoints=AVERAGED,
        beam_width=1,  # its BLEU during training
        model_dir=folder,
        **settings,
    )
    seconds = time.perf_counter() - began
    test = kbert.data.translation_dataset(
        source["test_2016_flickr"], tokenizer, epochs=1, shuffle=False, **settings
    )
    found = task.evaluate(test, return_dict=True, verbose=0)
    result = {"nll": float(found["nll"]), "perplexity": float(found["perplexity"])}
    for name, method in METHODS.items():
        started = time.perf_counter()
        score = translate("test_2016_flickr", method)
        result[name] = {"bleu": score, "seconds": time.perf_counter() - started}
    return {
        **result,
        "steps": steps,
        "seconds": seconds,
        "peak": peak_memory(),
        "parameters": task.count_params(),
        "curve": run.evaluations,
    }


def main() -> None:
    flags = argparse.ArgumentParser(prog="python -m benchmarks.translation", description=__doc__)
    splits = ("train", "val", "test_2016_flickr")
    add_data(flags, [f"{name}.{language}*" for name in splits for language in ("en", "de")])
    flags.add_argument("--epochs", type=float, default=20.0)
    flags.add_argument("--output_dir", default="bench-translation", help="kept between starts")
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--threads", type=int, help="of TensorFlow (default: one a core)")
    options = flags.parse_args()
    experiments.set_threads(options.threads)
    folder = experiments.results_folder(options.output_dir, data=str(options.data))
    key = {"name": "translation", "seed": options.seed, "epochs": options.epochs, **SIZES}
    key |= {"rate": RATE, "warmup": WARMUP, "tokens": TOKENS, "vocabulary": VOCABULARY}
    run = folder / f"run-{options.epochs:g}-{options.seed}"
    compute = functools.partial(learn, options.data, options.epochs, options.seed, run)
    found = experiments.once(folder / "results", key, compute)
    print(
        f"{found['parameters']:,} parameters, {found['steps']:,} steps in {found['seconds']:.0f} s "
        f"(of the last start), peak memory {found['peak'] / 1e9:.2f} GB; test_2016_flickr: nll "
        f"{found['nll']:.3f}, perplexity {found['perplexity']:.2f}"
    )
    experiments.print_table(
        ("decoding", "BLEU", "seconds for 1,000 sentences"),
        [(n, f"{found[n]['bleu']:.2f}", f"{found[n]['seconds']:.1f}") for n in METHODS],
    )
    print(
        "BLEU of the validation set on the way, greedy: "
        + ", ".join(f"{p['bleu']:.1f} after {p['step']:,}" for p in found["curve"])
    )


if __name__ == "__main__":
    main()
