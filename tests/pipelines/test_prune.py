"""`kbert-prune` as it is typed."""

import pytest

import kbert
from pipelines import prune
from tests.harness import tiny_config
from tests.pipelines.conftest import COLUMNS


def test_everything_at_once_of_a_fine_tuned_model(run_dir, call, mail_file, tmp_path, capsys):
    model, target = run_dir / "preset", tmp_path / "small"
    texts = tmp_path / "texts.txt"
    texts.write_text("the red fox and the old king\n")
    what = ("--heads=0.5", "--neurons=0.5", "--layers=bottom:1", f"--vocabulary={texts}")
    arguments = (f"--model={model}", f"--output_dir={target}", f"--data={mail_file}", *COLUMNS)
    call(prune, *arguments, *what, "--keep=moon")
    out = capsys.readouterr().out
    small, whole = (kbert.tasks.Task.from_preset(folder) for folder in (target, model))
    assert f"{whole.count_params():,} -> {small.count_params():,}" in out
    assert "accuracy            1.0000 -> " in out
    assert "moon" in small.tokenizer.vocabulary
    config = small.encoder.config
    assert (config.num_layers, config.vocabulary_size) == (1, small.tokenizer.vocabulary_size)
    assert config.edits[0]["heads"] == [whole.encoder.config.num_heads // 2]
    assert config.intermediate_size == whole.encoder.config.intermediate_size // 2
    assert len(small.predict(["the red fox"])) == 1


def test_an_encoder_alone(tiny_vocabulary, call, tmp_path, capsys):
    tokenizer = kbert.WordPieceTokenizer(tiny_vocabulary)
    encoder = kbert.Encoder(tiny_config(vocabulary_size=tokenizer.vocabulary_size))
    encoder.save_to_preset(tmp_path / "encoder")
    tokenizer.save(tmp_path / "encoder")
    arguments = (f"--model={tmp_path / 'encoder'}", f"--output_dir={tmp_path / 'small'}")
    call(prune, *arguments, "--layers=1", "--neurons=0.25")
    small = kbert.Encoder.from_preset(tmp_path / "small")
    assert (small.config.num_layers, small.config.intermediate_size) == (1, 24)
    again = kbert.load_tokenizer(tmp_path / "small")
    assert again.vocabulary == tokenizer.vocabulary
    assert "layers              2 -> 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "At least one of --vocabulary, --layers, --heads and --neurons"),
        (["--heads=0.5"], "--heads requires --data"),
        (["--layers=some:2"], "one of bottom, top, alternate"),
        (["--layers=bottom"], r"--layers must be numbers.*Received: --layers=bottom"),
        (["--layers=0,7"], "indices between 0 and 0"),
        (["--neurons=0.5", "--output_dir={preset}"], "must be new or empty"),
        (["--neurons=0.5", "--min_count=5", "--keep=a,b"], "--min_count=5, --keep=a,b"),
        (["--neurons=0.5", "--text_column=b"], "without --data. Received: --text_column=b"),
        (
            ["--neurons=0.5", "--data={preset}/vocab.txt"],
            "--data requires a fine-tuned task",
        ),
        (["--neurons=0.5", "more"], r"accepts flags only.*Received: \['more'\]"),
    ],
)
def test_mistakes_are_one_line(preset, call, tmp_path, arguments, message):
    given = [x.replace("{preset}", str(preset)) for x in arguments]
    if not any(x.startswith("--output_dir") for x in given):
        given.append(f"--output_dir={tmp_path / 'out'}")
    with pytest.raises(SystemExit, match=f"^kbert-prune.*({message})"):
        call(prune, f"--model={preset}", *given)
    assert not (tmp_path / "out").exists()
