"""Students of encoder-decoders have their teacher's layers, and train further."""

import numpy as np
import pytest

import kbert
from kbert.distillation import seq2seq_student
from kbert.models.weights import get_arrays
from tests.harness import randomise
from tests.tasks.generation import writing


def teacher(**changes):
    config = kbert.Seq2SeqConfig(
        vocabulary_size=16, max_positions=32, **{**writing.SIZES, "num_layers": 4, **changes}
    )
    model = kbert.Seq2Seq(config)
    randomise(model)
    return model


@pytest.mark.parametrize(
    ("count", "copied"),
    [
        (6, [0, 2, 4, 7, 9, 11]),
        (3, [0, 6, 11]),
        (np.int64(3), [0, 6, 11]),
        (1, [0]),
        (12, list(range(12))),
        ([5, 5], [5, 5]),
    ],
    ids=str,
)
def test_which_layers_are_copied(count, copied):
    model = teacher(num_layers=1, num_decoder_layers=12)
    small = seq2seq_student(model, count)
    assert small.config.decoder_layers == len(copied)
    for ours, theirs in zip(small.decoder_blocks, copied, strict=True):
        expected = get_arrays(model.decoder_blocks[theirs], "x")
        for name, array in get_arrays(ours, "x").items():
            np.testing.assert_array_equal(array, expected[name])


def test_all_layers_give_the_same_model_and_half_of_them_half_the_decoder():
    model = teacher(positions="relative", norm="rms", use_bias=False)
    batch = {"encoder_token_ids": np.array([[5, 6, 7]]), "decoder_token_ids": np.array([[2, 8]])}
    same = seq2seq_student(model, 4)
    np.testing.assert_array_equal(same(batch)["sequence"], model(batch)["sequence"])
    small = seq2seq_student(model, encoder_layers=[0, 3])
    assert (small.config.num_layers, small.config.num_decoder_layers) == (2, None)


def test_a_task_keeps_its_settings_and_learns_from_the_teacher_s_answers():
    task = kbert.TextToText(teacher(), writing.tokenizer(), prefix="h ", beam_width=2)
    small = seq2seq_student(task)
    assert (small.settings, small.seq2seq.config.decoder_layers) == (task.settings, 2)
    texts = [source for source, _ in writing.reversed_pairs(8)]
    answers = task.predict(texts, max_new_tokens=6)
    how = {"epochs": 15, "batch_size": 8, "learning_rate": 5e-3, "verbose": 0}
    losses = small.fit(texts, answers, **how).history["loss"]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("layers", [0, 5, [], [4], [-1], True, False, np.int64(0)], ids=repr)
def test_layers_that_the_teacher_lacks(layers):
    with pytest.raises(
        ValueError, match=r"`decoder_layers` must be a number from 1 to 4.*Received"
    ):
        seq2seq_student(teacher(), layers)


def test_a_network_of_one_side_is_no_teacher():
    with pytest.raises(TypeError, match=r"must be a kbert.Seq2Seq.*Received: a str"):
        seq2seq_student("bart")
