"""`kbert-pretrain --objective=denoising`: from shards to an encoder-decoder."""

import json

import pytest

import kbert
from tests.pipelines.test_pretrain import write_corpus

SIZES = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 32}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory, tiny_vocabulary):
    return write_corpus(tmp_path_factory.mktemp("corpus"), tiny_vocabulary)


def arguments(data_dir, model_dir, *flags) -> list[str]:
    return [
        *(f"--data_dir={data_dir}", f"--model_dir={model_dir}", "--objective=denoising"),
        *("--model=transformer-tiny", "--batch_size=4", "--sequence_length=24", "--steps=3"),
        *(f"--set={name}={value}" for name, value in SIZES.items()),
        *("--evaluation_steps=2", *flags),
    ]


def test_from_shards_to_a_preset_that_goes_on(data_dir, tmp_path, call, capsys):
    from pipelines import pretrain

    preset = tmp_path / "preset"
    call(pretrain, *arguments(data_dir, tmp_path / "run", f"--preset_dir={preset}"))
    assert "step 3/3 · loss " in capsys.readouterr().out
    settings = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]
    assert settings["noise"] == "bart"
    task = kbert.TextToText.from_preset(preset)
    assert task.label_smoothing == 0
    assert len(task.predict(["the quick fox"], max_new_tokens=3)) == 1
    more = [x for x in arguments(data_dir, tmp_path / "more") if not x.startswith("--set")]
    call(pretrain, *more, f"--init_preset={preset}", "--noise=mass", "--steps=1")
    with pytest.raises(SystemExit, match="noise"):
        call(pretrain, *arguments(data_dir, tmp_path / "run", "--noise=prefix_lm", "--steps=4"))


def test_a_dry_run_shows_both_sides(data_dir, tmp_path, call, capsys):
    from pipelines import pretrain

    call(pretrain, *arguments(data_dir, tmp_path, "--noise=mass", "--dry_run"))
    out = capsys.readouterr().out
    assert "source tokens and" in out
    assert " at positions " in out
    assert "  target: " in out


SHOWN = {
    "bart": ("[MASK]", "[CLS]"),
    "t5": ("[unused0]",),
    "mass": ("[MASK]", " at positions "),
    "pegasus": ("[MASK]", "[SEP]"),
}


@pytest.fixture(scope="module")
def with_sentinels(tmp_path_factory, tiny_vocabulary):
    sentinels = [f"[unused{n}]" for n in range(4)]
    return write_corpus(tmp_path_factory.mktemp("sentinels"), [*tiny_vocabulary, *sentinels])


def recipe_arguments(data_dir, model_dir, recipe, *flags) -> list[str]:
    left_out = ("--objective=", "--model=")
    sized = [x for x in arguments(data_dir, model_dir) if not x.startswith(left_out)]
    return [*sized, f"--recipe={recipe}", *flags]


@pytest.mark.parametrize("recipe", SHOWN)
def test_a_dry_run_of_a_recipe_shows_both_sides(with_sentinels, tmp_path, call, capsys, recipe):
    from pipelines import pretrain

    call(pretrain, *recipe_arguments(with_sentinels, tmp_path, recipe, "--dry_run"))
    out = capsys.readouterr().out
    assert f"recipe {recipe}: " in out
    assert "sequence_length=24 (512:1)" in out
    assert "  target: " in out
    for word in SHOWN[recipe]:
        assert word in out


@pytest.mark.parametrize("recipe", ["t5", pytest.param("pegasus", marks=pytest.mark.slow)])
def test_adafactor_resumes_to_the_same_numbers(with_sentinels, tmp_path, call, recipe):
    """The second run stops after two steps, and its second command ends it."""
    from pipelines import pretrain

    flags = ("--checkpoint_every=2", "--steps=4", "--warmup_steps=1", "--allow_changes=steps")
    call(pretrain, *recipe_arguments(with_sentinels, tmp_path / "whole", recipe, *flags))
    broken = recipe_arguments(with_sentinels, tmp_path / "broken", recipe, *flags)
    call(pretrain, *broken, "--steps=2")
    call(pretrain, *broken)
    whole, again = ((tmp_path / x / "steps.jsonl").read_text() for x in ("whole", "broken"))
    assert whole == again
    settings = json.loads((tmp_path / "whole" / "run.json").read_text())["settings"]
    assert (settings["optimizer"], settings["decay_join"]) == ("adafactor", "constant")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--noise=t5"], "requires . sentinels.*Received: 0"),
        (["--noise=bort"], "A noise must be one of bart"),
        (["--noise=bart:masked_share=2"], "`masked_share` must be .* below 1"),
        (["--masking=span"], "--objective=denoising does not support .*Received: --masking=span"),
        (["--label_smoothing=0.2"], "Received: --label_smoothing=0.2"),
        (["--model=bert-tiny"], "denoising or translation trains an encoder and a decoder"),
        (["--objective=causal_lm", "--model=gpt2-tiny", "--noise=mass"], "Received: --noise=mass"),
        (["--objective=masked_lm", "--model=bert-tiny", "--noise=mass"], "Received: --noise=mass"),
        (
            ["--objective=translation", f"--pairs={__file__}", "--noise=mass"],
            "translation does not support .*Received: .*noise=mass",
        ),
    ],
)
def test_what_does_not_fit_is_refused(data_dir, tmp_path, call, flags, message):
    from pipelines import pretrain

    with pytest.raises(SystemExit, match=message):
        call(pretrain, *arguments(data_dir, tmp_path, *flags))
