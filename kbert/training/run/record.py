"""`run.json`: the settings of a run, and the check that it resumes with the same ones."""

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from kbert.core import late, registry
from kbert.core.types import PathLike
from kbert.io import atomic, fingerprints
from kbert.io.json_file import read_json
from kbert.io.paths import Path
from kbert.version import __version__

FILE_NAME = "run.json"
SAME, CHANGED = "same", "changed"
# Entries of the file that are not settings. Files of the first version lack the format.
_VERSION, _FORMAT, _CHANGES = "kbert", "format_version", "changes"
_FORMAT_VERSION = 2
# Settings that files of earlier versions may lack, whatever their format.
_LATER = ("tokenizer", "steps_per_epoch")
# Settings of epochs that no resumed run may change: a checkpoint's position counts batches.
FIXED = ("batch_size", "steps_per_epoch")
_WEIGHTS = (".safetensors", ".h5", ".hdf5", ".index")

# "same", "changed", or names of settings that may change.
Resume = str | Collection[str]


class OtherSettings(ValueError):
    """Raised for a folder whose run was started with other settings."""


def write_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Writes `run.json` with the settings of a run and kbert's version, at the first start."""
    _write(path, {**_head(), **settings})


def check_settings(
    path: Path,
    settings: Mapping[str, Any],
    *,
    unchecked: Collection[str] = (),
    resume: Resume = SAME,
    step: int = 0,
    end: int | None = None,
    fixed: Collection[str] = (),
    writes: bool = True,
) -> None:
    """Raises if a run would resume with other settings than it was started with.

    If the file is from another version of kbert, settings that only one version has are ignored.

    Args:
        path: The file that `write_settings` wrote.
        settings: Current settings of the run, JSON-serialisable.
        unchecked: Names of settings that may differ, since no result depends on them.
        resume: Accepted changes: `"same"` for none, `"changed"` for any, or names of settings.
            Accepted changes are written to the file and apply from then on.
        step: Updates made so far, written with the changes.
        end: Updates of the whole run. Changes that would end it before `step` raise.
        fixed: Names of settings that no resumed run may change, whatever `resume` is.
        writes: Whether this process writes the file.

    Raises:
        OtherSettings: The settings differ; every difference is listed.
        ValueError: The changes end the run too early.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "run.json"
        >>> write_settings(path, {"rate": 0.1, "verbose": 0})
        >>> check_settings(path, {"rate": 0.1, "verbose": 1}, unchecked=["verbose"])
        >>> check_settings(path, {"rate": 0.2, "verbose": 0}, resume=["rate"], step=7)
        >>> json.loads(path.read_text())["changes"]
        [{'step': 7, 'rate': 'was 0.1, is 0.2'}]
    """
    check_resume(resume, path.parent)
    saved, current = json.loads(path.read_text(encoding="utf-8")), json.loads(json.dumps(settings))
    changed_settings = differences(saved, current, unchecked)
    if unalterable := {k: x for k, x in changed_settings.items() if _is_named(k, fixed)}:
        raise OtherSettings(
            f"{path.parent} holds another run, whose batch size and steps per epoch cannot change "
            "when it resumes: pass the batch size and the number of rows it was started with, or "
            f"choose another folder. Received: {_listed(unalterable)}"
        )
    refused = {
        name: change
        for name, change in changed_settings.items()
        if resume != CHANGED and (resume == SAME or not _is_named(name, resume))
    }
    if refused:
        names = ",".join(dict.fromkeys(name.split(".")[-1] for name in refused))
        raise OtherSettings(
            f"{path.parent} holds another run. To resume it, pass the settings it was started "
            "with; for a new one, choose another folder; to change settings in the middle of the "
            f'run, pass resume="changed" or --allow_changes={names}. '
            f"Received: {_listed(refused)}"
        )
    if changed_settings and end is not None and end < step:
        raise ValueError(
            f"A run must not end before its last checkpoint: choose another folder, or train for "
            f"at least {step} steps. Received: an end after step {end} of {path.parent}, whose "
            f"last checkpoint is of step {step}"
        )
    if changed_settings and writes:
        changes = [*saved.get(_CHANGES, ()), {"step": step, **changed_settings}]
        _write(path, {**_head(), **current, _CHANGES: changes})


def check_resume(resume: Resume, folder: object) -> None:
    """Raises ValueError for an invalid `resume`, or for one without a folder to resume from.

    Args:
        resume: settings that may have changed: "same", "changed" or names.
        folder: folder of the run; None = nothing is resumed.
    """
    if folder is None and resume != SAME and resume:
        raise ValueError(
            "`resume` requires a `model_dir`, the folder to resume from: pass one, or leave "
            f"`resume` out. Received: resume={resume!r}, model_dir=None"
        )
    if isinstance(resume, str) and resume not in (SAME, CHANGED):
        raise ValueError(
            f'`resume` must be "same", "changed" or names of settings. Received: {resume!r}'
        )


