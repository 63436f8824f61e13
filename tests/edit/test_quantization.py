"""Encoders that train for 8 bits: they are saved, resumed and exported, and become plain again."""

import keras
import numpy as np
import pytest

import kbert
from kbert import experiments
from kbert.edit.quantization import quantization_aware, rounded
from kbert.export.task import row_function
from kbert.models.weights import get_arrays
from kbert.tasks import TextClassifier
from tests.edit.adapters.conftest import WORDS, make_encoder, reviews
from tests.harness import KINDS, assert_close, randomise, tiny_config, tiny_inputs, to_numpy

RANGE = "fake_quantization/range"


@pytest.fixture(scope="module")
def tokenizer():
    return kbert.WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])


@pytest.fixture
def task(tokenizer):
    made = TextClassifier(make_encoder(tokenizer), tokenizer, ["no", "yes"], max_length=16)
    randomise(made)
    return made


HOW = {"epochs": 2, "batch_size": 8, "learning_rate": 3e-3, "verbose": 0, "seed": 1}


@pytest.mark.parametrize("kind", ["bert", "modern", "grouped", "alibi"])
def test_every_kind_of_block_is_rounded_and_counted(kind):
    encoder = kbert.Encoder(tiny_config(**KINDS.get(kind, {})))
    randomise(encoder)
    aware = quantization_aware(encoder)
    assert aware.count_params() == kbert.describe(aware.config).parameters
    ranges = [w for w in aware.weights if w.path.endswith(RANGE)]
    assert len(ranges) == 4 * encoder.config.num_layers
    inputs = tiny_inputs(encoder.config)
    plain, before = (to_numpy(x(inputs))["sequence"] for x in (encoder, aware))
    aware(inputs, training=True)
    assert all(float(w) > 0 for w in ranges)
    after = to_numpy(aware(inputs))["sequence"]
    scale = np.abs(plain).max()
    # Kernels and tables alone at first, then what they are multiplied with too.
    assert 1e-5 < np.abs(before - plain).max() / scale < 0.1
    assert 1e-5 < np.abs(after - before).max() / scale < 0.1


@pytest.mark.tensorflow
def test_what_is_rounded_stays_as_it_is_in_8_bits(task):
    aware = quantization_aware(task)
    arrays = get_arrays(rounded(aware).encoder, "encoder")
    again = get_arrays(rounded(quantization_aware(rounded(aware))).encoder, "encoder")
    changed = []
    for name, before in get_arrays(task.encoder, "encoder").items():
        assert_close(again[name], arrays[name], 1e-6, name)
        if not np.array_equal(before, arrays[name]):
            changed.append(name)
            axis = -1 if name == "encoder/embeddings/token" else 0
            steps = arrays[name] / (np.abs(arrays[name]).max(axis, keepdims=True) / 127)
            assert_close(steps, np.round(steps), 1e-3, name)
    kernels = [name for name in arrays if name.endswith("kernel") and "/layers/" in name]
    assert sorted(changed) == sorted([*kernels, "encoder/embeddings/token"])
    assert rounded(aware).encoder.config == task.encoder.config


@pytest.mark.tensorflow
@pytest.mark.graphs
@pytest.mark.slow
def test_it_learns_is_saved_and_exported(task, tmp_path):
    pytest.importorskip("onnxruntime")
    aware = quantization_aware(task)
    texts, labels = reviews(160)
    dev = reviews(60, 1)
    aware.fit(texts, labels, **{**HOW, "epochs": 4})
    accuracy = aware.evaluate(*dev, verbose=0)["accuracy"]
    assert accuracy > 0.8
    aware.save_to_preset(tmp_path / "preset")
    loaded = kbert.tasks.Task.from_preset(tmp_path / "preset")
    assert loaded.encoder.config.edits == ({"kind": "rounding"},)
    ours, theirs = (get_arrays(x.encoder, "encoder") for x in (aware, loaded))
    assert sum(name.endswith(RANGE) for name in theirs) == 4 * task.encoder.config.num_layers
    for name, x in ours.items():
        assert np.array_equal(theirs[name], x), name
    aware.export(tmp_path / "int8", format="onnx", precision="int8")
    small = kbert.export.load_exported(tmp_path / "int8")
    assert abs(small.evaluate(*dev)["accuracy"] - accuracy) <= 2 / 60
    # The runtime rounds, and not the graph that it is given.
    rows = row_function(aware, by_runtime=True)
    assert "Round" not in str(rows.concrete.graph.as_graph_def())
    assert "Round" in str(row_function(aware).concrete.graph.as_graph_def())


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.graphs
def test_a_run_resumes_exactly_with_its_ranges(task, tmp_path):
    texts, labels = reviews(48)
    whole = quantization_aware(task)
    whole.fit(texts, labels, **HOW)

    class Ends(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if int(self.model.optimizer.iterations.numpy()) == 7:
                raise RuntimeError("ended")

    first = quantization_aware(task)
    options = {**HOW, "model_dir": tmp_path / "run", "checkpoint_every": 3}
    with pytest.raises(RuntimeError, match="ended"):
        first.fit(texts, labels, callbacks=[Ends()], **options)
    second = quantization_aware(task)
    second.fit(texts, labels, **options)
    expected, found = (get_arrays(x.encoder, "encoder") for x in (whole, second))
    for name, x in expected.items():
        assert np.array_equal(found[name], x), name


@pytest.mark.tensorflow
def test_what_cannot_be_rounded_is_refused(task):
    with pytest.raises(TypeError, match=r"a kbert\.Encoder, a kbert\.Decoder or a task on one"):
        quantization_aware("bert-tiny")
    aware = quantization_aware(task)
    with pytest.raises(ValueError, match=r"`edits` must be .*each with another name"):
        quantization_aware(aware)
    with pytest.raises(ValueError, match=r"must have the edit 'rounding'.*edits=\[\]"):
        rounded(task)
    broken = quantization_aware(task)
    kernel = broken.encoder.blocks[0].attention.qkv.kernel
    kernel.assign(kernel * np.nan)
    with pytest.raises(ValueError, match=r"finite.*NaN or infinity in encoder/layers/0/attention"):
        rounded(broken)
    kbert.edit.adapters.add(task, "lora", name="own")
    with pytest.raises(ValueError, match=r"Configs do not include adapters.*with own"):
        quantization_aware(task)


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.graphs
def test_a_run_of_the_programs_trains_for_8_bits(tokenizer, tmp_path):
    make_encoder(tokenizer).save_to_preset(tmp_path / "preset")
    tokenizer.save(tmp_path / "preset")
    train, dev = (dict(zip(("text", "label"), reviews(*x), strict=True)) for x in ((64,), (24, 1)))
    experiment = experiments.Experiment(
        "classify", preset=tmp_path / "preset", train=train, dev=dev
    )
    options = {"epochs": 1, "verbose": 0}
    experiments.run(experiment, tmp_path / "run", quantization_aware=True, **options)
    found = kbert.tasks.Task.from_preset(tmp_path / "run/preset")
    assert found.encoder.config.edits == ({"kind": "rounding"},)
    with pytest.raises(ValueError, match="adapter='lora' with quantization_aware=True"):
        experiment.settings(adapter="lora", quantization_aware=True)
