"""Folders of Hugging Face's with pretraining heads, as the tasks that they are."""

import numpy as np
import pytest

import kbert
from tests.models.references import make_reference

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

TEXTS = ["the quick [MASK] fox!", "[MASK] jumps over the [MASK] dog."]
PAIRS = [("the red pen", "it is day."), ("a fox jumps over the tree", "the moon, the sun")]
Pretraining, Detection = kbert.tasks.Pretraining, kbert.tasks.ReplacedTokenDetection


def saved(folder, tokenizer, model_type, ending, **values):
    model = make_reference(
        model_type, ending, vocab_size=tokenizer.vocabulary_size, pad_token_id=tokenizer.pad_id,
        **values
    )  # fmt: skip
    model.save_pretrained(folder)
    tokenizer.save(folder)
    return model


def encoded(tokenizer, text):
    return tokenizer.encode(text).numpy().tolist()


def run(model, ids, segments=None):
    inputs = {"input_ids": torch.tensor(ids)[None]}
    if segments is not None:
        inputs["token_type_ids"] = torch.tensor(segments)[None]
    with torch.no_grad():
        return model(**inputs)


@pytest.mark.parametrize(
    "model_type",
    ["bert", *(pytest.param(x, marks=pytest.mark.slow) for x in ("roberta", "electra"))],
)
def test_masks_are_filled_as_there(tmp_path, tokenizer, model_type):
    model = saved(tmp_path, tokenizer, model_type, "ForMaskedLM")
    task = Pretraining.from_preset(tmp_path)
    assert not task.next_sentence
    assert not task.sentence_order
    answers = task.predict(TEXTS, candidates=["fox", "dog", "moon"])
    wanted = [tokenizer.token_to_id(word) for word in ("fox", "dog", "moon")]
    for text, answer in zip(TEXTS, answers, strict=True):
        ids = [tokenizer.cls_id]
        for i, piece in enumerate(text.split("[MASK]")):
            ids += [tokenizer.mask_id] * bool(i) + encoded(tokenizer, piece)
        ids.append(tokenizer.sep_id)
        out = run(model, ids)
        probabilities = out[0][0].softmax(-1).numpy()
        places = [place for place, i in enumerate(ids) if i == tokenizer.mask_id]
        assert len(places) == len(answer["probabilities"])
        for place, found in zip(places, answer["probabilities"], strict=True):
            np.testing.assert_allclose(found, probabilities[place][wanted], atol=1e-5)


@pytest.mark.parametrize(
    ("model_type", "ask"),
    [
        ("bert", "predict_next_sentence"),
        ("albert", "predict_sentence_order"),
    ],
)
def test_pairs_are_judged_as_there(tmp_path, tokenizer, model_type, ask):
    model = saved(tmp_path, tokenizer, model_type, "ForPreTraining")
    found = getattr(Pretraining.from_preset(tmp_path), ask)(PAIRS)
    for (first, second), probability in zip(PAIRS, found, strict=True):
        first = [tokenizer.cls_id, *encoded(tokenizer, first), tokenizer.sep_id]
        second = [*encoded(tokenizer, second), tokenizer.sep_id]
        out = run(model, first + second, [0] * len(first) + [1] * len(second))
        assert abs(out[1][0].softmax(-1)[0].item() - probability) < 1e-5


def test_a_folder_with_next_sentences_alone(tmp_path, tokenizer):
    model = saved(tmp_path / "theirs", tokenizer, "bert", "ForNextSentencePrediction")
    task = kbert.tasks.Task.from_preset(tmp_path / "theirs")
    assert type(task) is Pretraining
    assert task.settings == {
        "next_sentence": True,
        "sentence_order": False,
        "span_boundary": False,
        "masked_lm": False,
    }
    assert "masked_lm" not in task.parts
    wanted = task.predict_next_sentence(PAIRS)
    for (first, second), probability in zip(PAIRS, wanted, strict=True):
        first = [tokenizer.cls_id, *encoded(tokenizer, first), tokenizer.sep_id]
        second = [*encoded(tokenizer, second), tokenizer.sep_id]
        out = run(model, first + second, [0] * len(first) + [1] * len(second))
        assert abs(out[0][0].softmax(-1)[0].item() - probability) < 1e-5
    with pytest.raises(ValueError, match="no masked-LM head: build it with masked_lm=True"):
        task.predict(TEXTS)
    for format_ in ("kbert", "huggingface"):
        task.save_to_preset(tmp_path / format_, format_)
        again = Pretraining.from_preset(tmp_path / format_)
        assert again.settings == task.settings
        np.testing.assert_allclose(again.predict_next_sentence(PAIRS), wanted, atol=1e-6)
    back = type(model).from_pretrained(tmp_path / "huggingface")
    assert type(back).__name__ == "BertForNextSentencePrediction"


