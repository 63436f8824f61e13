"""`kbert-embed`, `-translate`, `-generate` and `-fill-mask` as they are typed."""

import contextlib
import io
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np
import pytest

import kbert
from kbert.decoding import Beam, Sampling
from kbert.experiments import answer_file, answering_task
from kbert.tasks import Pretraining, TextEmbedder
from pipelines import embed, fill_mask, generate, predict, translate
from tests.killing import ends_killed, signalled
from tests.processes import ends_well, start_program
from tests.tasks.generation import writing
from tests.waiting import PATIENCE

TEXTS = ["a b c", "", "h g f e d", "b", "a a a b", "c", "d e"]
MASKED = ["a [MASK] c", "", "[MASK] g f e [MASK]", "b", "a a [MASK] b", "[MASK]", "d [MASK]"]
# Program -> the task, its input, and flags besides.
PROGRAMS = {
    "embed": (embed, TEXTS, ()),
    "translate": (translate, TEXTS, ("--max_new_tokens=6",)),
    "generate": (generate, TEXTS, ("--max_new_tokens=6",)),
    "fill_mask": (fill_mask, MASKED, ("--top_k=2",)),
}


def encoder():
    config = kbert.EncoderConfig(
        vocabulary_size=13, max_positions=32, initializer_range=0.3, **writing.SIZES
    )
    return kbert.Encoder(config)


@pytest.fixture(scope="module")
def tasks() -> dict[str, kbert.tasks.Task]:
    own = writing.tokenizer()
    keras.utils.set_random_seed(1)
    return {
        "embed": TextEmbedder(encoder(), own, query_prompt="h "),
        "translate": writing.translator(sigma=0.3),
        "generate": writing.causal_lm(sigma=0.3),
        "fill_mask": Pretraining(encoder(), own),
    }


def another(name) -> kbert.tasks.Task:
    """A task of the kind with other weights."""
    keras.utils.set_random_seed(2)
    return {
        "embed": lambda: TextEmbedder(encoder(), writing.tokenizer()),
        "translate": lambda: writing.translator(sigma=0.1),
        "generate": lambda: writing.causal_lm(sigma=0.1),
        "fill_mask": lambda: Pretraining(encoder(), writing.tokenizer()),
    }[name]()


@pytest.fixture(scope="module")
def presets(tasks, tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("presets")
    for name, task in tasks.items():
        task.save_to_preset(folder / name)
    return {name: folder / name for name in tasks}


@contextlib.contextmanager
def interrupted(kind, calls=2) -> Iterator[None]:
    """Ctrl-C comes after so many parts of an input."""
    answers = kind.file_answers
    ask, answered = answers.answer, []

    def answer(self, table, *given, **options):
        if len(answered) == calls:
            raise KeyboardInterrupt
        answered.append(table)
        return ask(self, table, *given, **options)

    code = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answers, "answer", answer)
        try:
            yield
        except SystemExit as stopped:
            code = stopped.code
    assert code == 130


def lines(path) -> list[dict]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


@pytest.fixture
def run(call, presets, tmp_path):
    """(name of a program, output, *flags): answers its texts."""

    def run(name, output, *flags, preset=None):
        program, texts, usual = PROGRAMS[name]
        source = tmp_path / f"{name}.txt"
        if not source.exists():
            source.write_text("".join(f"{text}\n" for text in texts))
        arguments = (f"--preset={preset or presets[name]}", f"--input={source}", *usual)
        call(program, *arguments, f"--output={output}", *flags)
        return output

    return run


def test_vectors(run, tasks, tmp_path, capsys):
    expected = tasks["embed"].predict(TEXTS)
    found = lines(run("embed", tmp_path / "a.jsonl"))
    assert [answer["text"] for answer in found] == TEXTS
    np.testing.assert_allclose([answer["vector"] for answer in found], expected, atol=1e-6)
    assert "7 answers in" in capsys.readouterr().err
    vectors = np.load(run("embed", tmp_path / "a.npy"))
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    assert kbert.search.Index(vectors).search(expected[[2]], k=1).ids.tolist() == [[2]]
    queries = np.load(run("embed", tmp_path / "q.npy", "--prompt=query"))
    np.testing.assert_allclose(queries, tasks["embed"].predict(TEXTS, prompt="query"), atol=1e-6)
    with pytest.raises(SystemExit, match=r"other settings.*prompt was 'query', is None"):
        run("embed", tmp_path / "q.npy")
    with pytest.raises(SystemExit, match=r"must be query or document.*document_prompt=None"):
        run("embed", tmp_path / "d.npy", "--prompt=document")


