"""What the learning benchmarks share: a corpus, short pretrainings that keep their results, tables.

Sizes are such that a run takes about a minute on two cores. Every result is a JSON file of its own
under --output_dir, named by all that decides it: what is there is not computed again, so that a
stopped benchmark goes on, two processes can share the work, and tables can be printed anew.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import kbert
from kbert.training import AdamW, WarmupDecay
from pipelines.masked_text import tokenizer_fields

LENGTH, BATCH, VOCABULARY = 64, 32, 4000
EVALUATIONS = 8  # in a run, evenly spread: the points of its curve
HELD_OUT_BATCHES = 80
SIZES = {
    "hidden_size": 128,
    "num_layers": 2,
    "num_heads": 2,
    "intermediate_size": 512,
    "max_positions": LENGTH,
    # A short run on a small model underfits: dropout would only slow it down.
    "dropout": 0.0,
    "attention_dropout": 0.0,
}


def parser(name: str, documentation: str, steps: int | None = None) -> argparse.ArgumentParser:
    """The flags of every learning benchmark."""
    flags = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=documentation)
    flags.add_argument("names", nargs="*", metavar="name", help="what to run (default: all)")
    flags.add_argument("--text", default="docs:", help="what to learn from: files or docs:")
    flags.add_argument("--output_dir", default=f"bench-{name}", help="results, kept between starts")
    if steps is not None:
        flags.add_argument("--steps", type=int, default=steps, help="updates of a run")
    flags.add_argument("--seeds", type=int, nargs="+", default=[0])
    flags.add_argument("--threads", type=int, help="of TensorFlow (default: one a core)")
    return flags


def results_folder(directory: str, **settings: Any) -> Path:
    """The folder for results, refused where it holds those of another text."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "settings.json"
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else settings
    if before != settings:
        raise ValueError(
            f"{folder} holds results of other settings; give another --output_dir. "
            f"Received: {settings}, before {before}"
        )
    path.write_text(json.dumps(settings), encoding="utf-8")
    return folder


def set_threads(threads: int | None) -> None:
    """Lets two processes run beside each other, each on its own core."""
    if threads:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Shards and the tokenizer they were made with."""

    folder: Path
    tokenizer: Any

    def batches(self, split: str = "train", **settings: Any) -> tf.data.Dataset:
        """Batches of `LENGTH` tokens for training, or once through the held-out documents."""
        settings = {"sequence_length": LENGTH, "batch_size": BATCH, "threads": 1, **settings}
        if split == "held_out":
            settings |= {"epochs": 1, "seed": 0, "static_masks": None}
        found = kbert.data.pretraining_dataset(self.folder, self.tokenizer, split=split, **settings)
        return found.take(HELD_OUT_BATCHES) if split == "held_out" else found


def prepare(text: str, folder: Path, kind: str = "wordpiece") -> Corpus:
    """Trains a tokenizer of a kind on the text and makes shards; both only once."""
    if not (folder / "manifest.json").exists():
        sentences = (line for document in kbert.text.documents(text) for line in document)
        tokenizer = _train_tokenizer(kind, sentences)
        kbert.data.prepare_corpus(text, folder, tokenizer, held_out_share=0.03)
    return Corpus(folder, kbert.load_tokenizer(folder))


def _train_tokenizer(kind: str, sentences: Iterable[str]):
    if kind == "wordpiece":
        return kbert.WordPieceTokenizer(kbert.tokenizers.train_wordpiece(sentences, VOCABULARY))
    if kind == "bpe":
        return kbert.BytePairTokenizer(*kbert.tokenizers.train_byte_pair(sentences, VOCABULARY))
    return kbert.UnigramTokenizer(kbert.tokenizers.train_unigram(sentences, VOCABULARY))


def config(tokenizer, base: str = "bert-tiny", **changes: Any) -> kbert.EncoderConfig:
    """A model of the family at the benchmark's size."""
    found = kbert.family(base)
    return found.replace(**{**tokenizer_fields(found, tokenizer), **SIZES, **changes})


def default_optimizer(steps: int, learning_rate: float = 2e-3) -> AdamW:
    """What the quickstart trains with."""
    return AdamW(WarmupDecay(learning_rate, steps, steps // 10), beta_2=0.98)


def learn(
    task: keras.Model,
    train: tf.data.Dataset,
    held_out: tf.data.Dataset,
    steps: int,
    optimizer=None,
    clip_norm: float | None = 1.0,
    at_evaluation: Callable[[int], dict] | None = None,
    jit_compile: bool | str = True,
    evaluations: int = EVALUATIONS,
) -> dict[str, Any]:
    """Trains, and measures on held-out text `evaluations` times.

    Args:
        task: not compiled.
        train: batches without end.
        held_out: batches of one pass.
        steps: updates.
        optimizer: in the place of `default_optimizer`.
        clip_norm: as in `compile`.
        at_evaluation: given the step, adds to what is measured there.
        jit_compile: as in `compile`.
        evaluations: evenly spread.

    Returns:
        "curve", a dict of values for each evaluation; the last one's values; parameters; seconds.
    """
    task.compile(
        optimizer or default_optimizer(steps), clip_norm=clip_norm, jit_compile=jit_compile
    )
    every, added = steps // evaluations, []
    callbacks = []
    if at_evaluation:
        measure = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: added.append(at_evaluation((epoch + 1) * every))
        )
        callbacks.append(measure)
    began = time.perf_counter()
    history = task.fit(
        train,
        epochs=evaluations,
        steps_per_epoch=every,
        validation_data=held_out,
        callbacks=callbacks,
        verbose=0,
    ).history
    seconds = time.perf_counter() - began
    measured = {k.removeprefix("val_"): v for k, v in history.items() if k.startswith("val_")}
    measured["train_loss"] = history["loss"]
    curve = [
        {"step": (i + 1) * every, **{name: float(v[i]) for name, v in measured.items()}}
        for i in range(evaluations)
    ]
    curve = [
        {**point, **more} for point, more in zip(curve, added or [{}] * len(curve), strict=True)
    ]
    return {"curve": curve, **curve[-1], "parameters": task.count_params(), "seconds": seconds}


def once(folder: Path, key: dict[str, Any], compute: Callable[[], dict]) -> dict[str, Any]:
    """What `compute` returned under this key, now or in an earlier start."""
    text = json.dumps(key, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    path = folder / f"{key['name']}-{key['seed']}-{digest}.json"
    if path.exists():
        return json.loads(path.read_text(encoding="utf-8"))["result"]
    print(f"  {key['name']}, seed {key['seed']} …", flush=True)
    keras.utils.set_random_seed(key["seed"])
    keras.backend.clear_session()
    result = compute()
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps({"key": key, "result": result}, indent=1), encoding="utf-8")
    unfinished.rename(path)
    return result


def most_frequent(values: Iterable[np.ndarray]) -> float:
    """The share that one has right who always gives the most frequent answer."""
    _, counts = np.unique(np.concatenate([np.ravel(v) for v in values]), return_counts=True)
    return counts.max() / counts.sum()


def mean(results: Sequence[dict], name: str, form: str = ".3f") -> str:
    """A value over the seeds; with more than one, how far they lie apart at most."""
    values = [result[name] for result in results]
    spread = f" ± {(max(values) - min(values)) / 2:{form}}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{form}}{spread}"


def print_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Markdown."""
    print(f"\n| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for row in rows:
        print(f"| {' | '.join(str(cell) for cell in row)} |")
    print(flush=True)
