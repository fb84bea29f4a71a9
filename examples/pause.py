#!/usr/bin/env python3
"""A session that is put aside and found again.

A paused sandbox uses no memory and outlives the daemon. It is found by its
metadata, and goes on where it stood: variables, files and processes. With
auto_resume it does so by itself when it is used.

    PYTHONPATH=sdk/python python3 examples/pause.py
"""

import uuid

from forkd import Controller, PausedError, Sandbox


def main() -> None:
    user = uuid.uuid4().hex
    with Controller() as forkd:
        box = Sandbox(controller=forkd, metadata={"user": user})
        try:
            box.eval("thought = ['a constant']")
            box.files.write("/root/notes.txt", "so far so good\n")
            print("paused at", box.pause()["paused_at"])
            try:
                box.eval("thought")
            except PausedError as err:
                print("not now:", err)

            # Another program, another day.
            (found,) = forkd.list_sandboxes(metadata={"user": user}, state="paused")
            again = Sandbox.connect(found["id"], controller=forkd)
            again.resume(timeout=600)
            again.eval("thought.append('a wave')")
            print(again.eval("thought"), again.files.read_text("/root/notes.txt").strip())
        finally:
            box.kill()


if __name__ == "__main__":
    main()
