"""Batches made by hand: a corpus in which every masked word follows from its neighbour."""

import numpy as np
import tensorflow as tf

# In each sentence the third word is decided by the second, so a model can learn to fill it.
RULES = {"red": "pen", "blue": "fox", "green": "dog", "big": "house", "old": "man", "new": "moon"}


def batches(tokenizer, batch_size=16, length=16, places=3, next_sentence=True, seed=0):
    """An endless dataset: [CLS] the COLOUR THING [SEP] a COLOUR THING [SEP], one thing masked.

    A true next sentence repeats the first one's colour, a random one has another.
    """
    word = tokenizer.token_to_id
    colours = [(word(a), word(b)) for a, b in RULES.items()]
    the, a = word("the"), word("a")

    def generate():
        rng = np.random.default_rng(seed)
        while True:
            batch = {
                "token_ids": np.zeros((batch_size, length), np.int32),
                "segment_ids": np.zeros((batch_size, length), np.int32),
                "padding_mask": np.zeros((batch_size, length), np.int32),
                "mask_positions": np.zeros((batch_size, places), np.int32),
                "mask_ids": np.zeros((batch_size, places), np.int32),
                "mask_weights": np.zeros((batch_size, places), np.float32),
                "next_sentence_labels": rng.integers(0, 2, batch_size).astype(np.int32),
                "position": np.tile(np.array([0, 0, batch_size], np.int32), (batch_size, 1)),
            }
            for row, random in enumerate(batch["next_sentence_labels"]):
                first = rng.integers(len(colours))
                second = (first + random * rng.integers(1, len(colours))) % len(colours)
                (c1, t1), (c2, t2) = colours[first], colours[second]
                tokens = [tokenizer.cls_id, the, c1, t1, tokenizer.sep_id]
                tokens += [a, c2, t2, tokenizer.sep_id]
                masked = (3, 7)[rng.integers(2)]
                batch["mask_positions"][row, 0] = masked
                batch["mask_ids"][row, 0] = tokens[masked]
                batch["mask_weights"][row, 0] = 1
                tokens[masked] = tokenizer.mask_id
                batch["token_ids"][row, : len(tokens)] = tokens
                batch["segment_ids"][row, 5 : len(tokens)] = 1
                batch["padding_mask"][row, : len(tokens)] = 1
            if not next_sentence:
                del batch["next_sentence_labels"]
            yield batch

    example = next(generate())
    if not next_sentence:
        example.pop("next_sentence_labels", None)
    spec = {k: tf.TensorSpec(v.shape, v.dtype) for k, v in example.items()}
    return tf.data.Dataset.from_generator(generate, output_signature=spec)
