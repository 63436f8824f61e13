"""The work of `kbert-quickstart`, in stages."""

import contextlib
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

import keras
import numpy as np
import tensorflow as tf
from absl import flags, logging

import kbert
from kbert.core.types import PathLike
from kbert.io import atomic
from kbert.io.paths import Path, local_only
from kbert.models import attend_to_neighbours
from kbert.training import AdamW
from kbert.training.run.signals import Interrupted, Terminated
from kbert.visualization import AttentionPage, ReportPage, learning_curve, read_attention

from .masked_text import tokenizer_fields

EXAMPLES = (
    "returns the [MASK] of the array.",
    "raises a value [MASK] if the input is not valid.",
    "a [MASK] of strings, one for each [MASK].",
)

SETTINGS = (
    "sources",
    "model",
    "vocabulary_size",
    "sequence_length",
    "batch_size",
    "learning_rate",
    "held_out_share",
    "minutes",
    "steps",
)

WARM_UP, DECAY = 0.1, 0.2  # shares of the run
MASKED_SHARE = 0.2  # of training: a short run learns more from more masks than BERT's 15 %

# The work of a server: only TensorFlow and TensorFlow Text, no kbert and no Keras.
CLIENT = """
import json, sys
import tensorflow as tf, tensorflow_text
served = tf.saved_model.load(sys.argv[1]).signatures
answers = served["fill_mask"](text=tf.constant(json.loads(sys.argv[2])))
json.dump({name: value.numpy().tolist() for name, value in answers.items()},
          sys.stdout, default=bytes.decode)
"""


class Stages:
    """Announces each stage and records its duration, for the closing table.

    Attributes:
        seconds: name of each finished stage -> its duration.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        print(f"\n[{len(self.seconds) + 1}] {name}", flush=True)
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start


def check_settings(path: Path, settings: dict) -> None:
    """Raises ValueError if a folder was begun with other settings; writes those of a new one.

    Args:
        path: JSON file of the settings, in the folder.
        settings: name -> value of each setting.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write(path, (json.dumps(settings, indent=2) + "\n").encode())
        return
    earlier = json.loads(path.read_text(encoding="utf-8"))
    changed = [name for name in settings if earlier.get(name) != settings[name]]
    if changed:
        shown = ", ".join(f"{n}: {earlier.get(n)} before, {settings[n]} now" for n in changed)
        raise ValueError(
            f"{path.parent} holds a quickstart with other settings; give another --output_dir, or "
            f"remove the folder to start again. Received: {shown}"
        )


class ByTheClock(keras.callbacks.Callback):
    """Ends training in time, however busy the machine is, with a complete learning-rate schedule.

    The learning rate follows the share of planned steps or the share of time, whichever is larger.
    It rises over a tenth of the run, and falls to 0 over the last fifth.

    Args:
        peak: The highest learning rate.
        steps: The planned steps.
        seconds: Time for all steps; None = no limit.
    """

    def __init__(self, peak: float, steps: int, seconds: float | None) -> None:
        super().__init__()
        self._peak, self._steps, self._seconds = peak, steps, seconds
        # The first finished step and its time: the clock starts after compilation.
        self._began: tuple[int, float] | None = None

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        done = self._done(batch)
        share = min(done / WARM_UP, (1 - done) / DECAY, 1.0)
        self.model.optimizer.learning_rate.assign(self._peak * max(share, 0.0))

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        step = batch + 1
        if self._began is None:
            self._began = step, time.perf_counter()
        if self._done(step) >= 1:
            self.model.stop_training = True

    def _done(self, step: int) -> float:
        """Returns the finished share of the run; steps before a restart count as used time."""
        done = step / self._steps
        if self._seconds is None or self._began is None:
            return done
        first_step, start = self._began
        return max(done, first_step / self._steps + (time.perf_counter() - start) / self._seconds)


