"""A decoder as tasks read it: the last token's vector, three tokens more."""

import numpy as np
import pytest
from keras import ops

from kbert.models import Decoder, DecoderEncoder
from kbert.models.generators.decoder_encoder import LastToken
from kbert.models.weights import get_arrays
from tests.harness import assert_close, run_layer_test, to_numpy
from tests.models.generators.tiny import padded, tiny_decoder


def test_last_token_is_a_layer():
    sequence = np.ones((2, 3, 4), "float32")
    mask = np.array([[1, 1, 0], [0, 0, 0]], "int32")
    run_layer_test(LastToken(4), (sequence, mask), {}, (2, 4))


@pytest.mark.jax_slow
def test_pooled_is_the_last_real_token_whatever_the_padding():
    encoder = DecoderEncoder(tiny_decoder())
    ids, mask = padded([5, 1, 3], length=9)
    out = to_numpy(encoder({"token_ids": ids, "padding_mask": mask}))
    for row, length in enumerate((5, 1, 3)):
        np.testing.assert_array_equal(out["pooled"][row], out["sequence"][row, length - 1])
        alone = encoder({"token_ids": ids[row : row + 1, :length]})["pooled"]
        assert_close(ops.convert_to_numpy(alone)[0], out["pooled"][row], 1e-5)
    assert not np.allclose(out["pooled"][0], out["pooled"][1])


@pytest.mark.jax_slow
def test_other_outputs_are_the_decoder_s():
    decoder = tiny_decoder()
    ids, mask = padded([4, 2])
    inputs = {"token_ids": ids, "padding_mask": mask}
    flags = {"return_hidden_states": True, "return_attention": True}
    found, wanted = DecoderEncoder(decoder)(inputs, **flags), decoder(inputs, **flags)
    assert set(found) == {*wanted, "pooled"}
    for name in wanted:
        for a, b in zip(*map(ops.convert_to_numpy, (found[name], wanted[name])), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.jax_slow
def test_three_rows_are_added_and_all_else_stays():
    decoder = tiny_decoder()
    encoder = DecoderEncoder.extend(decoder)
    assert (encoder.start_id, encoder.delimiter_id, encoder.extract_id) == (40, 41, 42)
    assert encoder.config.vocabulary_size == 43
    assert decoder.config.vocabulary_size == 40
    before, after = get_arrays(decoder, "decoder"), get_arrays(encoder.decoder, "decoder")
    table = after.pop("decoder/embeddings/token")
    np.testing.assert_array_equal(table[:40], before.pop("decoder/embeddings/token"))
    sigma = decoder.config.initializer_range
    assert 0 < np.abs(table[40:]).max() < 3 * sigma  # drawn as every table is
    assert before.keys() == after.keys()
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)
    ids, _ = padded([6])
    assert_close(
        *(ops.convert_to_numpy(model(ids)["sequence"]) for model in (encoder, decoder)), 1e-6
    )


def test_weights_that_do_not_fit_are_told():
    decoder = tiny_decoder()
    arrays = get_arrays(decoder, "decoder")
    del arrays["decoder/positions/position"]
    with pytest.raises(ValueError, match="positions/position"):
        DecoderEncoder.from_arrays(decoder.config, arrays, "memory")
    with pytest.raises(ValueError, match=r"must exceed 3: .*vocabulary_size=3"):
        DecoderEncoder(Decoder(decoder.config.replace(vocabulary_size=3)))
