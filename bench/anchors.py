#!/usr/bin/env python3
"""Measures codecs on whole dumps and compares with reference numbers that were computed apart from kvant,
in NumPy, from the definitions of the codecs.

    bench/anchors.py DIRECTORY [KVANT]

DIRECTORY holds smollm2-135m_prose_512.safetensors and gemma3-270m_prose_512.safetensors (a dump that is not
there is left out, with a word). KVANT is the command, build/release/bin/kvant by default. NMSE must agree
within 1 %, attention errors within 3 %, beside the rounding of the printed reference; median over layers and
worst layer. nvfp4 learns its global scales from the dump that it is measured on, as its reference does.

turboquant depends on its random signs: eight seeds are measured. Of the attention error (both sides) the
median over layers of each seed, and the mean over seeds of the worst layer, must lie in the range that eight
seeds of the reference had, widened by 5 %. (One seed's worst layer says little: with 24 seeds the reference
itself has .41 to .89 on Gemma at 4 bits, a quarter of them beyond .75.)

Exit status 1 where a number misses.
"""
import json
import os
import subprocess
import sys
import tempfile

NMSE_BAND, ATTENTION_BAND = 0.01, 0.03

# Scales and minima are f16; codes are made with the rounded scale; per token = per token and head.
INTEGER = """plugin = uniform
format = {format}
symmetry = asymmetric
granularity = {granularity}
group = {group}
scale = f16
"""
CODECS = {
    "int8 per-token sym": "plugin = uniform\nformat = int8\ngranularity = token\nscale = f16\n",
    "fp8 e4m3 scale 1": "plugin = uniform\nformat = e4m3\ngranularity = tensor\nscaling = static\n",
    "int4 asym per-token g32": INTEGER.format(format="int4", granularity="group_channels", group=32),
    "int4 asym per-token g64": INTEGER.format(format="int4", granularity="group_channels", group=64),
    "int4 asym per-channel g32": INTEGER.format(format="int4", granularity="group_tokens", group=32),
    "int2 asym per-token g32": INTEGER.format(format="int2", granularity="group_channels", group=32),
    "int2 asym per-token g64": INTEGER.format(format="int2", granularity="group_channels", group=64),
    "int2 asym per-channel g32": INTEGER.format(format="int2", granularity="group_tokens", group=32),
    "kivi 4 bits": "plugin = kivi\nbits = 4\ngroup = 32\nmeta = f16\n",
    "kivi 2 bits": "plugin = kivi\nbits = 2\ngroup = 32\nmeta = f16\n",
    "nvfp4": "plugin = nvfp4\nglobal_scale = artifact\n",
}
LEARNING = ["nvfp4"]

SEEDS = range(1, 9)
TURBOQUANT = "plugin = turboquant\nbits = {bits}\nseed = {seed}\n"

PIPELINE = """[pipeline]
name = {name}
block_tokens = 64
sinks = 0
recent = 0
{artifact}

[codec c]
{codec}
[layers]
key = c
value = c
"""

COLUMNS = ["key_nmse", "value_nmse", "attention_key_only", "attention_value_only", "attention_both"]

