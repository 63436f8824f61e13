"""`kbert-pretrain --recipe=transformer`: from pairs of sentences to a translator."""

import json

import numpy as np
import pytest

import kbert
from kbert.tasks.generation.pairs_objective import PairsObjective
from kbert.training.strategies import Strategy
from pipelines.flags import apply_recipe
from pipelines.translation import Translation, open_pairs, read_seq2seq, run_tokenizer
from pipelines.translation_flags import DEV_PAIRS, PAIRS
from tests.killing import copied_at, ends_before, signalled
from tests.processes import ends_well, start_program

WORDS = {"the": "die", "red": "rote", "sun": "sonne", "cat": "katze", "sees": "sieht", "a": "eine"}


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A folder with train and dev in two files each, and train as columns."""
    folder = tmp_path_factory.mktemp("pairs")
    rng = np.random.default_rng(0)
    for name, count in (("train", 60), ("dev", 6)):
        sources = [" ".join(rng.choice([*WORDS], rng.integers(2, 7))) for _ in range(count)]
        targets = [" ".join(WORDS[word] for word in text.split()) for text in sources]
        (folder / f"{name}.en").write_text("\n".join(sources) + "\n")
        (folder / f"{name}.de").write_text("\n".join(targets) + "\n")
        lines = zip(sources, targets, strict=True)
        (folder / f"{name}.tsv").write_text("".join(f"{one}\t{other}\n" for one, other in lines))
    return folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A file with the config of a tiny model."""
    config = kbert.Seq2SeqConfig(
        vocabulary_size=9,
        hidden_size=8,
        num_layers=1,
        num_heads=2,
        intermediate_size=16,
        max_positions=24,
    )
    path = tmp_path_factory.mktemp("config") / "tiny.json"
    path.write_text(json.dumps(config.to_dict()))
    return path


def arguments(texts, tiny, model_dir, *flags) -> list[str]:
    return [
        *(f"--source={texts}/train.en", f"--target={texts}/train.de", f"--model={tiny}"),
        *(
            f"--dev_source={texts}/dev.en",
            f"--dev_target={texts}/dev.de",
            f"--model_dir={model_dir}",
        ),
        *("--recipe=transformer", "--vocabulary_size=300", "--batch_tokens=96", "--beam_width=1"),
        *("--warmup_steps=2", "--learning_rate=1e-2", "--average_checkpoints=2", *flags),
    ]


