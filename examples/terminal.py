#!/usr/bin/env python3
"""A shell with a terminal, as a person would use it, driven by a program.

    PYTHONPATH=sdk/python python3 examples/terminal.py
"""

import time

from forkd import Process, PtySize, Sandbox


def until(shell: Process, text: str) -> None:
    """Wait for something on the screen."""
    while text not in shell.stdout:
        time.sleep(0.01)


def main() -> None:
    with Sandbox() as box:
        shell = box.commands.start(["/bin/bash", "-i"], pty=PtySize(cols=100, rows=30), env={"TERM": "xterm", "PS1": "$ "})
        shell.send_stdin("stty size\n")
        until(shell, "30 100")
        # The program says itself that it runs: while the shell starts it, a key would reach the shell alone.
        shell.send_stdin("sh -c 'echo sleeping; exec sleep 600'\n")
        until(shell, "sleeping\r\n")
        shell.send_stdin("\x03")  # Ctrl-C ends the sleep, and not the shell
        shell.resize(cols=120, rows=40)
        shell.send_stdin("stty size; exit 7\n")
        end = shell.wait()
        print(end.stdout)
        print("the shell ended with", end.exit_code)


if __name__ == "__main__":
    main()
