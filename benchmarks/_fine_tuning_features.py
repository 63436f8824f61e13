"""The pretrained model as it is: which layers make the best features, under which model on top.

(BERT, section 5.3 and table 7, https://arxiv.org/abs/1810.04805.)

Shapes: N sentences, B rows, W words of the longest sentence, D width of the features.
"""

import time
from typing import Any

import keras
import numpy as np

import kbert
from benchmarks._fine_tuning_kbert import make_task, peak_mib
from benchmarks._fine_tuning_runs import Job
from kbert.extraction import TextFeatures, features

LAYERS = ("embeddings", "last", "sum_all", "second_to_last", "sum_last_four", "concat_last_four")
POOLINGS = ("cls", "mean", "max")
TAGGERS = ("linear", "BiLSTM")
UNITS = 128  # of an LSTM and direction; the paper's are 384
TAGGER_EPOCHS, TAGGER_BATCH, TAGGER_RATE = 10, 32, 1e-3


def classify(job: Job) -> dict[str, Any]:
    """Accuracy of logistic regression on each choice of layers and pooling.

    Returns:
        "scores", "<layers> <pooling>" -> accuracy; "seconds" of all; "peak_mib".
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    task, scores = make_task(job), {}
    began = time.perf_counter()
    for layers in LAYERS:
        for pooling in POOLINGS:
            vectors = TextFeatures(task.encoder, task.tokenizer, layers=layers, pooling=pooling)
            model = make_pipeline(vectors, LogisticRegression(max_iter=2000))
            model.fit(job.train["text"], job.train["label"])
            score = model.score(job.dev["text"], job.dev["label"])
            scores[f"{layers} {pooling}"] = float(score)
    return {"scores": scores, "seconds": time.perf_counter() - began, "peak_mib": peak_mib()}


def tag(job: Job) -> dict[str, Any]:
    """Entity F1 of taggers on the frozen vectors of words' first pieces.

    Returns:
        "scores", "<layers> <tagger>" -> F1; "seconds" of all; "peak_mib".
    """
    task, scores = make_task(job), {}
    began = time.perf_counter()
    for layers in LAYERS:
        options = {"layers": layers, "words": True, "merge": "first", "verbose": 0}
        train, dev = (
            features(task.encoder, task.tokenizer, table["words"], **options)
            for table in (job.train, job.dev)
        )
        for tagger in TAGGERS:
            scores[f"{layers} {tagger}"] = _tagger_f1(job, tagger, train, dev)
    return {"scores": scores, "seconds": time.perf_counter() - began, "peak_mib": peak_mib()}


def _tagger_f1(job, tagger, train, dev):
    keras.utils.set_random_seed(job.seed)
    ids = {name: index for index, name in enumerate(job.labels)}
    labels = [np.array([ids[label] for label in row]) for row in job.train["labels"]]
    model = _make_tagger(tagger, train[0].shape[1], len(job.labels))
    model.compile(
        keras.optimizers.Adam(TAGGER_RATE),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(_Sentences(train, labels, job.seed), epochs=TAGGER_EPOCHS, verbose=0)
    found = []
    for sentences in _Sentences(dev, [np.zeros(len(x), int) for x in dev], None):
        logits = model.predict_on_batch(sentences[0])  # (B, W, C)
        best = logits.argmax(-1)
        found += [
            row[:size] for row, size in zip(best, sentences[2].sum(1).astype(int), strict=True)
        ]
    names = [[job.labels[i] for i in row] for row in found]
    return kbert.metrics.entity_report(job.dev["labels"], names).scores["f1"]


def _make_tagger(tagger: str, width: int, classes: int) -> keras.Model:
    layers = [keras.layers.Input((None, width)), keras.layers.Masking()]
    if tagger == "BiLSTM":
        for _ in range(2):
            cells = keras.layers.LSTM(UNITS, return_sequences=True)
            layers.append(keras.layers.Bidirectional(cells))
    return keras.Sequential([*layers, keras.layers.Dense(classes)])


class _Sentences(keras.utils.PyDataset):
    """Batches of vectors (B, W, D), labels (B, W), weights (B, W); shuffled by a seed, or not."""

    def __init__(self, vectors, labels, seed):
        super().__init__()
        self.vectors, self.labels = vectors, labels
        self.random = None if seed is None else np.random.default_rng(seed)
        self.order = np.arange(len(vectors))
        self.on_epoch_end()

    def on_epoch_end(self):
        if self.random is not None:
            self.random.shuffle(self.order)

    def __len__(self):
        return -(-len(self.order) // TAGGER_BATCH)

    def __getitem__(self, number):
        rows = self.order[number * TAGGER_BATCH :][:TAGGER_BATCH]
        sizes = [len(self.labels[row]) for row in rows]
        shape = len(rows), -(-max(sizes) // 8) * 8  # few shapes: each is traced
        vectors = np.zeros((*shape, self.vectors[0].shape[1]), np.float32)
        labels, weights = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
        for place, (row, size) in enumerate(zip(rows, sizes, strict=True)):
            vectors[place, :size] = self.vectors[row]
            labels[place, :size] = self.labels[row]
            weights[place, :size] = 1
        return vectors, labels, weights