@pytest.mark.slow
def test_a_resumed_run_is_one_run(texts, tiny, tmp_path, call, capsys):
    """Weights, order of the pairs, BLEU and the mean at the end: to the last digit."""
    from pipelines import pretrain

    whole, killed, preset = (tmp_path / name for name in ("whole", "killed", "preset"))
    often = ("--evaluate_every=3", "--checkpoint_every=1")
    with copied_at(2, whole, killed):
        call(pretrain, *arguments(texts, tiny, whole, *often, "--steps=6"))
    out = capsys.readouterr().out
    assert "recipe transformer: " in out
    assert "batch_tokens=96 (25000)" in out
    assert "; bpe tokenizer of 2" in out
    assert "step 6/6 · loss " in out
    assert "evaluation after step 3: accuracy " in out
    assert " · bleu " in out
    assert "the mean of the checkpoints of steps 5, 6\nevaluation of it: accuracy " in out

    tokenizer = (killed / "tokenizer" / "vocab.json").read_bytes()
    finals = (f"--preset_dir={preset}", f"--export_dir={tmp_path / 'export'}", "--steps=6")
    call(pretrain, *arguments(texts, tiny, killed, *often, *finals))
    for name in ("steps.jsonl", "evaluations.jsonl", "average.json"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes()
    assert (killed / "tokenizer" / "vocab.json").read_bytes() == tokenizer
    last = json.loads((whole / "evaluations.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 6
    assert 0 <= last["bleu"] <= 100
    assert last["nll"] > 0
    mean = json.loads((whole / "average.json").read_text())
    assert mean["steps"] == [5, 6]
    assert mean["nll"] != last["nll"]

    translator = kbert.tasks.Translator.from_preset(preset)
    assert translator.label_smoothing == 0.1
    assert len(translator.predict(["the red sun", "a cat"], max_new_tokens=4)) == 2
    assert (tmp_path / "export" / "1" / "saved_model.pb").exists()

    # On from there with its own vocabulary: at a rate near 0 the weights stay.
    more = tmp_path / "more"
    flags = [f"--pairs={texts}/train.tsv", "--recipe=transformer", f"--init_preset={preset}"]
    flags += ["--batch_tokens=96", "--steps=1", "--warmup_steps=1", "--learning_rate=1e-9"]
    flags += ["--average_checkpoints=1", "--set=dropout=0.3", f"--preset_dir={more}"]
    call(pretrain, *flags, f"--model_dir={tmp_path / 'on'}")
    assert "no evaluation: no held-out pairs" in capsys.readouterr().out
    again = kbert.Seq2Seq.from_preset(more)
    assert again.config.dropout == 0.3
    for one, other in zip(translator.seq2seq.weights, again.weights, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_two_devices_train_as_one(texts, tiny, tmp_path, call, mirrored, monkeypatch):
    from pipelines import pretrain, pretraining

    flags = ("--steps=4", "--checkpoint_every=1", "--set=dropout=0")
    flags += ("--set=attention_dropout=0",)
    two = Strategy(name="mirrored", num_replicas=2, num_hosts=1, host_index=0, engine=mirrored)
    monkeypatch.setattr(pretraining, "make_strategy", lambda *_: two)
    call(pretrain, *arguments(texts, tiny, tmp_path / "two", *flags))
    monkeypatch.undo()
    # The same rows: of an even number for one device too.
    monkeypatch.setattr(PairsObjective, "row_multiple", 2)
    call(pretrain, *arguments(texts, tiny, tmp_path / "one", *flags))
    logs = [(tmp_path / name / "steps.jsonl").read_text() for name in ("one", "two")]
    one, two = ([json.loads(line) for line in log.splitlines()] for log in logs)
    assert [line["step"] for line in two] == [1, 2, 3, 4]
    for ours, theirs in zip(one, two, strict=True):
        assert theirs == {name: pytest.approx(value, rel=1e-3) for name, value in ours.items()}
    means = [json.loads((tmp_path / n / "average.json").read_text()) for n in ("one", "two")]
    assert means[1]["nll"] == pytest.approx(means[0]["nll"], rel=1e-3)


@pytest.mark.slow
def test_dry_run_shows_pairs_memory_and_time(texts, tiny, tmp_path, call, capsys):
    from pipelines import pretrain

    flags = ("--steps=40", "--dry_run")
    call(pretrain, *arguments(texts, tiny, tmp_path / "run", *flags))
    out = capsys.readouterr().out
    assert "label_smoothing       0.1" in out
    assert "segments" not in out
    assert "  source: " in out
    assert "  target: " in out
    assert "</s>" in out
    assert "memory: weights" in out
    assert "40 steps of at most 96 tokens" in out
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_killed_and_started_again(texts, tiny, tmp_path):
    """kill -9 at any moment: of columns, with micro-batches, beams and other tokens."""

    def start(folder, *flags, before=""):
        own = (f"--pairs={texts}/train.tsv", f"--dev_pairs={texts}/dev.tsv", f"--model={tiny}")
        own += ("--recipe=transformer", "--vocabulary_size=60", "--tokenizer=wordpiece")
        own += ("--batch_tokens=96", "--steps=12", "--evaluate_every=6", "--micro_batches=2")
        own += ("--checkpoint_every=2", "--average_checkpoints=3", "--beam_width=2", *flags)
        return start_program("pretrain", f"--model_dir={folder}", *own, before=before)

    assert "steps 8, 10, 12" in ends_well(start(tmp_path / "whole"))
    broken = start(tmp_path / "broken", before=signalled())
    ends_before(broken, tmp_path / "broken", last_step=12)
    ends_well(start(tmp_path / "broken", f"--preset_dir={tmp_path / 'preset'}"))
    for name in ("steps.jsonl", "evaluations.jsonl", "average.json"):
        whole, again = (tmp_path / run / name for run in ("whole", "broken"))
        assert whole.read_text() == again.read_text()
    settings = json.loads((tmp_path / "whole" / "run.json").read_text())
    assert settings["seq2seq"]["vocabulary_size"] <= 60
    assert settings["settings"]["max_tokens"] == 96
    assert "data_dir" not in settings["settings"]
    assert kbert.load_tokenizer(tmp_path / "preset").kind == "wordpiece"


def test_the_vocabulary_of_a_run_stays(parse, texts, tmp_path):
    def learned(*flags, writes=True):
        options = parse(f"--pairs={texts}/train.tsv", f"--model_dir={tmp_path}", *flags)
        return run_tokenizer(options, open_pairs(options, PAIRS), writes)

    assert not learned("--vocabulary_size=280", writes=False).vocabulary_size > 280
    assert not (tmp_path / "tokenizer").exists()
    first = learned("--vocabulary_size=290")
    second = learned("--vocabulary_size=300")  # no step was made: nothing depends on it
    assert first.checksum != second.checksum
    (tmp_path / "checkpoints").mkdir()
    assert learned("--vocabulary_size=300").checksum == second.checksum
    assert learned("--vocabulary_size=300", writes=False).checksum == second.checksum
    rule = "checkpoints was made with another vocabulary.*vocabulary_size was 300, is 290"
    with pytest.raises(ValueError, match=rule):
        learned("--vocabulary_size=290")

    given = tmp_path / "given"
    first.save(given)
    with pytest.raises(ValueError, match=f"was started with another tokenizer.*that of {given}"):
        learned(f"--tokenizer_dir={given}")
    second.save(given)
    assert learned(f"--tokenizer_dir={given}").checksum == second.checksum
    with pytest.raises(ValueError, match=r"leave --tokenizer_dir out.*--init_preset=x"):
        learned(f"--tokenizer_dir={given}", "--init_preset=x")
    with pytest.raises(
        ValueError, match=r"requires a tokenizer that is newly trained.*Received: --tokenizer=bpe"
    ):
        learned(f"--tokenizer_dir={given}", "--tokenizer=bpe")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "Received: none of them"),
        (("--source=x",), "--source and --target together, or only --pairs. Received: --source=x"),
        (("--target=x", "--pairs=y"), "Received: --target=x, --pairs=y"),
        (("--source=x", "--target=x", "--pairs=y"), "Received: --source=x, --target=x, --pairs=y"),
        (("--pairs=TSV", "--dev_target=y"), "--dev_source and --dev_target.*--dev_target=y"),
        (("--source=TSV", "--target=TSV", "--columns=0,1"), "--columns=0,1, and neither of them"),
        (("--data_dir=shards",), "translation does not support .*Received: --data_dir=shards"),
        (("--batch_size=8",), "translation does not support .*Received: --batch_size=8"),
    ],
    ids=["nothing", "half", "mixed", "both", "dev", "columns", "shards", "rows"],
)
def test_pairs_come_from_one_place(parse, texts, tmp_path, flags, message):
    flags = [flag.replace("TSV", f"{texts}/train.tsv") for flag in flags]
    options = parse("--objective=translation", f"--model_dir={tmp_path}", *flags)
    one = Strategy(name="one_device", num_replicas=1, num_hosts=1, host_index=0, engine=None)
    with pytest.raises(ValueError, match=message):
        Translation.from_flags(options, one)


def test_columns_are_numbers_or_names(parse, texts):
    options = parse(f"--pairs={texts}/train.tsv", f"--dev_pairs={texts}/dev.tsv", "--columns=1,0")
    (german, english), *_ = open_pairs(options, PAIRS)
    assert WORDS[english.split()[0]] == german.split()[0]
    assert len([*open_pairs(options, DEV_PAIRS)]) == 6
    options = parse(f"--pairs={texts}/train.tsv", "--columns=en,de")
    with pytest.raises(ValueError, match="one column must be named 'en'"):
        next(iter(open_pairs(options, PAIRS)))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--model=bert-tiny",), "give --model=transformer-small.*Received: --model=bert-tiny"),
        (("--sequence_length=25",), "max_length=25, max_positions=24"),
        (("--batch_tokens=23",), "must be at least `max_length`.*max_tokens=23, 1 x 24 tokens"),
    ],
)
def test_models_that_do_not_fit(parse, texts, tiny, flags, message):
    options = parse("--objective=translation", f"--model={tiny}", "--steps=9", *flags)
    pairs = kbert.text.read_pairs(texts / "train.tsv")
    tokenizer = kbert.tokenizers.train_tokenizer(pairs.documents(), 300, kind="bpe")
    objective = Translation(options, tokenizer, pairs, None)
    with pytest.raises(ValueError, match=message):
        objective.make_objective(objective.make_task())