@pytest.mark.graphs
@pytest.mark.tensorflow
def test_next_sentences_alone_are_learned_measured_and_exported(tmp_path, tokenizer):
    import tensorflow as tf

    saved(tmp_path, tokenizer, "bert", "ForNextSentencePrediction")
    task = Pretraining.from_preset(tmp_path)
    texts = ["the red pen", "it is day.", "a fox jumps", "the moon, the sun"] * 2
    batch = task.build_inputs(tokenizer.encode(texts), tokenizer.encode(texts[1:] + texts[:1]))
    dataset = tf.data.Dataset.from_tensors(
        {**batch, "next_sentence_labels": tf.constant([0, 1] * 4)}
    ).repeat(20)
    losses = task.fit(dataset, epochs=2, verbose=0).history
    assert losses["nsp_loss"][1] < losses["nsp_loss"][0]
    assert not any("mlm" in name or name == "perplexity" for name in losses)
    entries = task.signatures()
    assert list(entries) == ["next_sentence", "encode"]


@pytest.mark.parametrize("more", [{"next_sentence": False}, {"span_boundary": True}])
def test_nothing_or_spans_without_masks(tokenizer, config, more):
    with pytest.raises(ValueError, match=r"masked_lm=False requires .* Received: masked_lm=False"):
        Pretraining(kbert.Encoder(config), tokenizer, masked_lm=False, **more)


def test_replaced_tokens_are_told_as_there(tmp_path, tokenizer):
    model = saved(tmp_path, tokenizer, "electra", "ForPreTraining")
    text = "the quick fox jumps over the moon"
    (answer,) = Detection.from_preset(tmp_path).predict([text])
    assert answer["tokens"] == text.split()
    ids = [tokenizer.cls_id, *encoded(tokenizer, text), tokenizer.sep_id]
    expected = run(model, ids)[0][0].sigmoid().numpy()[1:-1]
    np.testing.assert_allclose(answer["probabilities"], expected, atol=1e-5)


def test_a_folder_of_another_task_is_refused(tmp_path, tokenizer):
    saved(tmp_path, tokenizer, "electra", "ForPreTraining")
    with pytest.raises(ValueError, match=r"Pretraining. Received: a ReplacedTokenDetection"):
        Pretraining.from_preset(tmp_path)


def test_a_folder_without_the_head_is_refused_or_newly_initialised(tmp_path, tokenizer, caplog):
    saved(tmp_path, tokenizer, "bert", "Model")
    with pytest.raises(ValueError, match=r"new_head=True .* Received: no head that kbert supp"):
        Pretraining.from_preset(tmp_path)
    task = Pretraining.from_preset(tmp_path, strict=False)
    assert "has no masked_lm: it is newly initialised" in caplog.text
    assert "has no sentence: it is newly initialised" in caplog.text
    encoder = kbert.Encoder.from_preset(tmp_path)
    np.testing.assert_array_equal(task.encoder.token_embedding, encoder.token_embedding)


def test_a_vocabulary_that_is_larger_than_the_table_is_refused(tmp_path, tokenizer):
    size = tokenizer.vocabulary_size
    saved(tmp_path, tokenizer, "bert", "ForMaskedLM")
    kbert.WordPieceTokenizer([*tokenizer.vocabulary, "surplus"]).save(tmp_path)
    with pytest.raises(ValueError, match=f"{size} in the encoder's config, {size + 1} entries"):
        Pretraining.from_preset(tmp_path)


@pytest.mark.parametrize(
    "model_type",
    ["roberta", "albert", "electra"]
    + [pytest.param(x, marks=pytest.mark.slow) for x in ("bert", "distilbert")],
)
def test_a_task_is_written_as_the_architecture_that_it_came_from(tmp_path, tokenizer, model_type):
    model = saved(tmp_path / "theirs", tokenizer, model_type, "ForMaskedLM")
    task = Pretraining.from_preset(tmp_path / "theirs")
    architecture = None if model_type == "albert" else model_type
    task.save_to_preset(tmp_path / "ours", format="huggingface", architecture=architecture)
    again, report = type(model).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert again.config.pad_token_id == tokenizer.pad_id
    ids = [tokenizer.cls_id, *encoded(tokenizer, "the moon"), tokenizer.sep_id]
    np.testing.assert_allclose(run(again, ids)[0], run(model, ids)[0], atol=1e-4)
