r"""Trains word vectors: one vector for each word of a text, by word2vec, fastText or GloVe.

  kbert-word-vectors --input='corpus/*.txt.gz' --output=words.bin
  kbert-word-vectors --input=docs: --output=words.txt --method=cbow --width=300
  kbert-word-vectors --input=corpus.jsonl --field=body --output=model.bin --method=fasttext
  kbert-word-vectors --input=corpus.txt --output=glove.txt --method=glove --format=glove

--method selects what is learned:

  skip_gram   word2vec: a word predicts the words around it; good for rare words
  cbow        word2vec: the words around predict the word in their middle; several times faster
  fasttext    skip_gram on words and their character n-grams: unseen words have vectors too
  glove       products of vectors equal logarithms of how often two words occur together; passes
              over counts instead of the text; its defaults are --window=10 --epochs=50
              --learning_rate=0.05

A flag of another method is refused. Input formats, as for kbert-prepare-corpus:

  corpus/*.txt, *.txt.gz      a blank line between documents; one sentence per line or running text
  corpus/*.jsonl, *.jsonl.gz  one JSON object per line, the text under --field
  tfds:wikipedia/20230601.en  a TensorFlow dataset, the text under --field; ":SPLIT" may follow
  docs:                       the documentation that is installed with Python and its packages

Words are neighbours within a sentence. Texts are split into words and punctuation marks, without
spaces: for Chinese and Japanese, segment the text first. The suffix of --output selects the format,
which other programs read too: .bin is word2vec's binary format, and for fasttext fastText's model;
any other suffix is word2vec's text format, or with --format=glove the same without its first line.

The memory is 8 bytes for each word of the text and 16 for each number of the vectors; glove needs
about 40 bytes for each pair of words that occur together. A checkpoint is written every five
minutes to OUTPUT.training, which is removed at the end. After a kill at any moment, the same
command resumes with the same result; another input or setting is refused.

  vectors = kbert.word_vectors.WordVectors.load("words.bin")
  vectors.nearest("king"), vectors.analogy("man", "king", "woman")

Then: kbert-augment --vectors=words.bin …
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from absl import flags

from kbert.io.outputs import Output
from kbert.io.paths import remove_tree
from kbert.io.progress import Progress
from kbert.text import open_sources
from kbert.text.sentences import split_sentences
from kbert.word_vectors.options import TrainingOptions
from kbert.word_vectors.training import METHODS, train_word_vectors
from kbert.word_vectors.vectors import FORMATS, format_of

from . import command, option_flags

if TYPE_CHECKING:
    from kbert.text.source import Source


def define_flags() -> None:
    """Declares the flags; called when the program starts, never on import."""
    flags.DEFINE_multi_string(
        "input", None, "Source of text, see above; separate several by commas or repeat the flag."
    )
    flags.DEFINE_string("output", None, "File for the vectors; the same file resumes.")
    flags.DEFINE_enum("method", "skip_gram", [*METHODS], "What is learned, see above.")
    flags.DEFINE_enum(
        "format",
        None,
        FORMATS,
        "Format of --output. Default: by its suffix; for --method=fasttext, fasttext.",
    )
    for method in METHODS.values():
        option_flags.define(method)
    flags.DEFINE_string("field", "text", "Field of the text in JSON lines and TensorFlow datasets.")
    flags.DEFINE_enum(
        "on_bad_utf8",
        "fail",
        ["fail", "replace"],
        "Invalid UTF-8: stop and report it, or replace it with U+FFFD.",
    )
    flags.mark_flags_as_required(["input", "output"])


def _settings(options: flags.FlagValues) -> TrainingOptions:
    """Returns the settings of --method; ValueError for a flag that is given but of another one."""
    method = METHODS[options.method]
    others = {name for other in METHODS.values() for name in option_flags.given(other, options)}
    if unused := sorted(others - {*method.names()}):
        raise ValueError(
            f"--{unused[0]} cannot be given for this method. Received: --method={options.method}"
        )
    return method(**option_flags.given(method, options))


def _format(options: flags.FlagValues) -> str:
    """Returns the format of --output; ValueError if its suffix does not fit."""
    with_ngrams = options.method == "fasttext"
    format = options.format or ("fasttext" if with_ngrams else None)
    if format == "fasttext" and not with_ngrams:
        raise ValueError(
            "--format=fasttext requires vectors with n-grams, of --method=fasttext. Received: "
            f"--method={options.method}"
        )
    return format_of(options.output, format)


def _check(options: flags.FlagValues) -> None:
    """Raises ValueError for flags that do not fit together."""
    _settings(options)
    _format(options)


def _train(options: flags.FlagValues) -> None:
    """Trains the vectors and writes them to --output."""
    settings, format = _settings(options), _format(options)
    reading = {"field": options.field, "on_bad_utf8": options.on_bad_utf8}
    sources = open_sources(command.split_sources(options.input), **reading)
    identity = {
        "method": options.method,
        "settings": settings.identity(),
        "format": format,
        "on_bad_utf8": options.on_bad_utf8,
        "sources": [source.identity() for source in sources],
    }
    output = Output(options.output, identity, finished=False)
    if output.finished:
        print(f"{options.output} is complete")
        return
    output.save()
    folder = f"{options.output}.training"
    vectors = train_word_vectors(_sentences(sources), settings, model_dir=folder, verbose=1)
    vectors.save(options.output, format)
    output.save(finished=True)
    remove_tree(folder)
    print(f"{options.output}: {len(vectors):,} words, vectors of width {vectors.width}")


def _sentences(sources: "list[Source]") -> Iterator[str]:
    """Yields the sentences of all sources, and shows the progress."""
    with Progress("reading", sum(source.size for source in sources), "B") as bar:
        for source in sources:
            for text in source.documents():
                yield from split_sentences(text.decode())
                bar.show(sum(source.consumed for source in sources))


PROGRAM = command.Program(
    name="kbert-word-vectors",
    doc=__doc__,
    define_flags=define_flags,
    work=_train,
    errors=(RuntimeError,),
    files=("input",),
    check=_check,
)
main, run = PROGRAM.main, PROGRAM.run

if __name__ == "__main__":
    run()
