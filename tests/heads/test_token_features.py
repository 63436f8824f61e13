"""Features below a head: combinations of hidden states and the LSTMs, as PyTorch has them."""

import keras
import numpy as np
import pytest

from kbert.core.layer_choice import choose_layers
from kbert.heads import TokenFeatures
from tests.harness import assert_close, randomise, to_numpy

WIDTH, UNITS, LENGTHS = 6, 5, [7, 1, 4]


def hidden_states(layers=4):
    rng = np.random.default_rng(0)
    shape = (layers + 1, len(LENGTHS), max(LENGTHS), WIDTH)
    return [*rng.normal(size=shape).astype("float32")]


def padding_mask():
    return (np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]).astype("int32")


def combined(states, layers, features):
    """By NumPy; the weights of a mix are those of the layer."""
    chosen = choose_layers(layers, len(states) - 1)
    states = [states[index] for index in chosen.indices]
    if chosen.combination == "concat":
        return np.concatenate(states, -1)
    if chosen.combination == "sum":
        return sum(states)
    scalars, gamma = (to_numpy(x) for x in (features.mix.scalars, features.mix.gamma))
    weights = np.exp(scalars) / np.exp(scalars).sum()
    return gamma * sum(w * x for w, x in zip(weights, states, strict=True))


def torch_lstm(torch, features, width):
    """Two layers in both directions of the same weights."""
    lstm = torch.nn.LSTM(width, UNITS, 2, bidirectional=True, batch_first=True)
    for layer, both in enumerate(features.lstms):
        for ending, one in (("", both.forward_layer), ("_reverse", both.backward_layer)):
            values = {
                "weight_ih": to_numpy(one.cell.kernel).T,
                "weight_hh": to_numpy(one.cell.recurrent_kernel).T,
                "bias_ih": to_numpy(one.cell.bias),
                "bias_hh": np.zeros(4 * UNITS, "float32"),
            }
            for name, value in values.items():
                weight = getattr(lstm, f"{name}_l{layer}{ending}")
                weight.data = torch.tensor(value.astype("float32"))
    return lstm


@pytest.mark.parametrize(
    "layers",
    ["embeddings", "second_to_last", "sum_last_four", "concat_last_four", "mix", "mix:1,3"],
)
@pytest.mark.parametrize("head", ["linear", "bilstm"])
def test_the_numbers(layers, head):
    torch = pytest.importorskip("torch")
    states, mask = hidden_states(), padding_mask()
    chosen = choose_layers(layers, len(states) - 1)
    features = TokenFeatures(WIDTH, chosen, UNITS if head == "bilstm" else None)
    randomise(features, 0.5)
    wanted = combined(states, layers, features)
    found = to_numpy(features(states, mask))
    assert features.units == found.shape[-1]
    if head == "bilstm":
        rows = torch.nn.utils.rnn.pack_padded_sequence(
            torch.tensor(wanted.astype("float32")), LENGTHS, batch_first=True, enforce_sorted=False
        )
        outputs, _ = torch_lstm(torch, features, wanted.shape[-1])(rows)
        wanted = torch.nn.utils.rnn.pad_packed_sequence(outputs, batch_first=True)[0].detach()
        assert not found[mask == 0].any()
    assert_close(found[mask == 1], np.array(wanted)[mask == 1], 1e-5)


def test_names_and_widths_of_the_weights():
    features = TokenFeatures(WIDTH, choose_layers("concat_last_four", 4), UNITS)
    shapes = {weight.path: tuple(weight.shape) for weight in features.weights}
    assert shapes["features/lstm_0/forward_lstm/lstm_cell/kernel"] == (4 * WIDTH, 4 * UNITS)
    assert shapes["features/lstm_1/backward_lstm/lstm_cell/kernel"] == (2 * UNITS, 4 * UNITS)
    assert len(shapes) == 12
    alone = TokenFeatures(WIDTH, None, UNITS)
    assert tuple(alone(hidden_states()[0], padding_mask()).shape) == (3, 7, 2 * UNITS)


def test_half_precision():
    features = TokenFeatures(WIDTH, choose_layers("mix", 4), UNITS, dtype="mixed_bfloat16")
    full = TokenFeatures(WIDTH, choose_layers("mix", 4), UNITS)
    randomise(full, 0.5)
    for weight, value in zip(features.weights, full.weights, strict=True):
        weight.assign(value)
    found = features(hidden_states(), padding_mask())
    assert keras.backend.standardize_dtype(found.dtype) == "bfloat16"
    wanted = to_numpy(full(hidden_states(), padding_mask()))
    assert_close(np.asarray(to_numpy(found), "float32"), wanted, 3e-2)
