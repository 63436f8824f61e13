"""Tasks that write, through ONNX Runtime: the loop is in the graph, and the texts are equal."""

import json
import os

import numpy as np
import pytest

import kbert
from kbert.decoding import Beam, Greedy, Sampling
from kbert.export import load_exported
from kbert.export.onnx import runtime as onnx
from kbert.models import PrefixSeq2Seq
from tests.tasks.generation import writing

pytestmark = [pytest.mark.tensorflow, pytest.mark.graphs]
PROMPTS = ["a b c", "", "h", "a b c d e f g h a b c d e f g h a", "a b"]
SOURCES = ["a b c", "", "h g f e d", "b", "  ", "a a a b"]
TWO_LAYERS = {**writing.SIZES, "hidden_size": 16, "num_layers": 2, "intermediate_size": 32}


def make(which="causal_lm", sigma=0.3):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "SIZES", TWO_LAYERS)
        return getattr(writing, which)(sigma=sigma)


@pytest.fixture(autouse=True, scope="module")
def packages():
    pytest.importorskip("tf2onnx")
    pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def task():
    return make(sigma=0.15)


@pytest.fixture(scope="module")
def folder(task, tmp_path_factory):
    out = tmp_path_factory.mktemp("exports") / "out"
    return task.export(out, format="onnx", max_new_tokens=9, stop_ids=[7])


def assert_equal_texts(ours, theirs, atol=1e-4):
    assert ours[0] == theirs[0]
    np.testing.assert_allclose(theirs[1], ours[1], atol=atol)


@pytest.mark.slow
def test_a_language_model_writes_the_same(task, folder):
    options = {"method": Greedy(), "max_new_tokens": 9, "stop": [7]}
    loaded = load_exported(folder, threads=1)
    for given in ({}, options):  # what is fixed may be said again
        assert_equal_texts(
            task.predict(PROMPTS, return_scores=True, **options),
            loaded.predict(PROMPTS, return_scores=True, batch_size=2, **given),
        )
    assert loaded.predict("a b", include_prompt=True)[0].startswith("a b")


def test_the_folder_describes_itself(folder):
    made = load_exported(folder).description
    assert made["inputs"] == {n: ["batch", "length"] for n in ("token_ids", "padding_mask")}
    assert made["outputs"] == {
        "new_ids": ["batch", 1, 9],
        "lengths": ["batch", 1],
        "scores": ["batch", 1],
    }
    assert made["settings"] == {
        "method": {"method": "Greedy", "settings": {}},
        "max_new_tokens": 9,
        "stop_ids": [3, 7],
    }
    assert made["differences"]["new_ids"] == 0


def test_ids_in_and_ids_out_of_rows_of_any_number_and_length(task, folder):
    loaded = load_exported(folder)
    for lengths in ([1], [4, 2, 7], [20]):
        mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype("int32")
        features = {"token_ids": 5 + np.cumsum(mask, 1) % 8, "padding_mask": mask}
        rows = np.arange(len(lengths))
        ours = task.decode_batch(features, Greedy(), 9, stop_ids=(3, 7), row_numbers=rows)
        found = loaded.run(features)
        np.testing.assert_array_equal(found["new_ids"], ours.token_ids)
        np.testing.assert_array_equal(found["lengths"], ours.lengths)


def test_another_way_than_the_exports_is_refused(folder):
    loaded = load_exported(folder)
    rule = r"be changed: .*=Greedy\(\), max_new_tokens=9, stop_ids=\(3, 7\)\..*Received: method="
    for options in ({"max_new_tokens": 6}, {"method": Beam()}, {"stop": [9]}):
        with pytest.raises(ValueError, match=rule):
            loaded.predict("a", **options)
    with pytest.raises(ValueError, match=r"fine-tuned on labelled texts.*Received: a CausalLM"):
        loaded.evaluate(writing.dataset(writing.random_batches(1)))


def test_strings_that_end_a_text_are_not_the_exports_matter(task, folder):
    loaded = load_exported(folder)
    options = {"max_new_tokens": 9, "stop": [7, "a", "h"]}
    assert loaded.predict(PROMPTS, stop=[7, "a", "h"]) == task.predict(PROMPTS, **options)


