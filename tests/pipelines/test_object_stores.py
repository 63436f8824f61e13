"""The programs, one after the other, from text in a bucket to a served model in it."""

import os
import uuid

import pytest
import tensorflow as tf

from kbert.io.paths import Path, copy
from pipelines import convert, evaluate, finetune, predict, prepare_corpus, pretrain
from tests.pipelines.test_pretrain import arguments, write_corpus


@pytest.mark.slow
def test_from_text_to_a_served_model(tmp_path, monkeypatch, mail_file, tiny_vocabulary, call):
    monkeypatch.setenv("KBERT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    bucket = f"ram://{uuid.uuid4().hex}"
    Path(bucket).mkdir()
    write_corpus(tmp_path, tiny_vocabulary)
    copy(tmp_path / "text.txt", f"{bucket}/text.txt")
    copy(mail_file, f"{bucket}/mail.csv")
    flags = [f"--input={bucket}/*.txt", "--vocabulary_size=90", f"--output_dir={bucket}/shards"]
    call(prepare_corpus, *flags, "--held_out_share=0.2")
    flags = [f"--preset_dir={bucket}/pretrained", f"--export_dir={bucket}/exported"]
    call(pretrain, *arguments(f"{bucket}/shards", f"{bucket}/run", *flags))
    flags = ["--task=classify", "--text_column=body", "--label_column=kind"]
    call(
        finetune,
        *(*flags, f"--preset={bucket}/pretrained", f"--train={bucket}/mail.csv"),
        *(f"--output_dir={bucket}/tuned", "--dev_share=0.25", "--epochs=1", "--batch_size=8"),
        *(f"--preset_dir={bucket}/best", f"--export_dir={bucket}/served"),
    )
    flags = [f"--preset={bucket}/best", f"--data={bucket}/mail.csv", *flags[1:]]
    call(evaluate, *flags, f"--output_dir={bucket}/measured")
    call(convert, f"--from={bucket}/best", f"--to={bucket}/there", "--format=huggingface")
    assert tf.saved_model.load(f"{bucket}/served/1").signatures
    for name in ("tuned/results.json", "tuned/confusion_matrix.png", "measured/metrics.json"):
        assert Path(bucket, name).stat().st_size > 0
    flags = [f"--preset={bucket}/best", f"--input={bucket}/mail.csv", "--text_column=body"]
    with pytest.raises(SystemExit, match="requires a local path"):
        call(predict, *flags, f"--output={bucket}/answers.jsonl")
    assert os.listdir(tmp_path / "here") == []
