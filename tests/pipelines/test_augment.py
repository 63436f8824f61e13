"""`kbert-augment` as it is typed."""

import json
import os
from pathlib import Path

import keras
import pytest

import kbert
from kbert.distillation.augmentation import folder as folder_module, read_augmented
from pipelines import augment
from tests.killing import ends_killed, signalled
from tests.processes import ends_well, start_program

ROOT = Path(kbert.__path__[0]).parent
COLUMNS = ("--task=classify", "--text_column=body", "--label_column=kind")
QUICK = ("--copies=3", "--candidates=4")


@pytest.fixture(scope="module")
def masked_lm(tmp_path_factory, preset):
    """A folder with a masked-LM head that was never trained."""
    folder = tmp_path_factory.mktemp("masked_lm")
    keras.utils.set_random_seed(1)
    encoder = kbert.Encoder.from_preset(preset)
    tokenizer = kbert.load_tokenizer(preset)
    kbert.tasks.Pretraining(encoder, tokenizer, next_sentence=False).save_to_preset(folder)
    return folder


def lines(folder) -> list[dict]:
    paths = sorted(Path(folder).glob("augmented-*.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def test_a_table_with_columns_of_its_own(masked_lm, call, mail_file, tmp_path, capsys):
    flags = (f"--train={mail_file}", f"--preset={masked_lm}", f"--output_dir={tmp_path / 'out'}")
    flags += (*COLUMNS, *QUICK)
    call(augment, *flags, "--shards=3", "--vectors=")
    assert "64 rows and 1" in capsys.readouterr().out
    found = lines(tmp_path / "out")
    assert set(found[0]) == {"text", "label"}
    assert found[0]["label"] == "spam"
    table = read_augmented(tmp_path / "out")
    assert table["text"] == [line["text"] for line in found]
    assert 150 < len(table) <= 256
    assert len(list((tmp_path / "out").iterdir())) == 4
    call(augment, *flags, "--shards=3", "--batch_size=5")  # finished: nothing is done
    with pytest.raises(SystemExit, match=r"^kbert-augment: .*other settings.*seed was 0, is"):
        call(augment, *flags, "--shards=3", "--seed=1")


def test_the_published_files_of_glue(masked_lm, call, tmp_path, capsys):
    (tmp_path / "train.tsv").write_text("sentence\tlabel\nthe red fox\t1\nthe old dogful\t0\n")
    (tmp_path / "glove.txt").write_text("dogful 1 0\nfoxy 1 1\n")
    (tmp_path / "stop.txt").write_text("red\n")
    flags = ("--task=sst2", f"--train={tmp_path}", f"--preset={masked_lm}", *QUICK)
    flags += (f"--vectors={tmp_path / 'glove.txt'}", f"--stop_words={tmp_path / 'stop.txt'}")
    call(augment, *flags, f"--output_dir={tmp_path / 'out'}", "--replaced_share=1")
    capsys.readouterr()
    first, *others = lines(tmp_path / "out")
    assert first == {"text": "the red fox", "label": "positive"}
    assert others[0]["text"].split()[1] == "red"
    last = [line["text"].split()[2] for line in others if line["label"] == "negative"]
    assert last[0] == "dogful"
    assert set(last[1:]) == {"foxy"}
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["settings"]["replaced_share"] == 1
    assert manifest["counts"]["rows"] == 2


def test_a_look_writes_nothing(masked_lm, call, mail_file, tmp_path, capsys):
    flags = (f"--train={mail_file}", f"--preset={masked_lm}", f"--output_dir={tmp_path / 'out'}")
    call(augment, *COLUMNS, *flags, *QUICK, "--dry_run")
    out = capsys.readouterr().out
    assert "mail.csv, line 2\n  the " in out
    assert "[" in out
    assert "words per second" in out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--task=squad",), "would move the answers. Received: --task=squad, a QuestionAnswerer"),
        (("--task=swag",), "Received: --task=swag, a MultipleChoice"),
        (("--vectors=nowhere.txt",), "nowhere.txt"),
        (("--max_vectors=9",), "without --vectors. Received: --max_vectors=9"),
        (("--preset=ENCODER",), "no head that kbert supports"),
    ],
)
def test_mistakes_are_told_in_one_line(
    masked_lm, preset, call, mail_file, tmp_path, flags, message
):
    usual = (f"--train={mail_file}", f"--preset={masked_lm}", f"--output_dir={tmp_path / 'out'}")
    flags = [flag.replace("ENCODER", str(preset)) for flag in flags]
    with pytest.raises(SystemExit, match=f"^kbert-augment: .*{message}"):
        call(augment, *COLUMNS, *usual, *flags)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_killed_and_started_again_to_the_same_bytes(masked_lm, tmp_path):
    texts = [f"the red fox and the {word} jumps" for word in ("dog", "cat", "king")] * 300
    (tmp_path / "t.csv").write_text("text,label\n" + "".join(f"{text},a\n" for text in texts))

    def start(output, before=""):
        flags = (f"--preset={masked_lm}", f"--train={tmp_path / 't.csv'}", "--task=classify")
        flags += (f"--output_dir={output}", "--shards=60")
        return start_program("augment", *flags, before=before)

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    ends_well(start(whole))
    written = signalled("kbert.distillation.augmentation.folder:_write_shard", calls=3)
    ends_killed(start(broken, before=written))
    assert len(list(broken.glob("*.jsonl"))) == 3
    assert not json.loads((broken / folder_module.MANIFEST).read_text())["finished"]
    ends_well(start(broken))
    names = sorted(os.listdir(whole))
    assert sorted(os.listdir(broken)) == names
    assert len(names) == 61
    assert all((broken / name).read_bytes() == (whole / name).read_bytes() for name in names)
