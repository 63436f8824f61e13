"""kbert's side of the fine-tuning benchmark; each function runs in a process of its own.

Shapes: B rows, T tokens.
"""

import os
import resource
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import kbert
from benchmarks._fine_tuning_runs import Job
from kbert.data import Table
from kbert.data.tables.bucketing import bucketed_batches
from kbert.extraction import features
from kbert.training import AdamW

FIXED = 128  # tokens that many a tutorial pads to


def make_task(job: Job) -> Any:
    """The pretrained encoder under a new head."""
    keras.utils.set_random_seed(job.seed)
    names = ("max_length", "doc_stride") if job.kind == "QuestionAnswerer" else ("max_length",)
    settings = {name: job.settings[name] for name in names}
    if job.labels:
        settings["labels"] = job.labels
    return getattr(kbert.tasks, job.kind).from_preset(
        job.weights,
        dtype="mixed_bfloat16" if job.bfloat16 else "float32",
        new_head=True,
        **settings,
    )


def run(job: Job) -> dict[str, Any]:
    """Trains and measures.

    Returns:
        "seconds" to tokenise and train, "evaluate_seconds", "scores", "peak_mib" of the process.
    """
    task = make_task(job)
    names = ("epochs", "batch_size", "learning_rate", "by_length")
    began = time.perf_counter()
    task.fit(
        Table(job.train), seed=job.seed, verbose=0, **{name: job.settings[name] for name in names}
    )
    seconds, began = time.perf_counter() - began, time.perf_counter()
    scores = task.evaluate(Table(job.dev), verbose=0)
    return {
        "seconds": seconds,
        "evaluate_seconds": time.perf_counter() - began,
        "scores": scores,
        "peak_mib": peak_mib(),
    }


def padding(job: Job) -> dict[str, Any]:
    """An epoch with batches by length, of any order padded to the longest, and padded to 128.

    Returns:
        "ways", name -> {"tokens" of the epoch, "examples_per_second"}; "tokens" without padding.
    """
    task = make_task(job)
    rows = task.tokenize(Table(job.train), labelled=True)
    task.compile(AdamW(job.settings["learning_rate"]))
    steps = -(-len(rows) // job.settings["batch_size"])
    ways = {}
    for name, by_length, assemble in (
        ("by length", True, task.assemble),
        ("any order", False, lambda columns: _to_the_longest(task.assemble(columns))),
        (f"at {FIXED}", False, lambda columns: _fixed(task.assemble(columns))),
    ):
        options = {"batch_size": job.settings["batch_size"], "by_length": by_length}
        batches = bucketed_batches(rows, assemble, epochs=1, **options)
        tokens = sum(int(tf.size(batch["token_ids"])) for batch in batches)
        endless = bucketed_batches(rows, assemble, **options)
        fit = super(kbert.tasks.Task, task).fit
        fit(endless, steps_per_epoch=2, verbose=0)  # traced, and warm
        began = time.perf_counter()
        fit(endless, steps_per_epoch=steps, verbose=0)
        rate = steps * job.settings["batch_size"] / (time.perf_counter() - began)
        ways[name] = {"tokens": tokens, "examples_per_second": rate}
    return {"ways": ways, "tokens": int(rows.lengths.sum())}


def _to_the_longest(features):
    """(B, T) features without the columns that round the width up."""
    width = tf.reduce_max(tf.reduce_sum(features["padding_mask"], 1))
    return {name: x[:, :width] if x.shape.rank == 2 else x for name, x in features.items()}


def _fixed(features):
    """(B, T) features as (B, 128)."""
    return {
        name: tf.pad(x, [[0, 0], [0, FIXED - tf.shape(x)[1]]]) if x.shape.rank == 2 else x
        for name, x in features.items()
    }


def cosine(job: Job) -> dict[str, Any]:
    """Similarity of two texts without training: the cosine of their mean vectors."""
    task = make_task(job)
    began = time.perf_counter()
    vectors = [
        features(task.encoder, task.tokenizer, job.dev[name], verbose=0)
        for name in ("first", "second")
    ]
    vectors = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in vectors]
    found = (vectors[0] * vectors[1]).sum(1)
    scores = {"spearman": kbert.metrics.spearman(job.dev["label"], found)}
    return {
        "seconds": time.perf_counter() - began,
        "scores": scores,
        "peak_mib": peak_mib(),
    }


def peak_mib() -> float:
    """Of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
