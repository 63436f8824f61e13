"""kbert-finetune for texts from texts, and the programs that use what it wrote."""

import json

import keras
import pytest

import kbert
from pipelines import evaluate, finetune, generate
from tests.tasks.generation import writing

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def files(tmp_path):
    """A preset of an encoder-decoder, and tables: the targets of the second are references."""
    keras.utils.set_random_seed(1)
    config = kbert.Seq2SeqConfig(vocabulary_size=16, max_positions=32, **writing.SIZES)
    task = kbert.TextToText(kbert.Seq2Seq(config), writing.tokenizer())
    task.save_to_preset(tmp_path / "preset")
    for name, count in (("train", 24), ("dev", 6)):
        rows = [
            {"article": source, "summary": [target, "a"] if name == "dev" else target}
            for source, target in writing.reversed_pairs(count)
        ]
        text = "".join(f"{json.dumps(row)}\n" for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(text)
    return tmp_path


def arguments(files, *more):
    columns = ("--text_column=article", "--label_column=summary")
    tables = (f"--{name}={files / name}.jsonl" for name in ("train", "dev"))
    return (
        *("--task=summarize", f"--preset={files / 'preset'}", f"--output_dir={files / 'out'}"),
        *(*columns, *tables, "--epochs=2", "--batch_size=8", "--prefix=h ", *more),
    )


def test_from_tables_to_answers_and_scores(call, files, capsys):
    call(finetune, *arguments(files, "--dry_run"))
    source, target = writing.reversed_pairs(1)[0]
    shown = capsys.readouterr().out
    assert f"  h {source} [SEP]" in shown
    assert f"  [CLS] {target}" in shown
    call(finetune, *arguments(files, "--beam_width=2", "--label_smoothing=0.1"))
    results = json.loads((files / "out" / "results.json").read_text())
    assert results["metric"] == "rougeL"
    assert set(results["dev"]) == {"bleu", "chrf", "rouge1", "rouge2", "rougeL", "rougeLsum"}
    task = kbert.TextToText.from_preset(files / "out" / "preset")
    assert (task.prefix, task.beam_width, task.label_smoothing) == ("h ", 2, 0.1)
    output = files / "answers.jsonl"
    column = "--text_column=article"
    preset = f"--preset={files / 'out' / 'preset'}"
    call(generate, preset, f"--input={files / 'dev.jsonl'}", f"--output={output}", column)
    answers = [json.loads(line) for line in output.read_text().splitlines()]
    sources = [source for source, _ in writing.reversed_pairs(6)]
    assert [x["output"] for x in answers] == task.predict(sources)
    capsys.readouterr()
    columns = (column, "--label_column=summary")
    call(evaluate, preset, f"--data={files / 'dev.jsonl'}", *columns)
    assert "rougeLsum" in capsys.readouterr().out


@pytest.mark.parametrize(
    "flag", ["--adapter=lora", "--quantization_aware", "--prune_weights=magnitude:sparsity=0.5"]
)
def test_edits_of_encoders_are_refused(call, files, flag):
    with pytest.raises(SystemExit, match=r"supported by tasks on encoders only.*TextToText"):
        call(finetune, *arguments(files, flag))
