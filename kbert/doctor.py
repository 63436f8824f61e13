"""What this machine has for kbert, what is broken, and what will be slow: `python -m kbert.doctor`.

It imports the standard library alone, so that it answers where a package is missing or broken.
TensorFlow, TensorFlow Text and Keras are imported in a process of its own, which may crash.

Example:
    >>> python = next(x for x in examine_packages() if x.name in ("python", "kbert"))
    >>> python.state in STATES
    True
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import glob
import importlib
import importlib.metadata
import json
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from kbert.version import __version__

# States of a finding: works; works slowly; may surprise; optional and missing; does not work.
STATES = ("ok", "slow", "note", "-", "BROKEN")

# What each extra of setup.py enables.
EXTRAS = {
    "arrow": "files in Parquet, Arrow and Feather format",
    "beam": "kbert-prepare-corpus --runner=beam, kbert-predict --runner=beam",
    "chinese": "kbert-prepare-corpus --lexicon",
    "docs": "make docs",
    "faiss": "kbert.search.Index by FAISS",
    "gpu": "NVIDIA GPUs: CUDA's libraries for TensorFlow",
    "jax": "KERAS_BACKEND=jax",
    "litert": "kbert-export --format=litert",
    "msgpack": "folders with flax_model.msgpack",
    "onnx": "kbert-export --format=onnx",
    "openvino": "kbert-export --format=openvino",
    "serve": "kbert-serve",
    "sklearn": "kbert.TextFeatures in pipelines, kbert.probe, kbert.metrics.v_measure, t-SNE",
    "tensorboard": "the curves of --tensorboard, keras.callbacks.TensorBoard",
    "test": "make test",
    "umap": "kbert.visualization.projection by UMAP",
}
# Distributions that install into the same folder: the last one installed wins.
SAME_FOLDER = {
    "tensorflow": ("tensorflow-cpu", "tf-nightly", "tf-nightly-cpu", "tensorflow-gpu"),
    "keras": ("keras-nightly", "keras-core"),
}
GIB = 2**30
ENOUGH_MEMORY = 4 * GIB  # the quickstart and its serving process fit in, with room to spare

# Imports each library separately, so that the failing one is known.
_PROBE = """
import json
found = {}
def attempt(name, action):
    try:
        found[name] = action()
    except BaseException as error:
        found[name] = {"error": f"{type(error).__name__}: {error}"}
def of_tensorflow():
    import tensorflow as tf
    details = tf.config.experimental.get_device_details
    gpus = [details(x).get("device_name", "GPU") for x in tf.config.list_physical_devices("GPU")]
    return {"gpus": gpus, "cuda": tf.test.is_built_with_cuda()}
def of_text():
    import tensorflow_text
    return {}
def of_keras():
    import keras
    found = {"backend": keras.backend.backend()}
    if found["backend"] == "jax":
        import jax
        found["devices"] = [str(device) for device in jax.devices()]
    return found
attempt("tensorflow", of_tensorflow)
attempt("tensorflow_text", of_text)
attempt("keras", of_keras)
print("\\n" + json.dumps(found))
"""
_PROBE_SECONDS = 300


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the table that `kbert.doctor` prints.

    Args:
        state: one of `STATES`.
        name: what was examined.
        value: what was found.
        hint: what follows from the value, or what to do.
    """

    state: str
    name: str
    value: str
    hint: str = ""


def examine() -> dict[str, list[Finding]]:
    """Examines packages, conflicts, devices, processor, memory and extras.

    Returns:
        Title of a section -> its findings.
    """
    probe, messages = probe_libraries()
    return {
        "packages": examine_packages(),
        "conflicts": examine_conflicts(),
        "libraries and devices": examine_devices(probe, messages),
        "processor and memory": examine_processor(messages),
        "extras": examine_extras(),
    }


