"""What all tasks share; shown on `Pretraining`."""

import dataclasses
import json

import keras
import numpy as np
import pytest

import kbert
from kbert.tokenizers import BytePairTokenizer, train_byte_pair
from kbert.tokenizers.bpe.byte_alphabet import CHARACTERS
from kbert.training.optimization.optimizers import AdamW
from tests.tasks import toy


def weights(task):
    return {v.path: np.asarray(v) for v in task.variables}


def test_preset_round_trip(task, tmp_path):
    task.save_to_preset(tmp_path)
    again = kbert.tasks.Pretraining.from_preset(tmp_path)
    question = "the [MASK] fox [MASK]"
    assert again.predict(question) == task.predict(question)
    pair = [("the fox", "a dog")]
    np.testing.assert_array_equal(
        again.predict_next_sentence(pair), task.predict_next_sentence(pair)
    )
    assert again.tokenizer.vocabulary == task.tokenizer.vocabulary
    # The encoder alone comes out of the same folder.
    encoder = kbert.Encoder.from_preset(tmp_path)
    np.testing.assert_array_equal(encoder.token_embedding, task.encoder.token_embedding)


def test_hugging_face_round_trip(task, tmp_path):
    task.save_to_preset(tmp_path, format="huggingface")
    assert (tmp_path / "config.json").is_file()
    assert not (tmp_path / "kbert.json").exists()
    again = kbert.tasks.Pretraining.from_preset(tmp_path)
    assert again.predict("the [MASK] fox") == task.predict("the [MASK] fox")
    with pytest.raises(ValueError, match=r"must be one of kbert, huggi.*'onnx'"):
        task.save_to_preset(tmp_path, format="onnx")


@pytest.mark.parametrize("format", ["kbert", "huggingface"])
def test_a_model_that_cannot_be_saved_leaves_the_old_one(task, tmp_path, monkeypatch, format):
    task.save_to_preset(tmp_path, format=format)
    files, before = sorted(tmp_path.iterdir()), task.predict("the [MASK] fox")
    task.encoder.token_embedding.assign(-task.encoder.token_embedding)
    assert task.predict("the [MASK] fox") != before

    def full(folder):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(task.tokenizer, "_save_model", full)
    with pytest.raises(OSError, match="No space left"):
        task.save_to_preset(tmp_path, format=format)
    assert sorted(tmp_path.iterdir()) == files
    assert kbert.tasks.Pretraining.from_preset(tmp_path).predict("the [MASK] fox") == before
    monkeypatch.undo()
    task.save_to_preset(tmp_path, format=format)
    again = kbert.tasks.Pretraining.from_preset(tmp_path)
    assert again.predict("the [MASK] fox") == task.predict("the [MASK] fox")


def test_a_keras_file_is_refused(task, tmp_path):
    with pytest.raises(NotImplementedError, match=r"save_to_preset\(folder\)"):
        task.save(tmp_path / "task.keras")
    task.summary(print_fn=lambda line: None)


def test_preset_keeps_the_settings(config, tokenizer, tmp_path):
    encoder = kbert.Encoder(config.replace(pooler_activation=None))
    kbert.tasks.Pretraining(encoder, tokenizer, next_sentence=False).save_to_preset(tmp_path)
    again = kbert.tasks.Pretraining.from_preset(tmp_path, dtype="mixed_bfloat16")
    assert not again.next_sentence
    assert again.encoder.compute_dtype == "bfloat16"


def test_a_head_may_be_left_out(task, tmp_path):
    task.save_to_preset(tmp_path)
    again = kbert.tasks.Pretraining.from_preset(tmp_path, next_sentence=False)
    assert again.predict("the [MASK]") == task.predict("the [MASK]")


def test_a_folder_without_heads_names_the_way_out(task, tokenizer, tmp_path):
    task.encoder.save_to_preset(tmp_path)
    tokenizer.save(tmp_path)
    with pytest.raises(ValueError, match=r"new_head=True loads the encoder.*Received: no head"):
        kbert.tasks.Pretraining.from_preset(tmp_path)
    again = kbert.tasks.Pretraining.from_preset(tmp_path, new_head=True)
    np.testing.assert_array_equal(again.encoder.token_embedding, task.encoder.token_embedding)


def test_a_folder_that_lacks_a_head_lists_what_is_missing(config, tokenizer, tmp_path):
    encoder = kbert.Encoder(config)
    kbert.tasks.Pretraining(encoder, tokenizer, next_sentence=False).save_to_preset(tmp_path)
    with pytest.raises(ValueError, match="missing sentence/dense/kernel"):
        kbert.tasks.Pretraining.from_preset(tmp_path, next_sentence=True)


