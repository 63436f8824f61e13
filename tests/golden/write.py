r"""How the golden files were made: by the version whose name their folder has, and by no later one.

Everything that kbert writes and reads again lies there as that version wrote it, with what that
version then read, answered and went on to; `test_golden.py` asks the present version for the same.
To add the files of a version, check it out and run this file with it:

  PYTHONPATH=CHECKOUT python tests/golden/write.py /tmp/golden && cp -r /tmp/golden tests/golden/vX

Paths within are relative to the folder, which the programs are started in. Only the plan of a
corpus names its source by the whole path, so OUTPUT is one that tells nothing: /tmp/golden.

    presets/NAME/         a preset of every task, model and tokenizer; NAME.json what it answers
    text.txt, shards/     a corpus, word_shards/ one of words; batches.json what comes of them
    pretrain/NAME/        runs of kbert-pretrain, stopped; pretrain.json their flags, all their
                          steps, and the evaluations
    fit/NAME/             the same of `fit(model_dir=…)`, killed
    finetune/             the same of kbert-finetune
    teacher/              a teacher's outputs, and what a student learns from them (teacher.json)
    features.npy.*        half a file of features
    answers.jsonl*        half of the answers of kbert-predict
    augmented/            half of the folder of kbert-augment
"""

import contextlib
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from unittest import mock

import keras
import numpy as np
from absl import flags
from absl.testing import flagsaver
from kbert.training.checkpoints import Checkpoints
from kbert.training.monitor import Monitor
from sentencepiece.sentencepiece_model_pb2 import ModelProto

import kbert
from kbert import tasks
from kbert.distillation import Distiller, HiddenStates, SoftTargets
from kbert.distillation.augmentation import folder as augmented
from kbert.extraction import write as features
from kbert.finetuning import answer_file
from kbert.models import ElmoEncoder, PrefixSeq2Seq
from kbert.tokenizers import SPECIAL_TOKENS, train_tokenizer, train_unigram
from pipelines import augment, finetune, predict, pretrain

NOUNS = ("fox", "dog", "cat", "pen", "moon", "tree", "river", "house", "man", "king", "sun")
WORDS = (
    *("the", "a", "red", "blue", "green", "old", "big", "small", "jumps", "runs", "sees", "over"),
    *("under", "and", "of", "is", *NOUNS),
)
VOCABULARY = [*SPECIAL_TOKENS, ".", ",", "##s", "##ing", *WORDS]
TEXTS = ["the red fox jumps over the old river .", "a man sees kings and the small moon , quoting"]
LONG = "the red fox jumps over the old river and the big dog runs under a tree of the king ."
SIZES = {"hidden_size": 8, "num_heads": 2, "intermediate_size": 12, "max_positions": 40}
NARROW = {**SIZES, "hidden_size": 4, "intermediate_size": 8}  # of the large vocabularies
ELMO = {
    "character_size": 4,
    "filters": ((1, 4), (2, 4)),
    "num_highway": 1,
    "max_characters": 10,
    "lstm_size": 6,
    "projection_size": 4,
}


class Killed(Exception):
    """Stands for the end of a process."""


def randomise(layer, seed):
    rng = np.random.default_rng(seed)
    for weight in layer.weights:
        if weight.dtype == "float32":
            centre = 1.0 if weight.name == "gamma" else 0.0
            weight.assign(rng.normal(centre, 0.3, tuple(weight.shape)).astype("float32"))
    return layer


def make_text(documents, seed, sentences=6):
    """Documents of sentences of the words."""
    rng = np.random.default_rng(seed)

    def sentence():
        return " ".join(rng.choice(WORDS, rng.integers(4, 10))) + " ."

    return "\n\n".join("\n".join(sentence() for _ in range(sentences)) for _ in range(documents))


def plain(value):
    """What JSON can hold; numbers to six digits behind the point."""
    if hasattr(value, "to_list"):
        value = value.to_list()
    if hasattr(value, "numpy"):
        value = value.numpy()
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, dict):
        return {name: plain(x) for name, x in value.items()}
    if isinstance(value, list | tuple):
        return [plain(x) for x in value]
    return round(value, 6) if isinstance(value, float) else value


def write_json(path, content):
    Path(path).write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")