def make_task(model: str, tokenizer: kbert.WordPieceTokenizer) -> kbert.tasks.Pretraining:
    """Makes a new compiled pretraining task.

    A short run of a small model needs no dropout, and a high learning rate.

    Args:
        model: name of a model in `kbert.family`.
        tokenizer: tokenizer of the shards.

    Raises:
        ValueError: the model is not an encoder of the BERT family.
    """
    config = kbert.family(model)
    if not isinstance(config, kbert.EncoderConfig):
        raise ValueError(
            f"--model must be an encoder of the BERT family. Received: --model={model}"
        )
    config = config.replace(
        **tokenizer_fields(config, tokenizer), dropout=0.0, attention_dropout=0.0
    )
    task = kbert.tasks.Pretraining(kbert.Encoder(config), tokenizer)
    # At this size XLA makes steps a fifth faster on a CPU; at the size of BERT-base it does not.
    task.compile(AdamW(beta_2=0.98), jit_compile=True)
    return task


def steps_that_fit(minutes: float, task: kbert.tasks.Pretraining, rows: tf.data.Dataset) -> int:
    """Estimates how many training steps this machine makes in a time.

    Args:
        minutes: the time.
        task: compiled task; 30 steps are trained to measure the pace.
        rows: batches for these steps.
    """
    rows = iter(rows)
    task.prepare(next(rows))
    warm, timed = 5, 25
    for step in range(warm + timed):
        if step == warm:
            start = time.perf_counter()
        task.train_on_batch(next(rows))
    pace = (time.perf_counter() - start) / timed
    return max(int(minutes * 60 / pace), 1)


def baseline(rows: tf.data.Dataset) -> float:
    """Returns the share of masks that the most frequent masked token fills correctly.

    Args:
        rows: batches with `mask_ids` and `mask_weights`.
    """
    counts = np.zeros(1, np.int64)
    for batch in rows.as_numpy_iterator():
        batch_counts = np.bincount(batch["mask_ids"][batch["mask_weights"] > 0])
        counts = np.pad(counts, (0, max(len(batch_counts) - len(counts), 0)))
        counts[: len(batch_counts)] += batch_counts
    return counts.max() / counts.sum()


def print_answers(texts: tuple[str, ...], answers: list[dict]) -> None:
    """Prints each text with the most probable tokens for its masks.

    Args:
        texts: texts with masks.
        answers: for each text, "tokens" and "probabilities" of each mask.
    """
    for text, answer in zip(texts, answers, strict=True):
        print(f"  {text}")
        for likely in each_mask(answer):
            print(f"      {in_words(likely)}")


def add_results(
    report: ReportPage,
    steps: Sequence[dict],
    untrained: list[dict],
    trained: list[dict],
) -> None:
    """Adds the learning curve, and the predictions for the masks, to the report.

    Args:
        report: the page.
        steps: log record of each step, with its losses.
        untrained: predictions for `EXAMPLES` before training.
        trained: predictions for `EXAMPLES` after training.
    """
    if len(steps) > 1:
        figure = learning_curve(steps, ("mlm_loss", "mlm_accuracy"), title=None)
        first, last = steps[0], steps[-1]
        report.picture(
            "Learning curve",
            figure,
            f"The loss of masked tokens falls from {first['mlm_loss']:.2f} to "
            f"{last['mlm_loss']:.2f} over {last['step']:,} steps; the share predicted correctly "
            "rises.",
        )
    rows = [
        (text, in_words(before), in_words(after))
        for text, *answers in zip(EXAMPLES, untrained, trained, strict=True)
        for before, after in zip(*map(each_mask, answers), strict=True)
    ]
    report.table("For each [MASK]", ["text", "before training", "after"], rows)


def each_mask(answer: dict) -> list[list[tuple[str, float]]]:
    """Returns, for each mask of a prediction, the most probable tokens as (token, probability)."""
    both = zip(answer["tokens"], answer["probabilities"], strict=True)
    return [list(zip(*mask, strict=True)) for mask in both]


def in_words(likely: list[tuple[str, float]]) -> str:
    """Formats the predictions (token, probability) for one mask as a line."""
    return "   ".join(f"{token} {p:.0%}" for token, p in likely)


