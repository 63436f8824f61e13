"""Equality with Hugging Face's architectures, heads and all, from folders that it wrote.

`tests/checkpoints/test_round_trips.py` has the way back.
"""

import numpy as np
import pytest

from kbert.checkpoints import read_checkpoint
from tests.harness import assert_close
from tests.models.references import (
    CLASSES,
    LABELS,
    make_inputs,
    make_reference,
    run_kbert,
    run_reference,
)

pytest.importorskip("torch")
pytest.importorskip("transformers")

# Which logits there are those of which head here.
LOGITS = {
    "ForMaskedLM": {"logits": "masked_lm"},
    "ForNextSentencePrediction": {"logits": "sentence"},
    "ForSequenceClassification": {"logits": "classifier"},
    "ForTokenClassification": {"logits": "tokens"},
    "ForQuestionAnswering": {"start_logits": "span", "end_logits": "span"},
}
PRETRAINING = {
    "bert": {"prediction_logits": "masked_lm", "seq_relationship_logits": "sentence"},
    "albert": {"prediction_logits": "masked_lm", "sop_logits": "sentence"},
    "electra": {"logits": "discriminator"},
}
# One dense layer on an encoder that the first cases run on every backend.
FINE_TUNED = pytest.mark.tensorflow


@pytest.mark.parametrize(
    ("model_type", "ending"),
    [
        pytest.param(name, ending, marks=[FINE_TUNED] if ending in LOGITS else [])
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
    for padded in (True, False):
        features = make_inputs(
            model.config.pad_token_id, bool(checkpoint.config.num_segments), padded
        )
        ours, theirs = run_kbert(checkpoint, features), run_reference(model, features)
        compare(ours, theirs, features["padding_mask"] == 1, logits)
    assert checkpoint.labels == (tuple(LABELS) if "Classification" in ending else None)


def compare(ours, theirs, real, logits):
    """What a padding position looks at is nobody's business."""
    states = theirs["hidden_states"]
    assert len(ours["hidden_states"]) == len(states)
    for i, (a, b) in enumerate(zip(ours["hidden_states"], states, strict=True)):
        assert_close(a[real], b[real], 1e-4, f"hidden state {i}")
    for i, (a, b) in enumerate(zip(ours["attention"], theirs["attentions"], strict=True)):
        a, b = np.moveaxis(a, 1, -1)[real], np.moveaxis(b, 1, -1)[real]
        assert_close(a, b, 1e-4, f"attention {i}")
    assert_close(ours["sequence"], ours["hidden_states"][-1], 0, "sequence")
    if "pooler_output" in theirs:
        assert_close(ours["pooled"], theirs["pooler_output"], 1e-4, "pooled")
    for name, head in logits.items():
        expected = theirs[name]
        found = ours[head]
        if head == "span":
            found = found[0 if name == "start_logits" else 1]
        if expected.shape[:2] == real.shape:
            found, expected = found[real], expected[real]
        assert_close(found, expected, 1e-4, name)


@FINE_TUNED
@pytest.mark.parametrize("model_type", CLASSES)
def test_choices_equal_hugging_face(model_type, tmp_path):
    import torch

    model = make_reference(model_type, "ForMultipleChoice")
    model.save_pretrained(tmp_path)
    checkpoint = read_checkpoint(tmp_path)
    segments = bool(checkpoint.config.num_segments)
    features = make_inputs(model.config.pad_token_id, segments, padded=True, batch=4)
    ours = run_kbert(checkpoint, features)["choice"].reshape(2, 2)
    names = {"token_ids": "input_ids", "padding_mask": "attention_mask"}
    if segments:
        names["segment_ids"] = "token_type_ids"
    tensors = {
        there: torch.tensor(features[here]).long().reshape(2, 2, -1)
        for here, there in names.items()
    }
    with torch.no_grad():
        theirs = model(**tensors).logits.numpy()
    assert_close(ours, theirs, 1e-4, "choices")