@pytest.mark.parametrize("method", [Greedy(), Beam()], ids=["greedy", "beam"])
@pytest.mark.slow
def test_a_translator_translates_the_same(tmp_path, method):
    task = make("translator")
    path = task.export(tmp_path / "out", format="onnx", method=method, max_new_tokens=12)
    assert_equal_texts(
        task.predict(SOURCES, method=method, max_new_tokens=12, return_scores=True),
        load_exported(path, threads=1).predict(SOURCES, return_scores=True),
    )


@pytest.mark.slow
def test_a_beam_of_several_results(task, tmp_path):
    options = {"method": Beam(3, num_results=2), "max_new_tokens": 9}
    path = task.export(tmp_path / "out", format="onnx", **options)
    assert_equal_texts(
        task.predict(PROMPTS, return_scores=True, **options),
        load_exported(path).predict(PROMPTS, return_scores=True),
    )


@pytest.mark.slow
def test_other_models_that_write(tmp_path, config, tokenizer):
    """An encoder that translates, and one that is a decoder too."""
    prefix = kbert.Translator(PrefixSeq2Seq(kbert.Encoder(config)), tokenizer)
    path = prefix.export(tmp_path / "prefix", format="onnx", max_new_tokens=6)
    assert_equal_texts(
        prefix.predict(["the red fox", "a dog"], max_new_tokens=6, return_scores=True),
        load_exported(path).predict(["the red fox", "a dog"], return_scores=True),
    )
    rotary = config.replace(positions="rotary", num_segments=0, pooler_activation=None)
    both = kbert.tasks.MaskedAndCausal(kbert.Encoder(rotary), tokenizer)
    task = both.causal_lm()
    loaded = load_exported(task.export(tmp_path / "both", format="onnx", max_new_tokens=6))
    assert loaded.predict(["the red", ""]) == task.predict(["the red", ""], max_new_tokens=6)


@pytest.mark.slow
def test_int8_has_the_kernels_of_the_loop_in_8_bits(tmp_path):
    import onnx

    task = make()
    folder = task.export(tmp_path / "out", format="onnx", precision="int8", max_new_tokens=4)
    graph = onnx.load(os.path.join(folder, "model.onnx")).graph
    (loop,) = (node for node in graph.node if node.op_type == "Loop")
    (body,) = (attribute.g for attribute in loop.attribute if attribute.name == "body")
    kinds = [node.op_type for node in body.node]
    assert kinds.count("MatMulIntegerToFloat") == 4 * 2
    assert "DynamicQuantizeLinear" not in kinds
    assert kinds.count("LayerNormalization") == 2 * 2 + 1
    assert len(load_exported(folder).predict(PROMPTS)) == len(PROMPTS)
    made = json.loads((tmp_path / "out" / "export.json").read_text())
    assert 0 <= made["differences"]["new_ids"] <= 1


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"method": Sampling()}, r"use Greedy or Beam.*Received: Sampling\("),
        ({"method": "greedy"}, r"`method` must be.*Received: 'greedy'"),
        ({"max_new_tokens": 60}, r"at most 56, so that prompts of 8 tokens.*Received: 60"),
        ({"max_new_tokens": 0}, r"from 1 to 63.*Received: 0"),
        ({"stop_ids": [99]}, r"ids from 0 to.*Received: 99"),
        ({"format": "openvino"}, r"CausalLM must be savedmodel or onnx\. Received: format="),
        ({"format": "litert"}, r"CausalLM must be savedmodel or onnx\. Received: format="),
    ],
)
def test_what_cannot_be_exported_is_refused_and_nothing_is_left(task, tmp_path, options, error):
    with pytest.raises(ValueError, match=error):
        task.export(tmp_path / "out", **{"format": "onnx", **options})
    assert os.listdir(tmp_path) == []


def test_texts_that_differ_are_refused_and_nothing_is_left(task, tmp_path, monkeypatch):
    written = []

    def load(*arguments):
        def run(features):
            found = written[0].run(features)
            return {**found, "new_ids": found["new_ids"] ^ 1}

        return run

    def write(folder, rows, precision, samples):
        written.append(rows)

    monkeypatch.setattr(onnx, "write", write)
    monkeypatch.setattr(onnx, "load", load)
    with pytest.raises(
        ValueError, match=r"must not differ from TensorFlow.*Received: 1 in 'new_ids'"
    ):
        task.export(tmp_path / "out", format="onnx", texts=["", "a b"], max_new_tokens=2)
    assert os.listdir(tmp_path) == []
