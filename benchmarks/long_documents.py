r"""Questions about long documents: windows, global tokens, attention to all, and short rows.

A document is encyclopaedic text of about --length tokens in which three captions of pictures are
hidden, one in German, one in French, one in Czech, anywhere behind its first 400 tokens. The
question, in front of it, names a language; the answer is the caption in it. So a token must know
what was asked, hundreds of tokens away, and see by its neighbours what language it is of. Captions
and text of the questions that are measured were in none of those that are trained on.

Contenders are models of one size (--layers, --width), drawn at random and trained alike:

  windows    every token attends to --window tokens around it: the question is out of sight
  global     the same, with the question's tokens global, as in Longformer: the part `global_tokens`
             of kbert.models, which kbert.tasks.QuestionAnswerer gives its tokens
  full       every token attends to every token
  rows       BERT's way: rows of --row tokens every three quarters of them, the question in each

For each: exact answers and F1 of words over the questions that are measured, the mean over --seeds;
seconds of a training step of --batch documents (median, of the first seed); and what the process of
the contender grew by at its peak. Guessing one of the captions would be right in a third.

Text is WikiText's: one paragraph a line, headings between "=" (plain or .gz). Captions are
Multi30k's: val.de, val.fr, val.cs to train on, test_2016_flickr.de, … to measure.

  python -m benchmarks.long_documents --text wikitext-2/train.txt --captions multi30k
  python -m benchmarks.long_documents --text … --captions … --length 4096 --contenders global,full

Shorter: --length 1024 --documents 1000. Accuracy does not depend on the machine's other work;
seconds a step do.
"""

import argparse
import dataclasses
import gzip
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

LANGUAGES = {"german": "de", "french": "fr", "czech": "cs"}
CONTENDERS = ("windows", "global", "full", "rows")
PIECES = 6000
BEFORE = 400  # tokens of a document in front of the first caption


@dataclasses.dataclass(frozen=True)
class Documents:
    """Columns of a `QuestionAnswerer`'s table."""

    question: list[str]
    context: list[str]
    answers: list[list[str]]
    answer_starts: list[list[int]]


def paragraphs(path: Path) -> list[str]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        lines = (line.strip() for line in file)
        return [x for x in lines if len(x) > 100 and not x.startswith("=")]


def captions(folder: Path, split: str) -> dict[str, list[str]]:
    return {
        language: (folder / f"{split}.{code}").read_text(encoding="utf-8").splitlines()
        for language, code in LANGUAGES.items()
    }


def texts_in_turn(texts: list[str], rng: np.random.Generator) -> Iterator[int]:
    """Numbers of texts, from a random one on, one after the other."""
    number = int(rng.integers(len(texts)))
    while True:
        yield number
        number = (number + 1) % len(texts)


def make_documents(
    count: int,
    length: int,
    text: list[str],
    sizes: np.ndarray,
    hidden: dict[str, list[str]],
    seed: int,
) -> Documents:
    """Documents with their questions.

    Args:
        count: of them.
        length: tokens of the longest, question and captions included.
        text: paragraphs.
        sizes: tokens of each.
        hidden: language -> captions.
        seed: of the draw.
    """
    rng = np.random.default_rng(seed)
    made = Documents([], [], [], [])
    room = length - 200  # the captions and the question
    for _ in range(count):
        parts: list[str] = []
        places, taken = [], 0  # numbers of parts that a caption may stand before
        target = int(room * rng.uniform(0.75, 1.0))
        for number in texts_in_turn(text, rng):
            if sizes[number] > room // 4:
                continue
            if taken + sizes[number] > target:
                break
            if taken > BEFORE:
                places.append(len(parts))
            parts.append(text[number])
            taken += sizes[number]
        places.append(len(parts))
        chosen = {language: str(rng.choice(lines)) for language, lines in hidden.items()}
        # From the last place on, so that the numbers of those before stay.
        at = sorted(rng.choice(places, len(chosen)), reverse=True)
        for place, language in zip(at, rng.permutation(list(chosen)), strict=True):
            parts.insert(place, chosen[language])
        asked = str(rng.choice(list(chosen)))
        context = " ".join(parts)
        made.question.append(f"{asked}?")
        made.context.append(context)
        made.answers.append([chosen[asked]])
        made.answer_starts.append([context.index(chosen[asked])])
    return made


def load_data(options: argparse.Namespace) -> tuple[Any, Documents, Documents]:
    """The tokenizer, and the documents to train on and to measure."""
    import kbert
    from kbert.tokenizers import train_wordpiece

    text = paragraphs(options.text)
    known, new = captions(options.captions, "val"), captions(options.captions, "test_2016_flickr")
    lines = [*text, *(line for part in known.values() for line in part), *map(str, LANGUAGES)]
    tokenizer = kbert.WordPieceTokenizer(train_wordpiece(lines, PIECES))
    sizes = tokenizer.encode(text).row_lengths().numpy()
    half = len(text) * 4 // 5  # of the measured documents nothing was trained on
    train = make_documents(
        options.documents, options.length, text[:half], sizes[:half], known, seed=1
    )
    dev = make_documents(options.questions, options.length, text[half:], sizes[half:], new, seed=2)
    return tokenizer, train, dev


