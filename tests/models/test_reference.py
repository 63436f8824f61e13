"""Equality with Hugging Face's BERT (torch, CPU) on the same random weights of sigma 0.15."""

import keras
import numpy as np
import pytest
from keras import ops

from kbert.checkpoints.huggingface.huggingface import import_model
from kbert.heads import MaskedLMHead, SentenceHead
from kbert.models import Encoder
from kbert.models.weights import named_weights, set_arrays
from tests.harness import (
    assert_close,
    assert_gradients_close,
    tiny_config,
    tiny_inputs,
    to_numpy,
)
from tests.models.references import gradients, randomised

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def reference(hidden_act, **sizes):
    """Hugging Face's model with both pretraining heads, every weight random."""
    config = transformers.BertConfig(
        hidden_act=hidden_act,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager",
        **sizes,
    )
    return randomised(transformers.BertForPreTraining(config).eval())


class Pretrained(keras.Model):
    """The encoder with both heads, holding the reference's weights."""

    def __init__(self, model):
        super().__init__()
        weights = {name: array.numpy() for name, array in model.state_dict().items()}
        checkpoint = import_model(model.config.to_dict(), weights, "the reference")
        self.encoder = Encoder(checkpoint.config)
        self.masked_lm = MaskedLMHead(checkpoint.config, self.encoder.token_embedding)
        self.sentence = SentenceHead(checkpoint.config)
        for prefix in ("encoder", "masked_lm", "sentence"):
            part = checkpoint.part(f"{prefix}/")
            set_arrays(getattr(self, prefix), prefix, part, checkpoint.source)

    def call(self, inputs, positions):
        out = self.encoder(inputs, return_hidden_states=True, return_attention=True)
        out["masked_lm"] = self.masked_lm(out["sequence"], positions)
        out["next_sentence"] = self.sentence(out["pooled"])
        return out


SMALL = {
    "vocab_size": 300,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
    "max_position_embeddings": 64,
}


def batch(model, size=3, length=24):
    inputs = tiny_inputs(tiny_config(vocabulary_size=model.config.vocab_size), size, length)
    # Never id 0: PyTorch leaves the embedding of padding (`padding_idx`) without a gradient.
    inputs["token_ids"] = inputs["token_ids"] % (model.config.vocab_size - 1) + 1
    positions = np.stack([np.arange(1, 8)] * size)
    return inputs, positions.astype("int32")


def run_reference(model, inputs, positions):
    names = ("input_ids", "token_type_ids", "attention_mask")
    keys = ("token_ids", "segment_ids", "padding_mask")
    tensors = {name: torch.tensor(inputs[key]) for name, key in zip(names, keys, strict=True)}
    out = model.bert(**tensors, output_hidden_states=True, output_attentions=True)
    logits, next_sentence = model.cls(out.last_hidden_state, out.pooler_output)
    rows = torch.arange(len(positions))[:, None]
    return out, logits[rows, torch.tensor(positions)], next_sentence


@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_new", "relu"])
def test_outputs_equal_hugging_face(hidden_act):
    model = reference(hidden_act, **SMALL)
    inputs, positions = batch(model)
    ours = to_numpy(Pretrained(model)(inputs, positions))
    with torch.no_grad():
        out, masked_lm, next_sentence = run_reference(model, inputs, positions)
    assert_close(ours["masked_lm"], masked_lm, 1e-4, "masked-LM logits")
    assert_close(ours["next_sentence"], next_sentence, 1e-4, "next-sentence logits")
    assert_close(ours["pooled"], out.pooler_output, 1e-4, "pooled")
    real = inputs["padding_mask"] == 1  # what a padding position looks at is nobody's business
    assert len(ours["hidden_states"]) == len(out.hidden_states) == 5
    for i, (a, b) in enumerate(zip(ours["hidden_states"], out.hidden_states, strict=True)):
        assert_close(a[real], b.numpy()[real], 1e-4, f"hidden state {i}")
    for i, (a, b) in enumerate(zip(ours["attention"], out.attentions, strict=True)):
        assert_close(a, b, 1e-4, f"attention {i}")


@pytest.mark.jax_slow
def test_the_forms_of_gelu_would_not_pass_for_each_other():
    model = reference("gelu", **SMALL)
    inputs, positions = batch(model)
    erf = to_numpy(Pretrained(model)(inputs, positions)["masked_lm"])
    model.config.hidden_act = "gelu_new"
    tanh = to_numpy(Pretrained(model)(inputs, positions)["masked_lm"])
    assert np.abs(erf - tanh).max() > 1e-3


@pytest.mark.jax_slow
@pytest.mark.parametrize(
    # tests/layers/test_fused.py has the slopes of both in the fast tests.
    "hidden_act",
    ["gelu", pytest.param("gelu_new", marks=pytest.mark.slow)],
)
def test_gradients_equal_hugging_face(hidden_act):
    model = reference(hidden_act, **SMALL)
    inputs, positions = batch(model)
    labels = (positions * 7 + inputs["token_ids"][:, :1]) % model.config.vocab_size
    pair = np.array([0, 1, 1])

    _, masked_lm, next_sentence = run_reference(model, inputs, positions)
    cross_entropy = torch.nn.functional.cross_entropy
    loss = cross_entropy(masked_lm.flatten(0, 1), torch.tensor(labels).flatten().long())
    loss = loss + cross_entropy(next_sentence, torch.tensor(pair).long())
    loss.backward()
    theirs = {name: p.grad.numpy() for name, p in model.named_parameters()}
    expected = import_model(model.config.to_dict(), theirs, "the reference").arrays

    ours = Pretrained(model)
    weights = {}
    for prefix in ("encoder", "masked_lm", "sentence"):
        weights.update(named_weights(getattr(ours, prefix), prefix))

    def our_loss():
        out = ours(inputs, positions)
        terms = ((out["masked_lm"], labels), (out["next_sentence"], pair))
        return sum(ops.mean(_cross_entropy(logits, y)) for logits, y in terms)

    assert_close(to_numpy(our_loss()), loss.item(), 1e-4, "loss")
    assert_gradients_close(gradients(our_loss, weights), expected)


def _cross_entropy(logits, labels):
    return keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)


@pytest.mark.slow
@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_new"])
def test_full_size_is_as_close_to_float64_as_the_reference_is(hidden_act):
    """BERT-base at sigma 0.15: float32 itself is off by 1e-3, so float64 is the judge."""
    model = reference(hidden_act, vocab_size=30522)
    inputs, positions = batch(model, size=2, length=48)
    ours = Pretrained(model)(inputs, positions)
    with torch.no_grad():
        _, *single = run_reference(model, inputs, positions)
        _, *exact = run_reference(model.double(), inputs, positions)
    for name, a, b in zip(("masked_lm", "next_sentence"), single, exact, strict=True):
        theirs = (a.double() - b).abs().max().item()
        assert_close(to_numpy(ours[name]), b, 3 * theirs, f"{name} (theirs {theirs:.3g})")
