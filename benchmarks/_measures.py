"""Measures that encoders of any objective have in common.

Shapes: B rows, T tokens, P masked positions, H hidden width, N rows of a whole set.
"""

import csv
import functools
import gzip
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import ops

import kbert
from benchmarks import _experiments as experiments
from kbert.heads import SentenceHead
from kbert.tasks.losses import accuracy, cross_entropy
from kbert.tokenizers.packing import build_inputs
from kbert.training import AdamW, WarmupDecay

REVIEW_LENGTH, REVIEW_STEPS = 32, 600
PROBE_BATCHES = 200


def masked_lm_score(
    task: keras.Model, corpus: experiments.Corpus, masking: str = "token"
) -> dict[str, float]:
    """On held-out text, one segment a row, masked in one way: `mlm_loss`, `mlm_accuracy` and
    `bits`, the loss in bits per byte of what was masked."""
    plain = kbert.tasks.Pretraining(task.encoder, corpus.tokenizer, next_sentence=False)
    plain.masked_lm.set_weights(task.masked_lm.get_weights())
    plain.compile(AdamW(), jit_compile=task.encoder.compute_dtype == "float32")
    held_out = corpus.batches("held_out", segments="single", masking=masking)
    found = plain.evaluate(held_out, return_dict=True, verbose=0)
    score = {name: float(found[name]) for name in ("mlm_loss", "mlm_accuracy")}
    masked, size = masked_bytes(held_out, corpus.tokenizer.vocabulary)
    return {**score, "bits": score["mlm_loss"] / math.log(2) * masked / size}


def masked_bytes(dataset: tf.data.Dataset, vocabulary: list[str]) -> tuple[int, int]:
    """Masked pieces of a dataset, and the bytes that they stand for."""
    sizes = np.array([len(piece.encode()) + 1 for piece in vocabulary])
    sizes[[piece.startswith("##") for piece in vocabulary]] -= 3  # neither ## nor a space
    masked = np.concatenate(
        [batch["mask_ids"][batch["mask_weights"] > 0] for batch in dataset.as_numpy_iterator()]
    )
    return len(masked), int(sizes[masked].sum())


class Sentiment(kbert.tasks.EncoderTask):
    """Two classes of a text, from the mean of its tokens' vectors: no objective trained a pooler
    for it."""

    def __init__(self, encoder: keras.Model, tokenizer: Any):
        super().__init__(encoder, tokenizer, name="sentiment")
        self.head = SentenceHead(encoder.config)
        self.build()

    def call(self, batch, training=False):
        """Logits (B, 2)."""
        sequence = self.encode(batch, training)["sequence"]  # (B, T, H)
        return self.head(masked_mean(sequence, batch["padding_mask"]))

    def loss_terms(self, batch, training):
        answer = (self(batch, training=training), batch["labels"], ops.ones_like(batch["labels"]))
        return {"cross_entropy": cross_entropy(*answer)}, {"accuracy": accuracy(*answer)}


def masked_mean(sequence, mask):
    """(B, T, H), (B, T) -> (B, H)."""
    mask = ops.cast(mask, sequence.dtype)[:, :, None]
    return ops.sum(sequence * mask, axis=1) / ops.maximum(ops.sum(mask, axis=1), 1.0)


