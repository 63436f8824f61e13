"""What kbert reads and writes in an object store, on TensorFlow's own `ram://`.

That one has two faults to keep clear of: a folder lists what lies in others whose names begin with
its own, and a file that is opened to be written anew is appended to.
"""

import gzip
import json
import os
import signal
import uuid
from pathlib import Path as LocalPath

import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert import experiments
from kbert.conversion import convert
from kbert.data import prepare_corpus, read_manifest, verify_corpus
from kbert.data.corpus import chunks, records, shards
from kbert.distillation.cache.store import Store
from kbert.extraction import write_features
from kbert.io import atomic
from kbert.io.paths import Path, copy_tree
from tests.data.corpus.test_prepare import make_texts
from tests.harness import randomise, tiny_config, tiny_inputs
from tests.training.run import fine_tuning_toy, run_toy

pytestmark = pytest.mark.tensorflow


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """The current folder is empty, and no test leaves a folder `gs:` or `ram:` in it."""
    monkeypatch.setenv("KBERT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    yield
    assert os.listdir(tmp_path / "here") == []


@pytest.fixture
def bucket():
    return Path(f"ram://{uuid.uuid4().hex}")


@pytest.fixture(scope="module")
def tokenizer(tiny_vocabulary):
    return kbert.WordPieceTokenizer(tiny_vocabulary)


def files(folder) -> dict[str, bytes]:
    folder = Path(folder)
    cut = len(str(folder)) + 1
    return {str(p)[cut:]: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def text(tmp_path):
    texts = make_texts(120)
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "a.txt").write_text("\n\n".join(texts[:50]))
    with gzip.open(folder / "b.txt.gz", "wt") as file:
        file.write("\n\n".join(texts[50:100]))
    (folder / "c.jsonl").write_text("\n".join(json.dumps({"text": t}) for t in texts[100:]))
    return folder


def test_a_corpus(bucket, text, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 5_000)
    monkeypatch.setattr(shards, "SHARD_TEXT_BYTES", 10_000)
    monkeypatch.setattr(records, "BLOCK_TOKENS", 500)
    copy_tree(text, bucket / "text")
    sources = [f"{bucket}/text/*.txt*", bucket / "text" / "c.jsonl"]

    def stop(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shards, "write_note", stop)
        with pytest.raises(KeyboardInterrupt):
            prepare_corpus(sources, bucket / "shards", tokenizer)
    assert not (bucket / "shards" / "manifest.json").exists()
    done = prepare_corpus(sources, bucket / "shards", tokenizer)
    assert len(done.shard_paths()) > 1
    local = prepare_corpus(str(text / "*"), tmp_path / "shards", tokenizer)
    here, there = files(tmp_path / "shards"), files(bucket / "shards")
    assert there.keys() == here.keys()
    # The plan names the sources.
    assert {n for n in here if here[n] != there[n]} == {"plan.json"}
    assert verify_corpus(bucket / "shards") == read_manifest(str(bucket / "shards")) == done
    assert prepare_corpus(sources, bucket / "shards", tokenizer) == done
    assert done.checksum == local.checksum
    assert list(LocalPath(tmp_path, "cache").rglob("*.spill")) == []
    options = {"sequence_length": 32, "batch_size": 4, "seed": 1}
    loaded = kbert.load_tokenizer(bucket / "shards")
    found = kbert.data.pretraining_dataset(bucket / "shards", loaded, **options)
    expected = kbert.data.pretraining_dataset(tmp_path / "shards", tokenizer, **options)
    for ours, theirs in zip(found.take(3), expected.take(3), strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, ours, theirs)


def test_a_vocabulary(bucket, text, monkeypatch):
    copy_tree(text, bucket / "text")
    train = kbert.data.train_or_reuse_tokenizer
    first = train(bucket / "shards", bucket / "text" / "a.txt", 80)
    assert sorted(files(bucket / "shards")) == [
        *("tokenizer.origin.json", "tokenizer_config.json", "vocab.txt"),
    ]
    monkeypatch.setattr(kbert.tokenizers, "train_tokenizer", None)
    assert train(bucket / "shards", bucket / "text" / "a.txt", 80).checksum == first.checksum


def test_sources_that_are_not_there(bucket, tokenizer):
    with pytest.raises(FileNotFoundError, match=r"No file matches. Received: 'ram://.*none.txt'"):
        prepare_corpus(bucket / "none.txt", bucket / "shards", tokenizer)
    with pytest.raises(FileNotFoundError, match=r"No manifest.json.*Received: ram://"):
        read_manifest(bucket / "shards")


@pytest.mark.slow
def test_a_run_resumes_exactly(bucket, tmp_path):
    settings = {"tensorboard": True, "record": {"rate": 0.02}, "keep_checkpoints": 2}
    whole = run_toy.main(tmp_path / "whole", **settings)
    # When the batch after a checkpoint is due, as a preempted host is told.
    stopped = run_toy.main(f"{bucket}/run", send=[signal.SIGTERM, 0, 9], **settings)
    assert stopped.interrupted
    resumed = run_toy.main(f"{bucket}/run", **settings)
    assert resumed.steps == whole.steps
    assert resumed.evaluations == whole.evaluations
    here, there = files(tmp_path / "whole"), files(bucket / "run")
    curves = {name for name in here | there if "tensorboard" in name}
    assert curves & there.keys()
    assert here.keys() - curves == there.keys() - curves
    for name in here.keys() - curves:
        assert here[name] == there[name], name
    with pytest.raises(ValueError, match=r"ram://.*/run holds another run.*rate was 0.02, is 0.1"):
        run_toy.main(f"{bucket}/run", record={"rate": 0.1})


@pytest.mark.slow
def test_best_weights_and_what_a_kill_leaves(bucket, tmp_path):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    whole = fine_tuning_toy.main(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        fine_tuning_toy.main(bucket / "run", evaluate=stop)
    with (bucket / "run" / "steps.jsonl").open("a") as file:
        file.write('{"step": 99, "lo')
    Path(f"{atomic.temporary_name(f'{bucket}/run/run.json')}9").write_bytes(b"half")
    done = fine_tuning_toy.main(bucket / "run")
    assert (done.steps, done.evaluations) == (whole.steps, whole.evaluations)
    assert files(bucket / "run") == files(tmp_path / "whole")


def test_presets(bucket, tokenizer, tmp_path):
    config = tiny_config(vocabulary_size=tokenizer.vocabulary_size)
    encoder = kbert.Encoder(config)
    randomise(encoder)
    inputs = tiny_inputs(config)
    expected = encoder(inputs)["sequence"].numpy()
    for format in ("kbert", "huggingface"):
        encoder.save_to_preset(bucket / format, format=format)
        again = kbert.Encoder.from_preset(f"{bucket}/{format}")
        assert (again(inputs)["sequence"].numpy() == expected).all()
    task = kbert.tasks.TextClassifier(encoder, tokenizer, labels=["a", "b"], max_length=16)
    task.save_to_preset(f"{bucket}/task")
    task.save_to_preset(tmp_path / "task")
    assert files(bucket / "task") == files(tmp_path / "task")
    again = kbert.tasks.TextClassifier.from_preset(bucket / "task")
    assert again.predict(["the red fox"]) == task.predict(["the red fox"])
    with pytest.raises(ValueError, match=r"a kbert preset.*Received: ram://"):
        encoder.save_to_preset(bucket / "task", format="huggingface")
    with pytest.raises(FileNotFoundError, match=r"Received: '?ram://.*/none"):
        kbert.Encoder.from_preset(bucket / "none")
    (bucket / "task" / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(ValueError, match=r"damaged.*Received: ram://"):
        kbert.Encoder.from_preset(bucket / "task")


@pytest.mark.slow
@pytest.mark.graphs
def test_exports(bucket, tokenizer):
    encoder = kbert.Encoder(tiny_config(vocabulary_size=tokenizer.vocabulary_size))
    task = kbert.tasks.TextClassifier(encoder, tokenizer, labels=["a", "b"], max_length=16)
    (bucket / "served" / "1").mkdir(parents=True)
    (bucket / "served" / "1" / "saved_model.pb").write_bytes(b"of an export before")
    path = task.export(bucket / "served")
    assert path == f"{bucket}/served/2"
    loaded = tf.saved_model.load(path).signatures["serving_default"]
    (name,) = loaded.structured_input_signature[1]
    answer = loaded(**{name: tf.constant(["the red fox"])})
    assert answer


@pytest.mark.slow
@pytest.mark.usefixtures("eagerly")
def test_an_experiment(bucket, tokenizer):
    rows = ["text,label", *(f"the {x} fox,{y}" for x, y in [("red", "a"), ("blue", "b")] * 8)]
    bucket.mkdir()
    (bucket / "mail.csv").write_text("\n".join(rows))
    config = tiny_config(vocabulary_size=tokenizer.vocabulary_size)
    kbert.Encoder(config).save_to_preset(bucket / "tiny")
    tokenizer.save(bucket / "tiny")
    data = {"train": f"{bucket}/mail.csv", "dev": bucket / "mail.csv"}
    experiment = experiments.Experiment("classify", preset=f"{bucket}/tiny", **data)
    settings = {"epochs": 1, "batch_size": 8, "verbose": 0}
    series = experiments.seeds(experiment, f"{bucket}/series", count=2, **settings)
    assert series.preset == bucket / "series" / "preset"
    assert experiments.seeds(experiment, bucket / "series", count=2, **settings).rows()
    names = {name.partition("/")[0] for name in files(bucket / "series")}
    assert names == {"preset", "seed-0", "seed-1", "series.json"}
    assert not [name for name in files(bucket / "series") if "checkpoints/" in name]
    task = kbert.tasks.Task.from_preset(series.preset)
    table = experiments.read(experiments.task_for(task), bucket / "mail.csv")
    evaluation = experiments.predict_and_score(task, table, verbose=0)
    evaluation.write(bucket / "answers", "test", table)
    assert len((bucket / "answers" / "test_answers.jsonl").read_text().splitlines()) == 16


def test_a_conversion(bucket, tokenizer):
    config = tiny_config(vocabulary_size=tokenizer.vocabulary_size)
    kbert.Encoder(config).save_to_preset(bucket / "here")
    tokenizer.save(bucket / "here")
    convert(bucket / "here", bucket / "there", format="huggingface")
    assert kbert.load_tokenizer(bucket / "there").checksum == tokenizer.checksum
    assert kbert.Encoder.from_preset(bucket / "there").config.hidden_size == 16


def test_what_is_refused(bucket, tokenizer):
    encoder = kbert.Encoder(tiny_config(vocabulary_size=tokenizer.vocabulary_size))
    grows = "A resumable output requires a local path. Received: 'ram://"
    with pytest.raises(ValueError, match=grows):
        experiments.AnswerFile(bucket / "answers.jsonl", {})
    with pytest.raises(ValueError, match="A file of features requires a local path"):
        write_features(bucket / "a.npy", encoder, tokenizer, texts=["the fox"])
    with pytest.raises(ValueError, match="A cache of a teacher's outputs requires a local path"):
        Store(bucket / "cache", {}, "float16")
    (bucket / "zip").mkdir()
    (bucket / "zip" / "model.zip").write_bytes(b"PK")
    with pytest.raises(ValueError, match="A zip file of a model requires a local path"):
        kbert.Encoder.from_preset(bucket / "zip" / "model.zip")
    with pytest.raises(FileNotFoundError, match="Models are not loaded from a URL"):
        kbert.Encoder.from_preset("https://example.com/bert")
