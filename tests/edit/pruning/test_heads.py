"""Heads and neurons that are taken out: what is left computes what the masked model computes."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings, strategies as st

import kbert
from kbert.edit import Pruned, adapters
from kbert.edit.pruning import least_important, neuron_magnitudes, prune_heads, prune_neurons
from kbert.models import Encoder, describe
from kbert.models.weights import get_arrays, set_arrays
from kbert.tasks import TextClassifier
from kbert.tasks.pretraining.replaced_tokens import sharing
from tests.harness import KINDS, assert_close, randomise, tiny_config, tiny_inputs, to_numpy

# Those whose heads can go.
PLAIN = {
    "bert": {},
    **{name: KINDS[name] for name in ("modern", "windows in the last layer", "sines", "shared")},
}
HEADS = {0: [1, 3], 1: [2]}
NEURONS = {0: [0, 5, 31], 1: [7]}


def made(changes, seed=0):
    encoder = Encoder(tiny_config(**changes))
    randomise(encoder, seed=seed)
    return encoder


def of_blocks(chosen, config):
    return {block: x for block, x in chosen.items() if block < config.num_blocks}


def masked(encoder, heads=(), neurons=()):
    """A copy whose output kernels read nothing of these heads and neurons."""
    copy, arrays = Encoder(encoder.config), get_arrays(encoder, "encoder")
    for part, chosen in (("attention", dict(heads)), ("feed_forward", dict(neurons))):
        for block, numbers in chosen.items():
            name = f"encoder/layers/{block}/{part}/output/kernel"
            number = 4 if part == "attention" else 32
            rows = arrays[name].reshape(number, -1, arrays[name].shape[-1]).copy()
            rows[list(numbers)] = 0
            arrays[name] = rows.reshape(arrays[name].shape)
    set_arrays(copy, "encoder", arrays, "here")
    return copy


def assert_same(found, wanted, config, atol=1e-5):
    inputs = tiny_inputs(config)
    found, wanted = to_numpy(found(inputs)), to_numpy(wanted(inputs))
    assert found.keys() == wanted.keys()
    for name in wanted:
        assert_close(found[name], wanted[name], atol, name)


@pytest.mark.parametrize("kind", PLAIN)
def test_it_computes_what_the_masked_model_computes(kind):
    encoder = made(PLAIN[kind])
    heads, neurons = (of_blocks(x, encoder.config) for x in (HEADS, NEURONS))
    small = prune_neurons(prune_heads(encoder, heads), neurons)
    assert_same(small, masked(encoder, heads, neurons), encoder.config)
    assert small.count_params() < encoder.count_params()
    assert describe(small.config).parameters == small.count_params()


def test_the_kernels_are_smaller_and_the_model_before_is_as_it_was():
    encoder = made({})
    before = get_arrays(encoder, "encoder")
    small = prune_neurons(prune_heads(encoder, HEADS), NEURONS)
    shapes = {name: x.shape for name, x in get_arrays(small, "encoder").items()}
    assert shapes["encoder/layers/0/attention/qkv/kernel"] == (16, 24)
    assert shapes["encoder/layers/1/attention/output/kernel"] == (12, 16)
    assert shapes["encoder/layers/0/feed_forward/intermediate/kernel"] == (16, 29)
    assert shapes["encoder/layers/1/feed_forward/output/kernel"] == (31, 16)
    assert small.config.edits == (
        {"kind": "pruned", "heads": [2, 3], "intermediate_sizes": [29, 31]},
    )
    for name, array in get_arrays(encoder, "encoder").items():
        np.testing.assert_array_equal(array, before[name])


def test_it_is_pruned_again_by_the_numbers_that_are_left():
    encoder = made({})
    once = prune_heads(encoder, {0: [1], 1: [0]})
    twice = prune_heads(once, {0: [2]})  # what was head 3
    assert_same(twice, prune_heads(encoder, {0: [1, 3], 1: [0]}), encoder.config, 0.0)


def test_the_same_width_in_all_blocks_is_a_field():
    encoder = made({})
    small = prune_neurons(encoder, {0: range(16), 1: range(8, 24)})
    assert (small.config.intermediate_size, small.config.edits) == (16, ())
    assert_same(small, masked(encoder, {}, {0: range(16), 1: range(8, 24)}), encoder.config)
    small = prune_heads(small, {0: [0]})
    assert small.config.edits == ({"kind": "pruned", "heads": [3, 4]},)
    # And nothing is nothing.
    assert prune_heads(encoder, {}).config == encoder.config


@given(st.data())
@settings(max_examples=5, deadline=None)
def test_any_heads_and_neurons(data):
    encoder = made({})
    numbers = {"heads": 4, "neurons": 32}
    chosen = {
        what: {
            block: data.draw(st.sets(st.integers(0, most - 1), max_size=most - 1))
            for block in range(2)
        }
        for what, most in numbers.items()
    }
    small = prune_neurons(prune_heads(encoder, chosen["heads"]), chosen["neurons"])
    assert_same(small, masked(encoder, **chosen), encoder.config)


def test_all_outputs_have_the_heads_that_are_left():
    encoder = made({})
    small, inputs = prune_heads(encoder, HEADS), tiny_inputs(encoder.config)
    wanted = to_numpy(masked(encoder, HEADS)(inputs, return_internals=True, return_attention=True))
    found = to_numpy(small(inputs, return_internals=True, return_attention=True))
    for layer, left in enumerate(([0, 2], [0, 1, 3])):
        assert_close(found["attention"][layer], wanted["attention"][layer][:, left], 1e-5)
        for name, x in wanted["internals"][layer].items():
            assert_close(found["internals"][layer][name], x[:, left], 1e-5, name)
    symbolic = {name: keras.KerasTensor(x.shape, "int32") for name, x in inputs.items()}
    spec = small.compute_output_spec(symbolic, return_internals=True, return_attention=True)
    shapes = keras.tree.map_structure(lambda x: tuple(x.shape), spec["internals"])
    assert shapes == [{name: x.shape for name, x in one.items()} for one in found["internals"]]
    last = small(inputs, output_positions=np.array([[2, 0]] * 3))["sequence"]
    assert_close(to_numpy(last), found["sequence"][:, [2, 0]], 1e-5)


@pytest.mark.graphs
def test_gradients_flow_and_it_runs_by_xla_and_in_half_precision():
    encoder, inputs = made({}), tiny_inputs(tiny_config())
    small = prune_heads(encoder, HEADS)
    wanted = to_numpy(small(inputs)["sequence"])
    compiled = tf.function(lambda x: small(x)["sequence"], jit_compile=True)
    assert_close(compiled(inputs), wanted, 1e-5)
    half = Encoder(small.config, dtype="mixed_bfloat16")
    set_arrays(half, "encoder", get_arrays(small, "encoder"), "here")
    assert_close(to_numpy(half(inputs)["sequence"]), wanted, 0.2)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(small(inputs, training=True)["sequence"][..., 0] ** 2)
    unused = {"encoder/pooler/kernel", "encoder/pooler/bias"}
    for weight, gradient in zip(
        small.trainable_variables,
        tape.gradient(loss, [w.value for w in small.trainable_variables]),
        strict=True,
    ):
        assert gradient is not None or weight.path in unused, weight.path


TEXTS = ["the red fox", "a dog", "the old man and the king", "moon"]


def test_a_task_is_pruned_with_its_heads_saved_loaded_and_exported(task, tmp_path):
    small = prune_neurons(prune_heads(task, HEADS), NEURONS)
    assert type(small) is TextClassifier
    assert small.settings == task.settings
    wanted = small.predict(TEXTS)
    set_arrays(
        task.encoder,
        "encoder",
        get_arrays(masked(task.encoder, HEADS, NEURONS), "encoder"),
        "the masked one",
    )
    of_masked = [list(answer["probabilities"].values()) for answer in task.predict(TEXTS)]
    found = [list(answer["probabilities"].values()) for answer in wanted]
    assert_close(found, of_masked, 1e-5)
    small.save_to_preset(tmp_path / "preset")
    again = kbert.tasks.Task.from_preset(tmp_path / "preset")
    assert again.encoder.config == small.encoder.config
    assert again.predict(TEXTS) == wanted
    tf.config.run_functions_eagerly(False)
    path = small.export(tmp_path / "served")
    served = tf.saved_model.load(path).signatures["serving_default"](text=tf.constant(TEXTS))
    assert_close(served["scores"], found, 1e-5)


def test_it_is_trained_and_adapted_like_any_other(task):
    small = prune_heads(task, HEADS)
    small.fit(TEXTS, ["no", "yes", "no", "yes"], epochs=1, batch_size=4, verbose=0)
    inputs = tiny_inputs(small.encoder.config)
    for kind in ("lora", "houlsby", "prefix"):
        adapters.add(small, kind, name=kind)
        assert np.isfinite(to_numpy(small.encoder(inputs)["sequence"])).all()
    lora = small.encoder.blocks[0].attention.qkv.adapter_lora
    assert {target: end - begin for target, begin, end in lora.chosen} == {"query": 8, "value": 8}
    assert [begin for _, begin, _ in lora.chosen] == [0, 16]


def test_keras_revives_it_and_a_student_of_it_must_say_its_layers(tmp_path):
    small = prune_heads(made({}), HEADS)
    small.save(tmp_path / "encoder.keras")
    again = keras.saving.load_model(tmp_path / "encoder.keras")
    assert_same(again, small, small.config, 0.0)
    with pytest.raises(ValueError, match="a number for each of the 1 blocks"):
        kbert.student(small, num_layers=1)


def test_other_formats_refuse_it(tmp_path):
    small = prune_heads(made({}), HEADS)
    for format in ("huggingface", "keras_hub"):
        with pytest.raises(ValueError, match="edits"):
            small.save_to_preset(tmp_path / format, format)


def test_attention_with_uneven_heads_is_not_compared(task):
    small = prune_heads(task, HEADS)
    with pytest.raises(ValueError, match="every layer has the num_heads"):
        kbert.distillation.Distiller(small, task, [kbert.distillation.AttentionScores()])


@pytest.mark.parametrize(
    ("prune", "chosen", "message"),
    [
        (prune_heads, {2: [0]}, "between 0 and 1. Received: 2"),
        (prune_heads, {0: [4]}, r"heads of block 0 must be between 0 and 3.*Received: \[4\]"),
        (prune_heads, {0: [-1]}, r"Received: \[-1\]"),
        (prune_heads, {0: [1, 1]}, r"each given once. Received: \[1, 1\]"),
        (prune_heads, {0: range(4)}, "must keep some of its heads.*Received: all 4 of block 0"),
        (prune_neurons, {1: range(32)}, "must keep some of its neurons"),
        (prune_neurons, {1: [32]}, "neurons of block 1 must be between 0 and 31"),
    ],
)
def test_what_is_not_there_is_refused(prune, chosen, message):
    with pytest.raises(ValueError, match=message):
        prune(made({}), chosen)


@pytest.mark.parametrize("kind", ["alibi", "grouped"])
def test_heads_that_lean_on_others_are_refused_and_neurons_are_not(kind):
    encoder = made(KINDS[kind])
    with pytest.raises(ValueError, match="if none shares keys and values"):
        prune_heads(encoder, {0: [0]})
    neurons = {0: [3], 1: [4, 5]}
    assert_same(prune_neurons(encoder, neurons), masked(encoder, {}, neurons), encoder.config)


@pytest.mark.parametrize("kind", ["disentangled", "bottleneck", "relative bias", "xlnet"])
def test_other_kinds_of_blocks_are_refused(kind):
    changes = KINDS[kind]
    for prune in (prune_heads, prune_neurons):
        with pytest.raises(ValueError, match="without a `part`"):
            prune(Encoder(tiny_config(**changes)), {0: [0]})


def test_what_a_config_does_not_say_is_refused():
    encoder = made({})
    adapters.add(encoder, "lora")
    with pytest.raises(ValueError, match=r"Configs do not include adapters.*with lora"):
        prune_heads(encoder, HEADS)
    own = sharing(encoder.embeddings, encoder.config)
    with pytest.raises(ValueError, match="cannot be restored from its config"):
        prune_heads(own, HEADS)
    with pytest.raises(TypeError, match=r"or a task on one. Received: a Dense"):
        prune_heads(keras.layers.Dense(2), HEADS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": (2,)}, r"`heads` must have a number for each of the 2 blocks.*\(2,\)"),
        ({"heads": (5, 4)}, "at most num_heads=4"),
        ({"heads": (0, 4)}, "`heads` must be a sequence, each a whole number of at least 1"),
        ({"intermediate_sizes": (33, 1)}, "at most intermediate_size=32"),
    ],
)
def test_the_edit_fits_its_config(options, message):
    with pytest.raises(ValueError, match=message):
        Encoder(tiny_config(edits=[{"kind": Pruned.kind, **options}]))


def test_a_config_with_the_former_part_is_one_with_the_edit():
    sizes = {"heads": [2, 3], "intermediate_sizes": [29, 31]}
    fields = tiny_config(edits=[{"kind": "movement"}]).to_dict()
    former = type(tiny_config()).from_dict({**fields, "part": {"name": "pruned", **sizes}})
    assert former.part is None
    assert former.edits == ({"kind": "pruned", **sizes}, {"kind": "movement"})


def test_magnitudes_are_those_of_a_neurons_weights():
    encoder = made({"feed_forward": "gated"})
    arrays = get_arrays(encoder, "encoder")
    into = arrays["encoder/layers/1/feed_forward/intermediate/kernel"]
    away = arrays["encoder/layers/1/feed_forward/output/kernel"]
    weights = np.concatenate([into[:, 5], into[:, 37], away[5]])
    assert_close(neuron_magnitudes(encoder)[1][5], np.sqrt((weights**2).sum()), 1e-6)


def test_the_least_important_are_chosen():
    values = [np.array([4.0, 1.0, 2.0]), np.array([0.5, 0.25, 3.0])]
    assert least_important(values, 0.5) == {0: [1], 1: [0, 1]}
    assert least_important(values, 0.34, by_layer=True) == {0: [1], 1: [1]}
    assert least_important(values, 0.0) == {}
    with pytest.raises(ValueError, match=r"leave at least 2 in every block.*1 too many"):
        least_important(values, 0.5, at_least=2)
    with pytest.raises(ValueError, match=r"less than 1. Received: 1"):
        least_important(values, 1)
    with pytest.raises(ValueError, match="must be finite"):
        least_important([np.array([np.nan])], 0.5)
