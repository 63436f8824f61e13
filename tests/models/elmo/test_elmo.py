"""kbert.Elmo against a biLM in NumPy, on random weights in the files of a release."""

import keras
import numpy as np
import pytest
from keras import ops

import kbert
from kbert import Elmo, ElmoConfig
from kbert.checkpoints.bilm.names import places
from kbert.layers import ScalarMix
from kbert.models.weights import named_weights
from tests.harness import assert_close, layer_gradients, randomise, to_numpy
from tests.models.elmo.elmo_reference import NumpyBiLM, make_options, make_weights, write_folder

TINY = ElmoConfig(
    character_size=4,
    filters=((1, 4), (2, 8)),
    num_highway=1,
    max_characters=12,
    lstm_size=10,
    projection_size=6,
    dropout=0.0,
)
FIRST = [["The", "sun", "shines", "."], ["Größe", "<S>", "x" * 10_000], ["日本", "!"]]
SECOND = [["It"], [], ["no", "more", "of", "this", ","]]


def tiny(**changes) -> Elmo:
    elmo = Elmo(TINY.replace(**changes))
    randomise(elmo, sigma=0.5)
    return elmo


def copy_weights(target, source):
    # By value: JAX's compiled functions may take over a buffer, and another model's with it.
    for weight, other in zip(target.weights, source.weights, strict=True):
        weight.assign(to_numpy(other.value))


@pytest.fixture(scope="module")
def elmo():
    return tiny()


@pytest.fixture(scope="module")
def batch(elmo):
    return {k: v.numpy() for k, v in elmo.characters.pad_sentences(FIRST).items()}


def released(folder, **changes):
    """(kbert's model, the reference) of the same two files."""
    options = make_options(**changes)
    weights = make_weights(options)
    write_folder(folder, options, weights)
    return Elmo.from_preset(folder), NumpyBiLM(options, weights)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="skips"),
        *(
            pytest.param(changes, marks=pytest.mark.jax_slow, id=name)
            for name, changes in {
                "no-skips": {"use_skip_connections": False},
                "no-highway": {
                    "n_highway": 0,
                    "activation": "tanh",
                    "filters": [[1, 2], [3, 4]],
                    "n_layers": 3,
                },
                "no-clips": {"cell_clip": None, "proj_clip": None, "n_layers": 1},
            }.items()
        ),
    ],
)
def test_equals_the_reference_with_state_carried_over_batches(changes, tmp_path):
    elmo, reference = released(tmp_path, **changes)
    for rows in (FIRST, SECOND, FIRST[:2]):  # the third: fewer rows than before
        for got, wanted in zip(elmo.embed(rows, stateful=True), reference.embed(rows), strict=True):
            assert got.dtype == np.float32
            assert_close(got, wanted, 1e-5)
    elmo.reset_state()
    reference.reset()
    for got, wanted in zip(elmo.embed(SECOND, True), reference.embed(SECOND), strict=True):
        assert_close(got, wanted, 1e-5)


@pytest.mark.jax_slow
def test_without_state_each_sentence_stands_by_itself(tmp_path):
    elmo, reference = released(tmp_path)
    rows = [*FIRST, *SECOND]
    elmo.embed(rows, stateful=True)  # is not carried into calls that do not ask for it
    for got, words in zip(elmo.embed(rows, batch_size=4), rows, strict=True):
        reference.reset()
        assert_close(got, reference.embed([words])[0], 1e-5)


@pytest.mark.jax_slow
def test_gradients_equal_those_of_the_reference_by_differences(tmp_path):
    options = make_options(cell_clip=3, proj_clip=3)
    weights = make_weights(options, sigma=0.4)
    write_folder(tmp_path, options, weights)
    elmo, words = Elmo.from_preset(tmp_path), ["The", "sun", "!"]
    rng = np.random.default_rng(1)
    directions = rng.normal(size=(3, len(words), 12))

    def loss_of(changed):
        return (NumpyBiLM(options, changed).embed([words])[0] * directions).sum()

    batch = {k: v.numpy() for k, v in elmo.characters.pad_sentences([words]).items()}

    def loss():
        layers = ops.stack(elmo(batch)["layers"])[:, 0, 1:-1]
        return ops.sum(layers * ops.convert_to_tensor(directions, "float32"))

    found, weight_of = layer_gradients(elmo, loss), named_weights(elmo, "elmo")
    for place in places(elmo.config):
        value = weights[place.theirs].astype("float64")
        step = rng.normal(size=value.shape)
        if place.theirs == "char_embed":  # rows that occur, so that the difference is no zero
            step *= np.isin(np.arange(261), [*b"Thesun!", 256, 257, 258, 259, 260])[:, None]
        shifted = [loss_of({**weights, place.theirs: value + e * step}) for e in (1e-6, -1e-6)]
        expected = (shifted[0] - shifted[1]) / 2e-6
        gradient = found[weight_of[place.ours].path]
        got = (gradient.reshape(step.shape) * step).sum()
        assert abs(expected) > 1e-4, place.theirs
        assert got == pytest.approx(expected, rel=2e-3, abs=1e-4), place.theirs