def read_reviews(path: Path, tokenizer: Any, limit: int) -> dict[str, np.ndarray]:
    """SST-2 sentences as features; `labels` is 1 for praise."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    rows = np.random.default_rng(0).permutation(len(lines))[:limit]
    ids = tokenizer.encode([lines[i]["sentence"].strip() for i in rows])
    marks = {"cls_id": tokenizer.cls_id, "sep_id": tokenizer.sep_id, "pad_id": tokenizer.pad_id}
    features = build_inputs(ids, max_length=REVIEW_LENGTH, multiple=REVIEW_LENGTH, **marks)
    labels = np.array([int(lines[i]["label"]) for i in rows], "int32")
    return {**{name: value.numpy() for name, value in features.items()}, "labels": labels}


def fine_tune(encoder: kbert.Encoder, corpus: experiments.Corpus, folder: str, seed: int) -> float:
    """Accuracy on SST-2's dev set of a copy of the encoder, trained on 19,200 of its sentences."""
    copy = kbert.Encoder(encoder.config)
    copy.set_weights(encoder.get_weights())
    task = Sentiment(copy, corpus.tokenizer)
    rate = WarmupDecay(5e-4, REVIEW_STEPS, REVIEW_STEPS // 10)
    # Without the correction the first steps are too long for so short a run, and some never learn.
    task.compile(AdamW(rate, bias_correction=True), jit_compile=True)
    limit = REVIEW_STEPS * experiments.BATCH
    train = read_reviews(Path(folder) / "train.tsv.gz", corpus.tokenizer, limit)
    dev = read_reviews(Path(folder) / "dev.tsv", corpus.tokenizer, limit)
    rows = tf.data.Dataset.from_tensor_slices(train).shuffle(limit, seed=seed)
    task.fit(rows.batch(experiments.BATCH, drop_remainder=True), verbose=0)
    whole = tf.data.Dataset.from_tensors(dev)
    return float(task.evaluate(whole, return_dict=True, verbose=0)["accuracy"])


class Pairs(NamedTuple):
    """A benchmark of pairs of sentences."""

    task: Callable[..., Any]
    files: tuple[str, str]  # to learn from, and to measure
    columns: tuple[str, str, str]
    read: Callable[[str], Any]  # of the last column
    measure: str


_CLASSES = ("entailment", "neutral", "contradiction")
PAIRS = {
    "stsb": Pairs(
        kbert.tasks.TextRegressor,
        ("en-train.tsv", "en-dev.tsv"),
        ("sentence1", "sentence2", "score"),
        float,
        "spearman",
    ),
    # The train set is 56 times as large, and not among the data.
    "snli": Pairs(
        functools.partial(kbert.TextClassifier, labels=_CLASSES),
        ("dev.tsv", "test.tsv"),
        ("premise", "hypothesis", "label"),
        str,
        "accuracy",
    ),
}


def fine_tune_on_pairs(
    encoder: kbert.Encoder, corpus: experiments.Corpus, name: str, folder: str, seed: int
) -> float:
    """The measure of a benchmark in `PAIRS` for a copy of the encoder, mean-pooled, fine-tuned in
    two epochs."""
    config = encoder.config.replace(pooler_activation="tanh", pooling="mean")
    copy = kbert.Encoder(config)
    for part, layer in (("embeddings", encoder.embeddings), ("norm", encoder.norm)):
        if layer is not None:
            getattr(copy, part).set_weights(layer.get_weights())
    for mine, its in zip(copy.blocks, encoder.blocks, strict=True):
        mine.set_weights(its.get_weights())
    pairs = PAIRS[name]
    task = pairs.task(copy, corpus.tokenizer, max_length=experiments.LENGTH)
    train, test = (read_pairs(Path(folder) / file, pairs) for file in pairs.files)
    task.fit(*train, learning_rate=3e-4, epochs=2, batch_size=32, seed=seed, verbose=0)
    return float(task.evaluate(*test, verbose=0)[pairs.measure])


def read_pairs(path: Path, pairs: Pairs) -> tuple[list[tuple[str, str]], list[Any]]:
    """Pairs of sentences, and what is to be said of each."""
    first, second, target = pairs.columns
    with open(path, encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [(x[first], x[second]) for x in lines], [pairs.read(x[target]) for x in lines]


def probe(encoder: kbert.Encoder, corpus: experiments.Corpus, segments: str, label: str) -> float:
    """How well ridge regression on the frozen vectors tells a sentence objective's label.

    It sees the first token's vector and the mean of each segment's.
    """

    def collect(batches):
        features, labels = [], []
        for batch in batches:
            features.append(vectors(batch).numpy())
            labels.append(batch[label].numpy())
        return np.concatenate(features).astype("float64"), np.concatenate(labels)

    @tf.function(jit_compile=True)
    def vectors(batch):
        names = ("token_ids", "segment_ids", "padding_mask")
        sequence = encoder({name: batch[name] for name in names})["sequence"]
        second = batch["segment_ids"] * batch["padding_mask"]
        first = batch["padding_mask"] - second
        ones = ops.ones_like(sequence[:, 0, :1])
        parts = [sequence[:, 0], masked_mean(sequence, first), masked_mean(sequence, second), ones]
        return ops.concatenate(parts, axis=-1)

    settings = {"segments": segments, "seed": 1234}
    x, y = collect(corpus.batches(**settings).take(PROBE_BATCHES))
    spread = x.std(axis=0) + 1e-6
    inside = (x / spread).T @ (x / spread) + 10.0 * np.eye(x.shape[1])
    weights = np.linalg.solve(inside, (x / spread).T @ (2.0 * y - 1.0))
    x, y = collect(corpus.batches("held_out", segments=segments))
    return float(np.mean((x / spread @ weights > 0) == (y == 1)))


def multiplications(config: kbert.EncoderConfig, masked: int = 0, tokens: int = 0) -> int:
    """Of one row's forward part: blocks, and a masked-LM head on `masked` positions.

    Args:
        config: the encoder's.
        masked: positions that the head predicts.
        tokens: length of the row; 0 is the benchmark's.
    """
    length, width = tokens or experiments.LENGTH, config.hidden_size
    dense = 4 * width**2 + 2 * width * config.intermediate_size
    block = length * dense + 2 * length**2 * width
    head = config.embedding_width * (width + config.vocabulary_size)
    return config.num_layers * block + masked * head


def measured_by(
    function: Callable[..., float], *arguments: Any, points: tuple[int, ...]
) -> Callable[[int], dict]:
    """For `learn`: calls the function at some steps; NaN at the others."""
    return lambda step: {"probe": function(*arguments) if step in points else float("nan")}