def test_a_folder_of_another_task(task, tmp_path):
    task.save_to_preset(tmp_path)
    content = json.loads((tmp_path / "kbert.json").read_text())
    content["task"]["kind"] = "TextClassifier"
    (tmp_path / "kbert.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"of the class Pretraining. Received: a TextClassifier"):
        kbert.tasks.Pretraining.from_preset(tmp_path)


def test_vocabulary_must_fit_the_table(config, tokenizer):
    with pytest.raises(ValueError, match=r"a row for each vocabulary entry.*config, 1.. entries"):
        kbert.tasks.Pretraining(kbert.Encoder(config.replace(vocabulary_size=20)), tokenizer)


def test_a_tokenizer_without_separators_is_refused(config):
    gpt2 = BytePairTokenizer([*CHARACTERS, "<|endoftext|>"], [])
    encoder = kbert.Encoder(dataclasses.replace(config, vocabulary_size=257))
    with pytest.raises(ValueError, match=r"special_tokens must name .* without pad$"):
        kbert.tasks.Pretraining(encoder, gpt2)


def test_fill_mask_with_byte_pairs(config, tmp_path):
    vocabulary, merges = train_byte_pair(["the quick fox jumps over the lazy dog"] * 9, 300)
    tokenizer = BytePairTokenizer(vocabulary, merges)
    encoder = kbert.Encoder(dataclasses.replace(config, vocabulary_size=len(vocabulary)))
    task = kbert.tasks.Pretraining(encoder, tokenizer)
    task.save_to_preset(tmp_path)
    again = kbert.tasks.Pretraining.from_preset(tmp_path)
    text = "the <mask> fox"
    answer = again.predict(text, candidates=[" quick", "Ġlazy"])
    assert answer == task.predict(text, candidates=[" quick", "Ġlazy"])
    assert answer[0]["tokens"] == [["Ġquick", "Ġlazy"]]
    np.testing.assert_allclose(
        again.predict_next_sentence([("the fox", "a dog")]),
        task.predict_next_sentence([("the fox", "a dog")]),
    )


def test_rows_beyond_the_vocabulary_are_no_answers(config, tokenizer):
    size = tokenizer.vocabulary_size
    task = kbert.tasks.Pretraining(
        kbert.Encoder(config.replace(vocabulary_size=size + 8)), tokenizer
    )
    task.masked_lm.bias.assign(np.r_[np.zeros(size), np.full(8, 9.0)])
    answer = task.predict("[MASK]", top_k=size)[0]
    assert sorted(answer["tokens"][0]) == sorted(tokenizer.vocabulary)


def test_fit_compiles_with_bert_s_optimizer(task, tokenizer):
    task.fit(toy.batches(tokenizer, batch_size=4), steps_per_epoch=3, verbose=0)
    assert isinstance(task.optimizer, AdamW)
    assert int(task.optimizer.iterations) == 3


@pytest.mark.parametrize(
    ("steps", "epochs", "total", "warmup"), [(50, 4, 200, 20), (60_000, 5, 300_000, 10_000)]
)
def test_default_schedule_spans_the_run(task, tokenizer, monkeypatch, steps, epochs, total, warmup):
    monkeypatch.setattr(keras.Model, "fit", lambda *args, **kwargs: None)
    task.fit(toy.batches(tokenizer), epochs=epochs, steps_per_epoch=steps)
    schedule = task.optimizer.get_config()["learning_rate"]["config"]
    assert (schedule["total_steps"], schedule["warmup_steps"]) == (total, warmup)


def test_fit_leaves_a_compiled_optimizer_alone(task, tokenizer, monkeypatch):
    monkeypatch.setattr(keras.Model, "fit", lambda *args, **kwargs: None)
    optimizer = keras.optimizers.SGD(0.01)
    task.compile(optimizer)
    task.fit(toy.batches(tokenizer))
    assert task.optimizer is optimizer


def test_default_rate_is_constant_where_the_length_is_unknown(task, tokenizer, monkeypatch):
    monkeypatch.setattr(keras.Model, "fit", lambda *args, **kwargs: None)
    task.fit(toy.batches(tokenizer))
    schedule = task.optimizer.get_config()["learning_rate"]["config"]
    assert (schedule["decay"], schedule["warmup_steps"]) == ("constant", 10_000)


def test_predicting_does_not_disturb_training(task, tokenizer):
    """`predict` on texts replaced Keras' own: `fit` with validation must not call it."""
    dataset = toy.batches(tokenizer, batch_size=4)
    task.compile(AdamW(1e-3))
    before = weights(task)
    task.predict("the [MASK]")
    assert set(weights(task)) == set(before)
    history = task.fit(
        dataset, steps_per_epoch=2, validation_data=dataset, validation_steps=1, verbose=0
    ).history
    assert "val_mlm_accuracy" in history
    assert "val_gradient_norm" not in history
    values = task.evaluate(dataset, steps=1, verbose=0, return_dict=True)
    assert values["loss"] == pytest.approx(values["mlm_loss"] + values["nsp_loss"], rel=1e-6)
