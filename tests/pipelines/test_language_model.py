"""`kbert-pretrain --recipe=elmo`: from words to a model that predicts the next one."""

import json
import re

import numpy as np
import pytest

import kbert
from kbert.training.run.checkpoints import Checkpoints
from pipelines import language_model, masked_text
from pipelines.language_model import LanguageModel
from tests.killing import copied_at, ends_before, signalled
from tests.processes import ends_well, start_program

WORDS = ["</S>", "<S>", "<UNK>", *"the red fox dog runs sleeps far and".split()]


@pytest.fixture(scope="module")
def tokenizer():
    return kbert.WordTokenizer(WORDS)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory, tokenizer):
    folder = tmp_path_factory.mktemp("words")
    rng = np.random.default_rng(0)
    sentences = (" ".join(rng.choice(WORDS[3:], rng.integers(3, 9))) for _ in range(400))
    documents = ["\n".join(next(sentences) for _ in range(10)) for _ in range(40)]
    (folder / "text.txt").write_text("\n\n".join(documents))
    kbert.data.prepare_corpus(
        str(folder / "text.txt"), folder / "shards", tokenizer, held_out_share=0.2
    )
    return folder / "shards"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A file with the config of a tiny model."""
    config = kbert.ElmoConfig(
        character_size=4,
        filters=((1, 4), (2, 4)),
        num_highway=1,
        max_characters=10,
        lstm_size=8,
        projection_size=4,
    )
    path = tmp_path_factory.mktemp("config") / "elmo-tiny.json"
    path.write_text(json.dumps(config.to_dict()))
    return path


def arguments(data_dir, tiny, model_dir, *flags) -> list[str]:
    return [
        *(f"--data_dir={data_dir}", f"--model_dir={model_dir}", "--recipe=elmo"),
        *(f"--model={tiny}", "--batch_size=4", "--sequence_length=8", "--vocabulary_size=9"),
        *("--negatives=4", "--checkpoint_every=2", "--evaluation_steps=2", *flags),
    ]


@pytest.mark.slow
def test_a_resumed_run_is_one_run(data_dir, tiny, tmp_path, call, capsys):
    """The LSTM's state, the draws of words and the place in the text resume exactly."""
    from pipelines import pretrain

    whole, killed, preset = (tmp_path / name for name in ("whole", "killed", "preset"))
    with copied_at(2, whole, killed):
        call(pretrain, *arguments(data_dir, tiny, whole, "--steps=6"))
    out = capsys.readouterr().out
    assert "recipe elmo: " in out
    assert "optimizer" not in out
    assert "step 6/6 · loss " in out
    assert " · forward_perplexity " in out
    assert "evaluation after step 6: backward_loss " in out
    assert " · loss " in out

    finals = ("--steps=6", f"--preset_dir={preset}")
    call(pretrain, *arguments(data_dir, tiny, killed, *finals))
    assert (killed / "steps.jsonl").read_bytes() == (whole / "steps.jsonl").read_bytes()
    last = "checkpoints/step-00000006.safetensors"
    assert (killed / last).read_bytes() == (whole / last).read_bytes()
    assert Checkpoints(whole / "checkpoints").read(6)["weights/state/state"].any()

    elmo = kbert.Elmo.from_preset(preset)
    answers = elmo.predict_next("the red", top_k=3)
    assert {word for word, _ in answers["forward"]} <= set(WORDS[:9])
    assert kbert.load_tokenizer(preset).vocabulary == WORDS[:9]

    # On from there, with more words: at rate 0 the old ones keep their rows.
    more, last = tmp_path / "more", ("--steps=1", "--learning_rate=1e-9")
    flags = (f"--init_preset={preset}", f"--preset_dir={more}", "--vocabulary_size=11", *last)
    call(pretrain, *arguments(data_dir, tiny, tmp_path / "on", *flags))
    longer = kbert.Elmo.from_preset(more)
    assert longer.tokenizer.vocabulary == WORDS
    np.testing.assert_allclose(longer.softmax.kernel[:9], elmo.softmax.kernel, atol=1e-6)
    for before, after in zip(elmo.lstm.weights, longer.lstm.weights, strict=True):
        np.testing.assert_allclose(after, before, atol=1e-6)


