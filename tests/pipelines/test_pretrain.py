import json
import shutil
import signal
import subprocess

import numpy as np
import pytest

import kbert
from kbert.training.run.checkpoints import Checkpoints
from pipelines.flags import parse_settings
from tests.harness import tiny_config
from tests.killing import ends_before, signalled
from tests.processes import ends_well, start_program
from tests.waiting import PATIENCE

TINY = ["hidden_size=16", "num_layers=1", "num_heads=2", "intermediate_size=32"]


def write_corpus(folder, vocabulary, held_out_share=0.2):
    """Thirty documents of the fixture's words, prepared."""
    words = [w for w in vocabulary if w.isalpha() and len(w) > 1]
    rng = np.random.default_rng(0)
    sentences = (" ".join(rng.choice(words, rng.integers(4, 12))) + "." for _ in range(10_000))
    documents = ["\n".join(next(sentences) for _ in range(8)) for _ in range(30)]
    text = folder / "text.txt"
    text.write_text("\n\n".join(documents))
    tokenizer = kbert.WordPieceTokenizer(vocabulary)
    kbert.data.prepare_corpus(
        str(text), folder / "shards", tokenizer, held_out_share=held_out_share
    )
    return folder / "shards"


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory, tiny_vocabulary):
    return write_corpus(tmp_path_factory.mktemp("corpus"), tiny_vocabulary)


def arguments(data_dir, model_dir, *flags) -> list[str]:
    return [
        *(f"--data_dir={data_dir}", f"--model_dir={model_dir}", "--steps=12"),
        *("--batch_size=8", "--phases=16:0.5,24:0.5", "--warmup_steps=2", "--learning_rate=1e-3"),
        *(f"--set={item}" for item in TINY),
        *flags,
    ]


def pretrain(*flags, before="") -> subprocess.Popen:
    return start_program("pretrain", *arguments(*flags), before=before)


@pytest.mark.slow
def test_a_terminated_run_resumes_and_a_finished_one_takes_no_other_settings(
    data_dir, tmp_path, call, capsys
):
    """A scheduler must not take a job that it stopped for a finished one."""
    from pipelines import pretrain as program

    folder, one_phase = tmp_path / "run", "--phases=16:1"
    checkpoints = Checkpoints(folder / "checkpoints")
    terminated = signalled(number=signal.SIGTERM)
    stopped = pretrain(data_dir, folder, one_phase, "--checkpoint_every=2", before=terminated)
    out, errors = stopped.communicate(timeout=PATIENCE)
    assert stopped.returncode == 128 + signal.SIGTERM, errors[-3000:]
    step = checkpoints.latest()["step"]
    assert f"stopped by SIGTERM: checkpoint of step {step} written" in out
    assert step < 12

    call(program, *arguments(data_dir, folder, one_phase))
    out = capsys.readouterr().out
    assert "step 12/12 · loss" in out
    assert "evaluation after step 12: loss" in out
    assert "already finished" not in out

    # What no number depends on may change: the place of the shards, and what is kept and written.
    moved, preset = shutil.copytree(data_dir, tmp_path / "shards"), tmp_path / "preset"
    same = (one_phase, "--checkpoint_every=1", "--tensorboard", "--keep_checkpoints=2")
    call(program, *arguments(moved, folder, *same, f"--preset_dir={preset}"))
    out = capsys.readouterr().out
    assert "already finished, nothing is left to train: trained for 12 steps" in out.splitlines()
    assert "loss" not in out
    assert kbert.Encoder.from_preset(preset).config.hidden_size == 16

    other = (one_phase, "--steps=13", "--weight_decay=0.5")
    refused = r"--allow_changes=.*Received: .*settings.steps was 12, is 13; "
    with pytest.raises(SystemExit, match=f"^kbert-pretrain: .* holds another run.*{refused}"):
        call(program, *arguments(data_dir, folder, *other))
    allowed = "--allow_changes=steps,weight_decay"
    call(program, *arguments(data_dir, folder, *other, allowed, "--recompute"))
    assert "step 13/13 · loss" in capsys.readouterr().out