def shortened(value):
    """A number to nine digits, more than a float32 has."""
    return float(f"{float(value):.9g}")


def lines(path):
    content = Path(path).read_text(encoding="utf-8")
    return [json.loads(line, parse_float=shortened) for line in content.splitlines()]


def write_text(path, content):
    """Of a time that tells nothing: a corpus knows its sources by it."""
    Path(path).write_text(content, encoding="utf-8")
    os.utime(path, (1_700_000_000, 1_700_000_000))


def write_preset(name, kind, model, *asks):
    """A model in a folder, and what it answers: `asks` are (method, arguments, options)."""
    folder = Path("presets", name)
    model.save_to_preset(folder)
    asked = [
        {
            "method": method,
            "arguments": arguments,
            "options": options,
            "answers": plain(getattr(model, method)(*arguments, **options)),
        }
        for method, arguments, options in asks
    ]
    tokenizer = getattr(model, "tokenizer", None)
    ids = None if tokenizer is None else plain(tokenizer.encode(TEXTS))
    write_json(f"{folder}.json", {"load": kind, "asks": asked, "texts": TEXTS, "token_ids": ids})


def ask(*arguments, method="predict", **options):
    return method, list(arguments), options


def encoder(tokenizer, seed, **changes):
    fields = {**SIZES, "num_layers": 1, "vocabulary_size": tokenizer.vocabulary_size, **changes}
    return randomise(kbert.Encoder(kbert.EncoderConfig(**fields)), seed)


def decoder(tokenizer, seed, **changes):
    fields = {**SIZES, "num_layers": 1, "vocabulary_size": tokenizer.vocabulary_size, **changes}
    return randomise(kbert.Decoder(kbert.DecoderConfig(**fields)), seed)


def make_tokenizers():
    corpus = make_text(20, seed=1).split("\n")
    model = ModelProto.FromString(train_unigram(corpus, 60, lowercase=True))
    # The table of Unicode's normalisation is 240 kB, and nothing of kbert's.
    model.normalizer_spec.precompiled_charsmap = b""
    model.normalizer_spec.name = "identity"
    return {
        "wordpiece": kbert.WordPieceTokenizer(VOCABULARY),
        "bpe": train_tokenizer(corpus, 270, kind="bpe"),
        "unigram": kbert.UnigramTokenizer(model.SerializeToString(), lowercase=True),
        "words": train_tokenizer(corpus, 24, kind="words"),
    }


