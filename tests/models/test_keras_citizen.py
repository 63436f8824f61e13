"""What people do with a `keras.Model`, done with the models: it works, or is refused by name."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert.layers.ids import check_ids, whole_numbers

V = 30
SIZES = {
    "vocabulary_size": V,
    "hidden_size": 8,
    "num_layers": 2,
    "num_heads": 2,
    "intermediate_size": 16,
    "max_positions": 16,
}
RNG = np.random.default_rng(0)
IDS = RNG.integers(1, V, (4, 6)).astype("int32")
MASK = np.ones_like(IDS)
MASK[:, 4:] = 0
CHARACTERS = RNG.integers(1, 260, (4, 3, 50)).astype("int32")


def encoder(**changes):
    return kbert.Encoder(kbert.EncoderConfig(**{**SIZES, **changes}))


def decoder(**changes):
    return kbert.Decoder(kbert.DecoderConfig(**{**SIZES, **changes}))


def seq2seq(**changes):
    return kbert.Seq2Seq(kbert.Seq2SeqConfig(**{**SIZES, **changes}))


def elmo(**changes):
    values = {
        **{"character_size": 4, "filters": ((1, 4), (2, 8)), "num_highway": 1},
        **{"lstm_size": 8, "projection_size": 6},
    }
    return kbert.Elmo(kbert.ElmoConfig(**{**values, **changes}))


MODELS = {
    "encoder": (encoder, {"token_ids": IDS, "padding_mask": MASK}, "sequence"),
    "decoder": (decoder, {"token_ids": IDS, "padding_mask": MASK}, "sequence"),
    "seq2seq": (
        seq2seq,
        {"encoder_token_ids": IDS, "decoder_token_ids": IDS[:, :5], "encoder_padding_mask": MASK},
        "sequence",
    ),
    "elmo": (elmo, {"character_ids": CHARACTERS}, "mix"),
}
every_model = pytest.mark.parametrize("kind", MODELS)
ONE_LAYER = {"num_layers": 1}  # where graphs are traced, which does not take more of them


@keras.saving.register_keras_serializable("kbert_tests")
class Net(keras.Model):
    """As a user would write it: a model and a head, which Keras builds when it is called."""

    def __init__(self, kind, **kwargs):
        super().__init__(**kwargs)
        self.kind = kind
        self.inner = MODELS[kind][0]()
        self.head = keras.layers.Dense(3)

    def call(self, inputs, training=False):
        return self.head(self.inner(inputs, training=training)[MODELS[self.kind][2]])

    def get_config(self):
        return {**super().get_config(), "kind": self.kind}


@keras.saving.register_keras_serializable("kbert_tests")
class Outer(keras.Model):
    """One such in another."""

    def __init__(self, kind, **kwargs):
        super().__init__(**kwargs)
        self.kind = kind
        self.net = Net(kind)

    def call(self, inputs, training=False):
        return self.net(inputs, training=training)

    def get_config(self):
        return {**super().get_config(), "kind": self.kind}


def decoder_encoder():
    return kbert.models.DecoderEncoder.extend(decoder())


def elmo_encoder():
    return kbert.models.ElmoEncoder(elmo())


def values(x):
    return np.array(keras.ops.convert_to_numpy(x), "float32")


def functional(kind):
    make, inputs, output = MODELS[kind]
    symbols = {
        name: keras.Input(x.shape[1:], dtype="int32", name=name) for name, x in inputs.items()
    }
    outputs = keras.layers.Dense(3, name="head")(make(**ONE_LAYER)(symbols)[output][:, 0])
    return keras.Model(symbols, outputs), inputs


def each_once():
    """All models in all that is around them, of which the fast tests have each once or twice."""
    for n, kind in enumerate(MODELS):
        for m, around in enumerate((Net, Outer)):
            for policy in ("float32", "mixed_bfloat16"):
                is_fast = n % 2 == m and (policy == "float32") == (n in (0, 3))
                yield pytest.param(kind, around, policy, marks=[] if is_fast else pytest.mark.slow)


@pytest.mark.parametrize(("kind", "around", "policy"), each_once())
def test_a_subclassed_model_comes_back_from_keras_with_its_head(kind, around, policy, tmp_path):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        net, inputs = around(kind), MODELS[kind][1]
        answers = values(net(inputs))
        net.save(tmp_path / "net.keras")
        with warnings.catch_warnings():
            warnings.filterwarnings("error", category=UserWarning)
            again = keras.models.load_model(tmp_path / "net.keras")
        assert np.array_equal(values(again(inputs)), answers)
    finally:
        keras.config.set_dtype_policy(before)


POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")


@pytest.mark.parametrize(
    ("kind", "policies"),
    [
        *((kind, POLICIES if kind == "encoder" else POLICIES[1:2]) for kind in MODELS),
        *(
            pytest.param(kind, POLICIES[::2], marks=pytest.mark.slow)
            for kind in MODELS
            if kind != "encoder"
        ),
    ],
)
def test_floats_that_hold_whole_numbers_are_ids_under_any_policy(kind, policies):
    make, inputs, output = MODELS[kind]
    before = keras.config.dtype_policy()
    floats = {name: x.astype("float32") for name, x in inputs.items()}
    for policy in policies:
        keras.config.set_dtype_policy(policy)
        try:
            model = make()
        finally:
            keras.config.set_dtype_policy(before)
        assert np.array_equal(values(model(floats)[output]), values(model(inputs)[output]))


def test_a_large_id_is_not_rounded_by_a_mixed_policy():
    config = kbert.EncoderConfig(**{**SIZES, "vocabulary_size": 3000})
    model = kbert.Encoder(config, dtype="mixed_bfloat16")
    ids = np.array([[2999, 2001]])
    expected = values(model(ids)["sequence"])
    assert np.array_equal(values(model(ids.astype("float32"))["sequence"]), expected)
    with pytest.raises(ValueError, match=r"bfloat16 rounds whole numbers above 256.*Received"):
        model(keras.ops.cast(ids, "bfloat16"))


@pytest.mark.parametrize(
    "layer",
    [
        lambda: kbert.layers.TokenEmbeddings(9, 4),
        lambda: kbert.layers.Embeddings(
            vocabulary_size=9, embedding_size=4, hidden_size=4, max_positions=6, num_segments=2
        ),
    ],
)
def test_a_layer_alone_takes_floats_as_well(layer):
    layer = layer()
    ids = np.array([[1, 5]])
    assert np.array_equal(values(layer(ids)), values(layer(ids.astype("float32"))))


@pytest.mark.parametrize("wrong", [-1, 100_000, 1.5, np.nan])
@every_model
def test_ids_outside_of_their_table_are_refused_where_they_enter(kind, wrong):
    make, inputs, _ = MODELS[kind]
    model, main = make(), next(iter(inputs))
    ids = inputs[main].astype(np.asarray(wrong).dtype)
    ids.flat[-1] = wrong
    inputs = {**inputs, main: ids}
    message = rf"`{main}` must be whole numbers from 0 to \d+\. Received: {wrong} at \["
    with pytest.raises(ValueError, match=message):
        model(inputs)
    with pytest.raises(ValueError, match=message):
        model.predict(inputs, verbose=0)
    with pytest.raises(ValueError, match=message):
        model.predict_on_batch(inputs)


def test_segments_and_positions_are_refused_likewise():
    model = encoder()
    for name, wrong in (("segment_ids", 2), ("segment_ids", -1), ("position_ids", 16)):
        inputs = {"token_ids": IDS, name: np.full_like(IDS, wrong)}
        with pytest.raises(ValueError, match=f"`{name}` must be whole.*Received: {wrong} at"):
            model.predict(inputs, verbose=0)


@pytest.mark.tensorflow
def test_a_dataset_is_checked_as_it_is_read():
    data = tf.data.Dataset.from_tensor_slices({"token_ids": IDS, "segment_ids": 5 * MASK})
    with pytest.raises(tf.errors.InvalidArgumentError, match="`segment_ids` must be whole"):
        encoder().predict(data.batch(2), verbose=0)
    halves = tf.data.Dataset.from_tensor_slices(IDS + 0.5).batch(2)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"`token_ids` must be whole .* 29"):
        encoder().predict(halves, verbose=0)
    whole = tf.data.Dataset.from_tensor_slices(IDS.astype("float32")).batch(2)
    assert encoder().predict(whole, verbose=0)["sequence"].shape == (4, 6, 8)
    right = tf.data.Dataset.from_tensor_slices(({"token_ids": IDS}, IDS[:, 0])).batch(2)
    assert encoder().predict(right, verbose=0)["sequence"].shape == (4, 6, 8)
    plain = tf.data.Dataset.from_tensor_slices(IDS).batch(2)
    assert decoder().predict(plain, verbose=0)["sequence"].shape == (4, 6, 8)


@pytest.mark.tensorflow
def test_a_graph_on_the_cpu_refuses_a_negative_token():
    net, inputs = functional("encoder")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"-1 is not in \[0, 30\)"):
        net.predict({**inputs, "token_ids": -MASK}, verbose=0)


@pytest.mark.tensorflow
def test_checks_look_at_values_only_where_there_are_some():
    graph = tf.function(lambda ids: check_ids("token_ids", ids, 1) or ids)
    assert graph(tf.constant([5])).numpy().tolist() == [5]
    check_ids("token_ids", np.zeros((0, 3), "int32"), 1)
    assert whole_numbers([1]) == [1]


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    "kind", ["encoder", pytest.param("decoder", marks=pytest.mark.slow), "seq2seq"]
)
def test_export_takes_the_arguments_of_keras_and_refuses_ids_outside(kind, tmp_path):
    make, inputs, output = MODELS[kind]
    model = make(**ONE_LAYER)
    model.export(tmp_path / "model", verbose=False)  # never called before
    serve = tf.saved_model.load(tmp_path / "model").signatures["serving_default"]
    _, names = serve.structured_input_signature
    main = next(iter(inputs))
    ones = {
        name: np.ones(inputs[name.replace("padding_mask", "token_ids")].shape)
        for name in names
        if name not in inputs and name != "segment_ids"
    }
    inputs = {**inputs, **ones}
    if "segment_ids" in names:
        inputs["segment_ids"] = np.zeros_like(IDS)
    tensors = {name: tf.constant(x, tf.int32) for name, x in inputs.items()}
    np.testing.assert_allclose(serve(**tensors)[output], model(inputs)[output], atol=1e-5)
    for name, wrong in ((main, -1), (main, V)):
        tensors[name] = tf.fill(tf.shape(tensors[name]), wrong)
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"`{name}` must be whole"):
            serve(**tensors)
    signature = [{"token_ids": keras.InputSpec(shape=(None, 6), dtype="int32", name="token_ids")}]
    if kind != "seq2seq":
        model.export(tmp_path / "own", input_signature=signature, verbose=False)
        serve = tf.saved_model.load(tmp_path / "own").signatures["serving_default"]
        assert list(serve.structured_input_signature[1]) == ["token_ids"]
    assert model.predict(inputs, verbose=0)[output].shape[0] == 4  # no assertion is left in it


def test_elmo_refuses_arguments_of_another_export(tmp_path):
    with pytest.raises(TypeError, match=r"`directory` and `max_bytes`.*Received: format='onnx'"):
        elmo().export(tmp_path / "elmo", format="onnx")
    assert not (tmp_path / "elmo").exists()


@every_model
def test_quantize_is_refused_with_the_way_that_works(kind):
    model = MODELS[kind][0]()
    with pytest.raises(ValueError, match=r'precision="int8".*Received: mode=\'int8\''):
        model.quantize("int8")


def test_enable_lora_is_the_adapter():
    model = encoder()
    before = values(model(IDS)["sequence"])
    assert model.enable_lora(2) is model
    assert all("adapter_lora" in weight.path for weight in model.trainable_weights)
    np.testing.assert_allclose(values(model(IDS)["sequence"]), before, atol=1e-6)
    for other in (seq2seq(), elmo()):
        with pytest.raises(TypeError, match=r"The model must be a kbert\.Encoder"):
            other.enable_lora(2)


@every_model
def test_every_way_of_saving_and_copying_keeps_the_outputs(kind, tmp_path):
    make, inputs, output = MODELS[kind]
    model = make()
    expected = values(model(inputs)[output])
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    read, copied = make(), keras.models.clone_model(model)
    read.load_weights(tmp_path / "model.weights.h5")
    copied.set_weights(model.get_weights())
    for other in (keras.models.load_model(tmp_path / "model.keras"), read, copied):
        assert np.array_equal(values(other(inputs)[output]), expected)
    revived = keras.models.model_from_json(model.to_json())
    assert revived.count_params() == model.count_params()
    lines = []
    model.summary(print_fn=lines.append)
    assert model.name in "\n".join(map(str, lines))


@pytest.mark.parametrize(
    ("make", "ids"), [(decoder_encoder, IDS), (elmo_encoder, CHARACTERS)], ids=["decoder", "elmo"]
)
def test_what_tasks_make_of_a_decoder_and_an_elmo_is_saved_as_well(make, ids, tmp_path):
    inputs = {"token_ids": ids, "padding_mask": np.ones(ids.shape[:2], "int32")}
    symbols = {name: keras.Input(x.shape[1:], dtype="int32") for name, x in inputs.items()}
    net = keras.Model(symbols, keras.layers.Dense(3)(make()(symbols)["pooled"]))
    net.save(tmp_path / "net.keras")
    again = keras.models.load_model(tmp_path / "net.keras")
    assert np.array_equal(values(again(inputs)), values(net(inputs)))
    trained = [len(x.trainable_weights) for x in (net, again)]
    assert trained[0] == trained[1]
    model = make()
    floats = {name: x.astype("float32") for name, x in inputs.items()}
    assert np.array_equal(values(model(floats)["pooled"]), values(model(inputs)["pooled"]))
    with pytest.raises(ValueError, match="`token_ids` must be whole numbers"):
        model.predict({**inputs, "token_ids": -ids}, verbose=0)
    with pytest.raises(ValueError, match="Keras' `quantize` rounds only Keras' own layers"):
        model.quantize("int8")


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(x, marks=() if x in ("encoder", "seq2seq") else pytest.mark.slow)
        for x in MODELS
    ],
)
def test_a_frozen_model_comes_back_frozen(kind, tmp_path):
    model = MODELS[kind][0]()
    model.trainable = False
    model.save(tmp_path / "model.keras")
    for other in (
        keras.models.load_model(tmp_path / "model.keras"),
        keras.models.clone_model(model),
    ):
        assert other.trainable_weights == []
    open_again = keras.models.clone_model(MODELS[kind][0]())
    assert open_again.trainable_weights


@pytest.mark.jax_slow
@pytest.mark.parametrize(
    ("kind", "in_graphs"),
    [
        ("encoder", True),
        *((kind, False) for kind in ("seq2seq", "elmo")),
        *(pytest.param(kind, True, marks=pytest.mark.slow) for kind in MODELS if kind != "encoder"),
    ],
)
def test_a_functional_model_on_it_is_trained_and_saved_by_keras(kind, in_graphs, request, tmp_path):
    if not in_graphs:
        request.getfixturevalue("eagerly")
    net, inputs = functional(kind)
    labels = np.array([0, 1, 2, 0])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.Adam(1e-2, use_ema=True)
    # Keras runs one step at a time on PyTorch.
    steps = 1 if keras.backend.backend() == "torch" else 2
    net.compile(optimizer, loss, metrics=["accuracy"], steps_per_execution=steps)
    folder = str(tmp_path)
    callbacks = [
        keras.callbacks.ModelCheckpoint(f"{folder}/net.keras"),
        keras.callbacks.ModelCheckpoint(f"{folder}/net.weights.h5", save_weights_only=True),
        keras.callbacks.EarlyStopping("loss", restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau("loss"),
        keras.callbacks.CSVLogger(f"{folder}/log.csv"),
        keras.callbacks.BackupAndRestore(f"{folder}/backup", delete_checkpoint=False),
        keras.callbacks.TerminateOnNaN(),
        keras.callbacks.SwapEMAWeights(),
    ]
    history = net.fit(
        *(inputs, labels),
        batch_size=2,
        epochs=2,
        sample_weight=np.array([1, 1, 0, 1]),
        callbacks=callbacks,
        verbose=0,
    )
    assert len(history.history["loss"]) == 2
    net.fit(inputs, labels, batch_size=2, class_weight={0: 1.0, 1: 2.0, 2: 1.0}, verbose=0)
    net.save(tmp_path / "after.keras")
    again = keras.models.load_model(tmp_path / "after.keras")
    assert np.array_equal(values(again(inputs)), values(net(inputs)))
    assert keras.models.clone_model(net).count_params() == net.count_params()


@pytest.mark.jax_slow
def test_parts_are_frozen_and_steps_run_eagerly_or_compiled():
    labels = np.array([0, 1, 2, 0])
    for options in ({"run_eagerly": True}, {"jit_compile": True}):
        net, inputs = functional("encoder")
        inner = net.get_layer("encoder")
        inner.embeddings.trainable = False
        table = values(inner.token_embedding)
        kernel = values(inner.blocks[0].trainable_weights[0])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        net.compile("sgd", loss, **options)
        net.train_on_batch(inputs, labels)
        # By XLA without another graph: of its update the second loss knows as well.
        again = net.test_on_batch if "run_eagerly" in options else net.train_on_batch
        assert np.isfinite(again(inputs, labels))
        assert np.array_equal(values(inner.token_embedding), table)
        assert not np.array_equal(values(inner.blocks[0].trainable_weights[0]), kernel)


@every_model
def test_answers_that_are_not_finite_are_not_saved_over_a_preset(kind, tmp_path):
    model = MODELS[kind][0]()
    folder = tmp_path / "preset"
    model.save_to_preset(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for weight in model.weights:
        weight.assign(np.full(weight.shape, 1e38, "float32"))
    with pytest.raises(ValueError, match=rf"^Answers must be finite .* of {folder}$"):
        model.save_to_preset(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@every_model
def test_after_a_refused_predict_the_model_has_its_weights(kind):
    """Keras on JAX takes them out of the model, and puts them back only at the end."""
    make, inputs, output = MODELS[kind]
    model, (main, ids) = make(), next(iter(inputs.items()))
    before = model.get_weights()
    wrong = [{**inputs, "other": ids}, {**inputs, main: ids[:, 0]}, [ids, MASK]]
    if kind != "elmo":  # which takes rows of any length
        masks = {name: MASK[:, :3] for name in inputs if name.endswith("_mask")}
        wrong += [{**inputs, main: np.ones((4, 17), "int32")}, {**inputs, **masks}]
    for given in wrong:
        with pytest.raises(ValueError, match="Received"):
            model.predict(given, verbose=0)
        for found, expected in zip(model.get_weights(), before, strict=True):
            np.testing.assert_array_equal(found, expected)

    class Stop(keras.callbacks.Callback):
        def on_predict_batch_end(self, batch, logs=None):
            raise InterruptedError

    with pytest.raises(InterruptedError):
        model.predict(inputs, batch_size=2, verbose=0, callbacks=[Stop()])
    for found, expected in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert model.predict(inputs, verbose=0)[output].shape[0] == 4


def test_a_list_of_inputs_is_refused_by_name():
    message = r"by name, as \{'token_ids': ids, 'padding_mask': mask\}. Received: a list of 2"
    for model in (encoder(**ONE_LAYER), decoder(**ONE_LAYER)):
        for call in (model, model.predict):
            with pytest.raises(ValueError, match=message):
                call([IDS, MASK])


@pytest.mark.tensorflow
def test_ragged_ids_are_refused_with_what_to_give():
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "fox"]
    tokenizer = kbert.WordPieceTokenizer(words)
    texts = ["a fox", "a"]
    message = r"`token_ids` must have rows of equal length: tokenizer\(texts, padding=True\)"
    for model in (encoder(**ONE_LAYER), decoder(**ONE_LAYER)):
        for call in (model, model.predict):
            with pytest.raises(ValueError, match=message):
                call(tokenizer(texts))
    padded = tokenizer(texts, padding=True)
    model = encoder(**ONE_LAYER)
    assert (
        model({name: padded[name] for name in ("token_ids", "padding_mask")})["pooled"].shape[0]
        == 2
    )


@pytest.mark.parametrize("kind", ["encoder", "decoder", "seq2seq"])
def test_a_mask_between_whole_numbers_is_refused(kind):
    """A cast would make 0.5 what masks everything."""
    make, inputs, _ = MODELS[kind]
    model = make()
    name = next(name for name in inputs if name.endswith("_mask"))
    message = rf"`{name}` must be whole numbers. Received: 0.5 at \[0, 0\]"
    half = {**inputs, name: np.full(IDS.shape, 0.5, "float32")}
    for call in (model, model.predict, model.predict_on_batch):
        with pytest.raises(ValueError, match=message):
            call(half)
    model({**inputs, name: MASK.astype("float32")})
    if keras.backend.backend() == "tensorflow":
        data = tf.data.Dataset.from_tensor_slices(half).batch(2)
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"`{name}` must be whole numbers"):
            model.predict(data, verbose=0)
