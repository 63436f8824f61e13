"""Tiny decoders and encoder-decoders, with random weights."""

import numpy as np
import pytest
from keras import ops

from kbert.configs.decoder import DecoderConfig
from kbert.configs.seq2seq import Seq2SeqConfig
from kbert.models import Decoder, Seq2Seq
from tests.harness import assert_close, randomise, to_numpy

# Op by op takes long on JAX, which compiles each op for each shape.
MODES = [pytest.param("op by op", marks=pytest.mark.tensorflow), "XLA"]
SIZES = {
    "vocabulary_size": 40,
    "hidden_size": 16,
    "num_layers": 2,
    "num_heads": 4,
    "intermediate_size": 32,
    "max_positions": 24,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}


def tiny_decoder(**changes) -> Decoder:
    decoder = Decoder(DecoderConfig(**{**SIZES, **changes}))
    randomise(decoder)
    return decoder


def tiny_seq2seq(**changes) -> Seq2Seq:
    seq2seq = Seq2Seq(Seq2SeqConfig(**{**SIZES, "num_decoder_layers": 3, **changes}))
    randomise(seq2seq)
    return seq2seq


def padded(lengths, length=None, seed=0) -> tuple[np.ndarray, np.ndarray]:
    """Random ids of rows of these lengths, 0 behind them, and their mask."""
    lengths = np.asarray(lengths)
    mask = (np.arange(length or lengths.max()) < lengths[:, None]).astype("int32")
    ids = np.random.default_rng(seed).integers(1, SIZES["vocabulary_size"], mask.shape)
    return (ids * mask).astype("int32"), mask


def check_decoding(model, source, mask, step, count) -> None:
    """Asserts that logits of `step`, token by token, are those of the whole target at once."""
    rng = np.random.default_rng(3)
    targets = rng.integers(1, SIZES["vocabulary_size"], (len(source), count + 1)).astype("int32")
    inputs = {"encoder_token_ids": source, "encoder_padding_mask": mask}
    expected = model.logits(model({**inputs, "decoder_token_ids": targets})["sequence"])
    expected = to_numpy(expected)  # (B, T, V); behind a token nothing is seen of those after it
    start = ops.convert_to_tensor(targets[:, 0])
    logits, cache = model.prefill(source, mask, count, start)
    assert_close(to_numpy(logits), expected[:, 0], 2e-5, "behind the start")
    for t in range(count):
        new = ops.convert_to_tensor(targets[:, t + 1])
        logits, cache = step(new, cache, ops.convert_to_tensor(t, "int32"))
        assert_close(to_numpy(logits), expected[:, t + 1], 2e-5, f"behind token {t}")
