"""Equality with Hugging Face's architectures, heads and all, from folders that it wrote.

`tests/checkpoints/test_round_trips.py` has the way back.
"""

import numpy as np
import pytest
from keras import ops

from kbert.checkpoints import read_checkpoint
from kbert.checkpoints.huggingface.huggingface import import_model
from kbert.models import Encoder
from kbert.models.weights import named_weights, set_arrays
from tests.harness import assert_close, assert_gradients_close
from tests.models.references import (
    CLASSES,
    LABELS,
    as_tensors,
    gradients,
    kbert_of,
    make_inputs,
    make_reference,
    run_kbert,
    run_reference,
    with_global_tokens,
)

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

# Which logits there are those of which head here.
LOGITS = {
    "ForMaskedLM": {"logits": "masked_lm"},
    "ForNextSentencePrediction": {"logits": "sentence"},
    "ForSequenceClassification": {"logits": "classifier"},
    "ForTokenClassification": {"logits": "tokens"},
    "ForQuestionAnswering": {"start_logits": "span", "end_logits": "span"},
    "ForQuestionAnsweringSimple": {"start_logits": "span", "end_logits": "span"},
    "LMHeadModel": {"logits": "permutation_lm"},
}
_PAIRS = {"prediction_logits": "masked_lm", "seq_relationship_logits": "sentence"}
PRETRAINING = {
    "bert": _PAIRS,
    "ernie": _PAIRS,
    "mobilebert": _PAIRS,
    "albert": {"prediction_logits": "masked_lm", "sop_logits": "sentence"},
    "electra": {"logits": "discriminator"},
}
PRETRAINED = ("ForMaskedLM", "LMHeadModel", "ForPreTraining")
# One dense layer on an encoder that the first cases run on every backend.
FINE_TUNED = pytest.mark.tensorflow
# The same one on the states of every encoder, by the same names.
ON_STATES = ("ForTokenClassification", "ForQuestionAnswering")
# BERT and RoBERTa by other names.
LIKE_OTHERS = ("ernie", "xlm-roberta", "camembert")
ODD = ("convbert", "longformer")  # programs of their own, which JAX compiles for long


def marks(model_type, ending):
    is_repeated = ending in ON_STATES and model_type != "bert"
    # Logits of masks are made from the states that the model without a head gives.
    is_repeated |= (
        ending == "Model" and model_type != "bert" and "ForMaskedLM" in CLASSES[model_type]
    )
    is_repeated |= model_type in LIKE_OTHERS and ending != "ForMaskedLM"
    # XLNet has a file of its own.
    has_more = "ForPreTraining" in CLASSES[model_type] or model_type == "xlnet"
    return [
        *([FINE_TUNED] if ending in LOGITS else []),
        *([pytest.mark.slow] if is_repeated else []),
        *([pytest.mark.jax_slow] if ending == "Model" and (has_more or model_type in ODD) else []),
    ]


@pytest.mark.jax_slow
@pytest.mark.parametrize(
    ("model_type", "ending"),
    [
        pytest.param(name, ending, marks=marks(name, ending))
        for name, endings in CLASSES.items()
        for ending in endings
        if ending != "ForMultipleChoice"
    ],
)
def test_outputs_equal_hugging_face(model_type, ending, tmp_path):
    model = make_reference(model_type, ending)
    model.save_pretrained(tmp_path / "theirs")
    checkpoint = read_checkpoint(tmp_path / "theirs")
    logits = LOGITS.get(ending) or PRETRAINING.get(model_type, {})
    logits = {} if ending == "Model" else logits
    run = kbert_of(checkpoint)
    # Its first row has no padding. Heads do not see what the encoder did not.
    for padded in (True, False) if ending in (*PRETRAINED, "Model") else (True,):
        features = make_inputs(
            model.config.pad_token_id,
            bool(checkpoint.config.num_segments),
            padded,
            left=model_type == "xlnet",
        )
        if model_type == "longformer":
            features = with_global_tokens(features)
        ours, theirs = run(features), run_reference(model, features)
        if model_type == "squeezebert":  # it shows the scores
            theirs["attentions"] = [np_softmax(x) for x in theirs["attentions"]]
        compare(ours, theirs, features["padding_mask"] == 1, logits)
    assert checkpoint.labels == (tuple(LABELS) if "Classification" in ending else None)


def compare(ours, theirs, real, logits):
    """What a padding position looks at is nobody's business.

    Where nothing normalises the stream (MobileBERT), it grows: 1e-5 of its largest entry.
    """
    states = theirs["hidden_states"]
    assert len(ours["hidden_states"]) == len(states)
    for i, (a, b) in enumerate(zip(ours["hidden_states"], states, strict=True)):
        assert_near(a[real], b[real], f"hidden state {i}")
    for i, (a, b) in enumerate(zip(ours["attention"], theirs["attentions"], strict=True)):
        a, b = np.moveaxis(a, 1, -1)[real], np.moveaxis(b, 1, -1)[real]
        assert_close(a, b, 1e-4, f"attention {i}")
    assert_close(ours["sequence"], ours["hidden_states"][-1], 0, "sequence")
    if "pooler_output" in theirs:
        assert_near(ours["pooled"], theirs["pooler_output"], "pooled")
    for name, head in logits.items():
        expected = theirs[name]
        found = ours[head]
        if head == "span":
            found = found[0 if name == "start_logits" else 1]
        if expected.shape[:2] == real.shape:
            found, expected = found[real], expected[real]
        assert_near(found, expected, name)