@pytest.mark.slow
def test_a_mixture_of_folders_is_trained_on_and_is_part_of_the_run(
    data_dir, tmp_path, tiny_vocabulary, call, capsys
):
    from pipelines import pretrain as program

    more = write_corpus(tmp_path, [*tiny_vocabulary[:-1], "another"])
    with pytest.raises(SystemExit, match=r"prepared with the same tokenizer"):
        call(program, *arguments(f"{data_dir},{more}", tmp_path / "run", "--phases=16:1"))
    more = shutil.copytree(data_dir, tmp_path / "copy")
    flags = (tmp_path / "run", "--phases=16:1", "--steps=4")
    call(program, *arguments(f"{data_dir}:0.7,{more}:0.3", *flags))
    out = capsys.readouterr().out
    assert f"70.0% {data_dir}: train: " in out
    assert f"30.0% {more}: train: " in out
    assert "evaluation after step 4: loss" in out
    with pytest.raises(SystemExit, match=r"holds another run.*Received: .*data was "):
        call(program, *arguments(f"{data_dir},{more}", *flags, "--mixture_temperature=0.7"))
    with pytest.raises(SystemExit, match=r"--mixture_temperature requires several folders"):
        call(program, *arguments(data_dir, *flags, "--mixture_temperature=0.7"))


@pytest.mark.slow
def test_killed_and_started_again_to_a_preset_and_a_longer_vocabulary(
    data_dir, tmp_path, tiny_vocabulary
):
    """The whole life of a model: killed, resumed, written, adapted to a grown vocabulary."""
    flags = ("--checkpoint_every=2", "--evaluate_every=6", "--evaluation_steps=2")
    out = ends_well(pretrain(data_dir, tmp_path / "whole", *flags))
    assert "parameters; train: " in out
    assert "step 12/12 · loss" in out

    broken = pretrain(data_dir, tmp_path / "broken", *flags, before=signalled())
    ends_before(broken, tmp_path / "broken", last_step=12)
    preset = tmp_path / "preset"
    ends_well(pretrain(data_dir, tmp_path / "broken", *flags, f"--preset_dir={preset}"))
    for name in ("steps.jsonl", "evaluations.jsonl"):
        whole, again = (tmp_path / run / name for run in ("whole", "broken"))
        assert whole.read_text() == again.read_text()
    settings = json.loads((tmp_path / "whole" / "run.json").read_text())
    assert settings["encoder"]["vocabulary_size"] == len(tiny_vocabulary)
    assert settings["settings"]["phases"] == "16:0.5,24:0.5"

    once_more = tmp_path / "once_more"  # of a run that is at its end
    ends_well(pretrain(data_dir, tmp_path / "broken", *flags, f"--preset_dir={once_more}"))
    weights = [folder / "model.safetensors" for folder in (preset, once_more)]
    assert weights[0].read_bytes() == weights[1].read_bytes()

    grown = write_corpus(tmp_path, [*tiny_vocabulary, "quickfox"])
    # A rate that moves no weight: 0 is refused.
    flags = (f"--init_preset={preset}", "--learning_rate=1e-30", "--set=dropout=0.2")
    flags += (f"--preset_dir={tmp_path / 'adapted'}",)
    ends_well(pretrain(grown, tmp_path / "adapting", *flags))
    before = kbert.Encoder.from_preset(preset).token_embedding.numpy()
    after = kbert.Encoder.from_preset(tmp_path / "adapted").token_embedding.numpy()
    assert (after[:-1] == before).all()
    pieces = [tiny_vocabulary.index(piece) for piece in ("quick", *("##f", "##o", "##x"))]
    assert after[-1] == pytest.approx(before[pieces].mean(axis=0), abs=1e-6)


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        (
            "--preset_dir={data}",
            "not be the folder of --data_dir, which would be overwritten.*--preset_dir=",
        ),
        (
            "--preset_dir={data}/../run",
            "not be the folder of --model_dir, which would be overwritten",
        ),
        (
            "--export_dir={data}",
            "not be the folder of --data_dir, which would be overwritten.*--export_dir=",
        ),
        ("--preset_dir={data}/manifest.json", "must be a folder, or a path"),
        ("--export_dir={data}/manifest.json", "must be a folder, or a path"),
        ("--preset_dir={model}", "with one of the task 'classify', for one of .*'pretrain'"),
    ],
)
def test_what_cannot_be_written_or_would_be_lost_is_told_before(
    data_dir, tmp_path, call, tiny_vocabulary, flag, message
):
    from pipelines import pretrain as program

    data, model = shutil.copytree(data_dir, tmp_path / "shards"), tmp_path / "model"
    config = tiny_config(vocabulary_size=len(tiny_vocabulary))
    tokenizer = kbert.WordPieceTokenizer(tiny_vocabulary)
    kbert.tasks.TextClassifier(kbert.Encoder(config), tokenizer, labels=2).save_to_preset(model)
    with pytest.raises(SystemExit, match=message):
        call(program, *arguments(data, tmp_path / "run", flag.format(data=data, model=model)))
    assert not (tmp_path / "run").exists()


