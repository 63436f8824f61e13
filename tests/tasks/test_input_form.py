"""What stands around texts: by the tokenizer's tokens, or by a decoder's own."""

import keras
import pytest

import kbert
from kbert.models import DecoderEncoder
from kbert.tasks.input_form import input_form
from kbert.tokenizers.bpe.byte_alphabet import CHARACTERS
from tests.models.generators.tiny import tiny_decoder


def test_a_decoder_brings_its_tokens_and_asks_none_of_the_tokenizer():
    form = input_form(
        DecoderEncoder.extend(tiny_decoder()), kbert.BytePairTokenizer(CHARACTERS, [])
    )
    assert (form.cls_id, form.sep_id, form.last_id, form.pad_id) == (40, 41, 42, 42)
    assert form.separators == 1
    assert form.names == {40: "[start]", 41: "[delimiter]", 42: "[extract]"}


def test_a_decoder_without_tokens_of_its_own_reads_texts_alone():
    encoder = DecoderEncoder(tiny_decoder(), input_tokens=False)
    assert (encoder.start_id, encoder.text_rows) == (None, 40)
    form = input_form(encoder, kbert.BytePairTokenizer(CHARACTERS, []))
    assert (form.cls_id, form.sep_id, form.last_id, form.pad_id) == (None, None, None, 0)
    assert (form.specials(1), form.specials(2)) == (0, 0)
    extended = input_form(
        DecoderEncoder.extend(tiny_decoder()), kbert.BytePairTokenizer(CHARACTERS, [])
    )
    assert (extended.specials(1), extended.specials(2)) == (2, 3)


def test_an_encoder_takes_the_tokenizer_s(config, tokenizer):
    form = input_form(kbert.Encoder(config), tokenizer)
    assert (form.cls_id, form.sep_id, form.last_id, form.pad_id) == (2, 3, 3, 0)
    assert not form.names


def test_what_does_not_fit(config):
    with pytest.raises(ValueError, match="BytePairTokenizer without pad, cls, sep"):
        input_form(kbert.Encoder(config), kbert.BytePairTokenizer(CHARACTERS, []))
    with pytest.raises(ValueError, match=r"DecoderEncoder.extend\(decoder\)\. Received: a Decoder"):
        input_form(tiny_decoder(), None)


def test_what_is_no_encoder_is_refused_by_its_type(tiny_vocabulary):
    tokenizer = kbert.WordPieceTokenizer(tiny_vocabulary)
    sizes = {"vocabulary_size": len(tiny_vocabulary), "hidden_size": 8, "num_heads": 2}
    config = kbert.EncoderConfig(**sizes, num_layers=1, intermediate_size=16)
    task = kbert.tasks.TextClassifier(kbert.Encoder(config), tokenizer, ["no", "yes"])
    translator = kbert.Seq2Seq(kbert.family("transformer-tiny").replace(vocabulary_size=60))
    plain = keras.Sequential([keras.layers.Dense(1)])
    for model in (translator, task, plain, tokenizer):
        hint = ", such as the `encoder` of this model" if hasattr(model, "encoder") else ""
        if model is translator:
            hint = r", or kbert.models.Seq2SeqEncoder\(model\) for tasks on tables"
        message = rf"requires an encoder, as kbert.\S+ returns it{hint}\. Received: <"
        with pytest.raises(TypeError, match=f"^A TextClassifier {message}"):
            kbert.tasks.TextClassifier(model, tokenizer, ["no", "yes"])
        if model is not tokenizer and model is not translator:  # has a message of its own
            with pytest.raises(TypeError, match=f"^kbert.features {message}"):
                kbert.features(model, tokenizer, ["fox"])


def test_padding_is_the_tokenizer_s_in_a_new_model(config, tokenizer):
    encoder = kbert.Encoder(config.replace(padding_id=1))
    message = (
        r"use config.replace\(padding_id=0\). Received: padding_id=1, a tokenizer whose "
        "`pad_id` is 0"
    )
    for use in (
        lambda: kbert.tasks.TextClassifier(encoder, tokenizer, ["no", "yes"]),
        lambda: kbert.tasks.Pretraining(encoder, tokenizer),
        lambda: kbert.features(encoder, tokenizer, ["fox"]),
        lambda: kbert.visualization.attention(encoder, "fox", tokenizer=tokenizer),
    ):
        with pytest.raises(ValueError, match=message):
            use()
    kbert.tasks.Pretraining(kbert.Encoder(config.replace(padding_id=0)), tokenizer)


def test_a_model_that_was_trained_with_another_padding_is_told(config, tokenizer, tmp_path, caplog):
    encoder = kbert.Encoder(config.replace(padding_id=1))
    encoder.save_to_preset(tmp_path / "alone")
    tokenizer.save(tmp_path / "alone")
    told = "alone: `padding_id` of the config must be the tokenizer's"
    read = kbert.Encoder.from_preset(tmp_path / "alone")
    task = kbert.tasks.TextClassifier(read, tokenizer, ["no", "yes"])
    assert told in caplog.text
    assert "padding_id=1, a tokenizer whose `pad_id` is 0" in caplog.text
    caplog.clear()
    kbert.tasks.TextClassifier.from_preset(tmp_path / "alone", new_head=True, labels=["a", "b"])
    assert told in caplog.text
    task.save_to_preset(tmp_path / "task")
    assert kbert.tasks.TextClassifier.from_preset(tmp_path / "task").encoder.config.padding_id == 1
    assert kbert.student(task, num_layers=1).encoder.config.padding_id == 1
    with pytest.raises(ValueError, match=r"Received: padding_id=2"):
        kbert.student(task, num_layers=1, padding_id=2)
