#!/usr/bin/env python3
"""Processes that live on their own.

A process of commands.start belongs to the sandbox, not to the program that started
it: others can find it by its tag, listen to it and write to it, and it goes on in
the children of a fork.

    PYTHONPATH=sdk/python python3 examples/background.py
"""

from forkd import Sandbox

COUNTER = """
total = 0
while True:
    total += int(input())
    print("total", total, flush=True)
"""


def main() -> None:
    with Sandbox() as box:
        box.files.write("/root/counter.py", COUNTER)
        counter = box.commands.start("python3 /root/counter.py", stdin=True, tag="counter", on_stdout=show("first"))
        counter.send_stdin("40\n")
        box.commands.run("until pgrep -f counter.py; do sleep 0.05; done > /dev/null")
        # Nobody listens any more, and it goes on.
        counter.disconnect()
        print("running:", [(process.tag, process.exit_code) for process in box.commands.list()])

        again = box.commands.attach("counter")
        again.send_stdin("2\n")
        with box.fork()[0] as child:
            # The child has its own copy of the process, with what that has counted.
            theirs = child.commands.attach("counter", on_stdout=show("child"))
            theirs.send_stdin("1000\n")
            theirs.close_stdin()
            print("the child's ended with", theirs.wait().exit_code)
        again.close_stdin()
        print("ours said", again.wait().stdout.split("\n"))


def show(name: str):
    return lambda text: print(f"{name}: {text.strip()}")


if __name__ == "__main__":
    main()
