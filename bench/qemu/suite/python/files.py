# A tree of 500 small files.
import os

for i in range(500):
    directory = "/tmp/tree/dir%02d" % (i % 25)
    os.makedirs(directory, exist_ok=True)
    with open("%s/file%03d.txt" % (directory, i), "w") as f:
        for line in range(20 + i % 50):
            f.write("file %d line %d: %d\n" % (i, line, i * 7919 * line))
