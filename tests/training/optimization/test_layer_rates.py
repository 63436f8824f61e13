import keras
import numpy as np
import pytest
from keras import ops

import kbert
from kbert.models import DecoderEncoder
from kbert.training.optimization.freezing import freeze
from kbert.training.optimization.layer_rates import Unfreezing, layer_scales, unfreezing_scales
from kbert.training.optimization.optimizers import AdamW, Lamb, StableAdamW, decays
from kbert.training.optimization.schedules import fine_tuning_schedule
from tests.harness import KINDS, tiny_config
from tests.models.generators.tiny import tiny_decoder

HALTING = {"kind": "universal_transformer"}


def by_part(encoder, decay) -> dict[str, float]:
    scales = layer_scales(encoder, decay)
    parts = {path.split("/")[1]: scale for path, scale in scales.items()}
    assert all(parts[path.split("/")[1]] == scale for path, scale in scales.items())
    return parts


def test_electra_s_formula():
    """`_get_layer_lrs` of google-research/electra: rate * decay ** (L + 2 - depth)."""
    encoder = kbert.Encoder(tiny_config(num_layers=3))
    parts = by_part(encoder, 0.5)
    expected = {"embeddings": 2**-5, "layers_0": 2**-4, "layers_1": 2**-3, "layers_2": 2**-2}
    assert parts == {**expected, "pooler": 0.5}
    assert set(layer_scales(encoder, 0.5)) == {v.path for v in encoder.weights}


def test_a_shared_block_learns_as_its_last_layer():
    encoder = kbert.Encoder(tiny_config(num_layers=4, num_layer_groups=2, pooler_activation=None))
    assert by_part(encoder, 0.5) == {"embeddings": 2**-6, "layers_0": 2**-4, "layers_1": 2**-2}


@pytest.mark.parametrize(
    "changes",
    [*(KINDS[x] for x in ("disentangled", "relative bias", "xlnet")), HALTING],
    ids=["disentangled", "relative bias", "xlnet", "halting"],
)
def test_every_weight_of_an_encoder_has_a_rate(changes):
    """Also what only one family has: tables that all layers read, a query, what halts."""
    encoder = kbert.Encoder(tiny_config(**changes))
    scales = layer_scales(encoder, 0.5)
    assert set(scales) == {v.path for v in encoder.trainable_weights}
    own = {path.split("/")[1]: scale for path, scale in scales.items()}
    for name in ("shared", "query"):
        assert own.get(name, own["embeddings"]) == own["embeddings"]
    if changes is HALTING:
        assert own["halt"] == own["layers_0"]


@pytest.mark.parametrize("block", ["pre_norm", "post_norm"])
def test_a_decoder_s_positions_are_embeddings_and_its_norm_is_of_the_last_layer(block):
    encoder = DecoderEncoder(tiny_decoder(block=block))
    parts = {"embeddings": 2**-4, "positions": 2**-4, "layers_0": 2**-3, "layers_1": 2**-2}
    assert by_part(encoder, 0.5) == {**parts, **({"norm": 2**-2} if block == "pre_norm" else {})}
    assert set(layer_scales(encoder, 0.5)) == {v.path for v in encoder.weights}


def test_a_fine_tuning_equals_numpy():
    """Schedule, bias correction, decay by role and rates by layer over five random steps."""
    encoder = kbert.Encoder(tiny_config())
    freeze(encoder, "embeddings/*")
    trained = encoder.trainable_weights
    expected = [ops.convert_to_numpy(w.value).astype("float64") for w in trained]
    moments = [[0.0, 0.0] for _ in trained]
    depths = {"layers_0": 1, "layers_1": 2, "pooler": 3}
    rates = [0.8 ** (4 - depths[w.path.split("/")[1]]) for w in trained]
    optimizer = AdamW(
        fine_tuning_schedule(0.01, 10, warmup_share=0.2),
        weight_decay=0.1,
        bias_correction=True,
        rate_scales=layer_scales(encoder, 0.8),
    )
    rng = np.random.default_rng(0)
    for step in range(5):
        gradients = [rng.normal(size=w.shape).astype("float32") for w in trained]
        optimizer.apply([ops.convert_to_tensor(g) for g in gradients], trained)
        peak = 0.01 * (step / 2 if step < 2 else (10 - step) / 8)
        correction = np.sqrt(1 - 0.999 ** (step + 1)) / (1 - 0.9 ** (step + 1))
        for i, g in enumerate(gradients):
            m = moments[i][0] = 0.9 * moments[i][0] + 0.1 * g
            v = moments[i][1] = 0.999 * moments[i][1] + 0.001 * g * g
            decay = 0.1 if decays(trained[i]) else 0.0
            w = expected[i]
            w -= rates[i] * peak * (correction * m / (np.sqrt(v) + 1e-6) + decay * w)
    for weight, values in zip(trained, expected, strict=True):
        np.testing.assert_allclose(ops.convert_to_numpy(weight.value), values, atol=1e-6)