def examine_packages() -> list[Finding]:
    """Examines whether Python and the required packages have versions in setup.py's ranges.

    Only the finding that kbert is missing, if it is not installed.
    """
    requirements = _requirements("kbert")
    if requirements is None:
        return [
            Finding(
                "BROKEN", "kbert", "not installed", "pip install kbert, or `pip install -e .` here"
            )
        ]
    findings = []
    range_ = importlib.metadata.metadata("kbert")["Requires-Python"] or ""
    state = "ok" if _fits(platform.python_version(), range_) else "BROKEN"
    findings.append(Finding(state, "python", platform.python_version(), range_))
    for requirement in requirements:
        version = _version(requirement.name)
        range_ = str(requirement.specifier)
        if version is None:
            hint = f"pip install '{requirement.name}{range_}'"
            findings.append(Finding("BROKEN", requirement.name, "missing", hint))
        elif _fits(version, range_):
            findings.append(Finding("ok", requirement.name, version, range_))
        else:
            hint = f"pip install '{requirement.name}{range_}'"
            findings.append(Finding("BROKEN", requirement.name, version, hint))
    return findings


def examine_conflicts() -> list[Finding]:
    """Examines conflicts between installed packages, and with environment variables."""
    findings = [*_foreign_requirements(), *_same_folders()]
    tensorflow, text = _version("tensorflow"), _version("tensorflow-text")
    if tensorflow and text and tensorflow.split(".")[:2] != text.split(".")[:2]:
        findings.append(
            Finding(
                "BROKEN",
                "tensorflow-text",
                f"{text} with tensorflow {tensorflow}",
                "install the same version of both: it is compiled against TensorFlow's library",
            )
        )
    legacy = os.environ.get("TF_USE_LEGACY_KERAS", "")
    if legacy.lower() in ("1", "true"):
        findings.append(
            Finding(
                "BROKEN",
                "TF_USE_LEGACY_KERAS",
                legacy,
                "unset it: it makes tf.keras Keras 2, but kbert's models require Keras 3",
            )
        )
    elif _version("tf-keras"):
        findings.append(
            Finding(
                "note",
                "tf-keras",
                _version("tf-keras") or "",
                "Keras 2: its layers, optimizers and callbacks do not work with kbert's models",
            )
        )
    return findings or [Finding("ok", "packages, environment", "none known")]


def examine_devices(probe: dict[str, dict], said: str) -> list[Finding]:
    """Examines whether the libraries can be imported, and which devices they see.

    Args:
        probe: library -> its details, from `probe_libraries`.
        said: TensorFlow's messages during the probe.
    """
    findings = []
    for name in ("tensorflow", "tensorflow_text", "keras"):
        error = probe.get(name, {}).get("error")
        if error is not None:
            findings.append(Finding("BROKEN", f"import {name}", "fails", _one_line(error)))
        else:
            findings.append(Finding("ok", f"import {name}", "works"))
    if "backend" in probe.get("keras", {}):
        findings.append(_backend(probe["keras"]))
    if "gpus" in probe.get("tensorflow", {}):
        gpus = probe["tensorflow"]["gpus"]
        if gpus:
            findings.append(Finding("ok", "GPU", f"{len(gpus)}: {', '.join(gpus)}"))
        else:
            findings.append(why_no_gpu(probe["tensorflow"]["cuda"], said))
    return findings


def why_no_gpu(built_with_cuda: bool, said: str) -> Finding:
    """Finds the reason why TensorFlow sees no GPU.

    Args:
        built_with_cuda: whether this TensorFlow can use a GPU.
        said: TensorFlow's messages during the probe.
    """
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not glob.glob("/dev/nvidia[0-9]*"):
        return Finding("slow", "GPU", "none", "everything is computed on the CPU")
    if hidden is not None and hidden.strip() in ("", "-1"):
        return Finding("note", "GPU", "hidden", f"CUDA_VISIBLE_DEVICES={hidden!r}")
    if not built_with_cuda:
        hint = "this TensorFlow is built without CUDA: pip install 'kbert[gpu]' on Linux x86-64"
        return Finding("BROKEN", "GPU", "present, not seen", hint)
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        hint = "no driver (libcuda.so.1): install NVIDIA's; in Docker start with --gpus all"
        return Finding("BROKEN", "GPU", "present, not seen", hint)
    lines = [x for x in said.splitlines() if "Cannot" in x or "Could not" in x or "failed" in x]
    hint = _one_line(lines[0].split("] ")[-1]) if lines else "TensorFlow gives no reason"
    if _version("nvidia-cudnn-cu12") is None:
        hint = f"CUDA's libraries are missing: pip install 'kbert[gpu]' ({hint})"
    return Finding("BROKEN", "GPU", "present, not seen", hint)


