"""The exported task: loaded as TensorFlow Serving loads it, asked in strings."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text
from tensorflow.core.protobuf import saved_model_pb2

import kbert
from tests.export import session

pytestmark = pytest.mark.tensorflow

SERVING = Path(__file__).parents[2] / "export"
TEXTS = ["the quick [MASK] fox", "[MASK] jumps over the [MASK] dog", "no mask", "", "a " * 60]
PAIRS = (["the red pen", "it is day", ""], ["the fox jumps", "the moon " * 40, "a dog"])
# tensorflow-text's operations that TensorFlow Serving links (its `ops_lib`) and kbert may use.
TEXT_OPERATIONS = {"FastWordpieceTokenizeWithOffsets", "NormalizeUTF8", "RegexSplitWithOffsets"}


@pytest.fixture(scope="module")
def exported(config, tokenizer, tmp_path_factory):
    """(task, path of its SavedModel)."""
    task = kbert.tasks.Pretraining(kbert.Encoder(config), tokenizer)
    folder = tmp_path_factory.mktemp("export")
    path = task.export(folder)
    assert path == str(folder / "1")
    return task, path


@pytest.fixture(scope="module")
def whole_chinese(config, tokenizer, tmp_path_factory):
    """The same with a tokenizer that keeps Chinese words whole, which takes another kernel."""
    other = kbert.WordPieceTokenizer(tokenizer.vocabulary, split_chinese=False)
    task = kbert.tasks.Pretraining(kbert.Encoder(config), other)
    return task, task.export(tmp_path_factory.mktemp("whole_chinese"))


def python(*arguments):
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def serve(path, *requests):
    return json.loads(python(SERVING / "session.py", path, json.dumps(requests)).splitlines()[-1])


def check_fill_mask(task, answer, texts, top_k=5):
    tokens, probabilities = np.array(answer["tokens"]), np.array(answer["probabilities"])
    for row, want in enumerate(task.predict(texts, top_k=top_k)):
        count = len(want["tokens"])
        assert tokens[row, :count].tolist() == want["tokens"]
        if count:
            np.testing.assert_allclose(probabilities[row, :count], want["probabilities"], atol=1e-6)
        assert (tokens[row, count:] == "").all()
        assert not probabilities[row, count:].any()


@pytest.mark.slow
def test_the_session_loader_of_a_fresh_process_gives_the_same_numbers(exported):
    task, path = exported
    fill, default, follow, encoded, nothing = serve(
        path,
        ("fill_mask", {"text": TEXTS}),
        ("serving_default", {"text": TEXTS[:1]}),
        ("next_sentence", {"first": PAIRS[0], "second": PAIRS[1]}),
        ("encode", {"text": TEXTS}),
        ("fill_mask", {"text": []}),
    )
    check_fill_mask(task, fill, TEXTS)
    check_fill_mask(task, default, TEXTS[:1])
    pairs = list(zip(*PAIRS, strict=True))
    np.testing.assert_allclose(follow["probability"], task.predict_next_sentence(pairs), atol=1e-6)
    assert nothing == {"tokens": [], "probabilities": []}

    mask = np.array(encoded["padding_mask"])
    assert mask.shape == (5, 40)  # the longest text exceeds the encoder's 40 positions
    out = task.encode(task.build_inputs(task.tokenizer.encode(TEXTS)))
    np.testing.assert_allclose(encoded["pooled"], out["pooled"], atol=1e-5)
    difference = np.abs(np.array(encoded["sequence"]) - out["sequence"]).max(-1)
    assert (difference * mask).max() < 1e-5


def test_a_mask_behind_the_longest_text_gets_no_answer(exported):
    task, path = exported
    text = "[MASK] " + "a " * 60 + "[MASK]"
    answer = tf.saved_model.load(path).signatures["fill_mask"](text=tf.constant([text]))
    assert answer["tokens"].shape == (1, 1, 5)
    with pytest.raises(ValueError, match="Every mask must be within"):
        task.predict(text)


@pytest.mark.slow
def test_a_tokenizer_that_keeps_chinese_words_whole(whole_chinese):
    task, path = whole_chinese
    unknown, _ = show(path)
    assert "RegexSplitWithOffsets" in unknown
    assert unknown <= TEXT_OPERATIONS
    (answer,) = session.ask_json(path, ("fill_mask", {"text": TEXTS}))
    check_fill_mask(task, answer, TEXTS)


def test_padded_to_the_longest_of_the_batch(exported):
    _, path = exported
    encode = tf.saved_model.load(path).signatures["encode"]
    assert encode(text=tf.constant(["fox", "red pen"]))["sequence"].shape == (2, 16, 16)
    assert encode(text=tf.constant(["fox " * 15]))["sequence"].shape == (1, 32, 16)


def test_weights_lie_on_disk_once(exported):
    task, path = exported
    used = sum(v.numpy().nbytes for v in task.variables if v.dtype == "float32")
    data = sum(f.stat().st_size for f in Path(path, "variables").glob("*.data-*"))
    assert used <= data < used + 8192  # and the object graph
    assert Path(path, "saved_model.pb").stat().st_size < 4e6


def saved_model(path):
    return saved_model_pb2.SavedModel.FromString(Path(path, "saved_model.pb").read_bytes())


def operations(path):
    names = set()
    for meta in saved_model(path).meta_graphs:
        names |= {node.op for node in meta.graph_def.node}
        library = meta.graph_def.library.function
        names |= {node.op for function in library for node in function.node_def}
        names -= {function.signature.name for function in library}
    return names


# In a process without tensorflow_text: which operations it lacks, and what the command line shows.
SHOW = """
import json, sys
from tensorflow.python.framework import op_def_registry
from tensorflow.python.tools import saved_model_cli
names = json.loads(sys.argv.pop())
print(json.dumps([name for name in names if op_def_registry.get(name) is None]))
saved_model_cli.main()
"""


def show(path):
    """(operations that TensorFlow lacks, what `saved_model_cli show --all` prints)."""
    names = json.dumps(sorted(operations(path)))
    unknown, _, listing = python("-c", SHOW, "show", "--dir", path, "--all", names).partition("\n")
    return set(json.loads(unknown)), listing


@pytest.fixture(scope="module")
def shown(exported):
    return show(exported[1])


def test_no_operation_that_tensorflow_serving_may_lack(exported, shown):
    unknown, _ = shown
    assert unknown
    assert unknown <= TEXT_OPERATIONS
    assert not {"TFText>RoundRobinTrim", "PyFunc", "EagerPyFunc"} & operations(exported[1])


def test_saved_model_cli_reads_well(shown):
    _, listing = shown
    for name in ("fill_mask", "next_sentence", "encode", "serving_default"):
        assert f"signature_def['{name}']" in listing
    for name in ("text", "first", "second"):
        assert f"inputs['{name}']" in listing
    for name in ("tokens", "probabilities", "probability", "sequence", "pooled", "padding_mask"):
        assert f"outputs['{name}']" in listing


def test_answers_are_float32_whatever_the_model_computes_in(config, tokenizer):
    task = kbert.tasks.Pretraining(kbert.Encoder(config, dtype="mixed_bfloat16"), tokenizer)
    text = tf.constant(["the [MASK]"])
    entries = task.signatures()
    assert entries["fill_mask"].function(text)["probabilities"].dtype == tf.float32
    assert entries["next_sentence"].function(text, text)["probability"].dtype == tf.float32
    encoded = entries["encode"].function(text)
    assert encoded["pooled"].dtype == encoded["sequence"].dtype == tf.float32


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_a_c_program_serves_a_request(exported, tmp_path):
    task, path = exported
    root, libraries = Path(tf.__file__).parent, Path(tensorflow_text.__file__).parent
    program = tmp_path / "serve"
    subprocess.run(
        [
            *("gcc", "-O1", "-Wall", "-Wextra", "-Werror"),
            *(SERVING / "serve.c", "-o", program),
            *(f"-I{root / 'include'}", f"-L{root}", f"-Wl,-rpath,{root}"),
            *("-l:libtensorflow_cc.so.2", "-l:libtensorflow_framework.so.2"),
        ],
        check=True,
    )
    entry = saved_model(path).meta_graphs[0].signature_def["fill_mask"]
    tensors = [entry.inputs["text"].name]
    tensors += [entry.outputs[name].name for name in ("tokens", "probabilities")]
    names = ("_fast_wordpiece_tokenizer.so", "_normalize_ops.so")
    ops = ",".join(str(libraries / "python" / "ops" / name) for name in names)
    done = subprocess.run(
        [program, path, ops, *tensors, *TEXTS[:2]],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = {}
    for line in done.stdout.splitlines():
        row, mask, rank, probability, token = line.split(" ", 4)
        found[int(row), int(mask), int(rank)] = float(probability), token
    for row, answer in enumerate(task.predict(TEXTS[:2])):
        for mask, tokens in enumerate(answer["tokens"]):
            for rank, token in enumerate(tokens):
                probability, said = found[row, mask, rank]
                assert said == token
                assert probability == pytest.approx(answer["probabilities"][mask][rank], abs=1e-6)
