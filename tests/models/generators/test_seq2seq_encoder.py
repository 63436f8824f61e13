"""An encoder-decoder as tasks read it: both sides read the same tokens."""

import keras
import numpy as np
import pytest
from keras import ops

from kbert import Seq2Seq, Seq2SeqConfig
from kbert.models import Seq2SeqEncoder
from tests.harness import assert_close, randomise, to_numpy
from tests.models.generators.tiny import padded

SIZES = {
    "vocabulary_size": 40,
    "hidden_size": 16,
    "num_layers": 1,
    "num_decoder_layers": 2,
    "num_heads": 2,
    "intermediate_size": 24,
    "max_positions": 24,
    "positions": "learned",
    "dropout": 0.0,
    "attention_dropout": 0.0,
}


def make(pooler=True, **changes):
    encoder = Seq2SeqEncoder(Seq2Seq(Seq2SeqConfig(**{**SIZES, **changes})), pooler=pooler)
    randomise(encoder)
    return encoder


@pytest.mark.jax_slow
def test_the_decoder_reads_the_row_shifted_by_its_last_token():
    encoder = make()
    ids, mask = padded([5, 1, 3], length=6)
    out = to_numpy(encoder({"token_ids": ids, "padding_mask": mask}))
    assert set(out) == {"sequence", "pooled"}
    for row, length in enumerate((5, 1, 3)):
        tokens = ids[row : row + 1, :length]
        shifted = np.concatenate([tokens[:, -1:], tokens[:, :-1]], axis=1)
        inputs = {"encoder_token_ids": tokens, "decoder_token_ids": shifted}
        sequence = encoder.seq2seq(inputs)["sequence"]
        assert_close(out["sequence"][row, :length], to_numpy(sequence)[0], 1e-5)
        pooled = ops.tanh(ops.matmul(sequence[:, -1], encoder.pooler.kernel) + encoder.pooler.bias)
        assert_close(out["pooled"][row], to_numpy(pooled)[0], 1e-5)


@pytest.mark.jax_slow
def test_more_outputs_and_no_pooler():
    encoder = make(pooler=False)
    assert encoder.pooler is None
    assert list(encoder.parts()) == ["seq2seq"]
    out = encoder(padded([4, 2])[0], return_hidden_states=True, return_attention=True)
    assert set(out) == {
        *("sequence", "hidden_states", "encoder_hidden_states"),
        *("attention", "cross_attention", "encoder_attention"),
    }
    assert len(out["hidden_states"]) == 3


@pytest.mark.parametrize("pooler", [True, False])
def test_keras_saves_it(tmp_path, pooler):
    encoder, (ids, mask) = make(pooler=pooler), padded([5, 3])
    encoder.save(tmp_path / "encoder.keras")
    again = keras.models.load_model(tmp_path / "encoder.keras")
    inputs = {"token_ids": ids, "padding_mask": mask}
    found, wanted = to_numpy(again(inputs)), to_numpy(encoder(inputs))
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)


def test_one_vocabulary():
    with pytest.raises(ValueError, match=r"must have the same voc.*target_vocabulary_size=30"):
        make(target_vocabulary_size=30)
    with pytest.raises(ValueError, match=r"token_ids.*40"):
        make()(np.array([[3, 40]]))
