"""What tasks that write share: batches of one width, and SavedModels with the decoding inside."""

import numpy as np
import pytest
import tensorflow as tf

from kbert.decoding import Beam, Greedy, Sampling
from kbert.decoding.methods import from_json, to_json
from kbert.tasks.generation.base import batches_of_like_width, padded
from tests.export import session
from tests.tasks.generation import writing
from tests.tasks.pretraining.test_export import operations

TEXTS = ["a b c", "", "h g f e d", "ж a", "a b c d e f g h " * 5]


def test_every_row_is_in_a_batch_of_its_width():
    lengths = np.random.default_rng(0).integers(0, 50, 100)
    seen = []
    for width, rows in batches_of_like_width(lengths, 45, 8):
        assert 0 < len(rows) <= 8
        assert width in (16, 32, 45)
        assert (np.minimum(lengths[rows], 45) <= width).all()
        assert width == 16 or (lengths[rows] > width - 16).all()
        seen += rows.tolist()
    assert sorted(seen) == list(range(100))


def test_padding():
    ids, mask = padded([np.array([5, 6]), np.array([], int), np.array([7])], 2, 9)
    assert ids.tolist() == [[5, 6], [9, 9], [7, 9]]
    assert mask.tolist() == [[1, 1], [0, 0], [1, 0]]
    assert ids.dtype == mask.dtype == np.int32


@pytest.mark.graphs
@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("make", "method"),
    [(writing.translator, Greedy()), (writing.causal_lm, Beam(width=2))],
    ids=["translator", "causal_lm"],
)
def test_decoding_is_the_same_in_a_graph_of_any_shape(make, method):
    """TensorFlow's CPU graphs gave nothing once: a fused product in the loop (see attention.py)."""
    task = make(sigma=0.3)
    rng = np.random.default_rng(0)
    mask = (np.arange(7) < np.array([7, 3, 5])[:, None]).astype("int32")
    ids = rng.integers(5, 13, mask.shape).astype("int32")
    names = ("encoder_token_ids", "encoder_padding_mask")
    if make is writing.causal_lm:
        names = ("token_ids", "padding_mask")
    features = dict(zip(names, (ids, mask), strict=True))
    want = task.decode(features, method, 9)
    found = task.decode_batch(features, method, 9, row_numbers=np.arange(3))
    np.testing.assert_array_equal(found.token_ids, want.token_ids)
    np.testing.assert_array_equal(found.lengths, want.lengths)
    np.testing.assert_allclose(found.scores, want.scores, atol=1e-4)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_a_served_translator(tmp_path):
    task = writing.translator(sigma=0.3)
    beam = Beam(width=3, num_results=2)
    path = task.export(tmp_path, method=beam, max_new_tokens=9)
    assert not {"PyFunc", "EagerPyFunc"} & operations(path)
    found, default, nothing = session.ask_json(
        path,
        ("translate", {"text": TEXTS}),
        ("serving_default", {"text": TEXTS[:1]}),
        ("translate", {"text": []}),
    )
    short = TEXTS[:4]
    texts, scores = task.predict(short, method=beam, max_new_tokens=9, return_scores=True)
    assert found["translation"][:4] == texts
    assert default["translation"] == texts[:1]
    np.testing.assert_allclose(found["scores"][:4], scores, atol=1e-4)
    # A text that is too long is cut, where `predict` raises.
    cut = task.predict(" ".join(TEXTS[4].split()[:31]), method=beam, max_new_tokens=9)
    assert found["translation"][4:] == cut
    assert nothing == {"translation": [], "scores": []}


@pytest.mark.tensorflow
def test_a_served_language_model(tmp_path):
    task = writing.causal_lm()
    path = task.export(tmp_path, max_new_tokens=8)
    assert not {"PyFunc", "EagerPyFunc"} & operations(path)
    long = "a b c d e f g h " * 8
    (found,) = session.ask(path, ("generate", {"prompt": [*TEXTS[:4], long]}))
    texts, scores = task.predict(TEXTS[:4], max_new_tokens=8, return_scores=True)
    written = [text.decode() for text in found["continuation"][:, 0]]
    assert written[:4] == texts
    np.testing.assert_allclose(found["scores"][:4, 0], scores, atol=1e-4)
    # Of a prompt that is too long the end is read.
    end = " ".join(long.split()[-56:])
    assert written[4:] == task.predict(end, max_new_tokens=8)


@pytest.mark.tensorflow
def test_a_served_sampling_draws_at_random_or_by_a_seed():
    task = writing.causal_lm()
    prompts = tf.constant(["a b"] * 4)
    drawn = []
    for seed in (None, 3):
        entry = task.signatures(method=Sampling(), max_new_tokens=6, seed=seed)["generate"]
        generate = tf.function(entry.function, input_signature=entry.inputs)
        drawn.append([generate(prompts)["continuation"].numpy().tolist() for _ in range(2)])
    (one, two), (three, four) = drawn
    assert one != two
    assert three == four
    asked = task.predict(["a b"] * 4, method=Sampling(), max_new_tokens=6, seed=3)
    assert [text.decode() for (text,) in three] == asked


@pytest.mark.parametrize("method", [Greedy(), Sampling(top_p=0.5), Beam(width=2)], ids=repr)
def test_settings_travel_to_another_process(method):
    assert from_json(to_json(method)) == method
    assert from_json({"seed": 3}) == {"seed": 3}