def test_vectors_of_a_pretrained_encoder(run, tasks, presets, tmp_path):
    found = lines(run("embed", tmp_path / "a.jsonl", preset=presets["fill_mask"]))
    whole = tasks["fill_mask"]
    expected = TextEmbedder(whole.encoder, whole.tokenizer).predict(TEXTS)
    np.testing.assert_allclose([answer["vector"] for answer in found], expected, atol=1e-6)


def test_vectors_of_chosen_layers(run, tasks, presets, tmp_path):
    task, chosen = tasks["embed"], ("--layers=0,1", "--pooling=max")
    found = np.load(run("embed", tmp_path / "a.npy", *chosen))
    expected = kbert.features(task.encoder, task.tokenizer, TEXTS, layers=(0, 1), pooling="max")
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    with pytest.raises(SystemExit, match=r"other settings.*model was .*, is "):
        run("embed", tmp_path / "a.npy", "--layers=0,1")
    with pytest.raises(SystemExit, match=r"layers must be one of .*Received: 'all'"):
        run("embed", tmp_path / "b.npy", "--layers=all")
    with pytest.raises(SystemExit, match=r"missing features/mix/weights"):
        run("embed", tmp_path / "b.npy", "--layers=mix")


def test_translations(run, tasks, tmp_path):
    task = tasks["translate"]
    found = lines(run("translate", tmp_path / "a.jsonl"))
    texts, scores = task.predict(TEXTS, max_new_tokens=6, return_scores=True)
    assert [answer["text"] for answer in found] == TEXTS
    assert [answer["translation"] for answer in found] == texts
    np.testing.assert_allclose([answer["score"] for answer in found], scores, atol=1e-5)
    beam = ("--beam_width=3", "--num_results=2", "--length_penalty=0")
    found = lines(run("translate", tmp_path / "b.jsonl", *beam))
    method = Beam(width=3, num_results=2, length_penalty=0.0)
    assert [answer["translations"] for answer in found] == task.predict(
        TEXTS, max_new_tokens=6, method=method
    )
    assert found[0]["scores"] == sorted(found[0]["scores"], reverse=True)


def test_continuations_that_are_drawn_follow_from_their_numbers(run, tasks, tmp_path, monkeypatch):
    drawn = ("--method=sampling", "--temperature=1.5", "--top_k=6", "--seed=5", "--stop=a")
    method = Sampling(temperature=1.5, top_k=6)
    options = {"method": method, "max_new_tokens": 6, "seed": 5, "stop": "a"}
    texts = tasks["generate"].predict(TEXTS, **options)
    monkeypatch.setattr(answer_file, "CHUNK", 2)
    with interrupted(kbert.tasks.CausalLM):
        run("generate", tmp_path / "a.jsonl", *drawn)
    assert len(lines(tmp_path / "a.jsonl")) == 4
    resumed = run("generate", tmp_path / "a.jsonl", *drawn)
    assert [answer["continuation"] for answer in lines(resumed)] == texts
    assert tasks["generate"].predict(TEXTS, **{**options, "seed": 6}) != texts


def test_masks(run, tasks, tmp_path):
    found = lines(run("fill_mask", tmp_path / "a.jsonl"))
    expected = tasks["fill_mask"].predict(MASKED, top_k=2)
    assert [answer["text"] for answer in found] == MASKED
    assert [answer["tokens"] for answer in found] == [answer["tokens"] for answer in expected]
    assert np.shape(found[2]["probabilities"]) == (2, 2)
    found = lines(run("fill_mask", tmp_path / "b.jsonl", "--candidates=c,a"))
    assert found[0]["tokens"] == [["c", "a"]]
    with pytest.raises(SystemExit, match="A candidate must be one vocabulary entry"):
        run("fill_mask", tmp_path / "c.jsonl", "--candidates=ab")


