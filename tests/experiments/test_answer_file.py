"""Answers to a stream of records: killed anywhere, they come out the same."""

import io
import json
import sys

import keras
import numpy as np
import pytest

import kbert
from kbert.edit import adapters
from kbert.experiments import (
    AnswerFile,
    Records,
    answer_file as module,
    answer_records,
    answer_stream,
    model_checksum,
)
from kbert.io import formats, npy
from kbert.tasks import Columns
from kbert.tasks.file_answers import FileAnswers
from tests.harness import tiny_config


class Counter:
    """Answers a text with its length, and dies when it is told to."""

    columns = Columns()

    def __init__(self, dies_after=None, longest=99):
        self.calls, self.dies_after, self.longest = 0, dies_after, longest
        self.told = []

    def file_answers(self, task):
        answers = FileAnswers(task)
        answers.answer = self.answer
        return answers

    def answer(self, table, options, *, batch_size, first=0):
        if self.calls == self.dies_after:
            raise KeyboardInterrupt
        self.calls += 1
        lengths = [len(text) for text in table["text"]]
        cut = sum(n > self.longest for n in lengths)
        return [{"length": n, "number": first + i} for i, n in enumerate(lengths)], cut

    def report_cut(self, cut, count):
        if cut:
            self.told.append(f"{cut} of {count}")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 10)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"{'x' * n}\n" for n in range(45)))
    return path


def answer(source, output, task=None, **identity):
    task = task or Counter()
    records = Records(source, "classify")
    for _ in answer_records(task, records, AnswerFile(output, {"model": "m", **identity})):
        pass
    return task


