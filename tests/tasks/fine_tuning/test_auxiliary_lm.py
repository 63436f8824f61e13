"""The language model's loss with a task's: its value, what it counts, its gradients."""

import numpy as np
import pytest
from keras import ops

import kbert
from kbert.models import DecoderEncoder
from kbert.tasks.fine_tuning.base import auxiliary_weight, language_model_loss
from tests.harness import layer_gradients, tiny_config
from tests.models.generators.tiny import padded, tiny_decoder

pytestmark = pytest.mark.tensorflow


def read_by(encoder, lengths, length=9):
    ids, mask = padded(lengths, length=length)
    inputs = {"token_ids": ids, "padding_mask": mask}
    return {**inputs, "sequence": encoder(inputs)["sequence"]}


def in_numpy(encoder, read, counted):
    """The mean of the losses token by token, and how many there are."""
    table = ops.convert_to_numpy(encoder.decoder.token_embedding.value).astype("float64")
    sequence = ops.convert_to_numpy(read["sequence"]).astype("float64")
    losses = []
    for row in counted:
        for place in range(1, read["padding_mask"][row].sum()):
            logits = table @ sequence[row, place - 1]
            losses.append(np.log(np.exp(logits).sum()) - logits[read["token_ids"][row, place]])
    return np.sum(losses), len(losses)


@pytest.mark.parametrize(
    ("weights", "counted"),
    [
        ([1.0, 1.0, 1.0, 1.0], [0, 1, 2, 3]),
        ([3.0, 0.0, 1.0, 0.5], [0, 2, 3]),  # a copy counts nothing, the others alike
        ([1.0, 0.0], [0, 1]),  # two rows are read of each
        ([[0.0, 2.0], [0.0, 0.0]], [0, 1]),  # of any number of labels
    ],
    ids=["all", "copy", "two-each", "labels"],
)
def test_it_is_the_loss_of_each_token_behind_the_first(weights, counted):
    encoder = DecoderEncoder(tiny_decoder())
    read = read_by(encoder, [9, 1, 4, 6])
    total, count = language_model_loss(encoder, read, np.array(weights, "float32"), training=True)
    wanted, number = in_numpy(encoder, read, counted)
    assert float(count) == number
    assert float(total) == pytest.approx(wanted, rel=1e-5)


def test_its_gradient_reaches_every_weight():
    encoder = DecoderEncoder(tiny_decoder())

    def loss():
        read = read_by(encoder, [5, 3])
        total, count = language_model_loss(encoder, read, np.ones(2, "float32"), training=True)
        return total / count

    gradients = layer_gradients(encoder.decoder, loss)
    assert all(np.abs(gradient).max() > 0 for gradient in gradients.values())
    table = gradients["decoder/embeddings/token"]
    assert (np.abs(table).max(axis=1) > 0).all()  # as an output matrix all rows move


def test_the_weight_is_a_decoder_s():
    decoder, encoder = DecoderEncoder(tiny_decoder()), kbert.Encoder(tiny_config())
    assert auxiliary_weight(decoder, None) == 0.5
    assert auxiliary_weight(decoder, 0) == 0.0
    assert auxiliary_weight(encoder, None) == auxiliary_weight(encoder, 0) == 0.0
    with pytest.raises(ValueError, match=r"auxiliary_lm_weight=0.5 on a Encoder"):
        auxiliary_weight(encoder, 0.5)
    with pytest.raises(ValueError, match=r"must be 0 or more.*auxiliary_lm_weight=-1"):
        auxiliary_weight(decoder, -1)
