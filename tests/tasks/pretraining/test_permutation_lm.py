"""XLNet's objective: what is seen of a permuted row, and what its loss is the loss of."""

import contextlib
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert.configs import XlnetConfig
from kbert.data import pretraining_dataset
from kbert.data.masking.hashing import fold
from kbert.data.masking.masking import reading_order
from kbert.data.masking.ngrams import PERMUTATION_WEIGHTS, draw_lengths
from kbert.tasks import PermutationLM, Pretraining
from tests.harness import to_numpy
from tests.tasks import toy

LENGTH, WORDS = 8, 5


def make(tokenizer, memory_length=0, batch_size=None, **changes):
    """A model whose random weights are large enough to tell every token."""
    keras.utils.set_random_seed(3)
    values = {
        **{"vocabulary_size": tokenizer.vocabulary_size, "hidden_size": 16, "num_layers": 2},
        **{"num_heads": 2, "intermediate_size": 32, "max_positions": 32, "dropout": 0.0},
        **{"attention_dropout": 0.0, "initializer_range": 0.3, "pooler_activation": None},
    }
    encoder = kbert.Encoder(XlnetConfig(**{**values, **changes}))
    return PermutationLM(encoder, tokenizer, memory_length=memory_length, batch_size=batch_size)


@pytest.fixture
def task(tokenizer):
    return make(tokenizer)


@pytest.fixture(scope="module")
def tiny():
    """A vocabulary of five words behind the special tokens."""
    return kbert.WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcde"])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, tokenizer):
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    rng, rules = np.random.default_rng(0), [*toy.RULES.items()]
    documents = (
        "\n".join("the {} {}".format(*rules[rng.integers(len(rules))]) for _ in range(9))
        for _ in range(40)
    )
    path.write_text("\n\n".join(documents))
    return path


# The text is at 0, 2 and 5; 3, 1 and 4 are predicted, read in that order; 6 and 7 are special.
ORDER = np.array([[0, 4, 0, 2, 6, 0, 3, 8]], "int32")
TARGETS = np.array([[3, 1, 4]], "int32")


def a_row(ids, order=ORDER, targets=TARGETS):
    """Or several, all of this order."""
    ids = np.asarray(ids, "int32").reshape(-1, LENGTH)
    order, targets = (np.repeat(x, len(ids), axis=0) for x in (order, targets))
    return {
        "token_ids": ids,
        "padding_mask": np.ones_like(ids),
        "order_ids": order,
        "mask_positions": targets,
        "mask_ids": np.take_along_axis(ids, targets, 1),
        "mask_weights": np.ones(targets.shape, "float32"),
    }


def probabilities(task, row):
    return probabilities_of_rows(task, row)[0]


def probabilities_of_rows(task, rows):
    logits = to_numpy(task(rows)["permutation_lm"]).astype("float64")
    exponents = np.exp(logits - logits.max(-1, keepdims=True))
    return exponents / exponents.sum(-1, keepdims=True)


def test_a_prediction_is_from_what_is_read_before_it_and_from_nothing_else(tiny):
    """By brute force: every token in turn becomes every other of the five words."""
    task = make(tiny)
    ids = np.array([5, 6, 7, 8, 9, 5, 3, 2])
    changes = itertools.product(range(LENGTH), range(5, 5 + WORDS))
    changes = [(place, word) for place, word in changes if ids[place] != word]
    rows = np.repeat(ids[None], 1 + len(changes), axis=0)
    for row, (place, word) in zip(rows[1:], changes, strict=True):
        row[place] = word
    before, *after = probabilities_of_rows(task, a_row(rows))
    for (place, _), found in zip(changes, after, strict=True):
        change = np.abs(found - before).max(-1)
        for number, target in enumerate(TARGETS[0]):
            if ORDER[0, place] < ORDER[0, target]:
                assert change[number] > 1e-4, (place, target)
            else:
                assert change[number] < 1e-7, (place, target)


def test_the_loss_is_of_a_distribution_of_all_that_could_be_there(tiny):
    """The product of the predictions is a probability: of all 125 triples it sums up to one."""
    task = make(tiny)
    text = [5, 0, 7, 0, 0, 5, 3, 2]
    words = np.array([*itertools.product(range(5, 5 + WORDS), repeat=3)])
    ids = np.tile(text, (len(words), 1))
    ids[:, TARGETS[0]] = words
    whole = probabilities_of_rows(task, a_row(ids))
    # Of the five words alone.
    found = whole[..., 5:] / whole[..., 5:].sum(-1, keepdims=True)
    likelihoods = np.take_along_axis(found, words[..., None] - 5, -1).prod(axis=1)
    assert likelihoods.shape == (125, 1)
    assert likelihoods.sum() == pytest.approx(1.0, abs=1e-6)
    expected = -np.log(np.take_along_axis(whole[0], words[0][:, None], -1)).mean()
    losses, _ = task.loss_terms(a_row(ids[0]), training=False)
    sums, weights = (float(x) for x in losses["plm_loss"])
    assert sums / weights == pytest.approx(expected, rel=1e-5)


