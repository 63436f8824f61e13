"""UniLM's pretraining: losses of each kind, what its rows see, runs, presets."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import kbert
from kbert.data.pretraining.attention_kinds import KIND_OF_SEGMENT, KINDS
from kbert.tasks import Pretraining, UniLM
from kbert.training import AdamW
from tests.harness import randomise
from tests.tasks.generation.writing import check_replicas

WORDS = [f"w{n}" for n in range(12)]
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SIZES = {
    **{"vocabulary_size": 17, "hidden_size": 32, "num_layers": 2, "num_heads": 2},
    **{"intermediate_size": 48, "max_positions": 64, "dropout": 0.0, "attention_dropout": 0.0},
    "num_segments": 6,
}


@pytest.fixture(scope="module")
def tokenizer():
    return kbert.WordPieceTokenizer([*SPECIALS, *WORDS])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, tokenizer):
    """Documents that count: each word is followed by the third after it, from anywhere."""
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("counting")
    lines = []
    for _ in range(400):
        first, begin = rng.integers(12), 0
        for length in rng.integers(4, 9, rng.integers(4, 10)):
            places = range(begin, begin + length)
            lines.append(" ".join(WORDS[(first + 3 * n + n // 4) % 12] for n in places))
            begin += length
        lines.append("")
    (folder / "text.txt").write_text("\n".join(lines))
    kbert.data.prepare_corpus(str(folder / "text.txt"), folder / "shards", tokenizer)
    return folder / "shards"


def make(tokenizer, dtype=None, **changes):
    keras.utils.set_random_seed(1)
    task = UniLM(kbert.Encoder(kbert.EncoderConfig(**{**SIZES, **changes}), dtype=dtype), tokenizer)
    for layer in task.parts.values():
        randomise(layer)
    return task


def batches(corpus, tokenizer, **settings):
    settings = {
        **{"sequence_length": 32, "batch_size": 16, "segments": "consecutive"},
        **{"attention_shares": (2, 2, 1, 1), "masking": "token_ngram", **settings},
    }
    return kbert.data.pretraining_dataset(corpus, tokenizer, **settings)


@pytest.fixture(scope="module")
def batch(corpus, tokenizer):
    found = next(iter(batches(corpus, tokenizer).as_numpy_iterator()))
    assert {*kinds_of(found).tolist()} == {0, 1, 2, 3}
    return found


def kinds_of(batch):
    return np.array(KIND_OF_SEGMENT)[batch["segment_ids"].max(1)]


def pairs_of(task, batch):
    losses, metrics = task.loss_terms(batch, training=False)
    return {k: np.array([float(x) for x in pair]) for k, pair in {**losses, **metrics}.items()}


def test_terms_of_a_batch_are_those_of_its_rows(tokenizer, batch):
    """Row by row and kind by kind, with a loss from the logits by NumPy."""
    task = make(tokenizer)
    whole, kinds = pairs_of(task, batch), kinds_of(batch)
    rows = [pairs_of(task, {k: x[i : i + 1] for k, x in batch.items()}) for i in range(16)]
    for name, pair in whole.items():
        np.testing.assert_allclose(pair, sum(row[name] for row in rows), rtol=1e-4, atol=1e-5)
    logits = ops.convert_to_numpy(task(batch)["masked_lm"]).astype("float64")
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    losses = -np.take_along_axis(logs, batch["mask_ids"][..., None], -1)[..., 0]
    hits = logits.argmax(-1) == batch["mask_ids"]
    for number, kind in enumerate(KINDS):
        weights = batch["mask_weights"] * (kinds == number)[:, None]
        for name, values in (("loss", losses), ("accuracy", hits)):
            expected = [(values * weights).sum(), weights.sum()]
            np.testing.assert_allclose(whole[f"{kind}_{name}"], expected, rtol=1e-4)
    total = sum(whole[f"{kind}_loss"] for kind in KINDS)
    np.testing.assert_allclose(whole["mlm_loss"], total, rtol=1e-5)
    assert set(task.shown_metrics) <= set(whole)


def test_no_row_sees_what_its_kind_hides(tokenizer, batch):
    """Predictions change with the tokens that their order lets them see, and with no others."""
    task = make(tokenizer)
    order, mask = batch["attention_order"], batch["padding_mask"] > 0
    before = ops.convert_to_numpy(task(batch)["masked_lm"])
    used = batch["mask_weights"] > 0
    moved_any = False
    for place in range(1, 30, 4):
        changed = dict(batch, token_ids=batch["token_ids"].copy())
        changed["token_ids"][:, place] = 5 + (batch["token_ids"][:, place] + 1) % 12
        moved = np.abs(ops.convert_to_numpy(task(changed)["masked_lm"]) - before).max(-1)
        mine = np.take_along_axis(order, batch["mask_positions"], 1)
        seen = (order[:, place : place + 1] <= mine) & mask[:, place : place + 1]
        assert moved[used & ~seen].max(initial=0.0) < 1e-5
        moved_any |= bool((moved[used & seen] > 1e-4).any())
        assert (moved[used & seen] > 0).mean() > 0.99
    assert moved_any


@pytest.mark.slow
def test_packed_rows_predict_the_same(corpus, tokenizer):
    task, sums = make(tokenizer), []
    for pack in (False, True):
        data = batches(
            corpus, tokenizer, pack=pack, batch_size=48, epochs=1, short_sequence_share=0.5
        )
        total = {}
        for one in data.as_numpy_iterator():
            for name, pair in pairs_of(task, one).items():
                total[name] = total.get(name, 0) + pair
        sums.append(total)
    for name, pair in sums[0].items():
        np.testing.assert_allclose(pair, sums[1][name], rtol=1e-4, err_msg=name)


def test_a_run_resumes_to_the_same_numbers(corpus, tokenizer, tmp_path):
    settings = {"batch_size": 8, "sequence_length": 32, "learning_rate": 1e-3, "verbose": 0}
    whole = make(tokenizer)
    whole.fit(corpus, steps=6, **settings, model_dir=tmp_path / "whole", checkpoint_every=3)
    record = (tmp_path / "whole" / "run.json").read_text()
    for entry in ('"masking": "token_ngram"', '"segments": "consecutive"', '"attention_shares": ['):
        assert entry in record

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, step, logs=None):
            if step == 3:
                raise KeyboardInterrupt

    broken = make(tokenizer)
    with pytest.raises(KeyboardInterrupt):
        broken.fit(corpus, steps=6, **settings, model_dir=tmp_path / "broken", checkpoint_every=3,
                   callbacks=[Stop()])  # fmt: skip
    again = make(tokenizer)
    again.fit(corpus, steps=6, **settings, model_dir=tmp_path / "broken", checkpoint_every=3)
    logs = [(tmp_path / run / "steps.jsonl").read_text() for run in ("whole", "broken")]
    assert logs[0] == logs[1]
    for one, other in zip(whole.weights, again.weights, strict=True):
        np.testing.assert_array_equal(*map(ops.convert_to_numpy, (one, other)))
    with pytest.raises(ValueError, match=r"attention_shares"):
        again.fit(corpus, steps=6, **settings, model_dir=tmp_path / "broken", checkpoint_every=3,
                  attention_shares=(1, 1, 1, 1))  # fmt: skip


@pytest.mark.slow
@pytest.mark.graphs
def test_it_learns_every_kind(corpus, tokenizer, tmp_path):
    keras.utils.set_random_seed(0)
    task = UniLM(kbert.Encoder(kbert.EncoderConfig(**SIZES)), tokenizer)
    task.compile(AdamW(3e-3, bias_correction=True))
    task.fit(batches(corpus, tokenizer, batch_size=32).take(600), verbose=0)
    held = task.evaluate(batches(corpus, tokenizer, seed=9).take(40), return_dict=True, verbose=0)
    # Counting goes on from either side; the first words of a row are not known from one side alone.
    assert held["bidirectional_accuracy"] > 0.8
    for kind in KINDS:
        assert held[f"{kind}_accuracy"] > 0.5

    text = "w0 w3 w6 w9 w1 w4 w7 w10"
    asked = [text.replace("w1 ", "[MASK] ")]
    assert task.predict(asked, top_k=1)[0]["tokens"] == [["w1"]]
    task.save_to_preset(tmp_path)
    again = kbert.tasks.Task.from_preset(tmp_path)
    assert isinstance(again, UniLM)
    (answer,), (expected,) = again.predict(asked), task.predict(asked)
    assert answer["tokens"] == expected["tokens"]
    # A task computes its first answers eagerly, later ones in a graph, which rounds otherwise.
    np.testing.assert_allclose(answer["probabilities"], expected["probabilities"], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_two_replicas_and_one(corpus, tokenizer, mirrored):
    taken = [*batches(corpus, tokenizer).take(3).as_numpy_iterator()]
    check_replicas(functools.partial(make, tokenizer), mirrored, taken)


def test_bfloat16_is_close(tokenizer, batch):
    exact, rounded = (make(tokenizer, dtype) for dtype in ("float32", "mixed_bfloat16"))
    one, other = (pairs_of(task, batch) for task in (exact, rounded))
    np.testing.assert_allclose(other["mlm_loss"], one["mlm_loss"], rtol=0.05)
    rounded.compile(AdamW(1e-3))
    data = tf.data.Dataset.from_tensors(batch).repeat(3)
    assert np.isfinite(rounded.fit(data, verbose=0).history["loss"][0])


def test_it_begins_with_a_bert(tokenizer, tmp_path):
    """New segments are those of a pair, as in the original's code."""
    config = kbert.EncoderConfig(**{**SIZES, "num_segments": 2})
    bert = Pretraining(kbert.Encoder(config), tokenizer)
    randomise(bert.encoder)
    bert.save_to_preset(tmp_path)
    task = kbert.tasks.adapt(
        tmp_path, tokenizer, make_task=UniLM, changes={"num_segments": 6, "dropout": 0.1}
    )
    old, new = (ops.convert_to_numpy(x.encoder.embeddings.segment) for x in (bert, task))
    np.testing.assert_array_equal(new, old[[0, 1, 0, 0, 0, 1]])
    asked = ["w0 w3 [MASK] w9"]
    assert task.predict(asked) == bert.predict(asked)
    task.save_to_preset(tmp_path / "unilm")
    again = kbert.tasks.adapt(tmp_path / "unilm", tokenizer, make_task=UniLM)
    assert again.predict(asked) == bert.predict(asked)


def test_for_transformers_it_is_a_bert(tokenizer, tmp_path):
    task, asked = make(tokenizer), ["w0 w3 [MASK] w9"]
    task.save_to_preset(tmp_path, format="huggingface")
    again = Pretraining.from_preset(tmp_path)
    assert again.encoder.config.num_segments == 6
    assert again.predict(asked) == task.predict(asked)


def test_what_does_not_fit_is_refused(corpus, tokenizer, batch):
    for changes, message in (
        ({"num_segments": 2}, r"must have num_segments=6.*Received: num_segments=2"),
        (
            {"part": {"name": "global_tokens"}, "attention_pattern": (4,)},
            r"must support `attention_order`.*global_tokens",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            make(tokenizer, **changes)
    task = make(tokenizer, num_segments=0)
    assert pairs_of(task, batch)["seq2seq_loss"][1] > 0
    with pytest.raises(ValueError, match=r"must contain attention_order: make the dataset with"):
        task.loss_terms({k: x for k, x in batch.items() if k != "attention_order"}, training=False)
    other = Pretraining(task.encoder, tokenizer, next_sentence=False)
    with pytest.raises(ValueError, match=r"hide tokens from each other: use kbert.tasks.UniLM"):
        other.loss_terms(batch, training=False)