@pytest.mark.parametrize(
    "changes",
    [{}, {"vocabulary_size": 7}, {"num_highway": 0, "num_layers": 1}, {"projection_size": 12}],
    ids=["plain", "softmax", "small", "no-projection"],
)
def test_the_formula_counts_what_a_model_holds(changes):
    config = TINY.replace(**changes)
    assert Elmo(config).count_params() == config.count_parameters()


@pytest.mark.tensorflow  # a number: another backend would say the same
def test_elmo_small_holds_what_is_published():
    elmo = Elmo(kbert.family("elmo-small"))
    assert elmo.count_params() == kbert.describe("elmo-small").parameters == 13_593_296


@pytest.mark.jax_slow
def test_outputs_and_their_shapes(elmo, batch):
    outputs = elmo(batch)
    assert [tuple(layer.shape) for layer in outputs["layers"]] == [(3, 6, 12)] * 3
    assert tuple(outputs["mix"].shape) == (3, 6, 12)
    assert tuple(outputs["state"].shape) == (2, 2, 3, 16)
    specs = elmo.compute_output_spec(batch)
    keras.tree.assert_same_structure(outputs, specs)
    for tensor, spec in zip(keras.tree.flatten(outputs), keras.tree.flatten(specs), strict=True):
        assert tuple(tensor.shape) == spec.shape
    first = to_numpy(outputs["layers"][0])
    assert_close(first[..., :6], first[..., 6:], 0)
    assert_close(to_numpy(outputs["mix"]), np.mean(to_numpy(outputs["layers"]), 0), 1e-6)


@pytest.mark.jax_slow
def test_padding_gives_zeros_and_changes_nothing(elmo, batch):
    layers = np.array(to_numpy(elmo(batch)["layers"]))
    assert not layers[:, batch["padding_mask"] == 0].any()
    alone = np.array(to_numpy(elmo(batch["character_ids"])["layers"]))  # the mask from the ids
    assert_close(alone, layers, 1e-6)
    short = {name: value[2:, :4] for name, value in batch.items()}
    assert_close(np.array(to_numpy(elmo(short)["layers"])), layers[:, 2:, :4], 1e-6)


@pytest.mark.jax_slow
def test_the_forward_half_continues_from_a_state(elmo, batch):
    ids = batch["character_ids"][:1]
    whole = elmo(ids)["layers"]
    before = elmo(ids[:, :3])
    after = elmo(ids[:, 3:], state=before["state"])
    for layer in range(3):
        parts = [to_numpy(out["layers"][layer])[..., :6] for out in (before, after)]
        assert_close(np.concatenate(parts, 1), to_numpy(whole[layer])[..., :6], 1e-6)


@pytest.mark.usefixtures("eagerly")
def test_a_word_is_the_same_everywhere_until_the_lstm_reads_its_context(elmo):
    contexts = ["He threw a stick .", "You must stick to it .", "A stick of butter"]
    vectors = np.array(
        [
            embedded[:, context.split().index("stick")]
            for context, embedded in zip(contexts, elmo.embed(contexts), strict=True)
        ]
    )  # (contexts, L + 1, 2P)
    assert_close(vectors[0, 0], vectors[1, 0], 1e-6)
    assert_close(vectors[0, 0], vectors[2, 0], 1e-6)
    for layer in (1, 2):
        for a, b in ((0, 1), (0, 2), (1, 2)):
            assert np.abs(vectors[a, layer] - vectors[b, layer]).max() > 0.01