def test_answers_in_order_with_their_texts(source, tmp_path):
    answer(source, tmp_path / "a.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert lines == [{"text": "x" * n, "length": n, "number": n} for n in range(45)]
    assert AnswerFile(tmp_path / "a.jsonl", {"model": "m"}).finished


@pytest.mark.parametrize("torn", [b"", b'{"text": "xx'])
def test_it_resumes_after_the_last_whole_line(source, tmp_path, torn):
    whole, broken = tmp_path / "whole.jsonl", tmp_path / "broken.jsonl"
    answer(source, whole)
    with pytest.raises(KeyboardInterrupt):
        answer(source, broken, Counter(dies_after=2))
    with broken.open("ab") as file:
        file.write(torn)
    again = answer(source, broken)
    assert broken.read_bytes() == whole.read_bytes()
    assert again.calls == 3  # twenty of forty-five were answered


def test_killed_between_the_answers_and_the_note(source, tmp_path):
    path = tmp_path / "a.jsonl"
    with pytest.raises(KeyboardInterrupt):
        answer(source, path, Counter(dies_after=1))
    state = tmp_path / "a.jsonl.state.json"
    content = json.loads(state.read_text())
    state.write_text(json.dumps({**content, "records": 0, "checksum": 0}))
    answer(source, path)
    assert len(path.read_text().splitlines()) == 45


def test_another_input_or_model_is_refused(source, tmp_path):
    path = tmp_path / "a.jsonl"
    with pytest.raises(KeyboardInterrupt):
        answer(source, path, Counter(dies_after=2))
    with pytest.raises(ValueError, match=r"started with other settings.*model was 'm', is 'n'"):
        answer(source, path, model="n")
    source.write_text(source.read_text().replace("xxx\n", "xxy\n", 1))
    with pytest.raises(ValueError, match=r"made from another input than .*texts.txt"):
        answer(source, path)
    source.write_text("x\n")
    with pytest.raises(ValueError, match="made from another input"):
        answer(source, path)


@pytest.mark.parametrize(
    ("change", "received"),
    [
        (lambda text: text.replace("xxx\n", "xxy\n", 1), "other records among the first 45"),
        (lambda text: text + "x\n", "more than 45 records"),
        (lambda text: "\nx\n", "2 records, but 45 are already written"),
    ],
)
def test_finished_answers_are_of_the_input_that_they_were_of(source, tmp_path, change, received):
    path = tmp_path / "a.jsonl"
    answer(source, path)
    before = path.read_bytes()
    assert answer(source, path).calls == 0
    source.write_text(change(source.read_text()))
    with pytest.raises(ValueError, match=f"made from another input than .*Received: {received}"):
        answer(source, path)
    assert path.read_bytes() == before
    assert AnswerFile(path, {"model": "m"}).finished


@pytest.mark.parametrize(
    ("kept", "received"),
    [(-1, "the 45 lines .*Received: 44"), (200, "the 45 lines .*: 4"), (0, "the 45 lines .*: 0")],
)
def test_finished_answers_that_are_cut_off_are_refused(source, tmp_path, kept, received):
    path = tmp_path / "a.jsonl"
    answer(source, path)
    before = path.read_bytes()[:kept]
    path.write_bytes(before)
    with pytest.raises(ValueError, match=received):
        answer(source, path)
    assert path.read_bytes() == before


def test_answers_that_are_gone_are_computed_again(source, tmp_path):
    path = tmp_path / "a.jsonl"
    answer(source, path)
    whole = path.read_bytes()
    path.unlink()
    with pytest.warns(
        UserWarning, match=r"a.jsonl no longer exists, but a.jsonl.state.json lists 45 records"
    ):
        again = answer(source, path)
    assert again.calls == 5
    assert path.read_bytes() == whole


def test_another_tokenizer_is_refused_where_the_state_file_says_which(source, tmp_path):
    path, old = tmp_path / "a.jsonl", tmp_path / "old.jsonl"
    with pytest.raises(KeyboardInterrupt):
        answer(source, path, Counter(dies_after=2), tokenizer="t")
    with pytest.raises(ValueError, match=r"tokenizer was 't', is 'u'"):
        answer(source, path, tokenizer="u")
    with pytest.raises(KeyboardInterrupt):  # as version 0.1.0 began it
        answer(source, old, Counter(dies_after=2))
    answer(source, old, tokenizer="u")
    assert len(old.read_text().splitlines()) == 45


def test_a_call_that_failed_before_its_first_answer_leaves_the_file_free(source, tmp_path):
    path = tmp_path / "a.jsonl"
    with pytest.raises(KeyboardInterrupt):
        answer(source, path, Counter(dies_after=0), columns={})
    answer(source, path, columns={"text": "review"})
    with pytest.raises(ValueError, match=r"columns.text was 'review', is None"):
        answer(source, path, columns={})


def test_a_file_of_something_else_stays(source, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("precious\n")
    with pytest.raises(ValueError, match=r"already exists without a.jsonl.state.json"):
        answer(source, path)
    assert path.read_text() == "precious\n"


def test_records_of_other_fields_name_their_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "id": 1}\n{"text": 5, "id": 2}\n')
    with pytest.raises(ValueError, match=r"a.jsonl, line 2: 'text' must be a string"):
        answer(path, tmp_path / "out.jsonl")


def test_a_stream_for_standard_output(source):
    lines = list(answer_stream(Counter(), Records(source, "classify")))
    assert len(lines) == 45
    assert json.loads(lines[3]) == {"text": "xxx", "length": 3, "number": 3}


@pytest.mark.parametrize(
    ("longest", "told"),
    [
        (99, []),
        (41, ["3 of 45"]),  # in the last chunk alone
        (25, ["4 of 30", "19 of 45"]),  # when it is first seen, and all of them in the end
    ],
)
def test_texts_that_are_cut_are_told_of_at_once_and_counted_once(source, tmp_path, longest, told):
    assert answer(source, tmp_path / "a.jsonl", Counter(longest=longest)).told == told


class Vectors(Counter):
    """A vector of two numbers for each text."""

    def answer(self, table, options, *, batch_size, first=0):
        answers, cut = super().answer(table, options, batch_size=batch_size, first=first)
        return [{"vector": np.array([x["length"], -x["number"]])} for x in answers], cut


def embed(source, output, task=None, **identity):
    file = AnswerFile(output, {"model": "m", **identity}, width=2)
    for _ in answer_records(task or Vectors(), Records(source, "classify"), file):
        pass


def test_vectors_are_whole_or_unreadable(source, tmp_path):
    whole, broken = tmp_path / "whole.npy", tmp_path / "broken.npy"
    embed(source, whole)
    vectors = np.load(whole, mmap_mode="r")
    assert (vectors.dtype, vectors.tolist()) == (np.float32, [[n, -n] for n in range(45)])
    assert whole.stat().st_size == npy.HEADER_BYTES + vectors.nbytes
    with pytest.raises(KeyboardInterrupt):
        embed(source, broken, Vectors(dies_after=2))
    with broken.open("ab") as file:
        file.write(b"torn")
    with pytest.raises(ValueError, match="pickled"):  # NumPy's word for a file of no known header
        np.load(broken)
    embed(source, broken)
    assert broken.read_bytes() == whole.read_bytes()
    # Killed between the header and the note, and then the input has gone on.
    state = tmp_path / "broken.npy.state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "finished": False}))
    with source.open("a") as file:
        file.write("x\n" * 20)
    with pytest.raises(KeyboardInterrupt):
        embed(source, broken, Vectors(dies_after=1))
    with pytest.raises(ValueError, match="pickled"):
        np.load(broken)
    embed(source, broken)
    assert np.load(broken)[[44, 45, 64]].tolist() == [[44, -44], [1, -45], [1, -64]]


def test_finished_vectors_that_are_cut_off_or_gone(source, tmp_path):
    path = tmp_path / "a.npy"
    embed(source, path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match=r"a.npy must have the 488 bytes .*Received: 487"):
        embed(source, path)
    path.unlink()
    with pytest.warns(UserWarning, match="starting over"):
        embed(source, path)
    assert path.read_bytes() == whole


def test_vectors_that_none_is_of_leave_nothing(source, tmp_path):
    path = tmp_path / "a.npy"
    with pytest.raises(KeyboardInterrupt):
        embed(source, path, Vectors(dies_after=0), prompt="query")
    assert sorted(x.name for x in tmp_path.iterdir()) == [source.name]
    # Killed there, the header is.
    path.write_bytes(formats._UNFINISHED.ljust(npy.HEADER_BYTES, b"\0"))
    state = {"records": 0, "checksum": 0, "finished": False, "model": "m", "prompt": "query"}
    (tmp_path / "a.npy.state.json").write_text(json.dumps(state))
    embed(source, path, prompt=None)
    assert np.load(path).shape == (45, 2)


def test_no_texts_no_vectors(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    for _ in range(2):
        embed("-", tmp_path / "none.npy")
    assert np.load(tmp_path / "none.npy").shape == (0, 2)


def test_the_checksum_is_of_weights_and_settings():
    class Model(keras.Model):
        def __init__(self, value, labels):
            super().__init__()
            self.w = self.add_weight(shape=(2,), initializer=keras.initializers.Constant(value))
            self.settings = {"labels": labels}

    plain = model_checksum(Model(1.0, ["a"]))
    assert model_checksum(Model(1.0, ["a"])) == plain
    assert model_checksum(Model(2.0, ["a"])) != plain != model_checksum(Model(1.0, ["b"]))


def test_the_checksum_is_of_the_active_adapter(tiny_vocabulary):
    tokenizer = kbert.WordPieceTokenizer(tiny_vocabulary)
    encoder = kbert.Encoder(tiny_config(vocabulary_size=len(tiny_vocabulary)))
    task = kbert.TextClassifier(encoder, tokenizer, ["a", "b"])
    for name in ("first", "second"):
        adapters.add(task, "lora", name=name, rank=2)
    second = model_checksum(task)
    adapters.activate(task, "first")
    assert model_checksum(task) != second
    adapters.activate(task, "second")
    assert model_checksum(task) == second


def test_a_second_process_is_refused_and_touches_nothing(source, tmp_path):
    output = tmp_path / "a.jsonl"
    running = answer_records(
        Counter(), Records(source, "classify"), AnswerFile(output, {"model": "m"}), batch_size=1
    )
    next(running)
    files = [output, tmp_path / "a.jsonl.state.json"]
    before = [path.read_bytes() for path in files]
    with pytest.raises(
        BlockingIOError, match=r"Only one process may write .*a\.jsonl, which another"
    ):
        answer(source, output, Counter())
    assert [path.read_bytes() for path in files] == before
    running.close()
    answer(source, output, Counter())
    assert len(output.read_text().splitlines()) == 45
