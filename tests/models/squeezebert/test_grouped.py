"""SqueezeBERT's grouped products against loops; `test_reference_family.py` has equality with it."""

import numpy as np
import pytest

from kbert.layers.bias import attention_bias
from kbert.models import Encoder, describe
from kbert.models.squeezebert.grouped import GroupedAttention
from tests.harness import (
    KINDS,
    assert_close,
    get_values,
    randomise,
    tiny_config,
    to_numpy,
)

B, T, H, N, G = 2, 5, 12, 2, 3


def grouped(kernel, bias, rows):
    """Column after column, each by the inputs of its group alone."""
    groups, inputs, outputs = kernel.shape
    found = np.zeros((*rows.shape[:-1], groups * outputs))
    for column in range(groups * outputs):
        group, own = divmod(column, outputs)
        seen = rows[..., group * inputs : (group + 1) * inputs]
        found[..., column] = seen @ kernel[group, :, own] + bias[column]
    return found


def test_attention_is_that_of_grouped_queries_keys_and_values():
    layer = GroupedAttention(N, num_groups=G, name="attention")
    layer.build((None, None, H))
    randomise(layer)
    weights = get_values(layer)
    x = np.random.default_rng(0).normal(size=(B, T, H)).astype("float32")
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], "int32")
    outputs, made = layer(x, attention_bias(mask))
    query, key, value = (
        grouped(weights[f"attention/{name}/kernel"], weights[f"attention/{name}/bias"], x)
        .reshape(B, T, N, H // N)
        .transpose(0, 2, 1, 3)
        for name in ("query", "key", "value")
    )
    scores = query @ key.transpose(0, 1, 3, 2) / (H // N) ** 0.5
    scores = np.where(mask[:, None, None] > 0, scores, -1e30)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    merged = (shares @ value).transpose(0, 2, 1, 3).reshape(B, T, H)
    wanted = merged @ weights["attention/output/kernel"] + weights["attention/output/bias"]
    assert_close(to_numpy(outputs), wanted, 1e-5)
    assert_close(to_numpy(made["probabilities"]), shares, 1e-5)


def test_weights_are_counted():
    config = tiny_config(**KINDS["grouped products"])
    encoder = Encoder(config)
    assert encoder.count_params() == describe(config).parameters


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": "rotary"}, "added to the embeddings. Received: positions='rotary'"),
        ({"feed_forward": "gated"}, "dense feed-forward part .* Received: feed_forward='gated'"),
        ({"use_bias": False}, "all biases.*use_bias=False"),
        ({"part": {"name": "grouped", "num_groups": 5}}, "must divide `hidden_size`.*num_groups=5"),
        ({"edits": [{"kind": "rounding"}]}, "not support `edits`.*rounding"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Encoder(tiny_config(**{**KINDS["grouped products"], **changes}))