def test_dry_run_shows_examples_memory_and_time(data_dir, tmp_path, call, capsys):
    from pipelines import pretrain

    call(pretrain, *arguments(data_dir, tmp_path / "run", "--dry_run"))
    out = capsys.readouterr().out
    assert "predicted: " in out
    assert "[CLS]" in out
    assert "memory: weights" in out
    assert "6 steps of 8 x 24 tokens" in out
    assert not (tmp_path / "run").exists()


def test_mistakes_are_told_in_one_line(data_dir, tmp_path):
    """In a process of its own: the message stands last, behind what the imports say."""
    process = pretrain(data_dir, tmp_path, "--set=hidden_width=8")
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "Traceback" not in errors
    message = errors.splitlines()[-1]
    assert message.startswith("kbert-pretrain: ")
    assert "hidden_width" in message


def test_a_corrupt_record_is_told_in_one_line(data_dir, tmp_path, call):
    from pipelines import pretrain

    shards = shutil.copytree(data_dir, tmp_path / "shards")
    path = next(shards.glob("train-*.tfrecord"))
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)
    with pytest.raises(SystemExit) as stopped:
        call(pretrain, *arguments(shards, tmp_path / "run"))
    assert stopped.value.code == (
        f"kbert-pretrain: Cannot read {path}, record at byte 0: missing, truncated or corrupt "
        "(verify_corpus, or StoredRows.verify for rows, checks every record)"
    )


def test_evaluation_needs_held_out_documents(tmp_path, tiny_vocabulary, call):
    from pipelines import pretrain

    data_dir = write_corpus(tmp_path, tiny_vocabulary, held_out_share=0.0)
    rule = "`evaluate_every` needs held-out data"
    ending = r"Received: 0 held-out document\(s\), 2 required; prepare the corpus"
    with pytest.raises(SystemExit, match=f"{rule}.*{ending}"):
        call(pretrain, *arguments(data_dir, tmp_path / "run", "--evaluate_every=5"))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_help_teaches():
    out, _ = start_program("pretrain", "--help").communicate()
    assert "kbert-pretrain --data_dir=shards --model=bert-small" in out
    assert "--source=train.en --target=train.de" in out
    assert "--recipe=gpt" in out
    for flag in ("micro_batches", "phases", "strategy", "init_preset", "dry_run", "dev_pairs"):
        assert f"-{flag}" in out or f"]{flag}" in out


def test_settings_are_json_where_they_can_be():
    assert parse_settings(["num_layers=6", "dropout=0.1", "activation=relu"]) == {
        "num_layers": 6,
        "dropout": 0.1,
        "activation": "relu",
    }
    with pytest.raises(ValueError, match=r"--set must be field=value. Received: --set=x"):
        parse_settings(["x"])
