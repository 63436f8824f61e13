"""UniLM fine-tuned to write: losses of masked targets, a toy language, texts, presets, runs."""

import keras
import numpy as np
import pytest
from keras import ops

import kbert
from kbert.data.translation.dataset import translation_dataset
from kbert.decoding import Beam, Greedy
from kbert.models import PrefixSeq2Seq, UniLMSeq2Seq
from kbert.tasks import Pretraining, UniLM, UniLMTranslator
from kbert.training import AdamW
from tests.harness import randomise, tiny_config
from tests.tasks.generation import writing

SEGMENTS = {"num_segments": 6}


def unilm(seed=0, **changes):
    """A `UniLM` of random weights, for the language of letters."""
    tokenizer = writing.tokenizer()
    config = tiny_config(**{"vocabulary_size": tokenizer.vocabulary_size, **SEGMENTS, **changes})
    task = UniLM(kbert.Encoder(config), tokenizer)
    for number, layer in enumerate(task.parts.values()):
        randomise(layer, seed=seed + number)
    return task


def translator(**settings):
    pretrained = unilm()
    network = UniLMSeq2Seq(pretrained.encoder, pretrained.masked_lm)
    return UniLMTranslator(network, pretrained.tokenizer, **settings)


def batches(tokenizer, count=2, masked_share=0.7, **changes):
    pairs = writing.reversed_pairs(40)
    settings = {"max_tokens": 96, "max_length": 8, "masked_share": masked_share, **changes}
    return list(translation_dataset(pairs, tokenizer, **settings).take(count).as_numpy_iterator())


def test_the_loss_is_over_the_masked_tokens():
    task = translator(label_smoothing=0.2)
    task.compile(AdamW(), jit_compile=False)
    found = {}
    data = batches(task.tokenizer)
    smoothed = plain = hits = count = 0.0
    for batch in data:
        logs = writing.log_softmax(task(batch))
        labels = np.eye(task.model.config.vocabulary_size)[batch["targets"]]
        soft = 0.8 * labels + 0.2 / labels.shape[-1]
        smoothed -= ((soft * logs).sum(-1) * batch["weights"]).sum()
        plain -= ((labels * logs).sum(-1) * batch["weights"]).sum()
        hits += ((logs.argmax(-1) == batch["targets"]) * batch["weights"]).sum()
        count += batch["weights"].sum()
        terms, _ = task.loss_terms(batch, training=False)
        found = {k: found.get(k, 0) + np.array([float(y) for y in x]) for k, x in terms.items()}
    np.testing.assert_allclose(found["lm_loss"], [smoothed, count], rtol=1e-5)
    held = task.evaluate(writing.reversed_pairs(40), max_tokens=96, return_dict=True, verbose=0)
    assert held["perplexity"] == pytest.approx(np.exp(held["nll"]), rel=1e-4)


def test_a_row_is_one_of_the_pretraining():
    """The logits of a masked target are those of `UniLM` for the row [CLS] source [SEP] target."""
    pretrained = unilm()
    network = UniLMSeq2Seq(pretrained.encoder, pretrained.masked_lm)
    task = UniLMTranslator(network, pretrained.tokenizer)
    (batch,) = batches(task.tokenizer, 1)
    logits = ops.convert_to_numpy(task(batch))
    for row in range(4):
        source = batch["encoder_token_ids"][row][batch["encoder_padding_mask"][row] > 0]
        target = batch["target_token_ids"][row]
        places = np.arange(len(source) + len(target), dtype="int32")[None]
        is_target = places >= len(source)
        one = {
            "token_ids": np.concatenate([source, target])[None],
            "segment_ids": np.where(is_target, 5, 4),
            "attention_order": np.where(is_target, places, 0),
            "padding_mask": np.ones_like(places),
            "mask_positions": places[:, len(source) :],
        }
        expected = ops.convert_to_numpy(pretrained(one)["masked_lm"])[0]
        np.testing.assert_allclose(logits[row], expected, atol=1e-4)


