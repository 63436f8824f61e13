"""Every reader of files and requests from outside, with whole examples for it."""

import contextlib
import gzip
import importlib.util
import json
import shutil
import types
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import kbert
from kbert.checkpoints import read_checkpoint
from kbert.data import readers
from kbert.data.corpus.manifest import verify_corpus
from kbert.hub.archive import unpacked
from kbert.io.arrays import read_safetensors, write_safetensors
from kbert.serve.http import json_body
from kbert.serve.http.errors import Refused
from kbert.serve.service import json_rows
from kbert.serve.service.loaded import Spec
from kbert.tokenizers import load_tokenizer
from tests.checkpoints.folders import CONFIG, PIECES, WRITERS, write_google
from tests.data.super_glue import FILES as SUPER_GLUE

REFUSALS = (ValueError, OSError)
GOLDEN = Path(__file__).parents[1] / "golden" / "transformers-4"
KERAS_NLP = Path(__file__).parents[1] / "golden" / "keras-nlp"
MODEL_GARDEN = Path(__file__).parents[1] / "golden" / "model-garden"
HAS_MSGPACK = importlib.util.find_spec("msgpack") is not None
SENTENCES = [
    "the quick brown fox jumps over the lazy dog",
    "a red house by the river, and 3.5 boats",
]


@dataclass(frozen=True)
class Reader:
    """What reads something from outside.

    Args:
        write: makes a whole example in a folder that is there and empty.
        read: reads the folder.
        refusals: what it raises for what it does not take.
        rate: for its share of the time, beside 1.0.
        seconds: the longest that a reading may take.
    """

    write: Callable[[Path], Any]
    read: Callable[[Path], Any]
    refusals: tuple[type[Exception], ...] = REFUSALS
    rate: float = 1.0
    seconds: float = 10.0


def of_text(name: str, text: str, read: Callable[[Path], Any]) -> Reader:
    """A reader of one file of text, which is also read from a .gz."""

    def write(folder: Path) -> None:
        (folder / name).write_text(text, encoding="utf-8")
        (folder / f"{name}.gz").write_bytes(gzip.compress(text.encode(), mtime=0))

    def read_both(folder: Path) -> None:
        for path in (folder / name, folder / f"{name}.gz"):
            refused = None
            try:
                read(path)
            except REFUSALS as error:
                refused = error
        if refused is not None:
            raise refused

    return Reader(write, read_both)


def of_format(name: str) -> Reader:
    """A reader of model folders; the tokenizer in it too."""

    def write(folder: Path) -> None:
        folder.rmdir()
        WRITERS[name](folder)

    return Reader(write, read_model)


def read_model(folder: Path) -> None:
    with contextlib.suppress(*REFUSALS):
        load_tokenizer(folder)
    read_checkpoint(folder)


def write_keras_hub(folder: Path) -> None:
    kbert.Encoder(CONFIG).save_to_preset(folder, "keras_hub")