def test_every_order_is_as_likely():
    """Of three predicted and a special token: 24 orders, by Pearson's test."""
    rows = 12_000
    positions = tf.tile([[1, 2, 4, 0]], [rows, 1])
    special = tf.tile([[False] * 5 + [True]], [rows, 1])
    order = reading_order(fold(fold(0, 7), tf.range(rows)), positions, special).numpy()
    assert not order[:, [0, 3]].any()
    waiting = order[:, [1, 2, 4, 5]]
    assert waiting.min() > 0
    assert all(len(set(row)) == 4 for row in waiting[:100])
    _, counts = np.unique(np.argsort(waiting, axis=1), axis=0, return_counts=True)
    assert len(counts) == 24
    expected = rows / 24
    assert ((counts - expected) ** 2 / expected).sum() < 52.6  # 0.0005 of 23 degrees


def test_lengths_are_of_one_to_five_words():
    lengths = draw_lengths(fold(0, 1), tf.range(60_000), PERMUTATION_WEIGHTS).numpy()
    shares = np.bincount(lengths, minlength=6)[1:] / len(lengths)
    expected = np.array([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5])
    np.testing.assert_allclose(shares, expected / expected.sum(), atol=0.008)


def batches(corpus, tokenizer, **settings):
    values = {"sequence_length": 16, "batch_size": 8, "masked_share": 1 / 6, **settings}
    return pretraining_dataset(
        corpus, tokenizer, masking="permutation", cache_dir=corpus.parent / "cache", **values
    )


@pytest.mark.parametrize(
    "segments", [pytest.param("single", marks=pytest.mark.slow), "consecutive"]
)
def test_rows_end_in_cls_and_are_read_text_first(corpus, tokenizer, segments):
    for batch in batches(corpus, tokenizer, segments=segments).take(4):
        batch = {name: x.numpy() for name, x in batch.items()}
        used = batch["mask_weights"] > 0
        for n, ids in enumerate(batch["token_ids"]):
            length = batch["padding_mask"][n].sum()
            assert (ids[length - 2], ids[length - 1]) == (tokenizer.sep_id, tokenizer.cls_id)
            assert (ids[:length] == tokenizer.cls_id).sum() == 1
            second = np.flatnonzero(ids[:length] == tokenizer.sep_id)[0] + 1
            segment = np.where(np.arange(length) < second, 0, 1)
            segment[-1] = 2
            np.testing.assert_array_equal(batch["segment_ids"][n, :length], segment)
            positions = batch["mask_positions"][n][used[n]]
            np.testing.assert_array_equal(ids[positions], batch["mask_ids"][n][used[n]])
            specials = np.flatnonzero(np.isin(ids[:length], [tokenizer.sep_id, tokenizer.cls_id]))
            later = np.flatnonzero(batch["order_ids"][n])
            np.testing.assert_array_equal(later, np.sort([*positions, *specials]))


@pytest.mark.slow
def test_packed_rows_have_the_same_loss(corpus, tokenizer):
    task = make(tokenizer)
    task.compile("sgd")
    alone, packed = (
        task.evaluate(
            batches(
                *(corpus, tokenizer),
                sequence_length=24,
                batch_size=32,
                epochs=1,
                short_sequence_share=0.9,
                **x,
            ),
            return_dict=True,
            verbose=0,
        )
        for x in ({}, {"pack": True})
    )
    assert packed["plm_loss"] == pytest.approx(alone["plm_loss"], rel=1e-5)
    assert packed["plm_accuracy"] == pytest.approx(alone["plm_accuracy"], abs=1e-6)


@pytest.mark.slow
@pytest.mark.graphs
def test_it_learns_and_comes_back(corpus, tokenizer, tmp_path):
    task = make(tokenizer, initializer_range=0.05, hidden_size=32, num_layers=1)
    task.compile(kbert.training.AdamW(1e-2, bias_correction=True))
    history = task.fit(batches(corpus, tokenizer), steps_per_epoch=120, epochs=2, verbose=0).history
    words = np.concatenate([b["mask_ids"][b["mask_weights"] > 0] for b in
                            batches(corpus, tokenizer, epochs=1)])  # fmt: skip
    most_frequent = np.bincount(words).max() / len(words)
    assert history["plm_accuracy"][1] > 1.3 * most_frequent
    task.save_to_preset(tmp_path)
    again = kbert.tasks.Task.from_preset(tmp_path)
    assert type(again) is PermutationLM
    text = [f"{tokenizer.vocabulary[9]} [MASK] {tokenizer.vocabulary[12]} [MASK]"]
    assert again.predict(text) == task.predict(text)
    assert [len(x) for x in again.predict(text)[0]["tokens"]] == [5, 5]


