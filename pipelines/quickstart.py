r"""From raw text to a pretrained BERT that fills masks, in five minutes on two cores.

Reads the documentation on this machine (docstrings of the standard library and of the installed
packages), trains a vocabulary on it, writes shards, pretrains a small BERT on masked words and next
sentences, evaluates it on held-out text, exports a SavedModel and queries it from a fresh process
that imports only TensorFlow. If it is stopped, the same command resumes.

report.html shows what the model has learnt, and kbert-demo lets you try it in a browser.

Examples:
  kbert-quickstart
  kbert-quickstart --sources='novels/*.txt.gz' --output_dir=novels-bert --minutes=30
"""

from absl import flags

from . import command, option_flags


def define_flags() -> None:
    """Declares the flags; called when the program starts, never on import."""
    flags.DEFINE_string("output_dir", "quickstart", "Folder for everything this run writes.")
    flags.DEFINE_list(
        "sources",
        "docs:",
        "Training text: files, globs, tfds:NAME, docs:PACKAGE, or docs: for all the "
        "documentation on this machine.",
    )
    flags.DEFINE_string("model", "bert-tiny", "A size from kbert.family.")
    flags.DEFINE_integer("vocabulary_size", 5000, "Maximum size of the vocabulary.")
    flags.DEFINE_integer("sequence_length", 64, "Tokens per sequence.")
    flags.DEFINE_integer("batch_size", 32, "Sequences per batch.")
    flags.DEFINE_float("learning_rate", 2e-3, "Peak learning rate, reached after warm-up.")
    flags.DEFINE_float("held_out_share", 0.02, "Share of the documents held out for evaluation.")
    flags.DEFINE_float("minutes", 3.0, "Training time in minutes of wall-clock time.")
    flags.DEFINE_integer("steps", None, "Training steps, instead of --minutes.")
    option_flags.define_former()


def _quickstart(options: flags.FlagValues) -> None:
    from .five_minutes import quickstart

    quickstart(options)


PROGRAM = command.Program(
    name="kbert-quickstart",
    doc=__doc__,
    define_flags=define_flags,
    work=_quickstart,
    errors=(RuntimeError,),
)
main, run = PROGRAM.main, PROGRAM.run

if __name__ == "__main__":
    run()