def differences(
    before: Mapping[str, Any], now: Mapping[str, Any], unchecked: Collection[str] = ()
) -> dict[str, str]:
    """Returns {name of a setting, joined by dots: "was 1, is 2"} for all settings that differ.

    If `before` is from another version of kbert, settings that only one of the two has are ignored.

    Args:
        before: content of `run.json`.
        now: current settings, as JSON values.
        unchecked: names of settings, or groups of settings, to ignore.

    Example:
        >>> differences({"data": {"rows": 3}}, {"data": {"rows": 4}})
        {'data.rows': 'was 3, is 4'}
        >>> differences({"data": {"rows": 3}}, {"data": {"rows": 4}}, unchecked=["data"])
        {}
    """
    not_settings = {_VERSION, _FORMAT, _CHANGES}
    same_version = all(before.get(name) == value for name, value in _head().items())
    before = {name: x for name, x in before.items() if name not in not_settings}
    before = _with_settings(before)
    for group in ("task", "settings"):
        if isinstance(before.get(group), dict):  # a task may be a name
            before[group] = registry.current(before[group])
    unknown = {name for name in _LATER if name not in before}
    return {
        name: f"was {a!r}, is {b!r}"
        for name, a, b in _compared(before, now, "", same_version)
        if a != b and name not in unknown and not _is_named(name, unchecked)
    }


def _listed(changes: Mapping[str, str]) -> str:
    """Returns changes {name: "was 1, is 2"} as text."""
    return "; ".join(f"{name} {change}" for name, change in changes.items())


def recorded_settings(folder: PathLike) -> dict[str, Any]:
    """Returns the settings of the run in a folder; {} if no run has begun."""
    path = Path(folder) / FILE_NAME
    if not path.is_file():
        return {}
    return _with_settings(read_json(path)).get("settings", {})


def _with_settings(before: dict[str, Any]) -> dict[str, Any]:
    """Converts the content of `run.json`, if it is from before 1.0.0, to the current names."""
    if "flags" in before:  # pretraining runs before 1.0.0
        before = {**before, "settings": dict(before["flags"])}
        del before["flags"]
        shares = before["settings"].get("replacement")
        if isinstance(shares, str):
            before["settings"]["replacement"] = [float(share) for share in shares.split(",")]
    return before


def weights_checksum(folder: PathLike) -> str:
    """Returns the CRC-32 of the weight files in a folder, as 8 hexadecimal digits.

    The name of the folder and its other files do not matter. For an ensemble or several tasks the
    files are those of the presets in the folder.

    Example:
        >>> import tempfile
        >>> weights_checksum(tempfile.mkdtemp())
        '00000000'
    """
    members = late.load("checkpoint format", "kbert").member_folders(Path(folder))
    folders = members or [Path(folder)]
    files = [path for each in folders for path in sorted(each.iterdir())]
    weight_files = [path for path in files if path.suffix in _WEIGHTS or ".data-" in path.name]
    return f"{fingerprints.crc32_of_files(*weight_files):08x}"


def _head() -> dict[str, Any]:
    return {_VERSION: __version__, _FORMAT: _FORMAT_VERSION}


def _compared(
    before: Mapping[str, Any], now: Mapping[str, Any], prefix: str, everything: bool
) -> Iterator[tuple[str, Any, Any]]:
    """Yields (name joined by dots, value before, value now) for settings, including equal ones.

    Args:
        before: earlier settings; a dict in it is a group of settings.
        now: current settings.
        prefix: name of the group of these settings, with a dot at its end; "" for none.
        everything: whether to include settings that only one of the two has, with None.
    """
    for key in sorted({*before, *now} if everything else {*before} & {*now}):
        a, b = _group(before.get(key)), _group(now.get(key))
        if isinstance(a, dict) and isinstance(b, dict):
            yield from _compared(a, b, f"{prefix}{key}.", everything)
        else:
            yield f"{prefix}{key}", a, b


def _group(value: Any) -> Any:
    """Turns a list of dicts into a dict of them, keyed "0", "1", …; other values stay."""
    if isinstance(value, list) and value and all(isinstance(x, dict) for x in value):
        return {str(i): x for i, x in enumerate(value)}
    return value


def _is_named(name: str, names: Collection[str]) -> bool:
    """Whether `names` contains a setting, with or without the groups it is in, or such a group.

    For example "seed", "data", "data.rows" and the whole name each stand for "data.rows.seed".
    """
    parts = name.split(".")
    indices = range(len(parts))
    return any(".".join(parts[i:]) in names or ".".join(parts[:i]) in names for i in indices)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())