def test_masks_are_filled_from_the_text_alone(tiny):
    """What stands in the place of one mask does not change the answers for another."""
    task = make(tiny)
    (found,) = task.predict(["[MASK] b [MASK]"], candidates=list("abcde"))
    for other in (4, 5, 9):
        ids = np.array([[4, 6, other, 3, 2]], "int32")
        row = {
            **{"token_ids": ids, "order_ids": np.array([[1, 0, 1, 0, 0]], "int32")},
            **{"mask_positions": np.array([[0]], "int32"), "padding_mask": np.ones_like(ids)},
            "segment_ids": np.array([[0, 0, 0, 0, 2]], "int32"),
        }
        expected = probabilities(task, row)[0, 5:]
        np.testing.assert_allclose(found["probabilities"][0], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"segments": "pairs"}, "segments without a label, such as \"single\".*segments='pairs'"),
        ({"replacement": (0.8, 0.1)}, "leave out `replacement` and `causal_share`"),
        ({"causal_share": 0.5}, "leave out `replacement` and `causal_share`"),
    ],
)
def test_what_permuted_rows_have_no_use_for_is_refused(corpus, tokenizer, settings, message):
    with pytest.raises(ValueError, match=message):
        batches(corpus, tokenizer, **settings)


def test_batches_of_others_are_refused(corpus, config, tokenizer, task):
    batch = next(iter(batches(corpus, tokenizer)))
    masked = Pretraining(kbert.Encoder(config), tokenizer, next_sentence=False)
    with pytest.raises(ValueError, match=r"use kbert.tasks.PermutationLM.*order_ids"):
        masked.loss_terms(batch, training=False)
    del batch["order_ids"]
    with pytest.raises(ValueError, match=r'make the dataset with masking="permutation"'):
        task.loss_terms(batch, training=False)
    with pytest.raises(TypeError, match="XLNet, made of an XlnetConfig"):
        PermutationLM(kbert.Encoder(config), tokenizer)


ROWS, MEMORY = 4, 10


def runs(corpus, tokenizer, **settings):
    values = {"segments": "runs", "batch_size": ROWS, "seed": 2, **settings}
    return batches(corpus, tokenizer, **values)


def remembering(tokenizer, strategy=None, **changes):
    with strategy.scope() if strategy else contextlib.nullcontext():
        task = make(tokenizer, memory_length=MEMORY, batch_size=ROWS, **changes)
        task.compile(kbert.training.AdamW(1e-2, bias_correction=True))
    return task


def test_each_row_goes_on_in_the_next_batch(corpus, tokenizer):
    """The texts of a row, batch by batch, are a piece of the corpus; all rows are all of it."""
    read = list(runs(corpus, tokenizer, epochs=1).as_numpy_iterator())
    assert [batch["begins"].tolist() for batch in read] == (
        [[1] * ROWS] + [[0] * ROWS for _ in read[1:]]
    )
    assert all(batch["padding_mask"].all() for batch in read[:-1])
    pieces = []
    for row in range(ROWS):
        for batch in read:
            ids, length = batch["token_ids"][row], batch["padding_mask"][row].sum()
            if length:
                text, second = ids[: length - 2], batch["segment_ids"][row, : length - 2] == 1
                cut = np.argmax(second) - 1 if second.any() else len(text)
                pieces += [*text[:cut], *text[cut + 1 :]]
    whole = " ".join(tokenizer.vocabulary[n] for n in pieces)
    documents = {text.replace("\n", " ") for text in corpus.read_text().split("\n\n")}
    found = whole.split(" [SEP] ")
    assert len(found) > 30  # but for those held out
    assert set(found) <= documents
    assert len(set(found)) == len(found)


@pytest.mark.slow
def test_it_resumes_at_any_batch_on_any_number_of_hosts(corpus, tokenizer):
    whole = list(runs(corpus, tokenizer).take(90).as_numpy_iterator())  # more than an epoch
    assert whole[-1]["position"][0, 0] > 0
    start = whole[6]["position"][0]
    hosts = [
        list(runs(corpus, tokenizer, start=start, num_hosts=2, host_index=n).take(83))
        for n in range(2)
    ]
    for batch, *parts in zip(whole[7:], *hosts, strict=True):
        for name, x in batch.items():
            np.testing.assert_array_equal(x, np.concatenate([part[name] for part in parts]), name)


