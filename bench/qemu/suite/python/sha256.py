# SHA-256 of 64 MiB, from a buffer of one.
import hashlib

block = bytes(range(256)) * 4096
h = hashlib.sha256()
for _ in range(64):
    h.update(block)
print(h.hexdigest())
