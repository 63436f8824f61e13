"""Trains three steps and prints the bytes that this took; run in a fresh process.

`python train_for_memory.py '{"config": {...}, "batch_size": ..., "sequence_length": ...}'`
"""

import json
import sys

import numpy as np
import tensorflow as tf

import kbert


def status(key: str) -> int:
    """A number of bytes from /proc."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def fit(
    config: kbert.EncoderConfig, rows: int, length: int, precision: str, recompute: bool
) -> None:
    """Three steps on random rows, through all of `Pretraining`."""
    rng = np.random.default_rng(0)
    masked = -(-15 * length // 100) + 1

    def whole(high, *shape):
        return rng.integers(1, high, shape).astype("int32")

    batch = {
        "token_ids": whole(config.vocabulary_size, rows, length),
        "segment_ids": whole(2, rows, length),
        "padding_mask": np.ones((rows, length), "int32"),
        "mask_positions": whole(length, rows, masked),
        "mask_ids": whole(config.vocabulary_size, rows, masked),
        "mask_weights": np.ones((rows, masked), "float32"),
        "next_sentence_labels": whole(2, rows),
    }
    words = [f"w{i}" for i in range(config.vocabulary_size - 5)]
    tokenizer = kbert.WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])
    encoder = kbert.Encoder(config, dtype=precision)
    pairs = config.num_segments > 0
    task = kbert.tasks.Pretraining(encoder, tokenizer, next_sentence=pairs)
    task.compile(kbert.training.AdamW(1e-4), jit_compile=False, recompute=recompute)
    task.fit(tf.data.Dataset.from_tensors(batch).repeat(3), verbose=0)


def fit_seq2seq(
    config: kbert.Seq2SeqConfig, rows: int, lengths: list[int], precision: str, recompute: bool
) -> None:
    """Three steps on random sources and targets, through all of `Translator`."""
    rng = np.random.default_rng(0)
    batch = {"weights": np.ones((rows, lengths[1]), "float32")}
    for side, length in zip(("encoder", "decoder"), lengths, strict=True):
        ids = rng.integers(1, config.vocabulary_size, (rows, length)).astype("int32")
        batch |= {f"{side}_token_ids": ids, f"{side}_padding_mask": np.ones_like(ids)}
    batch["targets"] = batch["decoder_token_ids"]
    words = [f"w{i}" for i in range(config.vocabulary_size - 5)]
    tokenizer = kbert.WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])
    task = kbert.Translator(kbert.Seq2Seq(config, dtype=precision), tokenizer, label_smoothing=0.0)
    task.compile(kbert.training.AdamW(1e-4), jit_compile=False, recompute=recompute)
    task.fit(tf.data.Dataset.from_tensors(batch).repeat(3), verbose=0)


def main() -> None:
    case = json.loads(sys.argv[1])
    config = kbert.core.registry.get("config", case["kind"]).from_dict(case["config"])
    if config.kind == "seq2seq":
        lengths = [case["source_length"], case["target_length"]]
        tiny = {"vocabulary_size": 50, "hidden_size": 8, "num_heads": 1, "num_layers": 1}
        fit_seq2seq(config.replace(**tiny), 2, [16, 16], case["precision"], case["recompute"])
        before = status("VmRSS")
        fit_seq2seq(config, case["batch_size"], lengths, case["precision"], case["recompute"])
        print(status("VmHWM") - before)
        return
    shape = (case["batch_size"], case["sequence_length"], case["precision"], case["recompute"])
    # Threads, kernels and modules that any first step loads.
    tiny = config.replace(vocabulary_size=50, intermediate_size=8)
    if config.kind == "encoder":
        tiny = tiny.replace(hidden_size=8, num_heads=1)
    fit(tiny.replace(num_layers=1, num_layer_groups=None), 2, 16, *shape[2:])
    before = status("VmRSS")
    fit(config, *shape)
    print(status("VmHWM") - before)


if __name__ == "__main__":
    main()
