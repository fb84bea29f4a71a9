#!/usr/bin/env python3
"""Tree search over live machines, with the program that an agent would write.

One sandbox is prepared at some cost: it has a data file and notes on its disk, a
table of 50 MiB in memory, and functions and half a thought in its interpreter.
From there on the search forks it: each continuation gets a hint of its own and
goes on in a machine of its own, from the same instant, with all of that in place.
The best one is forked again, the others are ended. Nothing is prepared twice, and
nothing that one continuation does is seen by another.

The task is to explain measurements by a sum of terms, a step at a time; a hint
names the next term to try. It stands for any work whose next step is a choice.

    forkd quickstart                     # once: makes the snapshot "pyagent"
    PYTHONPATH=sdk/python python3 examples/tree_search.py
"""

import argparse
import time
from contextlib import ExitStack

from forkd import Sandbox

# Ends continuations, in seconds, should this program be killed before it can.
LIFETIME = 900

# What the sandbox knows and does. It runs there, not here.
SETUP = '''
import numpy
import socket

def read_data():
    """The measurements, from the file."""
    with open("/root/measurements.csv") as lines:
        rows = [[float(cell) for cell in line.split(",")] for line in lines]
    return numpy.array(rows).T

TERMS = {
    "a constant": lambda x: numpy.ones_like(x),
    "the value": lambda x: x,
    "its square": lambda x: x ** 2,
    "a wave": lambda x: numpy.sin(3 * x),
    "its root": lambda x: numpy.sqrt(numpy.abs(x)),
    "a decay": lambda x: numpy.exp(-x),
}

# What it took long to get: stands for an index, a model, a data set.
table = numpy.random.default_rng(1).integers(0, 2**63, (50 << 20) // 8, dtype=numpy.int64)
checksum = int(numpy.bitwise_xor.reduce(table))

x, y = read_data()
thought = []  # the terms that were chosen so far

def follow(hints):
    """Add the term for this machine, fit, and keep notes. Returns the error that is left."""
    hint = hints[socket.gethostname()]  # which is the id of the sandbox
    assert int(numpy.bitwise_xor.reduce(table)) == checksum, "the table has changed"
    thought.append(hint)
    columns = numpy.array([TERMS[name](x) for name in thought]).T
    weights, *_ = numpy.linalg.lstsq(columns, y, rcond=None)
    error = float(numpy.sqrt(numpy.mean((columns @ weights - y) ** 2)))
    with open("/root/notes.txt", "a") as notes:
        notes.write(f"{len(thought)}. {hint}: error {error:.4f}\\n")
    table[len(thought)] ^= 1  # a write of its own; seen by its children only
    globals()["checksum"] ^= 1
    return error
'''

# y = 2 - 0.5 x² + 0.8 sin 3x, with some noise.
MEASURE = """
import numpy
rng = numpy.random.default_rng(7)
x = numpy.linspace(0, 4, 200)
y = 2 - 0.5 * x**2 + 0.8 * numpy.sin(3 * x) + rng.normal(0, 0.02, 200)
numpy.savetxt("/root/measurements.csv", numpy.array([x, y]).T, delimiter=",")
"""


def ms(since: float) -> str:
    return f"{(time.monotonic() - since) * 1000:.0f} ms"


def prepare(box: Sandbox) -> None:
    """Make the state that every continuation starts from."""
    started = time.monotonic()
    box.eval(MEASURE)
    box.eval(SETUP)
    box.files.write("/root/notes.txt", "0. looked at the measurements\n")
    print(f"prepared {box.id} in {ms(started)}: a data file, notes, functions, a table of 50 MiB")


def expand(box: Sandbox, hints: "list[str]") -> "list[tuple[float, str, Sandbox]]":
    """Fork one continuation per hint and return them, the best first."""
    started = time.monotonic()
    children = box.fork(len(hints), timeout=LIFETIME)
    forked = ms(started)
    with ExitStack() as undo:
        for child in children:
            undo.callback(child.kill)
        chosen = {child.id: hint for child, hint in zip(children, hints)}
        errors = [outcome.get() for outcome in box.controller.eval_each(children, f"follow({chosen})")]
        undo.pop_all()
    print(f"  {len(children)} continuations forked from {box.id} in {forked}, all answered after {ms(started)}")
    return sorted(zip(errors, hints, children), key=lambda each: each[0])


def search(root: Sandbox, goal: float, most: int) -> Sandbox:
    """Go on from the best continuation until the error is small."""
    here = root
    hints = root.eval("list(TERMS)")
    for step in range(1, most + 1):
        print(f"step {step}:")
        ranked = expand(here, hints)
        for error, hint, child in ranked:
            private = child.info()["private_kib"] / 1024
            print(f"    {error:8.4f}  {hint:<12} {child.id}, {private:.1f} MiB of its own")
        (error, hint, best), others = ranked[0], ranked[1:]
        for _, _, child in others:
            child.kill()
        if here is not root:
            here.kill()
        here, hints = best, [h for h in hints if h != hint]
        print(f"  goes on with {hint!r}")
        if error <= goal or not hints:
            break
    return here


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tag", help="snapshot with a warm Python and numpy (FORKD_TAG, or pyagent)")
    parser.add_argument("--goal", type=float, default=0.03, help="stop at this error")
    parser.add_argument("--steps", type=int, default=4, help="at most so many terms")
    args = parser.parse_args()
    with Sandbox(args.tag) as root:
        prepare(root)
        best = search(root, args.goal, args.steps)
        try:
            print("the notes of the winner, with what it inherited from each step:")
            print("    " + best.files.read_text("/root/notes.txt").strip().replace("\n", "\n    "))
            print(f"what {root.id} has seen of all this: {root.eval('thought')}, {root.files.read_text('/root/notes.txt')!r}")
        finally:
            if best is not root:
                best.kill()


if __name__ == "__main__":
    main()