@pytest.mark.parametrize(
    ("name", "output", "flags"),
    [
        ("embed", "a.npy", ()),
        pytest.param("embed", "a.jsonl", (), marks=pytest.mark.slow),
        pytest.param("translate", "a.jsonl", (), marks=pytest.mark.slow),
        pytest.param(
            "generate", "a.jsonl", ("--method=sampling", "--seed=3"), marks=pytest.mark.slow
        ),
        pytest.param("fill_mask", "a.jsonl", (), marks=pytest.mark.slow),
    ],
)
def test_interrupted_it_resumes_to_the_same_bytes(
    run, tasks, tmp_path, monkeypatch, name, output, flags
):
    monkeypatch.setattr(answer_file, "CHUNK", 2)
    whole, broken = tmp_path / f"whole{output[1:]}", tmp_path / f"broken{output[1:]}"
    run(name, whole, *flags)
    with interrupted(type(tasks[name])):
        run(name, broken, *flags)
    assert 0 < len(broken.read_bytes()) < len(whole.read_bytes())
    if output.endswith("npy"):
        with pytest.raises(ValueError, match="pickled"):  # NumPy's word for what it does not know
            np.load(broken)
    with broken.open("ab") as file:
        file.write(b"torn")
    another(name).save_to_preset(tmp_path / "other")
    with pytest.raises(SystemExit, match=r"other settings.*model was .*, is "):
        run(name, broken, *flags, preset=tmp_path / "other")
    run(name, broken, *flags)
    assert broken.read_bytes() == whole.read_bytes()


def test_another_input_or_setting_is_refused(run, tmp_path, monkeypatch):
    output = run("generate", tmp_path / "a.jsonl", "--method=sampling", "--top_p=0.5")
    with pytest.raises(SystemExit, match=r"top_p was 0.5, is None"):
        run("generate", output, "--method=sampling")
    # As fast as ever: what is compiled changes no answer.
    run("generate", output, "--method=sampling", "--top_p=0.5", "--jit_compile")
    source = tmp_path / "generate.txt"
    source.write_text(source.read_text() + "one more\n")
    with pytest.raises(SystemExit, match=r"^kbert-generate: .*bytes of the input was 33, is 42"):
        run("generate", output, "--method=sampling", "--top_p=0.5")


def test_a_finished_output_is_of_its_input_alone(call, presets, monkeypatch, tmp_path, capsys):
    output = tmp_path / "a.jsonl"
    arguments = (f"--preset={presets['fill_mask']}", "--input=-", f"--output={output}")

    def typed(*texts):
        monkeypatch.setattr(sys, "stdin", Typed(texts, lambda: 0))
        call(fill_mask, *arguments)

    typed("a [MASK]", "[MASK] b")
    whole = output.read_bytes()
    typed("a [MASK]", "[MASK] b")
    assert f"{output} is complete: 2 answers" in capsys.readouterr().err
    with pytest.raises(SystemExit, match=r"^kbert-fill-mask: .*another input than standard input"):
        typed("[MASK] b", "a [MASK]")
    assert output.read_bytes() == whole


def test_the_same_weights_with_another_vocabulary_are_refused(run, presets, tmp_path):
    output = run("embed", tmp_path / "a.jsonl")
    shutil.copytree(presets["embed"], tmp_path / "other")
    vocabulary = tmp_path / "other" / "vocab.txt"
    tokens = vocabulary.read_text().splitlines()
    vocabulary.write_text("\n".join([*tokens[:-2], tokens[-1], tokens[-2]]) + "\n")
    with pytest.raises(SystemExit, match=r"other settings.*Received: tokenizer was"):
        run("embed", output, preset=tmp_path / "other")


class Typed:
    """Standard input that notes how much was printed when each line is read."""

    def __init__(self, texts, printed):
        self.texts, self.printed, self.seen = texts, printed, []
        self.buffer = self

    def __iter__(self):
        for text in self.texts:
            self.seen.append(self.printed())
            yield f"{text}\n".encode()
        self.seen.append(self.printed())