def write_presets(tokenizers):
    wordpiece, bpe, unigram, words = (
        tokenizers[kind] for kind in ("wordpiece", "bpe", "unigram", "words")
    )
    masked = ["the red [MASK] jumps over the [MASK] .", "a [MASK] sees the moon ."]
    pairs = [["the red fox .", "it is old ."], [TEXTS[0], "the king sees a dog ."]]
    for number, (name, kind, options, asks) in enumerate((
        ("pretraining", tasks.Pretraining, {},
         [ask(masked, top_k=3), ask(pairs, method="predict_next_sentence")]),
        ("sentence_order", tasks.Pretraining, {"sentence_order": True},
         [ask(masked, top_k=3), ask(pairs, method="predict_sentence_order")]),
        ("span_boundary", tasks.Pretraining, {"next_sentence": False, "span_boundary": True},
         [ask(masked, top_k=3)]),
        ("replaced_tokens", tasks.ReplacedTokenDetection, {}, [ask(TEXTS)]),
        ("classifier", tasks.TextClassifier, {"labels": ["ham", "spam"], "max_length": 32},
         [ask(TEXTS), ask({"first": TEXTS, "second": TEXTS[::-1]})]),
        ("classifier_of_windows", tasks.TextClassifier,
         {"labels": ["a", "b", "c"], "max_length": 8, "stride": 3, "pooling": "max"},
         [ask([LONG, *TEXTS])]),
        ("classifier_of_several_labels", tasks.TextClassifier,
         {"labels": ["a", "b", "c"], "multi_label": True,
          "threshold": {"a": 0.3, "b": 0.5, "c": 0.8}, "dropout": 0.2},
         [ask([LONG, *TEXTS])]),
        ("regressor", tasks.TextRegressor, {"max_length": 10, "stride": 4}, [ask([LONG, *TEXTS])]),
        ("token_classifier", tasks.TokenClassifier,
         {"labels": ["O", "B-x", "I-x"], "max_length": 10, "stride": 4}, [ask([LONG, *TEXTS])]),
        ("question_answerer", tasks.QuestionAnswerer,
         {"max_length": 16, "doc_stride": 4, "max_question_length": 4, "max_answer_length": 3,
          "n_best": 5, "null_threshold": 0.5},
         [ask({"question": ["who jumps ?", "what"], "context": [LONG, TEXTS[1]]})]),
        ("multiple_choice", tasks.MultipleChoice, {"max_length": 24},
         [ask({"context": TEXTS, "choices": [["the fox", "a dog .", "a"], ["moon", LONG]]})]),
    )):  # fmt: skip
        tokenizer, fields = wordpiece, {}
        if name == "sentence_order":  # ALBERT's
            tokenizer, fields = unigram, {
                "embedding_size": 4, "num_layers": 2, "num_layer_groups": 1,
            }  # fmt: skip
        if name == "regressor":
            tokenizer = unigram
        if name == "token_classifier":  # RoBERTa's
            tokenizer, fields = bpe, {**NARROW, "num_segments": 0, "pooler_activation": None}
        if name == "classifier":
            fields = {"num_layers": 2}
        if name == "span_boundary":  # it has 200 vectors of positions
            fields = NARROW
        if name == "replaced_tokens":
            fields = {"pooler_activation": None}
        if tokenizer is not wordpiece and name == "sentence_order":
            asks = asks[1:]
        task = kind(encoder(tokenizer, number, **fields), tokenizer, **options)
        write_preset(name, "Task", randomise(task, number), *asks)

    generated = {"max_new_tokens": 4, "verbose": 0}
    task = tasks.CausalLM(decoder(bpe, 20, **NARROW), bpe)
    write_preset(
        *("causal_lm", "Task", task),
        ask(["the red", "a king"], **generated, return_scores=True),
        ask(TEXTS, method="score") if hasattr(task, "score") else ask(TEXTS, **generated),
    )
    fields = {**SIZES, "num_layers": 1, "vocabulary_size": wordpiece.vocabulary_size}
    seq2seq = randomise(kbert.Seq2Seq(kbert.Seq2SeqConfig(**fields)), 21)
    translator = tasks.Translator(seq2seq, wordpiece, label_smoothing=0.2)
    write_preset("translator", "Task", translator, ask(TEXTS, **generated, return_scores=True))
    options = {"labels": ["x", "y"], "auxiliary_lm_weight": 0.5}
    task = tasks.TextClassifier.from_preset("presets/causal_lm", new_head=True, **options)
    write_preset("classifier_on_decoder", "Task", randomise(task, 23), ask(TEXTS))
    elmo = randomise(kbert.Elmo(kbert.ElmoConfig(**ELMO)), 24)
    characters = kbert.CharacterTokenizer(ELMO["max_characters"])
    task = tasks.TokenClassifier(ElmoEncoder(elmo), characters, ["X", "Y"])
    write_preset("token_classifier_on_elmo", "Task", randomise(task, 25), ask(TEXTS))

    config = kbert.ElmoConfig(**ELMO, vocabulary_size=words.vocabulary_size)
    elmo = randomise(kbert.Elmo(config, tokenizer=words), 26)
    write_preset(
        *("elmo", "Elmo", elmo),
        ask(TEXTS, method="embed"),
        ask("the red", 3, method="predict_next"),
    )
    # What `BidirectionalLM` trains is saved as the model that it trains, and so is this.
    bare = encoder(wordpiece, 27)
    bare.save_to_preset("presets/encoder")
    wordpiece.save("presets/encoder")
    ids = [[2, *range(9, 19), 3], [2, *range(14, 24), 3]]
    found = bare({"token_ids": np.array(ids)})
    write_json("presets/encoder.json", {"token_ids": ids, **plain(found)})
    prefix = PrefixSeq2Seq(encoder(wordpiece, 28))
    write_preset(
        *("prefix_translator", "Translator", tasks.Translator(prefix, wordpiece)),
        ask(TEXTS, **generated, return_scores=True),
    )