@pytest.mark.jax_slow
def test_dropout_acts_in_training_alone(batch):
    elmo = tiny(dropout=0.5)
    first, again = (to_numpy(elmo(batch)["mix"]) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    trained = elmo(batch, training=True)
    assert np.abs(to_numpy(trained["mix"]) - first).max() > 0.01
    assert_close(to_numpy(trained["layers"][0]), to_numpy(elmo(batch)["layers"][0]), 1e-6)


@pytest.mark.jax_slow
@pytest.mark.slow
def test_a_mix_of_one_s_own_is_trained_inside_a_keras_model(batch):
    keras.utils.set_random_seed(0)
    elmo = Elmo(TINY.replace(num_layers=1), mix=ScalarMix(name="mix"))
    assert [weight.path for weight in elmo.weights[-2:]] == ["elmo/mix/weights", "elmo/mix/gamma"]
    outputs = elmo(batch)
    assert_close(to_numpy(outputs["mix"]), np.mean(to_numpy(outputs["layers"]), 0), 1e-6)
    inputs = keras.Input((6, 12), dtype="int32")
    answer = keras.layers.Dense(1)(elmo(inputs)["mix"][:, 0])
    model = keras.Model(inputs, answer)
    model.compile(keras.optimizers.Adam(0.05), "mse", jit_compile=keras.backend.backend() == "jax")
    before = [to_numpy(weight.value) for weight in elmo.weights]
    losses = model.fit(batch["character_ids"], np.array([[1.0], [0], [-1]]), epochs=25, verbose=0)
    assert losses.history["loss"][-1] < losses.history["loss"][0] / 3
    for weight, value in zip(elmo.weights, before, strict=True):
        assert np.abs(to_numpy(weight.value) - value).max() > 0, weight.path


@pytest.mark.jax_slow
def test_saved_in_a_keras_model_and_loaded(tmp_path, batch):
    elmo = Elmo(TINY, mix=ScalarMix(layer_norm=True, name="mix"))
    inputs = keras.Input((None, 12), dtype="int32")
    model = keras.Model(inputs, elmo(inputs)["mix"])
    randomise(model, sigma=0.3)
    model.save(tmp_path / "elmo.keras")
    loaded = keras.models.load_model(tmp_path / "elmo.keras")
    assert loaded.layers[-1].mix.layer_norm
    assert loaded.layers[-1].config == TINY
    ids = batch["character_ids"]
    np.testing.assert_array_equal(to_numpy(loaded(ids)), to_numpy(model(ids)))


@pytest.mark.jax_slow
@pytest.mark.usefixtures("eagerly")
def test_mixed_precision_keeps_its_state_whole(elmo, batch):
    mixed = Elmo(TINY, dtype="mixed_bfloat16")
    copy_weights(mixed, elmo)
    exact, got = elmo(batch), mixed(batch)
    assert keras.backend.standardize_dtype(got["mix"].dtype) == "bfloat16"
    assert keras.backend.standardize_dtype(got["state"].dtype) == "float32"
    for a, b in zip(exact["layers"], got["layers"], strict=True):
        assert_close(to_numpy(b), to_numpy(a), 0.1)
    again = mixed(batch, state=got["state"])
    assert_close(to_numpy(again["mix"]), to_numpy(elmo(batch, state=exact["state"])["mix"]), 0.1)
    embedded = mixed.embed(FIRST)
    assert embedded[0].dtype == np.float32
    assert_close(embedded[0], elmo.embed(FIRST)[0], 0.1)


@pytest.mark.tensorflow
def test_xla_gives_the_same(batch):
    """Of one layer; tests/layers/test_bidirectional_lstm.py has two."""
    import tensorflow as tf

    elmo = tiny(num_layers=1)
    compiled = tf.function(lambda inputs: elmo(inputs), jit_compile=True)
    for a, b in zip(
        keras.tree.flatten(compiled(batch)), keras.tree.flatten(elmo(batch)), strict=True
    ):
        assert_close(to_numpy(a), to_numpy(b), 1e-5)


def test_a_word_of_any_length_is_its_first_bytes(elmo):
    long, cut = elmo.embed([["x" * 10_000], ["x" * 10]])
    assert_close(long, cut, 1e-6)


@pytest.mark.jax_slow
def test_what_embed_takes(elmo):
    assert elmo.embed([]) == []
    assert elmo.embed([""])[0].shape == elmo.embed([[]])[0].shape == (3, 0, 12)
    words = elmo.embed([["The", "sun"], ["It"]])
    texts = elmo.embed(["The  sun ", "\tIt"])
    for a, b in zip(words, texts, strict=True):
        assert_close(a, b, 1e-6)
    with pytest.raises(TypeError, match="Received: one str; put it in a list"):
        elmo.embed("The sun")
    with pytest.raises(TypeError, match="all texts or all lists of words"):
        elmo.embed(["The sun", ["It"]])
    with pytest.raises(ValueError, match=r"batch_size must be .*Received: batch_size=0"):
        elmo.embed(["The sun"], batch_size=0)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"token_ids": np.ones((1, 2, 12), "int32")}, "Received: token_ids"),
        (np.ones((1, 2), "int32"), r"\(batch, words, 12\). Received: \(1, 2\)"),
        (np.ones((1, 2, 50), "int32"), r"\(batch, words, 12\). Received: \(1, 2, 50\)"),
    ],
)
def test_inputs_that_are_none(elmo, inputs, message):
    with pytest.raises(ValueError, match=message):
        elmo(inputs)


def test_a_config_or_a_tokenizer_of_another_kind():
    with pytest.raises(TypeError, match=r"kbert.Encoder an EncoderConfig"):
        Elmo(kbert.family("bert-tiny"))
    words = kbert.WordTokenizer(["</S>", "<S>", "<UNK>"])
    with pytest.raises(ValueError, match="of 3 words with vocabulary_size=None"):
        Elmo(TINY, tokenizer=words)
    with pytest.raises(ValueError, match="of 3 words with vocabulary_size=4"):
        Elmo(TINY.replace(vocabulary_size=4), tokenizer=words)
    with pytest.raises(ValueError, match="a CharacterTokenizer of None words"):
        Elmo(TINY.replace(vocabulary_size=3), tokenizer=kbert.CharacterTokenizer())