def examine_processor(said: str) -> list[Finding]:
    """Examines cores, memory and instruction sets that this process may use.

    Args:
        said: TensorFlow's messages during the probe, which mention oneDNN.
    """
    cores, memory = usable_cores(), usable_memory()
    state = "ok" if cores >= 4 else "slow"
    hint = "" if cores >= 4 else "training takes minutes for bert-tiny, days for bert-base"
    findings = [Finding(state, "cores", f"{cores:g}", hint)]
    num_cpus = os.cpu_count() or 1
    if cores < num_cpus:
        findings.append(
            Finding(
                "note",
                "core limit",
                f"{cores:g} of {num_cpus}",
                "TensorFlow starts a thread for each core of the machine that it sees",
            )
        )
    if memory is None:
        findings.append(Finding("note", "memory", "unknown"))
    else:
        state = "ok" if memory >= ENOUGH_MEMORY else "slow"
        hint = "kbert.describe(name).training_memory(rows, length) estimates what a model requires"
        findings.append(Finding(state, "memory", f"{memory / GIB:.1f} GiB", hint))
    return [*findings, *_instructions(_processor_flags(), said)]


def examine_extras() -> list[Finding]:
    """Examines whether each extra is installed, and what it enables; [] without kbert."""
    if _requirements("kbert") is None:
        return []
    names = importlib.metadata.metadata("kbert").get_all("Provides-Extra") or []
    findings = []
    for extra in sorted(names):
        missing, outside = [], []
        for requirement in _requirements("kbert", extra) or []:
            version = _version(requirement.name)
            if version is None:
                missing.append(requirement.name)
            elif not _fits(version, str(requirement.specifier)):
                outside.append(f"{requirement.name} {version}, not {requirement.specifier}")
            missing += [
                x.name
                for part in sorted(requirement.extras)
                for x in _requirements(requirement.name, part) or []
                if _version(x.name) is None
            ]
        opens = EXTRAS.get(extra, "")
        if outside:
            findings.append(Finding("BROKEN", extra, "; ".join(outside), opens))
        elif missing:
            shown = f"missing {', '.join(missing[:2])}" + (", …" if len(missing) > 2 else "")
            findings.append(Finding("-", extra, shown, f"pip install 'kbert[{extra}]': {opens}"))
        else:
            findings.append(Finding("ok", extra, "installed", opens))
    return findings


