"""`kbert-pretrain` of GPT and Transformer-XL: from the shards of any tokenizer to a model."""

import json

import numpy as np
import pytest

import kbert
from pipelines.causal import Causal, RememberedText
from pipelines.flags import apply_recipe
from tests.killing import copied_at
from tests.pipelines.test_pretrain import write_corpus


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory, tiny_vocabulary):
    return write_corpus(tmp_path_factory.mktemp("corpus"), tiny_vocabulary)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A file with the config of a tiny model."""
    config = kbert.DecoderConfig(
        vocabulary_size=9,
        hidden_size=8,
        num_layers=1,
        num_heads=2,
        intermediate_size=16,
        max_positions=80,
        block="post_norm",
    )
    path = tmp_path_factory.mktemp("config") / "tiny.json"
    path.write_text(json.dumps(config.to_dict()))
    return path


def arguments(data_dir, tiny, model_dir, *flags) -> list[str]:
    return [
        *(f"--data_dir={data_dir}", f"--model_dir={model_dir}", "--recipe=gpt", f"--model={tiny}"),
        *("--batch_size=4", "--sequence_length=12", "--checkpoint_every=2", "--warmup_steps=1"),
        *("--evaluation_steps=2", "--decay=constant", *flags),
    ]


@pytest.mark.slow
def test_a_resumed_run_is_one_run(data_dir, tiny, tmp_path, call, capsys):
    from pipelines import pretrain

    whole, killed, preset = (tmp_path / name for name in ("whole", "killed", "preset"))
    with copied_at(2, whole, killed):
        call(pretrain, *arguments(data_dir, tiny, whole, "--steps=6"))
    out = capsys.readouterr().out
    assert "recipe gpt: " in out
    assert "decay=constant (cosine)" in out
    assert "step 6/6 · loss " in out
    assert " · perplexity " in out
    assert "evaluation after step 6: lm_accuracy " in out

    finals = ("--steps=6", f"--preset_dir={preset}", f"--export_dir={tmp_path / 'export'}")
    call(pretrain, *arguments(data_dir, tiny, killed, *finals))
    assert (killed / "steps.jsonl").read_bytes() == (whole / "steps.jsonl").read_bytes()
    last = "checkpoints/step-00000006.safetensors"
    assert (killed / last).read_bytes() == (whole / last).read_bytes()
    settings = json.loads((whole / "run.json").read_text())
    assert settings["decoder"]["block"] == "post_norm"
    assert "masking" not in settings["settings"]
    assert "source" not in settings["settings"]

    task = kbert.tasks.CausalLM.from_preset(preset)
    assert len(task.predict(["the quick", ""], max_new_tokens=3)) == 2
    assert (tmp_path / "export" / "1" / "saved_model.pb").exists()

    more = tmp_path / "more"
    flags = (f"--init_preset={preset}", "--set=dropout=0", f"--preset_dir={more}")
    flags += ("--steps=1", "--learning_rate=1e-9", "--weight_decay=0")
    call(pretrain, *arguments(data_dir, tiny, tmp_path / "on", *flags))
    again = kbert.Decoder.from_preset(more)
    assert again.config.dropout == 0
    for one, other in zip(task.decoder.weights, again.weights, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


SMALL = {"hidden_size": 8, "num_layers": 1, "num_heads": 2, "intermediate_size": 16}


def remembering(data_dir, model_dir, *flags) -> list[str]:
    sizes = (f"--set={name}={value}" for name, value in SMALL.items())
    return [
        *(f"--data_dir={data_dir}", f"--model_dir={model_dir}", "--recipe=transformer-xl"),
        *("--set=cutoffs=[5]", "--set=divisor=2", "--batch_size=4", "--sequence_length=12"),
        *("--phases=", "--memory_length=6", "--checkpoint_every=2", "--evaluation_steps=2"),
        *sizes,
        *flags,
    ]


@pytest.mark.slow
def test_a_memory_is_killed_and_resumed(data_dir, tmp_path, call, capsys):
    from pipelines import pretrain

    whole, killed, preset = (tmp_path / name for name in ("whole", "killed", "preset"))
    with copied_at(2, whole, killed):
        call(pretrain, *remembering(data_dir, whole, "--steps=6"))
    assert " · perplexity " in capsys.readouterr().out
    call(pretrain, *remembering(data_dir, killed, "--steps=6", f"--preset_dir={preset}"))
    assert (killed / "steps.jsonl").read_bytes() == (whole / "steps.jsonl").read_bytes()
    last = "checkpoints/step-00000006.safetensors"
    assert (killed / last).read_bytes() == (whole / last).read_bytes()
    (score,) = kbert.tasks.MemoryLM.from_preset(preset).predict(["the quick fox"])
    assert score["perplexity"] > 1
    more = ("--steps=1", f"--init_preset={preset}", "--memory_length=3")
    call(pretrain, *remembering(data_dir, tmp_path / "more", *more, "--set=dropout=0"))


def test_a_memory_s_flags(parse, data_dir, tiny, tiny_vocabulary):
    manifest = kbert.data.read_manifest(data_dir)
    tokenizer = kbert.WordPieceTokenizer(tiny_vocabulary)

    def objective(*flags):
        options = parse(*remembering(data_dir, "run"), *flags)
        apply_recipe(options)
        return RememberedText(options, tokenizer, manifest)

    learner = objective("--phases=8:0.5,8:0.5:2", "--steps=10")
    task = learner.make_task()
    assert (task.memory_length, task.batch_size) == (6, 4)
    assert task.encoder.config.cutoffs == (5,)
    with pytest.raises(ValueError, match=r"must have the batch_size of.*Received: batch_size=2"):
        learner.make_objective(task)
    with pytest.raises(ValueError, match=r"trains a Transformer-XL.*Received: --model=gpt2"):
        objective("--model=gpt2").make_task()
    with pytest.raises(ValueError, match=r"`memory_length` must be an integer of at least 1"):
        objective("--memory_length=0").make_task()
    with pytest.raises(ValueError, match=r"memory_lm does not support .*Received: --masking=span"):
        objective("--masking=span")


def test_ulmfit_s_recipe_trains_an_awd_lstm(parse, data_dir, tiny_vocabulary, tmp_path):
    def task(*flags):
        options = parse("--recipe=ulmfit", f"--data_dir={data_dir}", "--model_dir=run", *flags)
        apply_recipe(options)
        assert (options.decay, options.decay_join) == ("slanted_triangular", "after")
        manifest = kbert.data.read_manifest(data_dir)
        tokenizer = kbert.WordPieceTokenizer(tiny_vocabulary)
        return RememberedText(options, tokenizer, manifest).make_task()

    narrow = ("--set=hidden_size=8", "--set=intermediate_size=12", "--set=weight_dropout=0.5")
    made = task(*narrow)
    sizes = [(8, 12), (12, 12), (12, 8)]
    assert (made.batch_size, made.memory_length, made.encoder.config.layer_sizes) == (64, 70, sizes)
    assert made.encoder.config.weight_dropout == 0.5
    model = tmp_path / "model.json"
    model.write_text(json.dumps({"kind": "awd_lstm", **made.encoder.config.to_dict()}))
    assert task(f"--model={model}").encoder.config == made.encoder.config
    made.save_to_preset(tmp_path / "preset")
    again = task(f"--init_preset={tmp_path / 'preset'}", "--set=weight_dropout=0.2")
    assert again.encoder.config == made.encoder.config.replace(weight_dropout=0.2)
    for found, expected in zip(again.get_weights(), made.get_weights(), strict=True):
        if found.ndim and found.dtype == np.float32:
            np.testing.assert_array_equal(found, expected)


def test_dry_run_shows_tokens_memory_and_time(data_dir, tiny, tmp_path, call, capsys):
    from pipelines import pretrain

    call(pretrain, *arguments(data_dir, tiny, tmp_path / "run", "--dry_run", "--steps=90"))
    out = capsys.readouterr().out
    assert "each predicted from " in out
    assert "batch_tokens" not in out
    assert "memory: weights" in out
    assert "90 steps of 4 x 12 tokens" in out
    assert not (tmp_path / "run").exists()


@pytest.fixture
def objective(parse, tiny, data_dir, tiny_vocabulary):
    """Flags -> the objective."""

    def made(*flags):
        options = parse(
            "--objective=causal_lm", f"--model={tiny}", f"--data_dir={data_dir}", *flags
        )
        manifest = kbert.data.read_manifest(data_dir)
        return Causal(options, kbert.WordPieceTokenizer(tiny_vocabulary), manifest)

    return made


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--masking=span",), "causal_lm does not support .*Received: --masking=span"),
        (("--pairs=x",), "causal_lm does not support .*Received: --pairs=x"),
        (("--model=bert-tiny",), "give --model=gpt2, another.*Received: --model=bert-tiny"),
    ],
    ids=["masking", "pairs", "encoder"],
)
def test_mistakes_are_told(objective, flags, message):
    with pytest.raises(ValueError, match=message):
        objective(*flags).make_task()


def test_phases_fit_the_model(objective):
    fits, too_long = (
        objective("--steps=10", f"--phases=8:0.5,{length}:0.5") for length in (80, 81)
    )
    fits.make_objective(fits.make_task())
    with pytest.raises(ValueError, match="sequence_length=81, max_positions=80"):
        too_long.make_objective(too_long.make_task())


def test_a_model_keeps_its_own_vocabulary(objective, tmp_path, tiny_vocabulary):
    task = objective().make_task()
    task.save_to_preset(tmp_path / "same")
    with pytest.raises(ValueError, match=r"cannot change the sizes.*--set=num_layers=2"):
        objective(f"--init_preset={tmp_path}/same", "--set=num_layers=2").make_task()
    tokenizer = kbert.WordPieceTokenizer([*tiny_vocabulary, "more"])
    config = task.decoder.config.replace(vocabulary_size=tokenizer.vocabulary_size)
    kbert.tasks.CausalLM(kbert.Decoder(config), tokenizer).save_to_preset(tmp_path / "other")
    size = tokenizer.vocabulary_size
    with pytest.raises(ValueError, match=f"{size - 1} entries; the model's has {size}"):
        objective(f"--init_preset={tmp_path}/other").make_task()


def test_the_recipe_is_gpts(parse):
    options = parse("--recipe=gpt", "--steps=100000")
    apply_recipe(options)
    assert (options.objective, options.model, options.phases) == (
        "causal_lm",
        "openai-gpt",
        "512:1",
    )
    assert (options.decay, options.learning_rate, options.warmup_steps) == ("cosine", 2.5e-4, 2000)
    assert (options.average_checkpoints, options.keep_checkpoints) == (1, 3)