def write_pytorch(folder: Path) -> None:
    import torch

    folder.rmdir()
    WRITERS["huggingface"](folder)
    arrays = read_safetensors(folder / "model.safetensors")
    state = {name: torch.tensor(np.asarray(array)) for name, array in arrays.items()}
    torch.save(state, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def write_fairseq(folder: Path) -> None:
    import transformers

    from tests.checkpoints.fairseq.test_fairseq import fairseq_state, make, save

    save(folder, fairseq_state(make(transformers.RobertaForMaskedLM)))


def write_foreign(library: str) -> Callable[[Path], None]:
    """Copies what transformers 4 wrote on TensorFlow or Flax."""

    def write(folder: Path) -> None:
        for path in (GOLDEN / library / "bert").iterdir():
            if path.suffix != ".npz":
                shutil.copy(path, folder)

    return write


def write_model_garden(name: str) -> Callable[[Path], None]:
    """Unpacks what tf-models-official wrote."""

    def write(folder: Path) -> None:
        with zipfile.ZipFile(MODEL_GARDEN / f"{name}.zip") as archive:
            archive.extractall(folder)

    return write


def write_keras_nlp(folder: Path) -> None:
    """Copies what KerasNLP 0.4 wrote."""
    shutil.copy(KERAS_NLP / "0.4.1-keras-2.15.0" / "BertBackbone" / "model.h5", folder)


def write_word_vectors(folder: Path) -> None:
    vectors = kbert.word_vectors.WordVectors(["the", "fox", "a"], np.eye(3, 4, dtype="float32"))
    vectors.save(folder / "a.txt", "text")
    vectors.save(folder / "a.bin", "binary")


def read_word_vectors(folder: Path) -> None:
    with contextlib.suppress(*REFUSALS):
        kbert.word_vectors.WordVectors.load(folder / "a.txt")
    kbert.word_vectors.WordVectors.load(folder / "a.bin")


def write_gpt(folder: Path) -> None:
    vocabulary = {"<unk>": 0, "a": 1, "b</w>": 2, "ab</w>": 3}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\na b</w>\n")
    (folder / "config.json").write_text('{"model_type": "openai-gpt"}')


def write_task(folder: Path) -> None:
    folder.rmdir()
    WRITERS["kbert"](folder)


def write_zip(folder: Path) -> None:
    write_google(folder / "model")
    with zipfile.ZipFile(folder / "model.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted((folder / "model").iterdir()):
            archive.write(path, f"model/{path.name}")
            path.unlink()
    (folder / "model").rmdir()


def write_unigram(folder: Path) -> None:
    model = kbert.tokenizers.train_unigram(SENTENCES * 20, 60)
    kbert.UnigramTokenizer(model).save(folder)


def write_words(folder: Path) -> None:
    kbert.WordTokenizer(kbert.tokenizers.train_words(SENTENCES, 20)).save(folder)


def write_corpus(folder: Path) -> None:
    (folder / "text.txt").write_text("\n\n".join(["the fox. the fox."] * 3 + ["foxes"]))
    tokenizer = kbert.WordPieceTokenizer(PIECES)
    kbert.data.prepare_corpus(folder / "text.txt", folder, tokenizer, held_out_share=0.0)
    (folder / "text.txt").unlink()


def read_corpus(folder: Path) -> None:
    with contextlib.suppress(*REFUSALS):
        load_tokenizer(folder)
    verify_corpus(folder)


def write_arrays(folder: Path) -> None:
    arrays = {"a": np.arange(12, dtype="float32").reshape(3, 4), "b": np.arange(3)}
    write_safetensors(folder / "model.safetensors", arrays)


def write_features(folder: Path) -> None:
    np.save(folder / "a.npy", np.ones((6, 4), "float32"))
    np.save(folder / "a.npy.ends.npy", np.array([2, 3, 6]))


def read_features(folder: Path) -> None:
    for vectors in kbert.extraction.read_features(folder / "a.npy"):
        vectors.sum()


def write_index(folder: Path) -> None:
    kbert.search.Index(np.eye(4, dtype="float32"), ids=["a", "b", "c", "d"]).save(folder)


ENTRIES = {
    "texts": {"text": Spec(np.dtype(object), (None,), "string")},
    "arrays": {
        "ids": Spec(np.dtype("int32"), (None, None), "int32"),
        "flags": Spec(np.dtype("bool"), (None,), "bool"),
        "numbers": Spec(np.dtype("float32"), (None, 2), "float32"),
    },
}


def write_requests(folder: Path) -> None:
    arrays = {"ids": [1, 2], "flags": True, "numbers": [0.5, -1e3]}
    columns = {"ids": [[1], [2]], "flags": [True, False], "numbers": [[1, 2], [3, 4]]}
    for name, body in {
        "texts.rows": {"instances": ["the fox", {"b64": "Zm94"}], "signature_name": "a"},
        "texts.columns": {"inputs": {"text": ["the fox"]}},
        "arrays.rows": {"instances": [arrays]},
        "arrays.columns": {"inputs": columns},
    }.items():
        (folder / name).write_text(json.dumps(body))


def read_requests(folder: Path) -> None:
    refused = None
    for path in sorted(folder.iterdir()):
        inputs = ENTRIES[path.name.partition(".")[0]]
        entry = types.SimpleNamespace(name="entry", inputs=inputs, is_rows=True)
        try:
            json_rows.read_inputs(json_body.parse(path.read_bytes()), entry, 100)
        except Refused as error:
            refused = error
    if refused is not None:
        raise refused


def squad() -> str:
    answer = {"text": "fox", "answer_start": 4}
    questions = [
        {"id": "1", "question": "Who jumps?", "answers": [answer], "is_impossible": False},
        {"id": "2", "question": "Who sings?", "answers": [], "is_impossible": True},
    ]
    paragraph = {"context": "the fox jumps", "qas": questions}
    return json.dumps({"version": "v2.0", "data": [{"title": "t", "paragraphs": [paragraph]}]})


CONLL = "-DOCSTART- -X- O O\n\nthe DT B-NP O\nfox NN I-NP B-MISC\n\n" * 2
CONLLU = "# sent_id = s\n1\tthe\tthe\tDET\tDT\t_\t2\tdet\t_\t_\n2-3\tab\t_\t_\t_\t_\t_\t_\t_\t_\n\n"
TABLE = 'text,label\n"the fox, red",yes\nhouse,no\n'
LINES = '{"text": "the fox", "label": "yes"}\n{"text": "a house", "label": "no"}\n'
SWAG = (
    "sent1,sent2,ending0,ending1,ending2,ending3,label,fold-ind\nHe sits.,He,eats,runs,is,has,0,1\n"
)
RACE = json.dumps(
    {
        "article": "the fox",
        "questions": ["Who?", "It is _ ."],
        "options": [["a", "b", "c", "d"]] * 2,
        "answers": ["A", "D"],
        "id": "high1.txt",
    }
)


def iterate(documents: Any) -> None:
    for _ in documents:
        pass


READERS = {
    **{f"{name} folder": of_format(name) for name in WRITERS},
    "keras_hub folder": Reader(write_keras_hub, read_checkpoint),
    "pytorch folder": Reader(write_pytorch, read_checkpoint),
    "fairseq folder": Reader(write_fairseq, read_checkpoint),
    "keras_nlp file": Reader(write_keras_nlp, read_checkpoint),
    "model garden folder": Reader(write_model_garden("bert"), read_checkpoint),
    "saved model": Reader(write_model_garden("hub-albert"), read_model),
    "tensorflow folder": Reader(write_foreign("tensorflow"), read_checkpoint),
    **({"flax folder": Reader(write_foreign("flax"), read_checkpoint)} if HAS_MSGPACK else {}),
    "preset of a task": Reader(write_task, kbert.tasks.Task.from_preset, rate=2.0, seconds=60),
    "zip of a release": Reader(write_zip, lambda folder: unpacked(folder / "model.zip")),
    "safetensors": Reader(
        write_arrays, lambda folder: read_safetensors(folder / "model.safetensors")
    ),
    "unigram tokenizer": Reader(write_unigram, load_tokenizer),
    "words tokenizer": Reader(write_words, load_tokenizer),
    "gpt tokenizer": Reader(write_gpt, load_tokenizer),
    "word vectors": Reader(write_word_vectors, read_word_vectors),
    "shards": Reader(write_corpus, read_corpus),
    "features": Reader(write_features, read_features),
    "index of vectors": Reader(write_index, kbert.search.Index.load),
    "requests": Reader(write_requests, read_requests, (Refused,)),
    "read_conll": of_text("a.conll", CONLL, readers.read_conll),
    "read_conllu": of_text("a.conllu", CONLLU, readers.read_conllu),
    "read_squad": of_text("a.json", squad(), readers.read_squad),
    "read_table csv": of_text("a.csv", TABLE, readers.read_table),
    "read_table jsonl": of_text("a.jsonl", LINES, readers.read_table),
    "read_glue": of_text(
        "dev.tsv",
        "sentence\tlabel\nA gem .\t1\nA bore .\t0\n",
        lambda path: readers.read_glue("SST-2", path),
    ),
    **{
        f"read_super_glue {name}": of_text(
            "val.jsonl",
            "".join(f"{json.dumps(record)}\n" for record in records),
            lambda path, name=name: readers.read_super_glue(name, path),
        )
        for name, (records, _) in SUPER_GLUE.items()
        if name in ("boolq", "multirc", "record", "wsc")
    },
    "read_choices swag": of_text(
        "a.csv", SWAG, lambda path: readers.read_choices(path, format="swag")
    ),
    "read_choices race": of_text(
        "a.jsonl", RACE + "\n", lambda path: readers.read_choices(path, format="race")
    ),
    "text": of_text(
        "a.txt", "One fox.\nTwo.\n\nA house.\n", lambda path: iterate(kbert.text.documents(path))
    ),
    "text jsonl": of_text("a.jsonl", LINES, lambda path: iterate(kbert.text.documents(path))),
    "pairs of texts": of_text(
        "a.tsv",
        "the fox\tder Fuchs\na house\tein Haus\n",
        lambda p: iterate(kbert.text.read_pairs(p)),
    ),
}