# Of each column: median over layers, worst layer, its number; as printed: the last digit says how it was
# rounded.
REFERENCE = {
    "smollm2-135m_prose_512": {
        "int8 per-token sym":
            "1.04e-04 1.65e-04 27  4.64e-05 1.52e-04 0  "
            "0.0174 0.0311 10  0.0058 0.0073 9  0.0184 0.0321 10",
        "fp8 e4m3 scale 1":
            "6.99e-04 7.43e-04 4  7.02e-04 7.63e-04 0  "
            "0.0560 0.0944 13  0.0196 0.0238 10  0.0599 0.0968 13",
        "int4 asym per-token g32":
            "9.65e-03 1.14e-02 12  6.84e-03 1.11e-02 0  "
            "0.1386 0.2084 13  0.0642 0.0827 10  0.1563 0.2229 13",
        "int4 asym per-token g64":
            "1.65e-02 2.05e-02 10  9.58e-03 2.09e-02 0  "
            "0.2115 0.3365 19  0.0780 0.0997 10  0.2234 0.3472 19",
        "int4 asym per-channel g32":
            "1.39e-03 2.41e-03 8  5.27e-03 6.35e-03 23  "
            "0.0669 0.1304 18  0.0987 0.2873 23  0.1195 0.3035 23",
        "int2 asym per-token g32":
            "2.44e-01 3.13e-01 10  1.72e-01 3.20e-01 0  "
            "0.7899 1.1438 18  0.3251 0.4060 10  0.9091 1.3201 18",
        "int2 asym per-token g64":
            "3.85e-01 5.20e-01 27  2.41e-01 5.83e-01 0  "
            "0.9608 1.5833 9  0.4086 0.5380 17  1.1242 1.8010 9",
        "int2 asym per-channel g32":
            "3.55e-02 6.10e-02 0  1.33e-01 1.60e-01 2  "
            "0.3309 0.7947 18  0.5091 1.4330 23  0.6394 1.4808 23",
        "nvfp4":
            "8.48e-03 9.18e-03 2  8.77e-03 9.00e-03 23  "
            "0.1845 0.2644 20  0.0684 0.0849 11  0.1987 0.2716 20",
    },
    "gemma3-270m_prose_512": {
        "int8 per-token sym":
            "2.50e-04 6.86e-04 6  1.14e-04 3.11e-04 1  "
            "0.0275 0.1184 11  0.0077 0.0192 17  0.0288 0.1191 11",
        "fp8 e4m3 scale 1":
            "7.02e-04 7.45e-04 11  7.03e-04 7.17e-04 0  "
            "0.0535 0.1027 5  0.0181 0.0304 17  0.0561 0.1082 5",
        "int4 asym per-token g32":
            "1.05e-02 1.18e-02 15  7.59e-03 9.13e-03 1  "
            "0.1467 0.2504 15  0.0602 0.0814 5  0.1629 0.2567 5",
        "int4 asym per-token g64":
            "1.87e-02 2.34e-02 2  1.13e-02 1.55e-02 1  "
            "0.2330 0.7864 11  0.0751 0.1120 5  0.2413 0.7928 11",
        "int4 asym per-channel g32":
            "1.75e-03 3.46e-03 17  5.39e-03 5.89e-03 17  "
            "0.0535 0.0961 1  0.0661 0.1570 17  0.0887 0.1635 17",
        "int2 asym per-token g32":
            "2.54e-01 3.18e-01 4  1.89e-01 2.54e-01 1  "
            "0.7955 1.5249 5  0.2890 0.4260 1  0.8933 1.6790 5",
        "int2 asym per-token g64":
            "4.27e-01 8.22e-01 2  2.80e-01 4.36e-01 1  "
            "1.3352 2.4760 11  0.3726 0.7064 5  1.5265 2.8322 11",
        "int2 asym per-channel g32":
            "4.44e-02 8.76e-02 17  1.37e-01 1.49e-01 17  "
            "0.2773 0.5390 1  0.3386 0.8188 17  0.4551 0.9358 17",
        "nvfp4":
            "8.47e-03 8.98e-03 5  8.63e-03 8.86e-03 9  "
            "0.1406 0.4429 5  0.0612 0.0802 2  0.1521 0.4450 5",
    },
}

# Attention error of both sides, over eight seeds: range of the median over layers, range of the worst layer.
SEED_RANGES = {
    "smollm2-135m_prose_512": {
        2: (0.577, 0.618, 0.77, 0.92),
        3: (0.305, 0.335, 0.44, 0.52),
        4: (0.158, 0.176, 0.22, 0.27),
    },
    "gemma3-270m_prose_512": {
        2: (0.535, 0.645, 1.69, 2.12),
        3: (0.295, 0.331, 0.88, 1.34),
        4: (0.149, 0.182, 0.50, 0.72),
    },
}
SEED_BAND = 0.05

# KIVI is the key columns of one codec and the value columns of another; there is no reference for both
# together.
for rows in REFERENCE.values():
    for bits in ("4", "2"):
        key = rows["int{} asym per-channel g32".format(bits)].split()
        value = rows["int{} asym per-token g32".format(bits)].split()
        rows["kivi {} bits".format(bits)] = " ".join(key[0:3] + value[3:6] + key[6:9] + value[9:12])


def half_digit(text):
    """Half a unit of the last printed digit: 0.0058 -> 0.00005."""
    mantissa, _, exponent = text.partition("e")
    decimals = len(mantissa.partition(".")[2])
    return 0.5 * 10.0 ** (int(exponent or 0) - decimals)


def misses(got, printed, band):
    want = float(printed)
    return abs(got - want) > band * want + half_digit(printed)


