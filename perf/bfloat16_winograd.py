"""Whether bfloat16 would make Winograd's convolutions faster: forward passes of the IMPALA-CNN's 3x3
convolutions, with activations or matrix products in bfloat16, against the kernels of the program.

    venv/bin/python -m perf.bfloat16_winograd

One thread; needs a processor with AVX512-BF16. The ways take turns, and errors are against sums in float64.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from perf.measure import save
from rlcb.cpu import cpuinfo_values
from rlcb.kernels.build import FLAGS, find_compiler

SOURCE = Path(__file__).with_suffix(".cpp")
WAYS = ("float32", "activations", "products")
HEADS = ("layer", "float32, us an image", "activations", "products", *(f"error, {way}" for way in WAYS))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=64, help="of a batch (default: 64)")
    parser.add_argument("--rounds", type=int, default=200, help="default: 200")
    options = parser.parse_args()
    if "avx512_bf16" not in cpuinfo_values().get("flags", "").split():
        sys.exit("perf.bfloat16_winograd: this processor has no AVX512-BF16")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "measure"
        flags = [flag for flag in FLAGS if flag != "-shared"]
        subprocess.run([*find_compiler(), *flags, "-o", program, SOURCE], check=True)
        words = ["taskset", "-c", str(min(os.sched_getaffinity(0))), program]
        words += [str(options.images), str(options.rounds)]
        output = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
    layers = [json.loads(line) for line in output.splitlines()]
    lines = ["| " + " | ".join(HEADS) + " |", "|" + "---|" * len(HEADS)]
    for layer in layers:
        seconds = list(zip(*layer["seconds"], strict=True))
        plain = 1e6 * statistics.median(seconds[0]) / options.images
        speeds = [
            statistics.median(one / other for one, other in zip(seconds[0], times, strict=True))
            for times in seconds[1:]
        ]
        cells = [f"{layer['side']} x {layer['side']}, {layer['C']} to {layer['K']} channels", f"{plain:.1f}"]
        cells += [f"{speed:.2f}" for speed in speeds]
        cells += [f"{error:.1e}" for error in layer["errors"]]
        lines.append("| " + " | ".join(cells) + " |")
    title = (
        "Winograd's F(4x4, 3x3) forward, one thread. `activations`: inputs and outputs in bfloat16;\n"
        "`products`: matrix products in bfloat16. Speeds relative to float32 are medians of the ratios\n"
        "within rounds; errors are norms relative to that of the output."
    )
    save("bfloat16_winograd", f"{title}\n\n" + "\n".join(lines), {"layers": layers, "images": options.images})


if __name__ == "__main__":
    main()