def make_task(name: str, options: argparse.Namespace, tokenizer: Any) -> Any:
    import kbert

    row = options.row if name == "rows" else options.length
    local = {"attention_pattern": (options.window,)} if name in ("windows", "global") else {}
    config = kbert.EncoderConfig(
        vocabulary_size=tokenizer.vocabulary_size,
        hidden_size=options.width,
        num_layers=options.layers,
        num_heads=options.width // 32,
        intermediate_size=4 * options.width,
        max_positions=row,
        num_segments=0,
        pooler_activation=None,
        part={"name": "global_tokens"} if name == "global" else None,
        **local,
    )
    return kbert.tasks.QuestionAnswerer(
        kbert.Encoder(config),
        tokenizer,
        max_length=row,
        max_question_length=4,
        doc_stride=row * 3 // 4 if name == "rows" else row // 2,
        max_answer_length=80,
    )


def status(key: str) -> int:
    """MiB that /proc has of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) >> 10


def measure(name: str, options: argparse.Namespace) -> dict[str, float]:
    """Trains and measures one contender with one seed."""
    import keras

    from kbert.data import Table

    class Times(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.ends: list[float] = []

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.ends.append(time.perf_counter())

    tokenizer, train, dev = load_data(options)
    keras.utils.set_random_seed(options.seed)
    task = make_task(name, options, tokenizer)
    table = Table(dataclasses.asdict(train))
    # As many documents a step: of short rows several are one.
    rows = len(task.tokenize(table, labelled=True)) / len(train.question)
    times, before = Times(), status("VmRSS")
    task.fit(
        table,
        epochs=options.epochs,
        batch_size=round(options.batch * rows),
        learning_rate=options.learning_rate,
        seed=options.seed,
        by_length=False,
        callbacks=[times],
        verbose=0,
    )
    grown = status("VmHWM") - before
    scores = task.evaluate(Table(dataclasses.asdict(dev)), verbose=0)
    steps = np.diff(times.ends)
    return {
        "exact": scores["exact"],
        "f1": scores["f1"],
        "seconds": float(np.median(steps[len(steps) // 10 :])),
        "mib": grown,
    }


def run(name: str, seed: int, arguments: list[str]) -> dict[str, float] | None:
    """`measure` in a process of its own; None where the system ended it."""
    command = [sys.executable, "-m", "benchmarks.long_documents", *arguments]
    command += ["--contender", name, "--seed", str(seed)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode == -9:
        return None
    done.check_returncode()
    return json.loads(done.stdout.splitlines()[-1])


def options_of(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.long_documents",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--text", type=Path, required=True, help="file of paragraphs, a line each")
    parser.add_argument("--captions", type=Path, required=True, help="folder of Multi30k")
    parser.add_argument("--length", type=int, default=2048, help="tokens of the longest document")
    parser.add_argument("--documents", type=int, default=2000, help="to train on")
    parser.add_argument("--questions", type=int, default=300, help="to measure")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4, help="documents of a step")
    parser.add_argument("--learning_rate", type=float, default=5e-4)
    parser.add_argument("--window", type=int, default=128, help="tokens around each")
    parser.add_argument("--row", type=int, default=512, help="tokens of short rows")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128, help="a multiple of 32")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument(
        "--contenders", default=",".join(CONTENDERS), help=f"of {', '.join(CONTENDERS)}"
    )
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    unknown = set(options.contenders.split(",")) - set(CONTENDERS)
    if unknown:
        parser.error(f"contenders are {', '.join(CONTENDERS)}. Received: {', '.join(unknown)}")
    if options.length < 2 * BEFORE:  # else no caption is far from the question
        parser.error(f"--length must be at least {2 * BEFORE}. Received: {options.length}")
    return options


def main() -> None:
    arguments = sys.argv[1:]
    options = options_of(arguments)
    if options.contender:
        print(json.dumps(measure(options.contender, options)))
        return
    print(f"{'contender':10}{'exact':>8}{'F1':>8}{'step':>10}{'memory':>12}", flush=True)
    for name in options.contenders.split(","):
        runs = [run(name, seed, arguments) for seed in range(options.seeds)]
        found = [x for x in runs if x is not None]
        if not found:
            print(f"{name:10}  too much memory", flush=True)
            continue
        exact, f1 = (statistics.mean(x[key] for x in found) for key in ("exact", "f1"))
        seconds, mib = found[0]["seconds"], found[0]["mib"]
        print(f"{name:10}{exact:8.1f}{f1:8.1f}{seconds:8.2f} s{mib:8,.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