@pytest.mark.parametrize(
    "name",
    [
        *("embed", "fill_mask"),
        pytest.param("translate", marks=pytest.mark.slow),
        pytest.param("generate", marks=pytest.mark.slow),
    ],
)
def test_standard_input_to_standard_output_a_batch_at_a_time(
    call, presets, monkeypatch, tmp_path, name
):
    program, texts, flags = PROGRAMS[name]
    out = io.StringIO()
    typed = Typed(texts[:5], lambda: out.getvalue().count("\n"))
    monkeypatch.setattr(sys, "stdin", typed)
    monkeypatch.setattr(sys, "stdout", out)
    arguments = (f"--preset={presets[name]}", "--input=-", "--output=-", "--batch_size=2")
    call(program, *arguments, *flags)
    assert typed.seen == [0, 0, 2, 2, 4, 4]
    found = [json.loads(line)["text"] for line in out.getvalue().splitlines()]
    assert found == texts[:5]


def test_columns_and_ids(call, presets, tmp_path):
    source = tmp_path / "a.jsonl"
    source.write_text('{"id": 7, "en": "a b"}\n{"id": 8, "en": "c"}\n')
    flags = (f"--preset={presets['translate']}", f"--input={source}")
    output = f"--output={tmp_path / 'out.jsonl'}"
    with pytest.raises(SystemExit, match=r"a.jsonl, line 1: 'text' is missing"):
        call(translate, *flags, output)
    call(translate, *flags, output, "--text_column=en", "--max_new_tokens=2")
    found = lines(tmp_path / "out.jsonl")
    assert [(answer["id"], answer["text"]) for answer in found] == [(7, "a b"), (8, "c")]


def test_too_long_is_cut_and_counted_or_named(run, tmp_path, caplog):
    long = "abcdefgh" * 20
    end, beginning = long[:31], long[-58:]  # what of it the translator and the prompt keep
    for name, kept in (("translate", end), ("generate", beginning)):
        texts = "".join(f"{' '.join(text)}\n" for text in (long, kept))
        (tmp_path / f"{name}.txt").write_text(texts)
    first, second = lines(run("translate", tmp_path / "t.jsonl", "--method=greedy"))
    assert first["translation"] == second["translation"]
    assert "1 of 2 examples are longer than 32 tokens and are truncated" in caplog.text
    first, second = lines(run("generate", tmp_path / "g.jsonl"))
    assert first["continuation"] == second["continuation"]
    assert ": the beginning of a prompt is removed" in caplog.text
    caplog.clear()
    source, long = tmp_path / "fill_mask.txt", " ".join(long)
    source.write_text(f"[MASK] {long}\na b\n[MASK]\n")
    run("fill_mask", tmp_path / "f.jsonl")
    assert "1 of 3 examples are longer than" in caplog.text
    source.write_text(f"a\n{long} [MASK]\n")
    with pytest.raises(SystemExit, match=r"within the 32 tokens.*fill_mask.txt, line 2, which has"):
        run("fill_mask", tmp_path / "f2.jsonl")


@pytest.mark.parametrize(
    ("program", "name", "message"),
    [
        (predict, "translate", "^kbert-predict: .*use kbert-translate; .*a Translator in"),
        (predict, "embed", "use kbert-embed; .*a TextEmbedder in"),
        (predict, "fill_mask", "use kbert-fill-mask; kbert-finetune fine-tunes .*a Pretraining in"),
        (translate, "generate", "^kbert-translate: .*use kbert-generate. Received: a CausalLM in"),
        (generate, "fill_mask", "^kbert-generate: .*use kbert-fill-mask"),
        (fill_mask, "embed", "^kbert-fill-mask: .*use kbert-embed. Received: a TextEmbedder"),
        (embed, "translate", "^kbert-embed: .*use kbert-translate"),
    ],
)
def test_another_task_is_refused_by_the_name_of_its_program(
    call, presets, tmp_path, program, name, message
):
    (tmp_path / "a.txt").write_text("a\n")
    arguments = (f"--preset={presets[name]}", f"--input={tmp_path / 'a.txt'}")
    with pytest.raises(SystemExit, match=message):
        call(program, *arguments, f"--output={tmp_path / 'out.jsonl'}")
    assert not (tmp_path / "out.jsonl").exists()


