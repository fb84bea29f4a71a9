# Sort a million integers.
import array
import hashlib
import random

values = array.array("q", random.Random(1).randbytes(8_000_000)).tolist()
values.sort()
print(hashlib.sha256(array.array("q", values).tobytes()).hexdigest())