def of_layer(layer, column):
    if column.endswith("nmse"):
        return layer[column[: -len("_nmse")]]["nmse"]
    return layer["attention"][column[len("attention_") :]]


def compare(name, measured, reference):
    """Prints a line; returns the number of misses."""
    fields, bad, cells = reference.split(), 0, []
    for i, column in enumerate(COLUMNS[: len(fields) // 3]):
        median, worst, layer = fields[3 * i : 3 * i + 3]
        band = NMSE_BAND if column.endswith("nmse") else ATTENTION_BAND
        got = measured[column]
        # Two layers may be nearly as bad: the named one must have the error, and none a larger one.
        named = of_layer(measured["layers"][int(layer)], column)
        pairs = (got["median"], median), (got["worst"], worst), (named, worst)
        missed = sum(misses(*pair, band) for pair in pairs)
        bad += missed
        number = "{:.2e} {:.2e} L{:<2}" if column.endswith("nmse") else "{:.4f} {:.4f} L{:<2}"
        cell = number.format(got["median"], got["worst"], got["worst_layer"])
        cells.append(cell + ("!" if missed else " "))
        if missed:
            cells[-1] += "(not {} {} L{}) ".format(median, worst, layer)
    print("  {:<26}{}".format(name, " ".join(cells)))
    return bad


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE)
    if done.returncode != 0:
        sys.exit("{}: exit status {}".format(" ".join(command[:2]), done.returncode))
    return done.stdout


def measure(kvant, dump, codecs, folder):
    """name -> result of `kvant eval`; codecs: name -> lines of its section."""
    files = []
    for number, (name, codec) in enumerate(codecs.items()):
        base = os.path.join(folder, "{}".format(number))
        learns = name in LEARNING
        files.append(base + ".ini")
        artifact = "artifact = {}.safetensors\n".format(number) if learns else ""
        with open(files[-1], "w") as stream:
            stream.write(PIPELINE.format(name="anchor-{}".format(number), codec=codec, artifact=artifact))
        if learns:
            run([kvant, "calibrate", files[-1], dump, "-o", base + ".safetensors"])
    return dict(zip(codecs, json.loads(run([kvant, "eval", "--json", *files, dump]))["results"]))


def compare_seeds(kvant, dump, ranges):
    """Prints a line for each width; returns the number of misses."""
    bad = 0
    for bits, (median_low, median_high, worst_low, worst_high) in ranges.items():
        codecs = {str(seed): TURBOQUANT.format(bits=bits, seed=seed) for seed in SEEDS}
        with tempfile.TemporaryDirectory() as folder:
            results = measure(kvant, dump, codecs, folder).values()
        cells = []
        for what, low, high in ("median", median_low, median_high), ("worst", worst_low, worst_high):
            got = [result["attention_both"][what] for result in results]
            held = got if what == "median" else [sum(got) / len(got)]
            missed = sum(not low * (1 - SEED_BAND) <= x <= high * (1 + SEED_BAND) for x in held)
            bad += missed
            cells.append("{} {:.3f} to {:.3f}, mean {:.3f}{}".format(
                what, min(got), max(got), sum(got) / len(got), "!" if missed else ""))
            cells.append("({} to {})".format(low, high))
        print("  turboquant {} bits, {} seeds  {}".format(bits, len(SEEDS), " ".join(cells)))
    return bad


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__.strip())
    here = os.path.dirname(os.path.abspath(__file__))
    release = os.path.join(here, "..", "build", "release", "bin", "kvant")
    kvant = sys.argv[2] if len(sys.argv) == 3 else release
    compared = bad = 0
    for dump, rows in REFERENCE.items():
        file = os.path.join(sys.argv[1], dump + ".safetensors")
        if not os.path.exists(file):
            print("{}: not there, left out".format(file))
            continue
        print("{}: median, worst, its layer of K NMSE, V NMSE, attention error of K, V, both".format(dump))
        with tempfile.TemporaryDirectory() as folder:
            measured = measure(kvant, file, CODECS, folder)
        for name, reference in rows.items():
            bad += compare(name, measured[name], reference)
            compared += 1
        bad += compare_seeds(kvant, file, SEED_RANGES[dump])
        compared += len(SEED_RANGES[dump])
    print("{} rows compared, {} numbers miss their band".format(compared, bad))
    return 1 if bad or not compared else 0


if __name__ == "__main__":
    sys.exit(main())