@pytest.mark.parametrize("method", [Greedy(), Beam(width=3)], ids=["greedy", "beam"])
def test_texts_do_not_depend_on_the_batch(method):
    task = translator()
    texts = ["a b c", "", "h g f e d", "b", "a a a b"]
    together, scores = task.predict(texts, method=method, return_scores=True, verbose=0)
    assert together[1] == ""
    assert any(together)
    for number, text in enumerate(texts):
        (alone,), score = task.predict([text], method=method, return_scores=True, verbose=0)
        assert alone == together[number]
        np.testing.assert_allclose(score, scores[number : number + 1], atol=1e-4)


@pytest.mark.slow
@pytest.mark.graphs
def test_it_learns_to_reverse(tmp_path):
    keras.utils.set_random_seed(1)
    tokenizer = writing.tokenizer()
    sizes = {**writing.SIZES, **SEGMENTS, "num_layers": 2}
    config = kbert.EncoderConfig(
        vocabulary_size=tokenizer.vocabulary_size, max_positions=32, **sizes
    )
    pretrained = UniLM(kbert.Encoder(config), tokenizer)
    network = UniLMSeq2Seq(pretrained.encoder, pretrained.masked_lm)
    task = UniLMTranslator(network, tokenizer, label_smoothing=0.0)
    task.compile(AdamW(3e-3, weight_decay=0.0, bias_correction=True), jit_compile=False)
    pairs = writing.reversed_pairs(1600)
    history = task.fit(
        pairs, epochs=30, max_tokens=512, validation_data=pairs[:64], verbose=0
    ).history
    assert history["val_accuracy"][-1] > 0.9
    sources, targets = zip(*pairs[:50], strict=True)
    for method in (Greedy(), Beam()):
        texts = task.predict(sources, method=method, verbose=0)
        assert np.mean([a == b for a, b in zip(texts, targets, strict=True)]) > 0.9


def test_a_preset_has_all(tmp_path):
    task = translator(masked_share=0.5)
    task.save_to_preset(tmp_path)
    again = kbert.tasks.Task.from_preset(tmp_path)
    assert isinstance(again, UniLMTranslator)
    assert again.settings == {"label_smoothing": 0.1, "masked_share": 0.5}
    texts = ["a b", "c", "b a c"]
    assert again.predict(texts, verbose=0) == task.predict(texts, verbose=0)
    assert isinstance(kbert.TextToText.from_preset(tmp_path), UniLMTranslator)
    encoder = kbert.Encoder.from_preset(tmp_path)
    assert encoder.count_params() == task.seq2seq.encoder.count_params()


@pytest.mark.parametrize("kind", ["unilm", "bert", "encoder"])
def test_it_begins_with_encoder_and_head_of_a_folder(tmp_path, kind, caplog):
    pretrained = unilm(**({} if kind == "unilm" else {"num_segments": 0}))
    if kind == "bert":
        pretrained = Pretraining(pretrained.encoder, pretrained.tokenizer, next_sentence=False)
    if kind == "encoder":
        pretrained.encoder.save_to_preset(tmp_path)
        pretrained.tokenizer.save(tmp_path)
    else:
        pretrained.save_to_preset(tmp_path)
    task = UniLMTranslator.from_preset(tmp_path, new_head=True, masked_share=0.6)
    assert task.masked_share == 0.6
    (batch,) = batches(task.tokenizer, 1)
    found = ops.convert_to_numpy(task(batch))
    network = UniLMSeq2Seq(pretrained.encoder, pretrained.masked_lm)
    if kind != "encoder":
        expected = UniLMTranslator(network, pretrained.tokenizer)(batch)
        np.testing.assert_allclose(found, ops.convert_to_numpy(expected), atol=1e-5)
    sequence = task.seq2seq({x: batch[x] for x in task.model_inputs})["sequence"]
    inputs = {x: batch[x] for x in task.model_inputs}
    np.testing.assert_allclose(
        *(ops.convert_to_numpy(x) for x in (sequence, network(inputs)["sequence"])), atol=1e-5
    )


