"""Vectors learnt by restoring texts: the damage, the decoder, and what becomes of it."""

import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert.data import as_table
from kbert.models.weights import get_arrays
from kbert.tasks import SkipThought, TextDenoiser, TextEmbedder
from kbert.tasks.fine_tuning.sample_weights import weigh_examples
from tests.harness import assert_close, randomise, tiny_config

WORDS = ["the", "red", "fox", "a", "dog", "sees", "and", "old", "house", "big"]


@pytest.fixture
def tokenizer():
    return kbert.WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])


@pytest.fixture
def encoder(tokenizer):
    config = tiny_config(vocabulary_size=tokenizer.vocabulary_size, max_positions=32)
    encoder = kbert.Encoder(config)
    randomise(encoder)
    return encoder


def texts_of(count, seed=0):
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, draw.integers(1, 25))) for _ in range(count)]


def batches_of(task, texts, seed=3, **options):
    rows = task.tokenize(as_table(texts), labelled=True)
    dataset = task.batches(rows, seed=seed, batch_size=8, epochs=2, **options)
    return list(dataset.as_numpy_iterator())


def left(batch):
    """What the encoder reads and what is to be written, without the special tokens."""

    def texts(ids, mask):
        rows = zip(batch[ids], batch[mask], strict=True)
        return [row[real == 1][1:-1].tolist() for row, real in rows]

    shortened = texts("token_ids", "padding_mask")
    return list(zip(shortened, texts("target_ids", "target_mask"), strict=True))


@pytest.mark.parametrize("make", [TextDenoiser, SkipThought])
def test_settings_count_for_the_embedder_or_stay(encoder, tokenizer, make):
    task = make(encoder, tokenizer, decoder_layers=1)
    for name, value in (("token_pooling", "mean"), ("decoder_layers", 2)):
        before = getattr(task, name)
        with pytest.raises(AttributeError, match=rf"`{name}` cannot be changed"):
            setattr(task, name, value)
        assert getattr(task, name) == before
    task.max_length = 8
    assert task.embedder.max_length == 8
    with pytest.raises(ValueError, match="max_length must be between"):
        task.max_length = 1000
    assert task.max_length == task.embedder.max_length == 8


def test_six_of_ten_tokens_are_deleted_others_each_time(encoder, tokenizer):
    task = TextDenoiser(encoder, tokenizer, decoder_layers=1)
    texts = texts_of(200)
    ids = tokenizer.encode(texts).to_list()
    found: dict[int, list] = {}
    for batch in batches_of(task, texts):
        for row, pair in zip(batch["rows"], left(batch), strict=True):
            found.setdefault(int(row), []).append(pair)
    kept = whole = same = 0
    for row, pairs in found.items():
        for short, long in pairs:
            assert long == ids[row]
            assert short
            remaining = iter(long)
            assert all(token in remaining for token in short)  # in their order
            if len(long) > 9:
                kept, whole = kept + len(short), whole + len(long)
        same += pairs[0] == pairs[1] and len(pairs[0][1]) > 9
    assert 0.385 < kept / whole < 0.415
    assert same < 4
    again = batches_of(task, texts)
    np.testing.assert_array_equal(again[-1]["token_ids"], batch["token_ids"])
    others = batches_of(task, texts, seed=4)
    assert others[0]["token_ids"].tolist() != again[0]["token_ids"].tolist()


@pytest.mark.slow
def test_damage_does_not_depend_on_hosts_or_where_it_starts(encoder, tokenizer):
    task = TextDenoiser(encoder, tokenizer, decoder_layers=1)
    texts = texts_of(30)
    whole = batches_of(task, texts)
    for wanted, got in zip(whole[2:], batches_of(task, texts, start=(0, 2, 0)), strict=True):
        assert left(got) == left(wanted)
    halves = [batches_of(task, texts, num_hosts=2, host_index=i) for i in range(2)]
    for wanted, first, second in zip(whole, *halves, strict=True):
        assert left(first) + left(second) == left(wanted)


def test_a_text_of_one_token_keeps_it_and_an_empty_one_stays_so(encoder, tokenizer):
    task = TextDenoiser(encoder, tokenizer, decoder_layers=1, deletion_rate=0.99)
    rows = task.tokenize(as_table(["fox", "", "the red dog"]), labelled=True)
    columns = {**rows.gather(tf.range(3))}
    lengths = [
        len(short) for short, _ in left({k: x.numpy() for k, x in task.assemble(columns).items()})
    ]
    assert lengths == [1, 0, 1]


def test_the_decoder_begins_as_the_encoder_and_knows_the_text_by_its_vector_alone(
    encoder, tokenizer
):
    task = TextDenoiser(encoder, tokenizer)
    blocks, decoder = get_arrays(encoder, "encoder"), get_arrays(task.decoder, "decoder")
    shared = [n for n in decoder if n.replace("decoder/", "encoder/") in blocks]
    assert len(shared) == sum(n.startswith("encoder/layers/") for n in blocks)
    for name in shared:
        np.testing.assert_array_equal(decoder[name], blocks[name.replace("decoder/", "encoder/")])
    randomise(task.decoder)
    batch = batches_of(task, ["the red fox sees a dog"] * 8)[0]
    logits = task(batch)["tokens"].logits().numpy()
    later = {**batch, "target_ids": batch["target_ids"].copy()}
    later["target_ids"][:, 4:] = 7
    np.testing.assert_allclose(task(later)["tokens"].logits()[:, :4], logits[:, :4], atol=1e-5)
    other = {**batch, "token_ids": batch["token_ids"][:, ::-1].copy()}
    assert np.abs(task(other)["tokens"].logits() - logits).max() > 1e-3


