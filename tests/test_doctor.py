"""The table of the doctor: what is broken is found and named, and nothing breaks the doctor."""

import ctypes
import email.message
import glob
import importlib.metadata
import os
import re
import subprocess
import sys
import venv

import pytest

from kbert import doctor
from kbert.doctor import Finding
from tests.processes import ROOT


def states(findings):
    return {x.name: x.state for x in findings}


def named(findings, name):
    (found,) = [x for x in findings if x.name == name]
    return found


class Installed:
    """Stands for what is installed: a package's version, what it needs, its extras."""

    def __init__(self, monkeypatch, **packages):
        self.packages = {name.replace("_", "-"): x for name, x in packages.items()}
        for name in ("version", "requires", "metadata"):
            monkeypatch.setattr(importlib.metadata, name, getattr(self, name))

    def find(self, package):
        if package not in self.packages:
            raise importlib.metadata.PackageNotFoundError(package)
        return self.packages[package]

    def version(self, package):
        return self.find(package)[0]

    def requires(self, package):
        return list(self.find(package)[1:]) or None

    def metadata(self, package):
        lines = self.requires(package) or []
        extras = {m[1] for line in lines if (m := re.search(r'extra == "(\w+)"', line))}
        found = email.message.Message()
        found["Requires-Python"] = ">=3.11"
        for extra in extras:
            found["Provides-Extra"] = extra
        return found


KBERT = ("1.0", "tensorflow<2.22,>=2.21", "tensorflow-text<2.22,>=2.21", "numpy")


@pytest.mark.slow
def test_this_machine_is_whole():
    """In a process of its own, TensorFlow included."""
    done = subprocess.run(
        [sys.executable, "-m", "kbert.doctor"],
        # A host with a GPU, and without CUDA's libraries, is no business of the tests'.
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("\nnothing is broken\n")
    for line in (
        "ok +tensorflow +2",
        "ok +import keras +works",
        r"(ok|slow) +cores +\d",
        "ok +test",
    ):
        assert re.search(f"^  {line}", done.stdout, re.MULTILINE), line


def test_it_answers_where_nothing_is_installed(tmp_path):
    venv.create(tmp_path / "empty", with_pip=False)
    (
        tmp_path / "code"
    ).mkdir()  # without the metadata that an editable install leaves in a checkout
    (tmp_path / "code" / "kbert").symlink_to(ROOT / "kbert")
    done = subprocess.run(
        [tmp_path / "empty" / "bin" / "python", "-m", "kbert.doctor"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "code"), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "BROKEN  kbert  not installed" in done.stdout
    assert "fails  ModuleNotFoundError: No module named 'tensorflow'" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("broken: kbert, import tensorflow, ")


def test_packages(monkeypatch):
    Installed(monkeypatch, kbert=KBERT, tensorflow=("2.20.0",), numpy=("2.0",))
    found = doctor.examine_packages()
    assert states(found) == {
        "python": "ok",
        "tensorflow": "BROKEN",
        "tensorflow-text": "BROKEN",
        "numpy": "ok",
    }
    assert named(found, "tensorflow").hint == "pip install 'tensorflow<2.22,>=2.21'"
    assert named(found, "tensorflow-text").value == "missing"
    monkeypatch.setattr(doctor, "_packaging", lambda: None)  # without the means to compare
    assert named(doctor.examine_packages(), "tensorflow").state == "ok"
    assert named(doctor.examine_packages(), "tensorflow-text").state == "BROKEN"


def test_conflicts(monkeypatch):
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
    whole = {"kbert": KBERT, "tensorflow_text": ("2.21.1",), "numpy": ("2.0",)}
    Installed(monkeypatch, **whole, tensorflow=("2.21.0", "protobuf<8,>=6.31"), protobuf=("6.32",))
    assert states(doctor.examine_conflicts()) == {"packages, environment": "ok"}
    Installed(
        monkeypatch,
        **whole,
        tensorflow=("2.20.0", "protobuf<8,>=6.31"),
        tensorflow_cpu=("2.20.0",),
        protobuf=("4.25", 'six; extra == "fast"'),
        tf_keras=("2.20",),
    )
    found = [(x.state, x.name, x.value) for x in doctor.examine_conflicts()]
    assert found == [
        ("BROKEN", "tensorflow", "protobuf 4.25"),
        ("BROKEN", "tensorflow", "and tensorflow-cpu"),
        ("BROKEN", "tensorflow-text", "2.21.1 with tensorflow 2.20.0"),
        ("note", "tf-keras", "2.20"),
    ]
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    assert "TF_USE_LEGACY_KERAS" in states(doctor.examine_conflicts())


def test_extras(monkeypatch):
    lines = (
        'jax; extra == "jax"',
        'tensorflow[and-cuda]; extra == "gpu"',
        'h11>=2; extra == "serve"',
    )
    cuda = 'nvidia-cudnn-cu12; extra == "and-cuda"'
    Installed(
        monkeypatch, kbert=("1.0", *lines), tensorflow=("2.21", cuda), jax=("1",), h11=("1.0",)
    )
    found = doctor.examine_extras()
    assert states(found) == {"jax": "ok", "gpu": "-", "serve": "BROKEN"}
    assert named(found, "gpu").value == "missing nvidia-cudnn-cu12"
    assert named(found, "serve").value == "h11 1.0, not >=2"


def test_every_extra_is_told():
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    block = re.search(r"extras_require=\{(.*?)\n    \}", setup, re.DOTALL)[1]
    assert set(re.findall(r'^        "(\w+)":', block, re.MULTILINE)) == set(doctor.EXTRAS)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "SIGILL: an instruction"),
        ("raise SystemExit(3)", "the process exited with status 3"),
        ("print('no JSON')", "the process exited with status 0"),
        ("import time; time.sleep(6000)", "no answer within 0.3 seconds"),
    ],
)
def test_an_import_that_takes_the_process_along(monkeypatch, code, error):
    monkeypatch.setattr(doctor, "_PROBE", code)
    monkeypatch.setattr(doctor, "_PROBE_SECONDS", 0.3 if "sleep" in code else 60)
    probe, said = doctor.probe_libraries()
    found = doctor.examine_devices(probe, said)
    assert named(found, "import tensorflow").state == "BROKEN"
    assert error in named(found, "import tensorflow").hint