def ask_server(folder: str) -> list[dict]:
    """Fills the masks of `EXAMPLES` with the SavedModel, in a process without kbert.

    Args:
        folder: folder of the SavedModel.

    Returns:
        For each text, "tokens" and "probabilities" of each mask.

    Raises:
        RuntimeError: the process fails.
    """
    command = [sys.executable, "-c", CLIENT, folder, json.dumps(EXAMPLES)]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        raise RuntimeError(f"The exported model did not answer:\n{process.stderr}")
    served = json.loads(process.stdout)
    # Rows are padded to the text with the most masks; tokens are empty where there is no mask.
    return [
        {
            "tokens": [row for row in tokens if row[0]],
            "probabilities": [p for row, p in zip(tokens, probabilities, strict=True) if row[0]],
        }
        for tokens, probabilities in zip(served["tokens"], served["probabilities"], strict=True)
    ]


def megabytes(path: PathLike) -> float:
    """Returns the size of the files in a folder, in 10^6 bytes."""
    return sum(file.stat().st_size for file in Path(path).rglob("*") if file.is_file()) / 1e6


def quickstart(options: flags.FlagValues) -> None:
    """Runs all stages, from the vocabulary to report.html, and prints a closing table."""
    logging.set_verbosity(logging.WARNING)  # hides TensorFlow's notices about its files
    tf.get_logger().setLevel("WARNING")
    folder, stages = Path(local_only(options.output_dir, "The quickstart")), Stages()
    check_settings(folder / "quickstart.json", {name: options[name].value for name in SETTINGS})
    # Finished shards are kept, even if packages with documentation were installed since.
    finished = (folder / "shards" / "manifest.json").exists()
    length, size = options.sequence_length, options.batch_size

    with stages("vocabulary"):
        print(
            f"training a vocabulary of at most {options.vocabulary_size:,} subwords from "
            f"{options.sources}"
        )
        if finished:
            tokenizer = kbert.load_tokenizer(folder)
        else:
            tokenizer = kbert.data.train_or_reuse_tokenizer(
                folder, options.sources, options.vocabulary_size, progress=True
            )
        pieces = tokenizer.vocabulary
        print(f"{len(pieces):,} subwords, for example {', '.join(pieces[-6:])}")

    with stages("shards"):
        if finished:
            corpus = kbert.data.read_manifest(folder / "shards")
        else:
            corpus = kbert.data.prepare_corpus(
                options.sources,
                folder / "shards",
                tokenizer,
                held_out_share=options.held_out_share,
            )
        learn, held_out = corpus.split("train"), corpus.split("held_out")
        print(f"{learn.documents:,} documents of {learn.tokens:,} tokens for training,")
        print(f"{held_out.documents:,} documents of {held_out.tokens:,} tokens held out")

    rows = kbert.data.pretraining_dataset(
        corpus,
        tokenizer,
        sequence_length=length,
        batch_size=size,
        masked_share=MASKED_SHARE,
    )
    test = kbert.data.pretraining_dataset(
        corpus,
        tokenizer,
        sequence_length=length,
        batch_size=size,
        split="held_out",
        epochs=1,
        drop_remainder=False,
    )

    with stages("pretraining"):
        kbert.data.show_examples(rows, tokenizer, 2)
        steps = planned_steps(folder / "run" / "run.json", options, tokenizer, rows)
        task = make_task(options.model, tokenizer)
        try:
            attend_to_neighbours(task.encoder)
        except ValueError as error:  # another model than BERT trains too, and learns later
            print(error)
        seconds = None if options.steps else options.minutes * 60
        untrained = task.predict(list(EXAMPLES), top_k=5)
        print(f"{options.model}: {task.count_params():,} parameters, {steps:,} steps", flush=True)
        try:
            history = task.fit(
                corpus,
                steps=steps,
                phases=f"{length}:1:{size}",
                batch_size=size,
                masked_share=MASKED_SHARE,
                evaluation_steps=1,  # with as many masks; below, the whole held-out text with 15 %
                checkpoint_every=500,
                model_dir=folder / "run",
                callbacks=[ByTheClock(options.learning_rate, steps, seconds)],
            )
        except (Interrupted, Terminated):
            print("stopped; the same command resumes from here")
            return

    with stages("evaluation on held-out text"):
        baseline_accuracy = baseline(test)
        measured = task.evaluate(test, return_dict=True, verbose=0)
        print(f"masked tokens predicted correctly: {measured['mlm_accuracy']:.1%}")
        print(f"baseline, always the most frequent token: {baseline_accuracy:.1%}")

    with stages("fill the masks"):
        trained = task.predict(list(EXAMPLES), top_k=5)
        print_answers(EXAMPLES, trained)

    with stages("export, and a query from a fresh process"):
        exported = task.export(folder / "serving")
        task.save_to_preset(folder / "preset")
        print_answers(EXAMPLES, ask_server(exported))

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    numbers = {
        "loss of the first step": (history.steps[0]["loss"], 2),
        "loss of the last step": (history.steps[-1]["loss"], 2),
        "held-out masked-token accuracy": (measured["mlm_accuracy"], 3),
        "  baseline: most frequent token": (baseline_accuracy, 3),
        "  times the baseline": (measured["mlm_accuracy"] / baseline_accuracy, 1),
        "held-out next-sentence accuracy": (measured["nsp_accuracy"], 3),
        "  baseline: most frequent answer": (measured["nsp_majority"], 3),
        "peak memory of this process (GB)": (peak, 2),
    }
    times = {**stages.seconds, "all": sum(stages.seconds.values())}
    rule = "-" * 72
    print(f"\n{rule}")
    for name, seconds in times.items():
        print(f"{name:48} {seconds:8.1f} s")
    print(rule)
    for name, (value, digits) in numbers.items():
        print(f"{name:48} {value:8.{digits}f}")
    print(rule)
    report = ReportPage(
        "A BERT from raw text",
        f"{options.model}, {task.count_params():,} parameters, trained by kbert-quickstart for "
        f"{history.step:,} steps on a corpus of {learn.tokens:,} tokens.",
    )
    add_results(report, history.steps, untrained, trained)
    report.attention("Attention", AttentionPage(read_attention(task, EXAMPLES[1])))
    report.table(
        "Numbers",
        ["what", "value"],
        [(name, f"{x:.{digits}f}") for name, (x, digits) in numbers.items()],
    )
    report.table("Times", ["stage", "seconds"], times.items())
    sizes = {"vocabulary and shards": folder / "shards", "run": folder / "run", "export": exported}
    report.table(
        "Sizes", ["files", "MB"], [(f"{k}: {path}", megabytes(path)) for k, path in sizes.items()]
    )
    report.heading("Try it")
    report.command(f"kbert-demo --preset={folder / 'preset'}")
    report.save(folder / "report.html")
    print(f"vocabulary and shards   {folder / 'shards'} ({megabytes(folder / 'shards'):.0f} MB)")
    print(f"run: checkpoints, log   {folder / 'run'} ({megabytes(folder / 'run'):.0f} MB)")
    print(f"to load in Python: kbert.tasks.Pretraining.from_preset('{folder / 'preset'}')")
    print(f"to serve: {exported} ({megabytes(exported):.0f} MB)")
    print(f"report with figures: {folder / 'report.html'}")
    print(f"to try it in a browser: kbert-demo --preset={folder / 'preset'}")


def planned_steps(
    settings: Path,
    options: flags.FlagValues,
    tokenizer: kbert.WordPieceTokenizer,
    rows: tf.data.Dataset,
) -> int:
    """Returns the training steps: --steps, those of an earlier start, or those that fit --minutes.

    Args:
        settings: `run.json` of the run.
        options: the parsed flags.
        tokenizer: tokenizer of the shards.
        rows: batches, to measure the pace.
    """
    if options.steps:
        return options.steps
    if settings.exists():
        return json.loads(settings.read_text())["settings"]["steps"]
    trial = make_task(options.model, tokenizer)
    return steps_that_fit(options.minutes, trial, rows)
