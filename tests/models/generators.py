"""Tiny decoders and encoder-decoders, with random weights."""

import numpy as np

from kbert.decoder_config import DecoderConfig
from kbert.models import Decoder, Seq2Seq
from kbert.seq2seq_config import Seq2SeqConfig
from tests.harness import randomise

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