def test_every_task_that_fills_masks_and_none_that_answers_no_files(tasks, tmp_path):
    config = kbert.configs.XlnetConfig(
        vocabulary_size=13, max_positions=32, pooler_activation=None, **writing.SIZES
    )
    own = writing.tokenizer()
    kbert.tasks.PermutationLM(kbert.Encoder(config), own).save_to_preset(tmp_path / "a")
    task, checksum = answering_task("kbert-fill-mask", Pretraining, str(tmp_path / "a"))
    assert (type(task), len(checksum())) == (kbert.tasks.PermutationLM, 8)
    electra = kbert.tasks.ReplacedTokenDetection(encoder(), own)
    electra.save_to_preset(tmp_path / "b")
    with pytest.raises(ValueError, match=r"no program supports it for files. Received: a Replaced"):
        answering_task("kbert-fill-mask", Pretraining, str(tmp_path / "b"))


def test_vectors_in_a_file_of_numpy_are_of_an_embedder(run, tmp_path):
    with pytest.raises(SystemExit, match=r".npy file for kbert-embed only.*a.npy of kbert-tr"):
        run("translate", tmp_path / "a.npy")


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_exports_answer_too(call, tasks, tmp_path, name):
    pytest.importorskip("tf2onnx")
    pytest.importorskip("onnxruntime")
    program, texts, _ = PROGRAMS[name]
    written = {
        "translate": {"max_new_tokens": 5, "method": Beam(2)},
        "generate": {"max_new_tokens": 5, "stop_ids": [7]},
    }.get(name, {})
    folder = tasks[name].export(tmp_path / "onnx", format="onnx", **written)
    (tmp_path / "a.txt").write_text("".join(f"{text}\n" for text in texts))
    arguments = (f"--preset={folder}", f"--input={tmp_path / 'a.txt'}")
    call(program, *arguments, f"--output={tmp_path / 'a.jsonl'}")
    found = lines(tmp_path / "a.jsonl")
    if name == "embed":
        expected = tasks[name].predict(texts)
        np.testing.assert_allclose([x["vector"] for x in found], expected, atol=1e-4)
        with pytest.raises(SystemExit, match=r"pooling of an export are fixed.*feature_layers for"):
            call(program, *arguments, "--output=-", "--layers=last")
    elif name == "fill_mask":
        assert [x["tokens"] for x in found] == [x["tokens"] for x in tasks[name].predict(texts)]
    else:
        written["stop"] = written.pop("stop_ids", ())
        given = {key: x for key, x in written.items() if x}
        field = {"translate": "translation", "generate": "continuation"}[name]
        assert [x[field] for x in found] == tasks[name].predict(texts, **given)
        with pytest.raises(SystemExit, match=r"of an export cannot be changed.*max_new_tokens=4"):
            call(program, *arguments, "--output=-", "--max_new_tokens=4")
    other = predict if name == "embed" else embed  # which is for embedders too
    (tmp_path / "onnx" / "export.json").write_text(
        (tmp_path / "onnx" / "export.json").read_text() + "\n"
    )
    with pytest.raises(SystemExit, match=r"other settings.*model was|use kbert-"):
        call(other, *arguments, f"--output={tmp_path / 'a.jsonl'}")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.jsonl", "a.npy"])
def test_killed_and_started_again_to_the_same_bytes(presets, tmp_path, name):
    large = tmp_path / "large.txt"
    large.write_text("".join(f"a b c {'d ' * (n % 9)}\n" for n in range(9000)))

    def start(output, before=""):
        flags = (f"--preset={presets['embed']}", f"--input={large}", f"--output={output}")
        return start_program("embed", *flags, before=before)

    whole, broken = tmp_path / f"whole{name[1:]}", tmp_path / f"broken{name[1:]}"
    ends_well(start(whole))
    ends_killed(start(broken, before=signalled("kbert.io.outputs:GrowingOutput._append", calls=2)))
    assert 0 < broken.stat().st_size < whole.stat().st_size
    ends_well(start(broken))
    assert broken.read_bytes() == whole.read_bytes()


@pytest.mark.slow
def test_who_reads_a_pipe_may_stop(presets, tmp_path):
    large = tmp_path / "large.txt"
    large.write_text("a b c\n" * 20_000)
    flags = (f"--preset={presets['embed']}", f"--input={large}", "--output=-")
    process = start_program("embed", *flags)
    assert json.loads(process.stdout.readline())["text"] == "a b c"
    process.stdout.close()
    assert process.wait(PATIENCE) == 0
    assert "Broken pipe" not in process.stderr.read()