def write_shards(tokenizers):
    write_text("text.txt", make_text(30, seed=2))
    kbert.data.prepare_corpus("text.txt", "shards", tokenizers["wordpiece"], held_out_share=0.2)
    kbert.data.prepare_corpus("text.txt", "word_shards", tokenizers["words"], held_out_share=0.2)
    written = []
    for function, folder, options in (
        ("pretraining_dataset", "shards", {"masking": "whole_word", "sequence_length": 16}),
        ("pretraining_dataset", "shards", {"masking": "span", "segments": "single",
                                           "sequence_length": 12, "split": "held_out"}),
        ("pretraining_dataset", "shards", {"masking": "ngram", "segments": "halves",
                                           "sequence_length": 16, "static_masks": 2}),
        ("causal_dataset", "shards", {"sequence_length": 12}),
        ("language_model_dataset", "word_shards", {"sequence_length": 6, "max_characters": 10}),
    ):  # fmt: skip
        options = {"batch_size": 4, "seed": 3, **options}
        dataset = getattr(kbert.data, function)(folder, kbert.load_tokenizer(folder), **options)
        batches = [plain(batch) for batch in dataset.take(3).as_numpy_iterator()]
        written.append(
            {"function": function, "folder": folder, "options": options, "batches": batches[::2]}
        )
    write_json("batches.json", written)


@contextlib.contextmanager
def terminated(step):
    """SIGTERM before the update number `step` of a run of kbert-pretrain is counted."""
    usual = Monitor.on_train_batch_end

    def end(self, batch, logs=None):
        if self.step + 1 == step:
            signal.raise_signal(signal.SIGTERM)
        usual(self, batch, logs)

    with mock.patch.object(Monitor, "on_train_batch_end", end):
        yield


@contextlib.contextmanager
def killed(step):
    """The end once the checkpoint of `step` is written."""
    usual = Checkpoints.save

    def save(self, task, number, *arguments, **options):
        usual(self, task, number, *arguments, **options)
        if number == step:
            raise Killed

    with mock.patch.object(Checkpoints, "save", save), contextlib.suppress(Killed):
        yield
        raise AssertionError("it was not killed")


def call(program, *arguments):
    """A program as it is started, in this process."""
    with flagsaver.flagsaver(), mock.patch.object(sys, "argv", [program.__name__]):
        before = set(flags.FLAGS)
        program.define_flags()
        for name in set(flags.FLAGS) - before:
            flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])
        program.main(flags.FLAGS([program.__name__, *arguments]))


@contextlib.contextmanager
def gone_on_with(folder):
    """What is there is kept; then this version resumes, and what comes of that is checked."""
    kept = Path(f"{folder}.kept")
    shutil.copytree(folder, kept)
    yield
    shutil.rmtree(folder)
    kept.rename(folder)


def write_pretrain():
    for name, config in (
        ("elmo", kbert.ElmoConfig(**ELMO)),
        ("gpt", kbert.DecoderConfig(**SIZES, num_layers=1, vocabulary_size=9, block="post_norm")),
        ("seq2seq", kbert.Seq2SeqConfig(**NARROW, num_layers=1, vocabulary_size=9)),
    ):
        write_json(f"{name}.json", config.to_dict())
    rng = np.random.default_rng(3)
    sources = [" ".join(rng.choice(WORDS, rng.integers(2, 7))) for _ in range(32)]
    write_text("source.txt", "\n".join(sources) + "\n")
    write_text("target.txt", "\n".join(text[::-1] for text in sources) + "\n")
    sizes = [f"--set={k}={v}" for k, v in {**SIZES, "num_layers": 1}.items()]
    bert = ["--data_dir=shards", *sizes, "--warmup_steps=2", "--learning_rate=1e-2"]
    rows = ["--batch_size=4", "--sequence_length=12"]
    written = []
    for name, own in (
        ("bert", [*bert, "--batch_size=4", "--phases=12:0.5,20:0.5"]),
        ("electra", [*bert, *rows, "--recipe=electra", "--generator_share=0.5",
                     "--model=google/electra-small-discriminator",
                     "--set=embedding_size=8"]),
        ("elmo", ["--data_dir=word_shards", "--recipe=elmo", "--model=elmo.json",
                  "--batch_size=4", "--sequence_length=8", "--vocabulary_size=20",
                  "--negatives=4"]),
        ("gpt", ["--data_dir=shards", "--recipe=gpt", "--model=gpt.json", *rows,
                 "--warmup_steps=1", "--decay=constant"]),
        ("translation", ["--source=source.txt", "--target=target.txt", "--dev_source=source.txt",
                         "--dev_target=target.txt", "--recipe=transformer", "--model=seq2seq.json",
                         "--vocabulary_size=264", "--batch_tokens=96", "--beam_width=1",
                         "--average_checkpoints=1", "--warmup_steps=2", "--learning_rate=1e-2"]),
    ):  # fmt: skip
        folder = f"pretrain/{name}"
        arguments = [
            *own, f"--model_dir={folder}", "--train_steps=10", "--checkpoint_every=4",
            "--keep_checkpoints=1", "--evaluate_every=3", "--evaluation_steps=1",
        ]  # fmt: skip
        with terminated(5):
            try:
                call(pretrain, *arguments)
            except SystemExit as stopped:
                if stopped.code != 128 + signal.SIGTERM:
                    raise
        with gone_on_with(folder):
            call(pretrain, *arguments)
            written.append({
                "folder": folder,
                "flags": arguments,
                "steps": lines(f"{folder}/steps.jsonl"),
                "evaluations": lines(f"{folder}/evaluations.jsonl"),
            })  # fmt: skip
        assert len(lines(f"{folder}/steps.jsonl")) == 5
    write_json("pretrain.json", written)


