"""A pretrained folder is trained further, with words added to its vocabulary."""

import functools

import numpy as np
import pytest
from keras import ops

import kbert
from tests.harness import tiny_config


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_vocabulary):
    folder = tmp_path_factory.mktemp("adaptation") / "old"
    tokenizer = kbert.WordPieceTokenizer(tiny_vocabulary)
    config = tiny_config(vocabulary_size=tokenizer.vocabulary_size)
    kbert.tasks.Pretraining(kbert.Encoder(config), tokenizer).save_to_preset(folder)
    return folder


def test_new_words_start_as_the_mean_of_their_pieces(folder, tiny_vocabulary):
    old = kbert.tasks.Pretraining.from_preset(folder)
    longer = kbert.WordPieceTokenizer([*tiny_vocabulary, "foxes"])
    new = kbert.tasks.adapt(folder, longer, changes={"dropout": 0.3})
    table, before = (ops.convert_to_numpy(t.encoder.token_embedding) for t in (new, old))
    pieces = old.tokenizer.encode(["foxes"]).to_list()[0]
    assert len(pieces) > 1
    np.testing.assert_array_equal(table[:-1], before)
    np.testing.assert_allclose(table[-1], before[pieces].mean(0), rtol=1e-5, atol=1e-7)
    assert new.encoder.config.dropout == 0.3
    # Every other weight is the old one, heads included.
    for a, b in zip(new.trainable_variables, old.trainable_variables, strict=True):
        if tuple(a.shape) == tuple(b.shape):
            np.testing.assert_array_equal(ops.convert_to_numpy(a), ops.convert_to_numpy(b))


def test_a_head_that_is_not_there_is_newly_initialised_and_named(folder, tmp_path, caplog):
    encoder = kbert.Encoder.from_preset(folder)
    encoder.save_to_preset(tmp_path / "bare")
    tokenizer = kbert.load_tokenizer(folder)
    tokenizer.save(tmp_path / "bare")
    make_task = functools.partial(kbert.tasks.Pretraining, sentence_order=True)
    task = kbert.tasks.adapt(tmp_path / "bare", tokenizer, make_task=make_task)
    assert task.sentence_order
    assert "has no masked_lm: it is newly initialised" in caplog.text


def test_another_vocabulary_is_refused(folder, tiny_vocabulary):
    other = kbert.WordPieceTokenizer([*tiny_vocabulary[:-1], "foxes"])
    with pytest.raises(ValueError, match=r"preset's vocabulary.*Received: a tokenizer of"):
        kbert.tasks.adapt(folder, other)


def test_rows_that_padded_the_table_start_from_pieces_too(tmp_path, tiny_vocabulary):
    tokenizer = kbert.WordPieceTokenizer(tiny_vocabulary)
    size = tokenizer.vocabulary_size
    padded = tiny_config(vocabulary_size=size + 3)
    old = kbert.tasks.Pretraining(kbert.Encoder(padded), tokenizer)
    old.save_to_preset(tmp_path)
    new = kbert.tasks.adapt(tmp_path, kbert.WordPieceTokenizer([*tiny_vocabulary, "foxes"]))
    table, before = (ops.convert_to_numpy(t.encoder.token_embedding) for t in (new, old))
    pieces = tokenizer.encode(["foxes"]).to_list()[0]
    np.testing.assert_allclose(table[size], before[pieces].mean(0), rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(np.delete(table, size, 0), np.delete(before, size, 0))


def test_a_continuation_starts_from_the_pieces_inside_a_word(tmp_path):
    pieces = [*kbert.tokenizers.SPECIAL_TOKENS, *"#ing", "##i", "##n", "##g", "##ng"]
    tokenizer = kbert.WordPieceTokenizer(pieces)
    config = tiny_config(vocabulary_size=len(pieces))
    kbert.tasks.Pretraining(kbert.Encoder(config), tokenizer).save_to_preset(tmp_path)
    longer = kbert.WordPieceTokenizer([*pieces, "##ing", "##ix", "##"])
    new = kbert.tasks.adapt(tmp_path, longer)
    table = ops.convert_to_numpy(new.encoder.token_embedding)

    def mean(*names):
        return table[[tokenizer.token_to_id(name) for name in names]].mean(0)

    np.testing.assert_allclose(table[-3], mean("##i", "##ng"), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(table[-2], mean("[UNK]"), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(table[-1], mean("#"), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"lowercase": False}, "lowercase=False, strip_accents=False"),
        ({"strip_accents": False}, "strip_accents=False"),
        ({"split_chinese": False}, "split_chinese=False"),
    ],
)
def test_another_way_to_read_text_is_refused(folder, tiny_vocabulary, options, named):
    other = kbert.WordPieceTokenizer(tiny_vocabulary, **options)
    with pytest.raises(ValueError, match=f"preset's tokenizer. .* a tokenizer with {named}, "):
        kbert.tasks.adapt(folder, other)


def test_accents_stripped_by_the_rule_or_by_name_are_the_same(folder, tiny_vocabulary):
    kbert.tasks.adapt(folder, kbert.WordPieceTokenizer(tiny_vocabulary, strip_accents=True))