def test_a_run_resumes_to_the_same_numbers(tmp_path):
    pairs = writing.reversed_pairs(60)
    settings = {"max_tokens": 64, "max_length": 8, "learning_rate": 1e-3, "verbose": 0}
    settings |= {"checkpoint_every": 2, "validation_data": pairs[:5]}
    whole = translator()
    whole.fit(pairs, steps=4, **settings, model_dir=tmp_path / "whole")

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, step, logs=None):
            if step == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        translator().fit(
            pairs, steps=4, **settings, model_dir=tmp_path / "broken", callbacks=[Stop()]
        )
    again = translator()
    again.fit(pairs, steps=4, **settings, model_dir=tmp_path / "broken")
    logs = [(tmp_path / run / "steps.jsonl").read_text() for run in ("whole", "broken")]
    assert logs[0] == logs[1]
    for one, other in zip(whole.weights, again.weights, strict=True):
        np.testing.assert_array_equal(*map(ops.convert_to_numpy, (one, other)))
    with pytest.raises(ValueError, match="masked_share"):
        translator(masked_share=0.5).fit(pairs, steps=4, **settings, model_dir=tmp_path / "broken")


@pytest.mark.slow
@pytest.mark.tensorflow
def test_two_replicas_and_one(mirrored):
    tokenizer = writing.tokenizer()
    taken = batches(tokenizer, 3, num_shapes=1, row_multiple=2)
    writing.check_replicas(translator, mirrored, taken)


@pytest.mark.slow
def test_bfloat16_writes_and_trains():
    tokenizer = writing.tokenizer()
    config = tiny_config(vocabulary_size=tokenizer.vocabulary_size, **SEGMENTS)
    task = UniLM(kbert.Encoder(config, dtype="mixed_bfloat16"), tokenizer)
    task = UniLMTranslator(UniLMSeq2Seq(task.encoder, task.masked_lm), tokenizer)
    task.compile(AdamW(1e-3))
    history = task.fit(writing.reversed_pairs(40), epochs=2, max_tokens=96, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    assert len(task.predict(["a b", "c"], verbose=0)) == 2


@pytest.mark.slow
def test_an_export_writes_the_same(tmp_path):
    task = translator()
    texts = ["a b c", "h g", "b"]
    expected = task.predict(texts, max_new_tokens=6, verbose=0)
    task.export(tmp_path, max_new_tokens=6)
    import tensorflow as tf

    served = tf.saved_model.load(str(tmp_path / "1")).signatures["translate"]
    found = served(text=tf.constant(texts))["translation"].numpy()[:, 0]
    assert [text.decode() for text in found] == expected


def test_what_does_not_fit_is_refused():
    task = translator()
    with pytest.raises(TypeError, match=r"requires a UniLMSeq2Seq. Received: <PrefixSeq2Seq"):
        UniLMTranslator(PrefixSeq2Seq(task.seq2seq.encoder), task.tokenizer)
    with pytest.raises(TypeError, match=r"a Seq2Seq or a PrefixSeq2Seq. Received: <UniLMSeq2Seq"):
        kbert.Translator(task.seq2seq, task.tokenizer)
    for share in (0, 1.2, "x"):
        with pytest.raises(
            ValueError, match=r"`masked_share` must be a number above 0 and at most"
        ):
            translator(masked_share=share)
    (plain,) = batches(task.tokenizer, 1, masked_share=None)
    with pytest.raises(
        ValueError, match=r"`target_token_ids`, .*make the dataset with a masked_sh"
    ):
        task.loss_terms(plain, training=False)
    bare = kbert.WordTokenizer(["</S>", "<S>", "<UNK>", "w1"])
    with pytest.raises(ValueError, match=r'"mask" token.*WordTokenizer with cls=1, mask=None'):
        UniLMTranslator(task.seq2seq, bare)
