"""Exact facts from the lectures on the Transformer, as checks on the library.

Each test names the slide it comes from; where a slide is wrong, the test holds the right value
and says so.
"""

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import kbert
from kbert.layers.attention import SelfAttention
from kbert.layers.bias import causal_bias
from kbert.layers.normalization import LayerNorm
from kbert.tasks.losses import cross_entropy
from tests.harness import randomise

SCORES = np.array(
    [
        [0.11, 0.04, 0.05, 0.30],
        [0.19, 0.53, 0.42, 0.37],
        [0.81, 0.21, 0.05, 0.09],
        [0.51, 0.43, 0.12, 0.03],
    ]
)


# Transformer, slide "Masked self-attention": scores behind a token are masked, the others go
# through a softmax. The slide prints .48 .52, then .45 .21 .34, then .25 .16 .33 .26, which is
# wrong: these are no softmax of its scores. The test has the right values.
def test_the_causal_softmax_of_the_slides_scores():
    layer = SelfAttention(1)
    layer.build((1, 4, 4))
    # Of the unit vectors the queries are twice the scores, which are halved (the root of 4).
    layer.qkv.kernel.assign(np.concatenate([2 * SCORES, np.eye(4), np.eye(4)], axis=1))
    layer.output_dense.kernel.assign(np.eye(4))
    outputs, internals = layer(np.eye(4)[None], causal_bias(4))
    np.testing.assert_allclose(internals["scores"][0, 0], SCORES, atol=1e-6)
    wanted = [
        [1.000, 0, 0, 0],
        [0.416, 0.584, 0, 0],
        [0.496, 0.272, 0.232, 0],
        [0.311, 0.287, 0.210, 0.192],
    ]
    np.testing.assert_allclose(internals["probabilities"][0, 0], wanted, atol=5e-4)
    np.testing.assert_allclose(outputs[0], wanted, atol=5e-4)  # the values are unit vectors too


WORDS = ["a", "am", "I", "thanks", "student", "<eos>"]
SENTENCE = "I am a student <eos>".split()


# Transformer, slide "The loss": the target of "am" is one-hot, 0 1 0 0 0 0, and the loss of a
# sentence the sum of the cross entropies of its words.
@pytest.mark.tensorflow
def test_the_target_of_am_is_one_hot():
    logits = tf.Variable(np.log([[0.10, 0.30, 0.20, 0.15, 0.15, 0.10]]))
    with tf.GradientTape() as tape:
        loss, count = cross_entropy(logits, [WORDS.index("am")], [1.0])
    assert float(count) == 1
    assert float(loss) == pytest.approx(-np.log(0.30))
    # What the loss pulls the probabilities to is what its gradient takes from them.
    target = ops.softmax(logits) - tape.gradient(loss, logits)
    np.testing.assert_allclose(target, [[0, 1, 0, 0, 0, 0]], atol=1e-6)


def test_the_loss_of_a_sentence_is_the_sum_over_its_words():
    labels = [WORDS.index(word) for word in SENTENCE]
    assert labels == [2, 1, 0, 4, 5]
    untrained = np.zeros((5, 6))
    assert float(cross_entropy(untrained, labels, [1.0] * 5)[0]) == pytest.approx(5 * np.log(6))
    trained = 50.0 * np.eye(6)[labels]
    assert float(cross_entropy(trained, labels, [1.0] * 5)[0]) == pytest.approx(0, abs=1e-6)
    right = [0.93, 0.74, 0.91, 0.69, 0.98]  # the rest is spread over the other five words
    probabilities = np.array([[(1 - p) / 5] * 6 for p in right])
    probabilities[range(5), labels] = right
    total, words = cross_entropy(np.log(probabilities), labels, [1.0] * 5)
    assert float(words) == 5
    assert float(total) == pytest.approx(-np.log(np.prod(right)))


TEXT = "i accessed the bank account".split()
SIZE = {"vocabulary_size": 9, "hidden_size": 16, "num_layers": 3, "num_heads": 2}


def states(model, tokens):
    """The last layer's vectors of the five words, (5, H)."""
    return ops.convert_to_numpy(model({"token_ids": np.array([tokens])})["sequence"])[0]


# BERT, slide "Bidirectional": in "I accessed the bank account" GPT's "bank" does not know of the
# account; BERT's does.
@pytest.mark.parametrize("kind", ["gpt", "bert"])
def test_only_bert_sees_the_account_at_the_bank(kind):
    config = {"gpt": kbert.DecoderConfig, "bert": kbert.EncoderConfig}[kind]
    model = {"gpt": kbert.Decoder, "bert": kbert.Encoder}[kind](
        config(**SIZE, intermediate_size=32, max_positions=8)
    )
    randomise(model)
    account, river = (states(model, [1, 2, 3, 4, last]) for last in (5, 6))
    before = TEXT.index("account")
    differences = np.abs(account - river).max(1)
    assert differences[before] > 1e-2
    if kind == "gpt":
        np.testing.assert_allclose(account[:before], river[:before], atol=1e-6)
    else:
        assert differences[:before].min() > 1e-3


# GPT, section 4.1: a decoder of twelve layers, without the attention to an encoder that the
# Transformer's decoder has.
def test_gpt_has_twelve_layers_and_no_cross_attention():
    config = kbert.family("openai-gpt")
    assert (config.num_layers, config.hidden_size, config.num_heads) == (12, 768, 12)
    sizes = {**SIZE, "intermediate_size": 32, "max_positions": 8}
    names = {
        model: {weight.path for weight in model(config(**sizes)).weights}
        for model, config in (
            (kbert.Decoder, kbert.DecoderConfig),
            (kbert.Seq2Seq, kbert.Seq2SeqConfig),
        )
    }
    assert not any("cross" in path for path in names[kbert.Decoder])
    assert any("cross" in path for path in names[kbert.Seq2Seq])


# Transformer, slide "Layer normalisation": mean and variance are of one example. So an example is
# the same alone and in a batch, in training and in inference: no running statistics are kept.
def test_layer_norm_has_no_running_statistics():
    norm, x = LayerNorm(epsilon=1e-12), np.random.default_rng(0).normal(3, 2, (4, 5, 8))
    outputs = norm(x, training=True)
    np.testing.assert_allclose(outputs, norm(x, training=False), atol=0)
    np.testing.assert_allclose(norm(x[:1]), outputs[:1], atol=1e-6)
    np.testing.assert_allclose(np.mean(outputs, -1), 0, atol=1e-5)
    np.testing.assert_allclose(np.var(outputs, -1), 1, atol=1e-5)
    assert sorted(weight.name for weight in norm.variables) == ["beta", "gamma"]
    assert not norm.non_trainable_variables
