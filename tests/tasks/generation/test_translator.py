"""Translation: the loss against NumPy, a toy language learned, answers, presets, bad input."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert.data import encode_pairs
from kbert.decoding import Beam, Greedy, Sampling, decode
from kbert.tokenizers import BytePairTokenizer
from kbert.tokenizers.bpe.byte_alphabet import CHARACTERS
from kbert.training import AdamW
from tests.harness import tiny_config
from tests.tasks.generation import writing

SOURCES = ["a b c", "", "h g f e d", "b", "  ", "a a a b"]


@pytest.fixture(scope="module")
def task():
    """Of random weights."""
    task = writing.translator(sigma=0.3)
    task.compile(AdamW(), jit_compile=False)
    return task


@pytest.fixture(scope="module")
def reverser():
    """A translator that has learned to reverse."""
    task = writing.translator()
    task.compile(
        AdamW(3e-3, weight_decay=0.0, beta_2=0.98, epsilon=1e-9, bias_correction=True),
        jit_compile=False,
    )
    pairs = writing.reversed_pairs(1600)
    history = task.fit(
        *zip(*pairs, strict=True), epochs=16, max_tokens=512, validation_data=pairs[:64], verbose=0
    ).history
    assert history["perplexity"][-1] < 0.5 * history["perplexity"][0]
    assert history["val_accuracy"][-1] > 0.8
    return task


def test_the_loss_is_that_of_smoothed_labels_over_all_real_tokens():
    task = writing.translator(label_smoothing=0.2)
    task.compile(AdamW(), jit_compile=False)
    batches = writing.random_batches(2)
    smoothed = plain = hits = count = 0.0
    for batch in batches:
        logs = writing.log_softmax(task(batch))
        labels = np.eye(16)[batch["targets"]]
        soft = 0.8 * labels + 0.2 / 16
        smoothed -= ((soft * logs).sum(-1) * batch["weights"]).sum()
        plain -= ((labels * logs).sum(-1) * batch["weights"]).sum()
        hits += ((logs.argmax(-1) == batch["targets"]) * batch["weights"]).sum()
        count += batch["weights"].sum()
    found = task.evaluate(writing.dataset(batches), return_dict=True, verbose=0)
    assert found["loss"] == found["lm_loss"] == pytest.approx(smoothed / count, rel=1e-5)
    assert found["nll"] == pytest.approx(plain / count, rel=1e-5)
    assert found["perplexity"] == pytest.approx(np.exp(plain / count), rel=1e-4)
    assert found["accuracy"] == pytest.approx(hits / count, rel=1e-5)


def test_a_dict_of_arrays_is_a_batch_and_one_of_texts_pairs():
    task = writing.translator()
    task.compile(AdamW(), jit_compile=False)
    (batch,) = writing.random_batches(1)
    wanted = task.evaluate(writing.dataset([batch]), return_dict=True, verbose=0)
    assert task.evaluate(batch, return_dict=True, verbose=0) == wanted
    assert task.fit(batch, validation_data=batch, verbose=0).history["val_loss"]
    pairs = {"first": ["a b", "c"], "second": ["b a", "c"]}
    found = task.evaluate(pairs, return_dict=True, verbose=0)
    assert found == task.evaluate([("a b", "b a"), ("c", "c")], return_dict=True, verbose=0)
    with pytest.raises(ValueError, match=r"'first' and 'second'.*columns token_ids"):
        task.fit({"token_ids": np.ones((2, 4), "int32")}, verbose=0)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_two_replicas_and_one(mirrored):
    writing.check_replicas(writing.translator, mirrored, writing.random_batches(3))


@pytest.mark.graphs
@pytest.mark.slow
def test_it_learns_to_reverse(reverser):
    pairs = writing.reversed_pairs(40, seed=1)
    answers = reverser.predict([source for source, _ in pairs])
    assert np.mean([a == b for a, (_, b) in zip(answers, pairs, strict=True)]) > 0.7
    found = reverser.evaluate(pairs, return_dict=True, verbose=0)
    assert found["accuracy"] > 0.8


def test_an_answer_is_what_decoding_by_hand_gives(task):
    """Each by itself, uncompiled, without padding."""
    for method in (Greedy(), Beam(width=3, num_results=2)):
        asked = {"method": method, "max_new_tokens": 5}
        texts, scores = task.predict(SOURCES, **asked, return_scores=True)
        for text, found, score in zip(SOURCES, texts, scores, strict=True):
            ids = task.tokenizer.encode(text).numpy()
            if not len(ids):
                assert not any(found)
                assert not np.any(score)
                continue
            source, start = np.append(ids, 3)[None].astype("int32"), np.array([2], "int32")
            first, cache = task.seq2seq.prefill(source, None, 5, start)
            limits = {"stop_ids": [3], "banned_ids": [0, 1, 2, 4, 13, 14, 15]}
            want = decode(task.seq2seq.step, first, cache, **asked, **limits)
            rows = np.asarray(want.token_ids)[0]
            names = [
                task.tokenizer.decode([int(i) for i in row[:n] if i != 3])
                for row, n in zip(rows, np.asarray(want.lengths)[0], strict=True)
            ]
            assert ([found] if isinstance(found, str) else found) == names
            np.testing.assert_allclose(score, np.asarray(want.scores)[0].squeeze(), atol=1e-4)


@pytest.mark.graphs
def test_answers_do_not_depend_on_the_batch(task):
    sources = [*SOURCES, "a b " * 10]  # of two widths
    ask = functools.partial(task.predict, max_new_tokens=8)
    texts, scores = ask(sources, return_scores=True)
    alone, others = ask(sources, batch_size=1, return_scores=True)
    assert alone == texts
    assert ask(sources[2]) == texts[2:3]
    np.testing.assert_allclose(others, scores, atol=1e-4)
    sampling = Sampling(temperature=2.0)
    drawn = ask(sources, method=sampling, seed=3)
    assert ask(sources, method=sampling, seed=3, batch_size=2) == drawn
    assert ask(sources, method=sampling, seed=4) != drawn


def test_n_best_and_limits(task):
    ask = functools.partial(task.predict, max_new_tokens=6)
    texts, scores = ask(SOURCES, method=Beam(num_results=3), return_scores=True)
    assert scores.shape == (6, 3)
    assert (np.diff(scores) <= 0).all()
    assert [row[0] for row in texts] == ask(SOURCES)
    assert texts[1] == ["", "", ""]
    assert not scores[1].any()
    short = task.predict("a b c", method=Greedy(), max_new_tokens=2)
    assert short == [" ".join(ask("a b c", method=Greedy())[0].split()[:2])]
    assert task.predict([]) == []


def test_white_space_around_a_text_is_no_part_of_it(tmp_path):
    """Byte-level pieces have tokens for it, which files of pairs never show the model."""
    own = BytePairTokenizer(
        [*CHARACTERS, *(special := ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])],
        [],
        special_tokens=dict(zip(("pad", "unk", "cls", "sep", "mask"), special, strict=True)),
    )
    config = writing.translator().seq2seq.config.replace(
        vocabulary_size=own.vocabulary_size, initializer_range=0.3
    )
    task = kbert.Translator(kbert.Seq2Seq(config), own)
    lines = ["a dog", "a dog\n", b" \ta dog\r\n", "\n"]
    texts, scores = task.predict(lines, max_new_tokens=4, return_scores=True)
    assert texts[0] == texts[1] == texts[2]
    assert scores[0] == scores[1] == scores[2]
    assert texts[3] == ""
    assert scores[3] == 0
    served = task.signatures(max_new_tokens=4)["translate"].function(tf.constant(lines))
    np.testing.assert_allclose(served["scores"][:, 0], scores, rtol=1e-5)
    pairs = [("a b\n", "c\n"), ("d", "e f"), ("g", " ")]
    found = encode_pairs(pairs, own, max_length=9)
    same = encode_pairs([("a b", "c"), ("d", "e f")], own, max_length=9)
    assert found.empty == 1
    np.testing.assert_array_equal(found.source.ids, same.source.ids)
    np.testing.assert_array_equal(found.target.ids, same.target.ids)


def test_pairs_of_files(task, tmp_path):
    pairs = [("a b c", "c b a"), ("d e", "e d")]
    path = tmp_path / "pairs.tsv"
    path.write_text("".join("\t".join(pair) + "\n" for pair in pairs))
    options = {"verbose": 0, "return_dict": True}
    opened = task.evaluate(kbert.text.read_pairs(path), **options)
    assert opened == task.evaluate(pairs, **options)


def test_unknown_characters_are_read_and_never_written(task):
    answers = task.predict(["ж a", "жж ☃"], max_new_tokens=6)
    assert all(isinstance(answer, str) and "[" not in answer for answer in answers)


def test_a_preset_has_all(tmp_path):
    task = writing.translator(sigma=0.3, label_smoothing=0.25)
    task.save_to_preset(tmp_path)
    again = kbert.tasks.Task.from_preset(tmp_path)
    assert type(again) is kbert.Translator
    assert again.label_smoothing == 0.25
    asked = {"max_new_tokens": 4, "return_scores": True}
    texts, scores = task.predict(SOURCES, **asked)
    found, others = again.predict(SOURCES, **asked)
    assert found == texts
    np.testing.assert_array_equal(others, scores)
    np.testing.assert_array_equal(
        kbert.Seq2Seq.from_preset(tmp_path).token_embedding, task.seq2seq.token_embedding
    )
    with pytest.raises(ValueError, match=r"of the class CausalLM. Received: a Translator"):
        kbert.tasks.CausalLM.from_preset(tmp_path)
    again = kbert.Translator.from_preset(tmp_path, new_head=True)
    assert (again.label_smoothing, again.predict(SOURCES, max_new_tokens=4)) == (0.1, texts)
    # Its decoder also reads for a classifier; other tasks need an encoder.
    classifier = kbert.TextClassifier.from_preset(tmp_path, new_head=True, labels=["a", "b"])
    assert len(classifier.predict(SOURCES)) == len(SOURCES)
    with pytest.raises(ValueError, match=r"Encoder-decoders are supported.*Received: TextEmbedder"):
        kbert.tasks.TextEmbedder.from_preset(tmp_path, new_head=True)


@pytest.mark.parametrize(
    ("total", "warmup"), [(None, 4000), (100_000, 4000), (500, 50), (3, 1)], ids=str
)
def test_the_usual_optimizer_is_the_paper_s(total, warmup):
    optimizer = writing.translator().usual_optimizer(total)
    assert (optimizer.beta_2, optimizer.epsilon, optimizer.decay) == (0.98, 1e-9, 0.0)
    schedule = optimizer.get_config()["learning_rate"]["config"]
    assert (schedule["decay"], schedule["warmup_steps"]) == ("inverse_sqrt", warmup)
    assert schedule["learning_rate"] == pytest.approx(6.99e-4, rel=1e-3)


def test_fit_compiles_and_takes_batches():
    task = writing.translator()
    task.fit(writing.dataset(writing.random_batches(2)), verbose=0)
    assert int(task.optimizer.iterations) == 2
    assert task.optimizer.beta_2 == 0.98
    task.compile(AdamW(1e-2, weight_decay=0.0, bias_correction=True), jit_compile=False)
    first, second = task.fit(
        writing.dataset(writing.random_batches(1)), epochs=2, verbose=0
    ).history["perplexity"]
    assert second < 0.9 * first


@pytest.mark.parametrize(
    ("texts", "settings", "error"),
    [
        (
            ["a", "b " * 32],
            {},
            r"at most 31 tokens.*Received: 32 tokens in text 1, which begins 'b",
        ),
        (["a", 3], {}, "texts must be strings. Received: 3 as number 1"),
        (["a"], {"max_new_tokens": 32}, "from 1 to 31.*Received: 32"),
        (["a"], {"method": "beam"}, "Greedy, Sampling or Beam.*Received: 'beam'"),
        (["a"], {"seed": -1}, "from 0 to 4294967295. Received: -1"),
        (["a"], {"batch_size": 0}, "Received: batch_size=0"),
    ],
    ids=["too long", "no text", "too many", "method", "seed", "batch"],
)
def test_bad_requests(task, texts, settings, error):
    with pytest.raises((ValueError, TypeError), match=error):
        task.predict(texts, **settings)


def test_bad_pairs(task):
    with pytest.raises(ValueError, match=r"the same length. Received: 2 sources, 1 targets"):
        task.fit(["a", "b"], ["a"])
    with pytest.raises(ValueError, match=r"the same length. Received: 1 sources, 2 targets"):
        task.evaluate((["a"], ["a", "b"]))
    with pytest.raises(ValueError, match=r"two strings, .*Received: 'a b'"):
        task.fit(["a b"])
    with pytest.raises(ValueError, match=r"must be at most 32 \(the model's.*max_length=33"):
        task.fit([("a", "b")], max_length=33)


def test_what_a_translator_is_made_of():
    seq2seq, own = writing.translator().seq2seq, writing.tokenizer()
    config = kbert.EncoderConfig(
        vocabulary_size=16, hidden_size=8, num_layers=1, num_heads=2, intermediate_size=8
    )
    encoder = kbert.Encoder(config)
    config = seq2seq.config.replace(target_vocabulary_size=7)
    with pytest.raises(
        ValueError, match=r"must fit the decoder's table.*Received: .* 7 rows in a table of the dec"
    ):
        kbert.Translator(kbert.Seq2Seq(config), own)
    with pytest.raises(TypeError, match=r"a Seq2Seq or a PrefixSeq2Seq. Received: <Enc"):
        kbert.Translator(encoder, own)
    with pytest.raises(ValueError, match=r"`label_smoothing` must be .* below 1. Received: 1.0"):
        kbert.Translator(seq2seq, own, label_smoothing=1.0)
    with pytest.raises(ValueError, match="vocabulary_size=16 in the model's config, 17 entries"):
        kbert.Translator(seq2seq, writing.tokenizer("i", "j", "k", "l"))
    config = seq2seq.config.replace(vocabulary_size=300)
    lacks_start = 'must have a "cls" or "pad" token.*with cls=None, pad=None, sep=256'
    for tokens, rule in (({}, 'name a "sep" token.* without one'), ({"sep": "<e>"}, lacks_start)):
        bare = BytePairTokenizer([*CHARACTERS, "<e>"], [], special_tokens=tokens)
        with pytest.raises(ValueError, match=rule):
            kbert.Translator(kbert.Seq2Seq(config), bare)


def test_byte_pairs_and_bfloat16():
    """A vocabulary without padding, and half the bits."""
    own = BytePairTokenizer(
        [*CHARACTERS, "<s>", "<e>"], [], special_tokens={"cls": "<s>", "sep": "<e>"}
    )
    config = writing.translator().seq2seq.config.replace(
        vocabulary_size=own.vocabulary_size, initializer_range=0.3
    )
    task = kbert.Translator(kbert.Seq2Seq(config, dtype="mixed_bfloat16"), own)
    task.fit([("größer", "plus grand"), ("ж", "zh")] * 4, max_tokens=64, verbose=0)
    texts, scores = task.predict(["größer", "ж"], max_new_tokens=6, return_scores=True)
    assert len(texts) == 2
    assert scores.dtype == np.float32
    assert (scores < 0).all()
    assert keras.backend.floatx() == "float32"


@pytest.mark.slow
def test_one_network_is_both_sides(tmp_path):
    """An encoder with a prefix mask is trained, saved, loaded and asked like two stacks."""
    tokenizer = writing.translator().tokenizer
    encoder = kbert.Encoder(tiny_config(vocabulary_size=tokenizer.vocabulary_size))
    task = kbert.Translator(kbert.models.PrefixSeq2Seq(encoder), tokenizer)
    task.compile(AdamW(1e-3))
    losses = task.fit([("a b", "b a"), ("b c", "c b")] * 8, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    task.save_to_preset(tmp_path)
    again = kbert.tasks.Task.from_preset(tmp_path)
    texts = ["a b", "c", "b a c"]
    assert again.predict(texts, verbose=0) == task.predict(texts, verbose=0)
    assert kbert.Encoder.from_preset(tmp_path).count_params() == encoder.count_params()


def test_an_encoder_s_folder_is_the_beginning_of_both_sides(tmp_path):
    tokenizer = writing.translator().tokenizer
    encoder = kbert.Encoder(tiny_config(vocabulary_size=tokenizer.vocabulary_size))
    encoder.save_to_preset(tmp_path)
    tokenizer.save(tmp_path)
    task = kbert.Translator.from_preset(tmp_path, new_head=True)
    assert isinstance(task.seq2seq, kbert.Seq2Seq)
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(task.seq2seq.token_embedding),
        keras.ops.convert_to_numpy(encoder.token_embedding),
    )