def probe_libraries() -> tuple[dict[str, dict[str, Any]], str]:
    """Imports TensorFlow, TensorFlow Text and Keras in a separate process.

    Returns:
        Library -> its details, or {"error": why it cannot be imported}; and the messages on
        standard error.
    """
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0"}
    try:
        process = subprocess.run(
            [sys.executable, "-c", _PROBE],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_SECONDS,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        return {"tensorflow": {"error": f"no answer within {_PROBE_SECONDS} seconds"}}, ""
    try:
        return json.loads(process.stdout.splitlines()[-1]), process.stderr
    except (IndexError, ValueError):
        return {"tensorflow": {"error": _how_it_ended(process.returncode)}}, process.stderr


def usable_cores() -> float:
    """Returns the cores that this process may use, by its CPU affinity and container limit."""
    sets = getattr(os, "sched_getaffinity", None)
    cores = float(len(sets(0)) if sets else os.cpu_count() or 1)
    for path in ("/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us"):
        words = _read(path).split()
        if path.endswith("quota_us"):
            words += _read("/sys/fs/cgroup/cpu/cpu.cfs_period_us").split()
        if len(words) == 2 and all(x.isdecimal() for x in words):
            cores = min(cores, int(words[0]) / int(words[1]))
    return cores


def usable_memory() -> int | None:
    """Returns the bytes of memory that this process may use; None if unknown.

    That is the machine's memory, or the container's limit if it is lower.
    """
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        limit = _read(path).strip()
        if limit.isdecimal():
            memory = min(memory, int(limit))
    return memory


def write_table(sections: dict[str, list[Finding]]) -> str:
    """Formats the findings as plain text.

    Args:
        sections: title of a section -> its findings.

    Example:
        >>> print(write_table({"packages": [Finding("ok", "keras", "3.15", ">=3.15")]}))
        packages
          ok      keras  3.15  >=3.15
    """
    lines: list[str] = []
    for title, findings in sections.items():
        widths = [max((len(getattr(x, key)) for x in findings), default=0) for key in _COLUMNS]
        lines += [title] if not lines else ["", title]
        for finding in findings:
            cells = [getattr(finding, k).ljust(n) for k, n in zip(_COLUMNS, widths, strict=True)]
            lines.append(f"  {finding.state:6}  {'  '.join(cells)}  {finding.hint}".rstrip())
    return "\n".join(lines)


_COLUMNS = ("name", "value")


def main() -> int:
    """Prints the findings as a table.

    Returns:
        Exit status: 1 if something is broken, else 0.
    """
    print(f"kbert {__version__}, Python {platform.python_version()}, {platform.platform()}\n")
    sections = examine()
    print(write_table(sections))
    broken = [x.name for findings in sections.values() for x in findings if x.state == "BROKEN"]
    print(f"\nbroken: {', '.join(broken)}" if broken else "\nnothing is broken")
    return 1 if broken else 0


def _requirements(package: str, extra: str | None = None) -> list[Any] | None:
    """Returns what a package requires here; None if it is not installed.

    Args:
        package: name of the package.
        extra: name of an extra: only what it adds is returned; None = what is always required.
    """
    packaging = _packaging()
    parse = packaging.requirements.Requirement if packaging else _Bare
    try:
        lines = importlib.metadata.requires(package) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    requirements = []
    for line in lines:
        requirement: Any = parse(line)
        always = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if (extra is None and always) or (
            extra is not None and not always and requirement.marker.evaluate({"extra": extra})
        ):
            requirements.append(requirement)
    return requirements


class _Bare:
    """A requirement parsed without the package `packaging`: only its name and extra.

    Args:
        line: the requirement, such as "numpy>=2; extra == 'test'".
    """

    def __init__(self, line: str) -> None:
        self.name = re.split(r"[\s\[<>=!~;(]", line, maxsplit=1)[0]
        self.specifier, self.extras = "", frozenset[str]()
        self.marker = self if "extra ==" in line else None
        self._line = line

    def evaluate(self, environment: dict[str, str]) -> bool:
        """Returns whether the requirement is of `environment["extra"]`; ignores other markers."""
        return f'extra == "{environment["extra"]}"' in self._line


@functools.cache
def _packaging() -> Any:
    """Returns the package `packaging`; None if it is not installed."""
    try:
        import packaging.requirements
        import packaging.specifiers
    except ImportError:
        return None
    return packaging


def _fits(version: str, range_: str) -> bool:
    """Returns whether a version is in a range such as ">=2,<3"; True without `packaging`."""
    packaging = _packaging()
    if packaging is None or not range_:
        return True
    return packaging.specifiers.SpecifierSet(range_).contains(version, prereleases=True)


def _version(package: str) -> str | None:
    """Returns the installed version of a package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _foreign_requirements() -> Iterator[Finding]:
    """Yields unmet requirements of the packages that kbert needs, directly or not."""
    seen_packages, waiting = set(), [x.name for x in _requirements("kbert") or []]
    while waiting:
        package = waiting.pop()
        if package in seen_packages:
            continue
        seen_packages.add(package)
        for requirement in _requirements(package) or []:
            version, range_ = _version(requirement.name), str(requirement.specifier)
            if version is None or not _fits(version, range_):
                value = f"{requirement.name} {version or 'missing'}"
                hint = f"requires {requirement.name}{range_}"
                yield Finding("BROKEN", package, value, hint)
            waiting.append(requirement.name)


def _same_folders() -> Iterator[Finding]:
    """Yields installed packages that overwrite each other's files, see `SAME_FOLDER`."""
    for package, alternatives in SAME_FOLDER.items():
        installed = [x for x in alternatives if _version(x)]
        if installed and _version(package):
            hint = "they overwrite each other: uninstall all of them, then install one again"
            yield Finding("BROKEN", package, f"and {', '.join(installed)}", hint)


def _backend(keras: dict[str, Any]) -> Finding:
    """Returns the finding about Keras' backend; `keras` are details from `probe_libraries`."""
    name = keras["backend"]
    if name == "tensorflow":
        return Finding("ok", "Keras' backend", name)
    if name == "jax":
        return Finding("ok", "Keras' backend", name, ", ".join(keras["devices"]))
    hint = "layers, heads and models run on it; training and programs require tensorflow or jax"
    return Finding("note", "Keras' backend", name, hint)


def _instructions(flags: frozenset[str] | None, said: str) -> Iterator[Finding]:
    """Yields findings about instruction sets of the processor, and about oneDNN.

    Args:
        flags: instruction sets, from `_processor_flags`.
        said: TensorFlow's messages during the probe.
    """
    if flags is not None:
        if "avx" not in flags:
            yield Finding("BROKEN", "AVX", "missing", "TensorFlow's wheels are compiled for it")
        elif not {"avx2", "fma"} <= flags:
            yield Finding(
                "slow", "AVX2 and FMA", "missing", "matrix products take at least twice as long"
            )
        else:
            wider = [x for x in ("avx512f", "avx512_vnni", "avx_vnni") if x in flags]
            yield Finding("ok", "AVX2 and FMA", ", ".join(["there", *wider]))
        halves = [x for x in ("avx512_bf16", "amx_bf16") if x in flags]
        if halves:
            yield Finding(
                "ok", "bfloat16", ", ".join(halves), "mixed_bfloat16 is faster on this processor"
            )
        else:
            hint = "mixed_bfloat16 is slower than float32 on this processor"
            yield Finding("slow", "bfloat16", "emulated", hint)
    if os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1") == "0":
        yield Finding("slow", "oneDNN", "off", "TF_ENABLE_ONEDNN_OPTS=0: unset it")
    elif "oneDNN custom operations are on" in said:
        yield Finding("ok", "oneDNN", "on")
    else:
        yield Finding("note", "oneDNN", "not mentioned", "TensorFlow logs where it uses it")


def _processor_flags() -> frozenset[str] | None:
    """Returns the instruction sets of an x86 processor under Linux; None elsewhere."""
    match = re.search(r"^flags\s*:(.*)$", _read("/proc/cpuinfo"), re.MULTILINE)
    return None if match is None else frozenset(match[1].split())


def _how_it_ended(status: int) -> str:
    """Describes in words how a process ended, by its return code in `subprocess`."""
    if status >= 0:
        return f"the process exited with status {status}"
    name = signal.Signals(-status).name
    hint = ": an instruction that this processor lacks" if name == "SIGILL" else ""
    return f"the process was killed by {name}{hint}"


def _one_line(text: str) -> str:
    """Returns a text in one line, at most 200 characters."""
    return " ".join(text.split())[:200]


def _read(path: str) -> str:
    """Returns the text of a file; "" if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
