"""What `import kbert` costs beside its own dependencies: seconds in fresh processes, in turn."""

import statistics
import subprocess
import sys
import time

DEPENDENCIES = "import tensorflow, tensorflow_text, keras"
RUNS = 5


def seconds(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    all_of_it = (
        "import kbert\nfor name in kbert.__all__: getattr(kbert, name)"  # nothing stays lazy
    )
    rows = {
        "dependencies": DEPENDENCIES,
        "import kbert": "import kbert",
        "all subpackages": all_of_it,
    }
    for code in rows.values():
        seconds(code)  # warm the file cache
    times = {name: [] for name in rows}
    for _ in range(RUNS):
        for name, code in rows.items():
            times[name].append(seconds(code))
    base = statistics.median(times["dependencies"])
    print(f"{'':14}  seconds  ratio")
    for name, values in times.items():
        median = statistics.median(values)
        print(f"{name:14}  {median:7.2f}  {median / base:5.2f}")


if __name__ == "__main__":
    main()