@pytest.mark.slow
def test_it_learns(encoder, tokenizer):
    texts = texts_of(4, seed=1) * 8
    task = TextDenoiser(encoder, tokenizer, decoder_layers=1, deletion_rate=0.3)
    before = task.evaluate(texts, verbose=0)
    task.fit(texts, epochs=12, learning_rate=1e-2, batch_size=8, verbose=0)
    after = task.evaluate(texts, verbose=0)
    assert list(after) == ["loss"]
    assert after["loss"] < 1.8 < 2.3 < before["loss"]  # the entropy of ten words


def test_a_folder_holds_the_decoder_and_an_embedder_leaves_it(encoder, tokenizer, tmp_path):
    texts = texts_of(5, seed=1)
    task = TextDenoiser(encoder, tokenizer, decoder_layers=1)
    randomise(task.decoder)
    after = task.evaluate(texts, verbose=0)
    task.save_to_preset(tmp_path / "denoiser")
    again = kbert.tasks.Task.from_preset(tmp_path / "denoiser")
    assert isinstance(again, TextDenoiser)
    assert again.evaluate(texts, verbose=0) == pytest.approx(after, abs=1e-5)
    vectors = task.predict(texts)
    assert_close(again.predict(texts), vectors, 1e-5)
    assert_close(task.embedder.predict(texts), vectors, 1e-5)
    embedder = TextEmbedder.from_preset(tmp_path / "denoiser", new_head=True, token_pooling="cls")
    assert_close(embedder.predict(texts), vectors, 1e-5)


def test_a_sequence_autoencoder_reads_the_whole_text_and_starts_a_classifier(
    encoder, tokenizer, tmp_path
):
    """Without deletion the decoder restores what the encoder read (Dai & Le 2015)."""
    texts = texts_of(16)
    task = TextDenoiser(encoder, tokenizer, decoder_layers=1, deletion_rate=0)
    for batch in batches_of(task, texts):
        assert all(read == written for read, written in left(batch))
    task.fit(texts, epochs=1, batch_size=8, verbose=0)
    task.save_to_preset(tmp_path / "autoencoder")
    classifier = kbert.tasks.TextClassifier.from_preset(
        tmp_path / "autoencoder", labels=["no", "yes"], new_head=True
    )
    learned = get_arrays(task.encoder, "encoder")
    for name, array in get_arrays(classifier.encoder, "encoder").items():
        np.testing.assert_array_equal(array, learned[name], err_msg=name)


def test_what_is_exported_and_answers_files_is_the_embedder(encoder, tokenizer, tmp_path):
    task = TextDenoiser(encoder, tokenizer, decoder_layers=1)
    texts = ["the red fox", "a dog"]
    path = task.export(tmp_path / "served")
    served = tf.saved_model.load(path).signatures["embed"](text=tf.constant(texts))
    assert_close(served["embedding"], task.predict(texts), 1e-5)
    ask = task.file_answers(task)
    answers, cut = ask.answer(as_table(texts), ask.options(), batch_size=2)
    assert_close(np.array([x["vector"] for x in answers]), task.predict(texts), 1e-5)
    assert cut == 0
    with pytest.raises(ValueError, match="`prompt` must be query or document"):
        ask.answer(as_table(texts), ask.options(prompt="query"), batch_size=2)


@pytest.mark.slow
def test_it_is_exported_to_another_runtime(encoder, tokenizer, tmp_path):
    pytest.importorskip("tf2onnx")
    task = TextDenoiser(encoder, tokenizer, decoder_layers=1)
    texts = ["the red fox", "a dog"]
    exported = kbert.export.load_exported(task.export(tmp_path, format="onnx"))
    assert_close(exported.predict(texts), task.predict(texts), 1e-4)


def test_rows_count_their_weights(encoder, tokenizer):
    task = TextDenoiser(encoder, tokenizer, decoder_layers=1)
    texts = texts_of(8)
    rows = task.tokenize(as_table(texts), labelled=True)
    weights = np.array([0.1, 5, 0, 1, 2, 3, 4, 0.5], np.float32)
    dataset = task.batches(weigh_examples(rows, weights), batch_size=4, epochs=1)
    for batch in dataset.as_numpy_iterator():
        np.testing.assert_array_equal(batch["label_weights"], weights[batch["rows"]])
    first = next(iter(task.batches(rows, batch_size=4).as_numpy_iterator()))
    assert sorted(batch) == sorted(first)


def test_labels_are_warned_of(encoder, tokenizer, caplog):
    task = TextDenoiser(encoder, tokenizer, decoder_layers=1)
    task.tokenize(as_table(["the fox"], [1]), labelled=True)
    assert "the labels are ignored" in caplog.text


def test_other_encoders_are_refused(tokenizer):
    config = tiny_config(vocabulary_size=tokenizer.vocabulary_size).replace(embedding_size=8)
    with pytest.raises(ValueError, match="must equal its `hidden_size`"):
        TextDenoiser(kbert.Encoder(config), tokenizer)
