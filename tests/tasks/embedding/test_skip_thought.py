"""Skip-Thought: what the two decoders write, see and leave behind."""

import numpy as np
import pytest

import kbert
from kbert.data import as_table
from kbert.models.weights import get_arrays
from kbert.tasks import SkipThought, TextEmbedder
from tests.harness import assert_close, randomise, tiny_config

WORDS = ["the", "red", "fox", "a", "dog", "sees", "and", "old", "house", "big"]


@pytest.fixture
def tokenizer():
    return kbert.WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])


@pytest.fixture
def task(tokenizer):
    config = tiny_config(vocabulary_size=tokenizer.vocabulary_size, max_positions=32)
    encoder = kbert.Encoder(config)
    randomise(encoder)
    return SkipThought(encoder, tokenizer, decoder_layers=1)


def rows_of(count, seed=0):
    """Sentences whose neighbours are the word before and the word after each of theirs."""
    draw = np.random.default_rng(seed)
    texts = [draw.integers(0, 10, draw.integers(1, 4)) for _ in range(count)]
    return {
        name: [" ".join(WORDS[(i + shift) % 10] for i in text) for text in texts]
        for name, shift in (("previous", -1), ("text", 0), ("next", 1))
    }


def batch_of(task, rows):
    tokenized = task.tokenize(as_table(rows), labelled=True)
    return next(iter(task.batches(tokenized, batch_size=8).as_numpy_iterator()))


def logits_of(task, batch):
    """side -> logits (B, T - 1, V) of the neighbour's tokens."""
    outputs = task(batch)
    return {side: np.asarray(outputs[f"{side}_tokens"].logits()) for side in ("next", "previous")}


def test_batches_hold_each_sentence_with_its_neighbours(task, tokenizer):
    rows = rows_of(8)
    batch = batch_of(task, rows)
    for column, ids, mask in (
        ("text", "token_ids", "padding_mask"),
        ("previous", "previous_ids", "previous_mask"),
        ("next", "next_ids", "next_mask"),
    ):
        wanted = tokenizer.encode(rows[column]).to_list()
        for row, found, real in zip(batch["rows"], batch[ids], batch[mask], strict=True):
            assert found[real == 1].tolist() == [2, *wanted[row], 3]


def test_each_decoder_writes_its_side_from_the_embedding_alone(task):
    randomise(task.next_decoder)
    randomise(task.previous_decoder)
    batch = batch_of(task, rows_of(8))
    before = logits_of(task, batch)
    for side, other in (("next", "previous"), ("previous", "next")):
        changed = {**batch, f"{side}_ids": batch[f"{side}_ids"].copy()}
        changed[f"{side}_ids"][:, 2:] = 7
        after = logits_of(task, changed)
        assert_close(after[side][:, :2], before[side][:, :2], 1e-5)
        assert_close(after[other], before[other], 1e-5)
        assert np.abs(after[side] - before[side]).max() > 1e-3
    other = {**batch, "token_ids": batch["token_ids"][::-1].copy()}
    other["padding_mask"] = batch["padding_mask"][::-1].copy()
    for side in ("next", "previous"):
        logits = logits_of(task, other)[side]
        assert np.abs(logits - before[side]).max() > 1e-3


def test_decoders_begin_as_the_encoder_and_share_nothing_else(task):
    blocks = get_arrays(task.encoder, "encoder")
    for side in ("next", "previous"):
        decoder = get_arrays(task.parts[f"{side}_decoder"], "decoder")
        shared = [n for n in decoder if n.replace("decoder/", "encoder/") in blocks]
        assert shared
        for name in shared:
            wanted = blocks[name.replace("decoder/", "encoder/")]
            np.testing.assert_array_equal(decoder[name], wanted)
    weights = [{id(w) for w in part.weights} for part in task.parts.values()]
    assert sum(map(len, weights)) == len(set().union(*weights))


def test_loss_is_the_sum_of_both_sides(task):
    rows = rows_of(6)
    batch = batch_of(task, rows)
    losses, _ = task.terms(task(batch), batch)
    total = 0.0
    for side in ("next", "previous"):
        logits = logits_of(task, batch)[side].astype(np.float64)
        logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        targets, mask = batch[f"{side}_ids"][:, 1:], batch[f"{side}_mask"][:, 1:]
        chosen = np.take_along_axis(logs, targets[..., None], 2)[..., 0]
        numerator, denominator = losses[f"{side}_loss"]
        mask = mask * batch["label_weights"][:, None]
        assert float(numerator) == pytest.approx(-(chosen * mask).sum(), rel=1e-4)
        total += float(numerator) / float(denominator)
    assert task.evaluate(rows, verbose=0)["loss"] == pytest.approx(total, rel=1e-4)


@pytest.mark.slow
def test_it_learns(task):
    rows = {name: texts * 8 for name, texts in rows_of(4, seed=1).items()}
    before = task.evaluate(rows, verbose=0)["loss"]
    task.fit(rows, epochs=12, learning_rate=1e-2, batch_size=8, verbose=0)
    assert task.evaluate(rows, verbose=0)["loss"] < 0.5 * before


def test_a_folder_holds_both_decoders_and_an_embedder_leaves_them(task, tmp_path):
    rows = rows_of(5)
    randomise(task.next_decoder)
    after = task.evaluate(rows, verbose=0)
    task.save_to_preset(tmp_path / "skip")
    again = kbert.tasks.Task.from_preset(tmp_path / "skip")
    assert isinstance(again, SkipThought)
    assert again.evaluate(rows, verbose=0) == pytest.approx(after, abs=1e-5)
    vectors = task.predict(rows["text"])
    assert_close(task.embedder.predict(rows["text"]), vectors, 1e-5)
    embedder = TextEmbedder.from_preset(tmp_path / "skip", new_head=True, token_pooling="cls")
    assert_close(embedder.predict(rows["text"]), vectors, 1e-5)


def test_refused(task, tokenizer):
    with pytest.raises(ValueError, match=r"columns previous, text and next.*without previous"):
        task.fit({"text": ["the fox"], "next": ["a dog"]}, verbose=0)
    with pytest.raises(TypeError, match="next"):
        task.fit({"previous": ["a"], "text": ["the fox"], "next": [3]}, verbose=0)
    config = tiny_config(vocabulary_size=tokenizer.vocabulary_size).replace(embedding_size=8)
    with pytest.raises(ValueError, match="must equal its `hidden_size`"):
        SkipThought(kbert.Encoder(config), tokenizer)