@pytest.mark.slow
def test_dry_run_shows_words_memory_and_time(data_dir, tiny, tmp_path, call, capsys):
    from pipelines import pretrain

    call(pretrain, *arguments(data_dir, tiny, tmp_path / "run", "--dry_run"))
    out = capsys.readouterr().out
    assert "<S>" in out
    assert "initial_accumulator_value" in out
    assert "beta_1" not in out
    assert "memory: weights" in out
    assert "steps of 4 x 8 tokens" in out
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_killed_and_started_again_to_a_preset_and_an_export(data_dir, tiny, tmp_path):
    """kill -9 at any moment, and another optimizer."""

    def start(folder, *flags, before=""):
        own = ("--steps=12", "--optimizer=adamw", "--learning_rate=1e-3", *flags)
        own = arguments(data_dir, tiny, folder, "--evaluate_every=6", *own)
        return start_program("pretrain", *own, before=before)

    assert "optimizer=adamw (adagrad)" in ends_well(start(tmp_path / "whole"))
    broken = start(tmp_path / "broken", before=signalled())
    ends_before(broken, tmp_path / "broken", last_step=12)
    finals = (f"--preset_dir={tmp_path / 'preset'}", f"--export_dir={tmp_path / 'export'}")
    ends_well(start(tmp_path / "broken", *finals))
    for name in ("steps.jsonl", "evaluations.jsonl"):
        whole, again = (tmp_path / run / name for run in ("whole", "broken"))
        assert whole.read_text() == again.read_text()
    settings = json.loads((tmp_path / "whole" / "run.json").read_text())
    assert settings["elmo"]["vocabulary_size"] == 9
    assert settings["command"]["negatives"] == 4
    assert "masking" not in settings["settings"]
    assert (tmp_path / "export" / "1" / "saved_model.pb").exists()
    (embedded,) = kbert.Elmo.from_preset(tmp_path / "preset").embed(["the red fox"])
    assert embedded.shape == (3, 3, 8)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--masking=span"], "language_model does not support .*Received: --masking=span"),
        (["--model=bert-tiny"], "give --model=elmo-small.*Received: --model=bert-tiny"),
        (["--set=vocabulary_size=5"], "Use --vocabulary_size, not --set.*--set=vocabulary_size=5"),
        (["--vocabulary_size=12"], "--vocabulary_size=12, 11 words in the vocabulary"),
    ],
    ids=["masking", "encoder", "set", "vocabulary"],
)
def test_mistakes_are_told(parse, tiny, tokenizer, flags, message):
    options = parse("--objective=language_model", f"--model={tiny}", *flags)
    with pytest.raises(ValueError, match=message):
        LanguageModel(options, tokenizer, None)


@pytest.mark.parametrize("content", ["[1", "[]"])
def test_a_config_that_is_no_json_object_is_named(parse, tokenizer, content, tmp_path):
    path = tmp_path / "elmo.json"
    path.write_text(content)
    rule = f"JSON.* Received: {re.escape(str(path))}"
    with pytest.raises(ValueError, match=rule):
        language_model.read_config(parse(f"--model={path}"), tokenizer)
    with pytest.raises(ValueError, match=rule):
        masked_text.read_config(str(path), {}, tokenizer)


def test_shards_of_pieces_are_refused(parse, tiny_vocabulary):
    options = parse("--objective=language_model", "--model=elmo-small")
    with pytest.raises(ValueError, match=r"--tokenizer=words.*of a wordpiece tokenizer"):
        LanguageModel(options, kbert.WordPieceTokenizer(tiny_vocabulary), None)


def test_phases_have_the_rows_of_the_state(parse, tiny, data_dir, tokenizer):
    def learner(phases):
        options = parse(
            *("--objective=language_model", f"--model={tiny}", "--steps=10"),
            *("--batch_size=4", f"--data_dir={data_dir}", f"--phases={phases}"),
        )
        return LanguageModel(options, tokenizer, kbert.data.read_manifest(data_dir))

    fits, fewer = learner("8:0.5,16:0.5"), learner("8:0.5,16:0.5:2")
    fits.make_objective(fits.make_task())
    with pytest.raises(ValueError, match="Received: batch_size=2 in a phase, batch_size=4"):
        fewer.make_objective(fewer.make_task())
