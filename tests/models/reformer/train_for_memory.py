"""Computes gradients twice and prints the bytes that this took; run in a fresh process.

`python train_for_memory.py LAYERS [plain]`; "plain" keeps all activations.
"""

import sys

import numpy as np
import tensorflow as tf

from kbert.configs import ReformerConfig
from kbert.models import Encoder

LENGTH = 4096


def status(key: str) -> int:
    """A number of bytes from /proc."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def main() -> None:
    config = ReformerConfig(
        vocabulary_size=300,
        hidden_size=256,
        num_layers=int(sys.argv[1]),
        num_heads=4,
        head_size=32,
        intermediate_size=512,
        num_hashes=2,
        max_positions=LENGTH,
        positions="axial",
        axial_shape=(64, 64),
        axial_sizes=(32, 96),
    )
    encoder = Encoder(config)
    # Asked for hidden states it keeps them, and what is between.
    options = {"return_hidden_states": True} if sys.argv[2:] == ["plain"] else {}
    weights = [weight.value for weight in encoder.trainable_variables]

    @tf.function
    def step(token_ids):
        with tf.GradientTape() as tape:
            out = encoder(token_ids, training=True, **options)
            loss = tf.reduce_sum(out["sequence"] ** 2)
        return [tf.reduce_sum(tf.convert_to_tensor(x)) for x in tape.gradient(loss, weights)]

    token_ids = np.random.default_rng(0).integers(0, 300, (1, LENGTH)).astype("int32")
    step.get_concrete_function(token_ids)
    before = status("VmRSS")
    for _ in range(2):
        step(token_ids)
    print(status("VmHWM") - before)


if __name__ == "__main__":
    main()
