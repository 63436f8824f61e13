"""Loss surfaces of models whose surface is known, and of a fine-tuned task."""

import keras
import numpy as np
import pytest

import kbert
from kbert.analysis import copy_weights, loss_surface, random_direction
from tests.harness import randomise, tiny_config

TEXTS = ["red fox", "blue river", "red book", "blue king"]
LABELS = ["warm", "cold", "warm", "cold"]


@pytest.fixture
def bowl():
    """Loss 0.5 |w - 1|² of two weights, for these data."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False, name="w")])
    model.compile(loss="mse")
    return model, np.eye(2, dtype="float32"), np.ones((2, 1), "float32")


def weights(*values):
    return {"w/kernel": np.array(values, "float32")[:, None]}


def task(vocabulary):
    tokenizer = kbert.WordPieceTokenizer(vocabulary)
    encoder = kbert.Encoder(tiny_config(vocabulary_size=len(vocabulary), num_layers=1))
    randomise(encoder)
    return kbert.tasks.TextClassifier(encoder, tokenizer, ["cold", "warm"], max_length=8)


def test_a_line_through_a_bowl(bowl):
    before = bowl[0].get_weights()[0]
    surface = loss_surface(
        *bowl, start=weights(0, 0), end=weights(1, 1), alphas=(-1, 2, 7), path=[weights(0.5, 0)]
    )
    np.testing.assert_allclose(surface.alphas, np.linspace(-1, 2, 7))
    np.testing.assert_allclose(surface.losses, (surface.alphas - 1) ** 2, atol=1e-6)
    assert surface.betas is None
    np.testing.assert_allclose(surface.path, [[0.25]])  # the nearest point of the line
    np.testing.assert_array_equal(bowl[0].get_weights()[0], before)


def test_a_plane_of_two_models(bowl):
    surface = loss_surface(
        *bowl,
        start=weights(0, 0),
        end=weights(1, 0),
        second=weights(1, 1),
        alphas=(0, 1, 3),
        betas=(0, 2, 5),
        path=[weights(0.5, 0.25), weights(3, 2)],
    )
    alpha, beta = np.meshgrid(surface.alphas, surface.betas, indexing="ij")
    expected = 0.5 * ((alpha + beta - 1) ** 2 + (beta - 1) ** 2)
    np.testing.assert_allclose(surface.losses, expected, atol=1e-6)
    np.testing.assert_allclose(surface.path, [[0.25, 0.25], [1, 2]], atol=1e-6)


def test_the_second_direction_of_a_path_is_where_it_leaves_the_line(bowl):
    path = [weights(0.2, 0.3), weights(0.7, 0.6), weights(2, 0)]
    surface = loss_surface(
        *bowl, start=weights(0, 0), end=weights(2, 0), second="path", path=path, betas=(0, 1, 2)
    )
    sign = np.sign(surface.path[0, 1])
    np.testing.assert_allclose(surface.path[:, 0], [0.1, 0.35, 1], atol=1e-6)
    np.testing.assert_allclose(surface.path[:, 1] * sign, [0.15, 0.3, 0], atol=1e-6)


def test_filters_of_a_random_direction_are_as_long_as_those_of_the_weights():
    rng = np.random.default_rng(0)
    arrays = {"matrix": rng.normal(size=(5, 3)), "cube": rng.normal(size=(2, 4, 3))}
    arrays |= {"bias": rng.normal(size=3)}
    direction = random_direction(arrays, seed=1)
    for name, axes in (("matrix", 0), ("cube", (0, 1))):
        lengths = [np.sqrt(np.square(x[name]).sum(axes)) for x in (arrays, direction)]
        np.testing.assert_allclose(*lengths, rtol=1e-5)
    assert not direction["bias"].any()
    assert not np.allclose(direction["cube"], random_direction(arrays, seed=2)["cube"])


def test_a_fine_tuned_task_from_its_run(tiny_vocabulary, tmp_path):
    model = task(tiny_vocabulary)
    start = copy_weights(model)
    run = {"model_dir": tmp_path, "keep_checkpoints": 9, "checkpoint_every": 2}
    model.fit(TEXTS, LABELS, epochs=3, batch_size=2, learning_rate=1e-3, verbose=0, **run)
    end = copy_weights(model)
    surface = loss_surface(
        model,
        TEXTS,
        LABELS,
        start=start,
        second="random",
        alphas=(0, 1, 2),
        betas=(0, 1, 2),
        path=tmp_path,
    )
    assert surface.losses.shape == (2, 2)
    assert surface.losses[1, 0] == pytest.approx(
        model.evaluate(TEXTS, LABELS, verbose=0)["loss"], rel=1e-4
    )
    np.testing.assert_allclose(surface.path[-1], [1, 0], atol=1e-4)
    assert (np.diff(surface.path[:, 0]) > 0).all()
    for name, array in copy_weights(model).items():
        np.testing.assert_array_equal(array, end[name], err_msg=name)
    other = task(tiny_vocabulary)
    again = loss_surface(model, TEXTS, LABELS, start=other, alphas=(1, 1, 1))
    assert again.losses[0] == pytest.approx(surface.losses[1, 0], rel=1e-4)


def test_weights_are_restored_after_an_error(bowl, monkeypatch):
    before = bowl[0].get_weights()[0]
    monkeypatch.setattr(type(bowl[0]), "evaluate", lambda *args, **options: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        loss_surface(*bowl, start=weights(0, 0), end=weights(1, 1))
    np.testing.assert_array_equal(bowl[0].get_weights()[0], before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"end": weights(0, 0)}, "must differ. Received: the same weights"),
        ({"end": {"w/kernel": np.ones((3, 1))}}, r"expected \(2, 1\), is \(3, 1\)"),
        ({"second": "hessian"}, "Received: 'hessian' and 0 points of a path"),
        ({"second": "path"}, "Received: 'path' and 0 points of a path"),
        ({"second": weights(2, 2)}, "zero or parallel to the first. Received: products"),
        ({"path": "/nowhere"}, "must have checkpoints. Received: /nowhere, without any"),
    ],
    ids=["equal", "shape", "name", "no path", "parallel", "no checkpoints"],
)
def test_what_is_no_surface(bowl, options, message):
    with pytest.raises(ValueError, match=message):
        loss_surface(*bowl, **{"start": weights(0, 0), "end": weights(1, 1), **options})


@pytest.mark.parametrize(
    "line",
    [
        *([0, 0.5, 1], [-0.5, 0, 0.5, 1], np.linspace(0, 1, 3), (0, 1), (0, 1, 0), (0, 1, -2)),
        *((0, 1, 2.0), (0, 1, True), (0, np.inf, 3), ("0", 1, 3), 3, None, "abc"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("name", ["alphas", "betas"])
def test_what_is_no_line(bowl, name, line):
    rule = rf"{name} must be the first and the last coordinate and their number.*{name}="
    plane = {"start": weights(0, 0), "end": weights(1, 1), "second": weights(1, 0)}
    with pytest.raises(ValueError, match=rule):
        loss_surface(*bowl, **plane, **{name: line})


def test_a_model_without_distinct_paths():
    with pytest.raises(ValueError, match="Received: 0 weights, 0 paths"):
        copy_weights(keras.Sequential([keras.layers.Dense(1)]))
