"""`kbert-export` as it is typed."""

import re

import numpy as np
import pytest
import tensorflow as tf
from absl import flags
from absl.testing import flagsaver

import kbert
from kbert.decoding import Beam, Constraints
from pipelines import export
from tests.harness import tiny_config
from tests.tasks.generation import writing

pytestmark = [pytest.mark.tensorflow, pytest.mark.graphs]


@pytest.fixture
def preset(tmp_path, tiny_vocabulary):
    encoder = kbert.Encoder(tiny_config(vocabulary_size=len(tiny_vocabulary), num_layers=1))
    tokenizer = kbert.WordPieceTokenizer(tiny_vocabulary)
    kbert.tasks.TextClassifier(encoder, tokenizer, 2).save_to_preset(tmp_path / "preset")
    return tmp_path / "preset"


def program(*arguments: str) -> None:
    """Calls main with these flags; the definitions are gone afterwards."""
    with flagsaver.flagsaver():
        export.define_flags()
        export.main(flags.FLAGS(["kbert-export", *arguments]))


def test_it_exports_and_says_how_far_it_is(preset, tmp_path, capsys):
    pytest.importorskip("ai_edge_litert")
    (tmp_path / "texts.txt").write_text("the red fox\na big dog\n")
    out = tmp_path / "out"
    program(
        *(f"--preset={preset}", f"--output_dir={out}", "--format=litert", "--precision=int8"),
        *("--widths=8,16", f"--texts={tmp_path}/texts.txt", "--tolerance=0.5"),
    )
    said = capsys.readouterr().out
    assert re.search(
        rf"{out}\nlitert, int8: \d\.\d MB\nclassifier: largest difference from Ten", said
    )
    assert "tokenizer beside the model: tokenizer_config.json, vocab.txt" in said
    assert "tokenizer not inside: litert has no operations on strings" in said
    answer, *_ = kbert.export.load_exported(out).predict(["the red fox"])
    assert set(answer["probabilities"]) == {"LABEL_0", "LABEL_1"}


def test_a_saved_model_is_the_default(preset, tmp_path, capsys):
    program(f"--preset={preset}", f"--output_dir={tmp_path}/out")
    assert capsys.readouterr().out == f"{tmp_path}/out/1\n"
    assert (tmp_path / "out/1/saved_model.pb").exists()


def test_a_saved_model_writes_as_the_flags_say(tmp_path):
    task = writing.causal_lm()
    task.save_to_preset(tmp_path / "preset")
    program(
        *(f"--preset={tmp_path}/preset", f"--output_dir={tmp_path}/out", "--max_new_tokens=4"),
        *("--beam_width=3", "--normalisation=length", "--early_stopping=true", "--num_results=2"),
        *("--no_repeat_ngram_size=1", "--forced_first_id=7"),
    )
    served = tf.saved_model.load(str(tmp_path / "out/1")).signatures["generate"]
    found = served(prompt=tf.constant(["a b", "c"]))
    expected, scores = task.predict(
        ["a b", "c"],
        method=Beam(3, num_results=2, normalisation="length", early_stopping=True),
        constraints=Constraints(no_repeat_ngram_size=1, forced_first_id=7),
        max_new_tokens=4,
        return_scores=True,
    )
    assert [[x.decode() for x in row] for row in found["continuation"].numpy()] == expected
    np.testing.assert_allclose(found["scores"], scores, atol=1e-4)


@pytest.mark.slow
def test_an_onnx_model_writes_as_the_flags_say(tmp_path):
    pytest.importorskip("onnxruntime")
    writing.translator(sigma=0.3).save_to_preset(tmp_path / "preset")
    flags = ("--max_new_tokens=4", "--beam_width=2", "--length_penalty=1", "--min_new_tokens=2")
    out = tmp_path / "out"
    program(f"--preset={tmp_path}/preset", f"--output_dir={out}", "--format=onnx", *flags)
    settings = kbert.export.folder.read_description(out)["settings"]
    assert settings["method"]["settings"]["width"] == 2
    assert settings["method"]["settings"]["length_penalty"] == 1.0
    assert settings["constraints"]["settings"]["min_new_tokens"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format=onnx", "--precision=bfloat16"], "kbert-export: `precision` of onnx must be"),
        (["--format=litert", "--widths=8,x"], "must be numbers of tokens. Received: 'x'"),
        (
            ["--format=onnx", "--beam_width=1"],
            "require a task that generates text. Received: method",
        ),
        (["--beam_width=2", "--top_k=3"], 'beam_width requires method="beam"'),
        (["--format=onnx", "--max_bytes=9"], "Received: max_bytes=9 with format='onnx'"),
        (["--max_new_tokens=9"], "unexpected keyword argument 'max_new_tokens'"),
        (["--tolerance=1"], "--format=savedmodel and --tolerance"),
        (["--precision=int8", "--widths=8,16"], "--widths requires litert.* and --widths"),
        (["--format=onnx", "--widths=8,16"], "--widths requires litert.* and --widths"),
        (["--preset=nowhere"], "no such folder"),
        (["more"], r"accepts flags only.*Received: \['more'\]"),
    ],
)
def test_mistakes_are_one_line(preset, tmp_path, arguments, message):
    with pytest.raises(SystemExit, match=message) as error:
        program(f"--preset={preset}", f"--output_dir={tmp_path}/out", *arguments)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()