def test_devices():
    probe = {
        "tensorflow": {"gpus": ["H100", "H100"], "cuda": True},
        "tensorflow_text": {"error": "NotFoundError: undefined\n symbol"},
        "keras": {"backend": "jax", "devices": ["cpu:0"]},
    }
    found = doctor.examine_devices(probe, "")
    assert named(found, "GPU") == Finding("ok", "GPU", "2: H100, H100")
    assert named(found, "import tensorflow_text").hint == "NotFoundError: undefined symbol"
    assert named(found, "Keras' backend").hint == "cpu:0"
    on_torch = doctor.examine_devices(probe | {"keras": {"backend": "torch"}}, "")
    assert named(on_torch, "Keras' backend").state == "note"


def no_driver(name):
    raise OSError


@pytest.mark.parametrize(
    ("files", "hidden", "cuda", "driver", "state", "hint"),
    [
        ([], None, True, None, "slow", "on the CPU"),
        (["/dev/nvidia0"], "-1", True, None, "note", "CUDA_VISIBLE_DEVICES='-1'"),
        (["/dev/nvidia0"], None, False, None, "BROKEN", "built without CUDA"),
        (["/dev/nvidia0"], None, True, no_driver, "BROKEN", "--gpus all"),
        (["/dev/nvidia0"], None, True, str, "BROKEN", r"kbert\[gpu\].*Cannot dlopen some GPU"),
    ],
)
def test_why_no_gpu(monkeypatch, files, hidden, cuda, driver, state, hint):
    Installed(monkeypatch)
    monkeypatch.setattr(glob, "glob", lambda pattern: files)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    monkeypatch.setattr(ctypes, "CDLL", driver)
    found = doctor.why_no_gpu(cuda, "W0 gpu_device.cc:2] Cannot dlopen some GPU libraries.\n")
    assert found.state == state
    assert re.search(hint, found.hint)


OF_A_PROCESSOR = {
    "flags : fpu sse": {"AVX": "BROKEN", "bfloat16": "slow"},
    "flags : avx": {"AVX2 and FMA": "slow", "bfloat16": "slow"},
    "flags\t: avx avx2 fma avx512f amx_bf16": {"AVX2 and FMA": "ok", "bfloat16": "ok"},
    "Features : asimd": {},
}


@pytest.mark.parametrize("text", OF_A_PROCESSOR)
def test_processor(monkeypatch, text):
    files = {
        "/proc/cpuinfo": text,
        "/sys/fs/cgroup/cpu.max": "50000 100000\n",
        "/sys/fs/cgroup/memory.max": "1073741824\n",
    }
    monkeypatch.setattr(doctor, "_read", lambda path: files.get(path, ""))
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    found = doctor.examine_processor("port.cc: oneDNN custom operations are on.")
    expected = {"cores": "slow", "core limit": "note", "memory": "slow", "oneDNN": "ok"}
    assert states(found) == expected | OF_A_PROCESSOR[text]
    assert named(found, "cores").value == "0.5"
    assert named(found, "memory").value == "1.0 GiB"
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    assert named(doctor.examine_processor(""), "oneDNN").state == "slow"


def test_a_container_of_old(monkeypatch):
    folder = "/sys/fs/cgroup"
    files = {
        f"{folder}/cpu/cpu.cfs_quota_us": "25000\n",
        f"{folder}/cpu/cpu.cfs_period_us": "100000\n",
        f"{folder}/memory/memory.limit_in_bytes": "1000\n",
    }
    monkeypatch.setattr(doctor, "_read", lambda path: files.get(path, ""))
    assert (doctor.usable_cores(), doctor.usable_memory()) == (0.25, 1000)
    files[f"{folder}/cpu/cpu.cfs_quota_us"] = "-1\n"  # no limit
    assert doctor.usable_cores() >= 1


def test_the_exit_status(monkeypatch, capsys):
    sections = {"packages": [Finding("ok", "keras", "3.15"), Finding("slow", "cores", "2")]}
    monkeypatch.setattr(doctor, "examine", lambda: sections)
    assert doctor.main() == 0
    assert "\npackages\n  ok      keras  3.15\n  slow    cores  2\n" in capsys.readouterr().out
    sections["conflicts"] = [Finding("BROKEN", "protobuf", "4", "too old")]
    assert doctor.main() == 1
    assert capsys.readouterr().out.endswith("\nbroken: protobuf\n")