def write_fit():
    rng = np.random.default_rng(4)
    texts = [" ".join(rng.choice(WORDS, rng.integers(3, 9))) for _ in range(12)]
    answers = [text.split()[1] for text in texts]
    data = {
        "classifier": ({"text": texts, "label": ["ham", "spam"] * 6}, {"epochs": 2}),
        "token_classifier": (
            {"words": [text.split() for text in texts],
             "labels": [[("O", "B-x")[word in NOUNS] for word in text.split()] for text in texts]},
            {},
        ),
        "question_answerer": (
            {"question": ["who ?"] * 12, "context": texts, "answers": [[x] for x in answers],
             "answer_starts": [[text.index(x)] for text, x in zip(texts, answers, strict=True)]},
            {},
        ),
        "multiple_choice": (
            {"context": texts, "choices": [[x, "a dog", "the king"] for x in answers],
             "label": [0, 1, 2] * 4},
            {},
        ),
    }  # fmt: skip
    written = []
    for name, (table, options) in data.items():
        folder = f"fit/{name}"
        options = {"epochs": 1, "batch_size": 2, "learning_rate": 1e-2, "checkpoint_every": 4,
                   "seed": 1, "verbose": 0, **options}  # fmt: skip
        if name == "classifier":
            held_out = {column: values[:8] for column, values in table.items()}
            options |= {"validation_data": held_out, "evaluate_every": 2, "layer_decay": 0.9}

        def go_on(name=name, folder=folder, table=table, options=options):
            task = tasks.Task.from_preset(f"presets/{name}")
            task.fit(table, **options, model_dir=folder)
            return task

        with killed(4):
            go_on()
        with gone_on_with(folder):
            task = go_on()
            asked = {k: v for k, v in table.items() if k not in ("label", "labels", "answers")}
            written.append({
                "preset": f"presets/{name}",
                "folder": folder,
                "data": table,
                "options": options,
                "steps": lines(f"{folder}/steps.jsonl"),
                "evaluations": lines(f"{folder}/evaluations.jsonl")
                if name == "classifier" else [],
                "asked": asked,
                "answers": plain(task.predict(asked, verbose=0)),
            })  # fmt: skip
    write_json("fit.json", written)


def write_finetune():
    rng = np.random.default_rng(5)
    rows = [f"{label},{' '.join(rng.choice(WORDS, 5))}" for label in ("ham", "spam") * 12]
    write_text("mail.csv", "kind,body\n" + "\n".join(rows) + "\n")
    arguments = [
        "--task=classify", "--train=mail.csv", "--dev_share=0.25", "--text_column=body",
        "--label_column=kind", "--preset=presets/pretraining", "--output_dir=finetune",
        "--batch_size=4", "--epochs=2", "--learning_rate=1e-2", "--checkpoint_every=4",
        "--evaluate_every=2", "--max_length=32", "--freeze=encoder/embeddings/*",
    ]  # fmt: skip
    with killed(4):
        call(finetune, *arguments)
    with gone_on_with("finetune"):
        call(finetune, *arguments)
        results = json.loads(Path("finetune/results.json").read_text())
        written = {
            "flags": arguments,
            "steps": lines("finetune/training/steps.jsonl"),
            "evaluations": lines("finetune/training/evaluations.jsonl"),
            "results": {name: results[name] for name in ("metric", "dev", "best_step", "steps")},
            "answers": plain(lines("finetune/dev_answers.jsonl")),
        }
    write_json("finetune.json", written)