def test_frozen_weights_have_no_rate():
    encoder = kbert.Encoder(tiny_config())
    freeze(encoder, "embeddings/*")
    assert not any("embeddings" in path for path in layer_scales(encoder, 0.9))


@pytest.mark.parametrize("decay", [0.0, 1.1, -0.5, np.nan])
def test_a_decay_out_of_range_is_refused(decay):
    with pytest.raises(ValueError, match=r"above 0 and at most 1. Received"):
        layer_scales(kbert.Encoder(tiny_config()), decay)


def test_layers_are_unfrozen_from_the_top():
    """Howard & Ruder 2018, section 3.3: the last layer first, then the next lower one."""
    encoder = kbert.Encoder(tiny_config(num_layers=3))
    scales = unfreezing_scales(encoder, 2.5, layer_scales(encoder, 0.5))
    assert set(scales) == {v.path for v in encoder.weights}
    parts = {path.split("/")[1]: (x.first_step, x.scale) for path, x in scales.items()}
    expected = {"pooler": (0, 0.5), "layers_2": (2, 0.25), "layers_1": (5, 0.125)}
    assert parts == {**expected, "layers_0": (8, 2**-4), "embeddings": (10, 2**-5)}
    assert {x.scale for x in unfreezing_scales(encoder, 1).values()} == {1.0}


@pytest.mark.parametrize("kind", [AdamW, StableAdamW, Lamb], ids=["adamw", "stable", "lamb"])
def test_a_frozen_layer_stays_to_the_bit_and_then_moves_as_usual(kind):
    """Its moments follow its gradients from the first step, so bias correction is right."""
    layer = keras.layers.Dense(3)
    layer.build((None, 4))
    kernel = layer.kernel
    before = ops.convert_to_numpy(kernel.value)
    optimizer = kind(
        0.1, weight_decay=0.1, bias_correction=True, rate_scales={kernel.path: Unfreezing(3, 0.5)}
    )
    optimizer.build(layer.weights)
    optimizer = kind.from_config(optimizer.get_config())
    rng = np.random.default_rng(0)
    gradients = [
        [rng.normal(size=w.shape).astype("float32") for w in layer.weights] for _ in "abcd"
    ]
    for step, arrays in enumerate(gradients):
        assert np.array_equal(ops.convert_to_numpy(kernel.value), before), step
        optimizer.apply([ops.convert_to_tensor(g) for g in arrays], layer.weights)
    if kind is AdamW:
        m = sum(0.1 * 0.9 ** (3 - n) * g[0] for n, g in enumerate(gradients)) / (1 - 0.9**4)
        v = sum(1e-3 * 0.999 ** (3 - n) * g[0] ** 2 for n, g in enumerate(gradients))
        step = m / (np.sqrt(v) + 1e-6) * np.sqrt(1 - 0.999**4) + 0.1 * before
        np.testing.assert_allclose(ops.convert_to_numpy(kernel.value), before - 0.05 * step, 1e-5)
    assert not np.array_equal(ops.convert_to_numpy(kernel.value), before)


def test_what_cannot_be_unfrozen_is_refused():
    encoder = kbert.Encoder(tiny_config())
    with pytest.raises(ValueError, match=r"must be above 0. Received: 0"):
        unfreezing_scales(encoder, 0)
    with pytest.raises(ValueError, match=r"Gradual unfreezing requires a kbert.Encoder.*: a Dense"):
        unfreezing_scales(keras.layers.Dense(2), 1)
    freeze(encoder, "*")
    with pytest.raises(ValueError, match=r"requires an encoder with trainable.*Encoder without"):
        unfreezing_scales(encoder, 1)