@pytest.mark.slow
def test_a_row_reads_what_it_has_read_before(corpus, tokenizer):
    """Beside the encoder with its memory, by hand; a text that ends is forgotten."""
    task = remembering(tokenizer)
    read = [
        {name: x.numpy().copy() for name, x in batch.items()}
        for batch in runs(corpus, tokenizer).take(8)
    ]
    read[2]["padding_mask"][1, -3:] = 0
    read[5]["begins"][:] = 1
    width, layers = task.encoder.config.hidden_size, task.encoder.config.num_layers
    memory = np.zeros((layers, ROWS, MEMORY, width), "float32")
    without = make(tokenizer)
    differ = []
    for number, batch in enumerate(read):
        if number == 5:
            memory[:] = 0
        outputs = {k: to_numpy(x) for k, x in task({**batch, "memory": memory}).items()}
        memory = outputs["memory"] * batch["padding_mask"].min(1)[:, None, None]
        expected = keras.losses.sparse_categorical_crossentropy(
            batch["mask_ids"], outputs["permutation_lm"], from_logits=True
        )
        expected = float((to_numpy(expected) * batch["mask_weights"]).sum())
        total, _ = task.loss_terms(batch, training=True)[0]["plm_loss"]
        assert float(total) == pytest.approx(expected, rel=1e-5)
        differ.append(float(without.loss_terms(batch, True)[0]["plm_loss"][0]) - float(total))
        np.testing.assert_allclose(
            to_numpy(task.state.value).reshape(memory.shape), memory, atol=1e-5
        )
        assert (np.abs(memory[:, 1]).max() == 0) == (number == 2)
    assert np.abs(differ[0]) > 1e-4  # an empty memory is seen, as in the original


@pytest.mark.slow
def test_evaluations_have_a_memory_of_their_own(corpus, tokenizer):
    task = remembering(tokenizer)
    read = list(runs(corpus, tokenizer).take(4).as_numpy_iterator())
    data = tf.data.Dataset.from_tensor_slices(
        {name: np.stack([batch[name] for batch in read]) for name in read[0]}
    )
    task.fit(data, steps_per_epoch=3, verbose=0)
    state = to_numpy(task.state.value).copy()
    first, again = (task.evaluate(data, verbose=0, return_dict=True) for _ in range(2))
    assert first == again
    np.testing.assert_array_equal(to_numpy(task.state.value), state)
    assert state.any()


@pytest.mark.slow
@pytest.mark.tensorflow
def test_the_memory_is_that_of_one_device_on_two(mirrored, corpus, tokenizer):
    found = []
    for strategy in (None, mirrored):
        task = remembering(tokenizer, strategy)
        history = task.fit(runs(corpus, tokenizer), steps_per_epoch=6, verbose=0).history
        found.append((history["plm_loss"][0], to_numpy(task.state.value)))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    np.testing.assert_allclose(found[0][1], found[1][1], atol=1e-4)


def test_a_task_that_remembers_comes_back(corpus, tokenizer, tmp_path):
    task = remembering(tokenizer)
    task.save_to_preset(tmp_path)
    again = kbert.tasks.Task.from_preset(tmp_path)
    assert (again.memory_length, again.batch_size) == (MEMORY, ROWS)


def test_what_cannot_be_remembered_is_refused(corpus, tokenizer):
    for length, rows in ((-1, None), (1.5, 2), (3, 0), (3, "2")):
        with pytest.raises(ValueError, match=r"`(memory_length|batch_size)` must be an integer"):
            make(tokenizer, memory_length=length, batch_size=rows)
    with pytest.raises(ValueError, match=r"neither for no memory. Received: memory_length=3"):
        make(tokenizer, memory_length=3)
    with pytest.raises(ValueError, match=r"neither for no memory. Received: memory_length=0"):
        make(tokenizer, batch_size=3)
    task = remembering(tokenizer)
    with pytest.raises(ValueError, match=r'segments="runs". Received: mask_ids'):
        task.fit(batches(corpus, tokenizer, batch_size=ROWS), steps_per_epoch=1, verbose=0)
    with pytest.raises(ValueError, match="batch_size=4 of the state"):
        task.fit(runs(corpus, tokenizer, batch_size=2), steps_per_epoch=1, verbose=0)
    with pytest.raises(ValueError, match="must be 1 for a model with a memory"):
        task.compile("sgd", micro_batches=2)
    for settings in ({"pack": True}, {"short_sequence_share": 0.1}):
        with pytest.raises(
            ValueError, match="Sequences that continue in the next batch must be full"
        ):
            runs(corpus, tokenizer, **settings)