def write_teacher():
    """What a teacher made of texts, and a distillation from it that was killed."""
    rng = np.random.default_rng(6)
    texts = [" ".join(rng.choice(WORDS, rng.integers(3, 9))) for _ in range(12)]
    options = {"epochs": 2, "batch_size": 4, "learning_rate": 1e-2, "checkpoint_every": 2,
               "seed": 2, "verbose": 0}  # fmt: skip

    def distil():
        teacher = tasks.Task.from_preset("presets/classifier")
        student = kbert.student(teacher, num_layers=1)
        terms = [HiddenStates(), SoftTargets(weight=2.0, temperature=2.0)]
        distiller = Distiller(student, teacher, terms, cache_dir="teacher", cache_dtype="float32")
        distiller.fit(texts, ["ham", "spam"] * 6, **options, model_dir="distilled")

    with killed(2):
        distil()
    with gone_on_with("distilled"):
        distil()
        steps = lines("distilled/steps.jsonl")
    write_json("teacher.json", {"texts": texts, "options": options, "steps": steps})


def write_outputs():
    """Three files whose writer was killed; its pieces are small ones, that the files are too."""
    model = kbert.Encoder.from_preset("presets/encoder")
    tokenizer = kbert.load_tokenizer("presets/encoder")
    texts = make_text(1, seed=7, sentences=10).split("\n")

    def broken():
        yield from texts[:6]
        raise Killed

    options = {"pooling": "mean", "layers": -1, "dtype": "float32"}
    with mock.patch.object(features, "_TEXTS", 4), contextlib.suppress(Killed):
        kbert.extraction.write_features("features.npy", model, tokenizer, broken(), **options)
    whole = kbert.features(model, tokenizer, texts, pooling="mean", layers=-1)
    write_json("features.json", {"texts": texts, "options": options, "features": plain(whole)})

    write_text("asked.txt", "\n".join(texts) + "\n")
    arguments = [
        "--preset=presets/classifier_of_windows", "--input=asked.txt", "--output=answers.jsonl",
    ]  # fmt: skip
    append = answer_file.AnswerFile.append

    def append_once(self, *given):
        append(self, *given)
        raise Killed

    with (
        mock.patch.object(answer_file, "CHUNK", 4),
        mock.patch.object(answer_file.AnswerFile, "append", append_once),
        contextlib.suppress(Killed),
    ):
        call(predict, *arguments)
    task = tasks.Task.from_preset("presets/classifier_of_windows")
    written = {"flags": arguments, "texts": texts, "answers": plain(task.predict(texts))}
    write_json("answers.json", written)

    arguments = [
        "--task=classify", "--train=mail.csv", "--text_column=body", "--label_column=kind",
        "--preset=presets/pretraining", "--output_dir=augmented", "--copies=3", "--candidates=4",
        "--shards=3",
    ]  # fmt: skip
    write_shard = augmented._write_shard
    made = []

    def write_two(*given):
        if len(made) == 2:
            raise Killed
        made.append(write_shard(*given))

    with mock.patch.object(augmented, "_write_shard", write_two), contextlib.suppress(Killed):
        call(augment, *arguments)
    with gone_on_with("augmented"):
        call(augment, *arguments)
        texts = {path.name: path.read_text() for path in sorted(Path("augmented").glob("*.jsonl"))}
    write_json("augmented.json", {"flags": arguments, "files": texts})


def main(output):
    keras.utils.set_random_seed(0)
    os.makedirs(output)
    os.chdir(output)
    tokenizers = make_tokenizers()
    write_presets(tokenizers)
    write_shards(tokenizers)
    write_pretrain()
    write_fit()
    write_finetune()
    write_teacher()
    write_outputs()


if __name__ == "__main__":
    main(sys.argv[1])