def np_softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def assert_near(actual, expected, what):
    assert_close(actual, expected, 1e-4 * max(1.0, np.abs(expected).max() / 10), what)


# Whose vector of a choice is made in another way.
CHOICES_FIRST = ("bert", "roberta", "distilbert", "electra", "convbert", "xlnet", "modernbert")


@FINE_TUNED
@pytest.mark.parametrize(
    "model_type",
    [
        pytest.param(name, marks=[] if name in CHOICES_FIRST else [pytest.mark.slow])
        for name, endings in CLASSES.items()
        if "ForMultipleChoice" in endings
    ],
)
def test_choices_equal_hugging_face(model_type, tmp_path):
    model = make_reference(model_type, "ForMultipleChoice")
    model.save_pretrained(tmp_path)
    checkpoint = read_checkpoint(tmp_path)
    segments = bool(checkpoint.config.num_segments)
    left = {"left": model_type == "xlnet"}
    features = make_inputs(model.config.pad_token_id, segments, padded=True, batch=4, **left)
    if model_type == "longformer":
        features = with_global_tokens(features)
    ours = run_kbert(checkpoint, features)["choice"].reshape(2, 2)
    tensors = {name: x.reshape(2, 2, -1) for name, x in as_tensors(features).items()}
    with torch.no_grad():
        theirs = model(**tensors).logits.numpy()
    assert_near(ours, theirs, "choices")


@pytest.mark.jax_slow
@pytest.mark.parametrize(
    ("model_type", "values"),
    [
        *((name, {}) for name in ("albert", "modernbert", "deberta-v2", "mobilebert", "mpnet")),
        *((name, {}) for name in ("squeezebert", "convbert", "eurobert")),
        # Of operations that BERT, ALBERT and ModernBERT have the gradients of.
        *(
            pytest.param(name, {}, marks=pytest.mark.slow)
            for name in ("distilbert", "electra", "nomic_bert", "roformer", "ernie")
        ),
        # With two segments: the one of others is folded into the positions.
        ("longformer", {"type_vocab_size": 2}),
    ],
)
def test_gradients_equal_hugging_face(model_type, values):
    model = make_reference(model_type, "Model", **values)
    values = {name: array.numpy() for name, array in model.state_dict().items()}
    checkpoint = import_model(model.config.to_dict(), values, "the reference")
    encoder = Encoder(checkpoint.config)
    set_arrays(encoder, "encoder", checkpoint.arrays, checkpoint.source)
    segments = bool(checkpoint.config.num_segments)
    features = make_inputs(model.config.pad_token_id, segments, padded=True)
    if model_type == "longformer":
        features = with_global_tokens(features)
    rng = np.random.default_rng(1)
    weight = rng.normal(size=(*features["token_ids"].shape, 64)).astype("float32")
    weight *= features["padding_mask"][..., None]  # padding has no say

    out = model(**as_tensors(features))
    loss = (out.last_hidden_state * torch.tensor(weight)).sum()
    if "pooler_output" in out:
        loss = loss + out.pooler_output.sum()
    loss.backward()
    theirs = {name: p.grad.numpy() for name, p in model.named_parameters() if p.requires_grad}

    def our_loss():
        out = encoder(features)
        return ops.sum(out["sequence"] * ops.convert_to_tensor(weight)) + ops.sum(
            out.get("pooled", 0.0)
        )

    ours = gradients(our_loss, named_weights(encoder, "encoder"))
    # Trigrams read the row of padding, to which PyTorch gives no gradient.
    ours["encoder/embeddings/token"][0] = 0
    expected = dict(import_model(model.config.to_dict(), theirs, "the reference").arrays)
    for found in (ours, expected):
        found.pop("encoder/embeddings/padding", None)
        # The bias of keys alone gives all scores of a query the same, which is nothing.
        for name in [name for name in found if name.endswith("attention/key/bias")]:
            assert np.abs(found.pop(name)).max() < 1e-4
    assert_gradients_close(ours, expected)


BASE = {
    "roberta": {
        "vocab_size": 50265,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "max_position_embeddings": 514,
    },
    "albert": {
        "vocab_size": 30000,
        "embedding_size": 128,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_hidden_groups": 1,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "max_position_embeddings": 512,
    },
    "deberta-v2": {
        "vocab_size": 30000,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "max_position_embeddings": 512,
        "max_relative_positions": -1,
        "position_buckets": 256,
    },
    "longformer": {
        "vocab_size": 50265,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "max_position_embeddings": 4098,
        "attention_window": 8,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("model_type", BASE)
def test_full_size_is_as_close_to_float64_as_the_reference_is(model_type):
    """Bases at sigma 0.15, where float32 itself is off by 1e-3."""
    model = make_reference(model_type, "ForMaskedLM", **BASE[model_type])
    values = {name: array.numpy() for name, array in model.state_dict().items()}
    checkpoint = import_model(model.config.to_dict(), values, "the reference")
    pad_id = model.config.pad_token_id
    features = make_inputs(pad_id, model_type == "albert", padded=True, batch=2, length=48)
    if model_type == "longformer":
        features = with_global_tokens(features)
    real = features["padding_mask"] == 1
    ours = run_kbert(checkpoint, features)["masked_lm"][real]
    single = run_reference(model, features)["logits"][real]
    exact = run_reference(model.double(), features)["logits"][real]
    theirs = np.abs(single - exact).max()
    assert_close(ours, exact, 3 * theirs, f"masked-LM logits (theirs {theirs:.3g})")