def test_a_translator_of_one_network_is_not_taken_for_two(tmp_path):
    config = kbert.family("bert-tiny").replace(vocabulary_size=9)
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = kbert.WordPieceTokenizer([*specials, *WORDS][:9])
    encoder = kbert.Encoder(config)
    head = kbert.heads.MaskedLMHead(config, encoder.token_embedding)
    for task in (
        kbert.Translator(kbert.models.PrefixSeq2Seq(encoder), tokenizer),
        kbert.tasks.UniLMTranslator(kbert.models.UniLMSeq2Seq(encoder, head), tokenizer),
    ):
        task.save_to_preset(tmp_path / task.kind)
        with pytest.raises(ValueError, match=r"a translator of one network.*Rec.*--init_preset="):
            read_seq2seq(str(tmp_path / task.kind))


@pytest.mark.parametrize(
    ("dev", "message"),
    [
        ("\t\n", r"BLEU needs held-out pairs. Received: none in .*dev.tsv"),
        (
            "the sun\tdie sonne\n" + "sun " * 99 + "\tsonne\n",
            r"dev.tsv: A source must have .*text 1",
        ),
    ],
    ids=["empty", "too long"],
)
def test_dev_pairs_that_fail_do_so_at_once(parse, texts, tiny, tmp_path, dev, message):
    (tmp_path / "dev.tsv").write_text(dev)
    options = parse("--objective=translation", f"--model={tiny}", "--steps=9")
    pairs, held_out = (
        kbert.text.read_pairs(f) for f in (texts / "train.tsv", tmp_path / "dev.tsv")
    )
    tokenizer = kbert.tokenizers.train_tokenizer(pairs.documents(), 300, kind="bpe")
    objective = Translation(options, tokenizer, pairs, held_out)
    with pytest.raises(ValueError, match=message):
        objective.make_objective(objective.make_task())


def test_checkpoints_are_made_for_the_mean(parse):
    options = parse("--recipe=transformer", "--steps=4000")
    apply_recipe(options)
    assert (options.checkpoint_every, options.keep_checkpoints) == (200, 5)
    assert (options.decay, options.warmup_steps, options.tokenizer) == ("inverse_sqrt", 400, "bpe")
    options = parse("--recipe=transformer", "--steps=8")
    apply_recipe(options)
    assert (options.checkpoint_every, options.warmup_steps) == (1, 1)
    options = parse("--recipe=transformer-big")
    apply_recipe(options)
    assert (options.checkpoint_every, options.keep_checkpoints) == (1000, 20)
    assert (options.warmup_steps, options.label_smoothing) == (4000, 0.1)


def test_a_mean_of_more_checkpoints_than_there_will_be(call, tmp_path):
    from pipelines import pretrain

    flags = ("--recipe=transformer", "--steps=10", "--checkpoint_every=4")
    with pytest.raises(SystemExit, match=r"average_checkpoints=5 requires as.*and 3 checkpoints"):
        call(pretrain, *flags, f"--model_dir={tmp_path}")
