"""The flags of every program: names, types and defaults are a promise, kept in `flags.txt`.

A new flag is added there, by `python -m tests.pipelines.test_flags > tests/pipelines/flags.txt`.
"""

import importlib
from pathlib import Path

from absl import flags
from absl.testing import flagsaver

from kbert.core import registry

PROGRAMS = (
    *("augment", "convert", "demo", "distill", "embed", "evaluate", "export", "fill_mask"),
    *("finetune", "generate", "predict", "prepare_corpus", "pretrain", "prune", "quickstart"),
    *("serve", "translate", "word_vectors"),
)


def listed(program: str) -> list[str]:
    """A line for each flag: program, name, type, default, and whether it must be given."""
    module = importlib.import_module(f"pipelines.{program}")
    with flagsaver.flagsaver():
        before = set(flags.FLAGS)
        module.define_flags()
        names = sorted(set(flags.FLAGS) - before)
        return [described(program, flags.FLAGS[name]) for name in names]


def described(program: str, flag: flags.Flag) -> str:
    kind = flag.flag_type()
    if getattr(flag.parser, "enum_values", None):
        kind += f" of {','.join(flag.parser.enum_values)}"
    return f"{program} --{flag.name} {kind} = {flag.default!r}"


def test_names_types_and_defaults_are_as_they_were(monkeypatch):
    # Another test may have defined a task, whose settings are flags too.
    known = registry._CLASSES.get("task", {})
    own = {k: x for k, x in known.items() if x.__module__.startswith("kbert.")}
    monkeypatch.setitem(registry._CLASSES, "task", own)
    golden = (Path(__file__).parent / "flags.txt").read_text(encoding="utf-8").splitlines()
    assert [line for program in PROGRAMS for line in listed(program)] == golden


if __name__ == "__main__":
    for name in PROGRAMS:
        print("\n".join(listed(name)))
