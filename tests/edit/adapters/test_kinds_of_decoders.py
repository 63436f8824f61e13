"""Adapters on decoders: the same in a whole row and token by token, on a base that stays."""

import keras
import numpy as np
import pytest
from keras import ops

import kbert
from kbert.edit import adapters
from kbert.edit.adapters.base import base_weights, weights_of
from kbert.models import Decoder, DecoderEncoder
from tests.harness import assert_close, to_numpy
from tests.models.generators.test_decoder import KINDS
from tests.models.generators.tiny import padded, tiny_decoder

ADAPTERS = {
    "lora": {"rank": 3, "targets": ("query", "key", "value", "attention_output", "output")},
    "houlsby": {"size": 6},
    "pfeiffer": {"size": 6},
    "bitfit": {},
}
LENGTHS = (9, 5, 1)


def adapted(kind, sigma=0.15, **changes):
    """A decoder with an adapter, all weights drawn; and its base, without."""
    base, decoder = tiny_decoder(**changes), tiny_decoder(**changes)
    adapters.add(decoder, kind, **ADAPTERS[kind])
    rng = np.random.default_rng(1)
    for weight in weights_of(decoder, kind):
        weight.assign(rng.normal(0, sigma, tuple(weight.shape)).astype("float32"))
    return decoder, base


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("lora", {}, 2 * 24_576),  # 8 (768 + 768) for queries, as many for values
        ("houlsby", {"size": 64}, 2 * 198_272 + 5 * 1_536),  # and five norms
        ("pfeiffer", {"size": 48}, 2 * 74_544),
        ("bitfit", {}, 2 * 8_448 + 768),
    ],
)
def test_counts_on_two_layers_of_gpt2(gpt2, kind, options, expected):
    adapters.add(gpt2, kind, name="counted", **options)
    assert sum(int(np.prod(x.shape)) for x in gpt2.trainable_weights) == expected
    adapters.remove(gpt2, "counted")
    assert not gpt2.trainable_weights


@pytest.fixture(scope="module")
def gpt2():
    return Decoder(kbert.family("gpt2").replace(vocabulary_size=10, num_layers=2))


@pytest.mark.jax_slow
@pytest.mark.parametrize(
    ("kind", "sort"),
    [("lora", "pre_norm"), ("lora", "modern"), ("houlsby", "modern"), ("pfeiffer", "post_norm"),
     ("bitfit", "sines")],
)  # fmt: skip
def test_token_by_token_is_the_whole_row(kind, sort):
    """The logits of prefill and steps are those of one forward part, of which the base's differ."""
    decoder, base = adapted(kind, **KINDS[sort])
    ids, mask = padded(LENGTHS)
    new = np.random.default_rng(2).integers(1, 40, (len(LENGTHS), 4)).astype("int32")
    whole = np.zeros((len(LENGTHS), 16), "int32")
    for row, length in enumerate(LENGTHS):
        whole[row, : length + 4] = [*ids[row, :length], *new[row]]
    expected = to_numpy(decoder.logits(decoder(whole)["sequence"]))
    logits, cache = decoder.prefill(ids, mask, max_new_tokens=4)
    for t in range(5):
        wanted = [expected[row, length - 1 + t] for row, length in enumerate(LENGTHS)]
        assert_close(to_numpy(logits), np.stack(wanted), 1e-4)
        if t < 4:
            logits, cache = decoder.step(ops.convert_to_tensor(new[:, t]), cache, t)
    alone = to_numpy(base.logits(base(whole)["sequence"]))
    assert np.abs(expected - alone).max() > 0.01
    with adapters.using(decoder, None):
        assert_close(to_numpy(decoder.logits(decoder(whole)["sequence"])), alone, 0)
    assert [x.path for x in base_weights(decoder)] == [x.path for x in base.weights]
    own = {id(x) for x in weights_of(decoder, kind)}
    assert {id(x) for x in decoder.trainable_weights} == own
    if kind in ("lora", "bitfit"):
        adapters.merge(decoder)
        assert [x.path for x in decoder.weights] == [x.path for x in base.weights]
        assert_close(to_numpy(decoder.logits(decoder(whole)["sequence"])), expected, 1e-5)


@pytest.mark.jax_slow
def test_a_decoder_as_an_encoder_runs_its_decoder_s(tmp_path):
    decoder, _ = adapted("lora")
    encoder, wide = DecoderEncoder(decoder), DecoderEncoder.extend(decoder)
    assert encoder.traced_variant == decoder.traced_variant == ("lora", 0)
    ids, mask = padded(LENGTHS)
    inputs = {"token_ids": ids, "padding_mask": mask}
    wanted = to_numpy(decoder(inputs)["sequence"])
    for found in (encoder, wide):
        assert_close(to_numpy(found(inputs)["sequence"]), wanted, 1e-6)
    adapters.activate(encoder, None)
    assert decoder.traced_variant == (None, 0)
    adapters.activate(encoder, "lora")
    decoder.save_to_preset(tmp_path)
    encoder.save(tmp_path / "model.keras")
    for again in (
        Decoder.from_preset(tmp_path),
        keras.saving.load_model(tmp_path / "model.keras"),
    ):
        assert_close(to_numpy(again(inputs)["sequence"]), wanted, 1e-6)
    with pytest.raises(ValueError, match=r"do not support edits"):
        decoder.save_to_preset(tmp_path / "other", format="huggingface")


@pytest.mark.jax_slow
@pytest.mark.skipif(keras.backend.backend() == "torch", reason="kbert.edit.adapters needs tasks")
@pytest.mark.parametrize("kind", ["prefix", "pal"])
def test_what_does_not_run_token_by_token_is_refused(kind):
    decoder = tiny_decoder()
    with pytest.raises(ValueError, match=f"token by token.*of kind '{kind}' for a Decoder"):
        adapters.add(decoder, kind)
    with pytest.raises(ValueError, match=r"pooler=True .*a kbert.Decoder with pooler=None"):
        adapters.add(decoder, "lora", pooler=True)
    assert not decoder.variants.added
    with pytest.raises(ValueError, match=r"for encoders. Received: a Decoder"):
        kbert.edit.adapters.write_peft(adapters.add(decoder, "lora"), "never_written")
    with pytest.raises(TypeError, match=r"a kbert.Encoder, a kbert.Decoder or .*Received: 'gpt2'"):
        adapters.add("gpt2", "lora")
