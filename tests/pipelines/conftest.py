"""The tiny pretrained model and the texts of the fine-tuning tests; programs called in-process."""

import functools
import sys
from collections.abc import Callable

import pytest
from absl import flags
from absl.testing import flagsaver

from tests.experiments.conftest import mail, preset, tokenizer  # noqa: F401


@pytest.fixture(scope="session")
def call() -> Callable:
    """(program, *flags): calls its main; the definitions are gone afterwards."""

    def call(program, *arguments: str) -> None:
        with flagsaver.flagsaver():
            before = set(flags.FLAGS)
            program.define_flags()
            for name in set(flags.FLAGS) - before:  # run.json holds those of the program itself
                flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])
            program.main(flags.FLAGS(["kbert", *map(str, arguments)]))

    return call


@pytest.fixture
def parse(monkeypatch):
    """Arguments -> the flags of kbert-pretrain, apart from the process' own."""

    from pipelines import pretrain

    def parsed(*arguments):
        own = flags.FlagValues()
        for kind in (
            "string",
            "integer",
            "float",
            "boolean",
            "enum",
            "multi_string",
            "list",
            "alias",
        ):
            define = getattr(flags, f"DEFINE_{kind}")
            monkeypatch.setattr(flags, f"DEFINE_{kind}", functools.partial(define, flag_values=own))
        monkeypatch.setattr(flags, "mark_flag_as_required", lambda name: None)
        checked = functools.partial(flags.register_validator, flag_values=own)
        monkeypatch.setattr(flags, "register_validator", checked)
        monkeypatch.setattr(flags, "FLAGS", own)
        pretrain.define_flags()
        monkeypatch.undo()
        own(["kbert-pretrain", *arguments])
        return own

    return parsed


@pytest.fixture(scope="session")
def mail_file(tmp_path_factory, mail):  # noqa: F811
    """A CSV file whose columns have names of their own."""
    path = tmp_path_factory.mktemp("mail") / "mail.csv"
    rows = zip(mail["label"], mail["text"], strict=True)
    path.write_text("kind,body\n" + "".join(f"{label},{text}\n" for label, text in rows))
    return path


COLUMNS = ("--text_column=body", "--label_column=kind")
QUICK = ("--epochs=4", "--batch_size=8", "--learning_rate=2e-2")


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory, call, mail_file, preset):  # noqa: F811
    """Folder of a finished run of kbert-finetune."""
    from pipelines import finetune

    folder = tmp_path_factory.mktemp("finetune") / "out"
    data = (f"--train={mail_file}", "--dev_share=0.25", f"--preset={preset}")
    call(finetune, "--task=classify", *data, *COLUMNS, *QUICK, f"--output_dir={folder}")
    return folder
